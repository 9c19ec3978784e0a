"""A language model that is trained on "inputs target: targets", from the task to its answers.

Raffel et al. 2020, section 3.2.1: what predicts, scores and ranks ends the inputs as training did.
"""

import dataclasses
import json

import jax.numpy as jnp
import pytest

import t5x_lite
from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.models.lm import LMConfig
from t5x_lite.objectives.likelihood import LanguageModel, cross_entropy
from t5x_lite.train.measuring import evaluate
from tests.config_files import saved

LAYOUT = layouts.PrefixLM(separator=" target:")


@pytest.fixture(scope="module")
def experiment(tiny_experiment, tiny_glue):
    """Three steps of a prefix language model on SST-2."""
    data = dataclasses.replace(
        tiny_experiment.data,
        task="tasks.glue:sst2",
        directory=str(tiny_glue),
        layout=LAYOUT,
        inputs_length=40,
        targets_length=12,
    )
    model = LMConfig(
        vocab_size=400, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=1, prefix=True
    )
    return dataclasses.replace(
        tiny_experiment,
        model=model,
        objective=LanguageModel(),
        data=data,
        steps=3,
        checkpoints=Checkpoints(period=3),
        evaluation=Evaluation(period=3, max_batches=1, max_decode_length=4, rank=True),
    )


@pytest.fixture(scope="module")
def run(experiment, tmp_path_factory, compile_once):
    from t5x_lite.train.training import train

    workdir = tmp_path_factory.mktemp("separator") / "run"
    train(dataclasses.replace(experiment, workdir=str(workdir)))
    return workdir


@pytest.mark.exhaustive
def test_a_score_is_that_of_the_row_of_training(run):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import reading

    loaded = Checkpoint.load([str(run)])
    data = dataclasses.replace(loaded.members[0].experiment.data, pack=False)
    example, *_ = reading.eval_examples(data, loaded.vocabulary)
    batch = next(data_batches.eval_batches(data, loaded.vocabulary))
    row = {name: jnp.asarray(value[:1]) for name, value in batch.items()}
    model = loaded.bind(loaded.params)
    logits = model(
        row["decoder_input_tokens"], decoder_causal_attention=row["decoder_causal_attention"]
    )
    losses, _ = cross_entropy(logits, row["decoder_target_tokens"])
    expected = -float(jnp.sum(losses * row["decoder_loss_weights"]))
    [score] = t5x_lite.load(run).score([(example.inputs_text, example.targets_text)])
    assert score == pytest.approx(expected, abs=1e-4)
    [ranking] = t5x_lite.load(run).rank([example.inputs_text], ["negative", "positive"])
    assert score == pytest.approx(
        ranking.scores[["negative", "positive"].index(example.targets_text)]
    )


@pytest.mark.slow
def test_answers_are_those_of_evaluate(run, experiment, tmp_path):
    from t5x_lite.commands.answers import predict, score

    settings = dataclasses.replace(experiment.evaluation, loss=False, num_samples=8)
    for rank in (False, True):
        settings = dataclasses.replace(settings, rank=rank)
        output = tmp_path / f"rank {rank}"
        evaluate(
            dataclasses.replace(experiment, evaluation=settings), [str(run)], output=str(output)
        )
        answers = [
            json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()
        ]
        source, target = tmp_path / f"in {rank}.jsonl", tmp_path / f"out {rank}.jsonl"
        source.write_text("".join(json.dumps({"inputs": a["inputs"]}) + "\n" for a in answers))
        if rank:
            labels = tmp_path / "labels"
            labels.write_text("negative\npositive\n")
            score([str(run)], input=str(source), output=str(target), candidates=str(labels))
        else:
            predict([str(run)], input=str(source), output=str(target), max_decode_length=4)
        given = [json.loads(line)["prediction"] for line in target.read_text().splitlines()]
        assert given == [answer["prediction"] for answer in answers]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layout": layouts.PrefixLM()},
            "data.layout.separator is ' target:' in the saved config and '' now",
        ),
        (
            {"template": "{sentence}"},
            "data.template is '' in the saved config and '{sentence}' now",
        ),
        ({"prefix": ""}, "data.prefix is None in the saved config and '' now"),
    ],
)
def test_a_run_goes_on_with_its_own_words(run, experiment, changes, message):
    from t5x_lite.train.training import train

    data = dataclasses.replace(experiment.data, **changes)
    with pytest.raises(InputError) as error:
        train(dataclasses.replace(experiment, data=data, workdir=str(run), steps=4))
    assert message in str(error.value)


@pytest.mark.slow
def test_a_cache_has_the_same_loss(run, experiment, tmp_path):
    from t5x_lite.commands.texts import cache

    settings = dataclasses.replace(experiment.evaluation, task_metrics=False, max_batches=None)
    live = dataclasses.replace(experiment, evaluation=settings)
    cache(saved(experiment, tmp_path), output=str(tmp_path / "cache"), splits=["validation"])
    data = dataclasses.replace(experiment.data, cache=str(tmp_path / "cache"))
    from_cache = evaluate(dataclasses.replace(live, data=data), [str(run)])
    assert from_cache == pytest.approx(evaluate(live, [str(run)]), abs=1e-5)
