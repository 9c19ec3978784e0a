"""What is measured during training and by `evaluate`, and the files that it leaves."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from t5x_lite import config, layouts
from t5x_lite.commands.texts import cache
from t5x_lite.config import Evaluation
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Loaded, load_using
from t5x_lite.metrics.runs import BEIR_METRICS
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.train import measuring
from t5x_lite.train.measuring import Measurement, evaluate
from tests.config_files import saved
from tests.encoder_checkpoint import write_checkpoint


@pytest.fixture(scope="module")
def labelled(tiny_experiment, tiny_glue):
    """The tiny experiment on a labelled task, which has eight examples to validate."""
    data = dataclasses.replace(
        tiny_experiment.data, task="tasks.glue:sst2", directory=str(tiny_glue)
    )
    evaluation = Evaluation(max_decode_length=8, num_samples=3)
    return dataclasses.replace(tiny_experiment, data=data, evaluation=evaluation)


@pytest.fixture(scope="module")
def evaluated(tiny_run, labelled, tmp_path_factory, compile_once):
    """The metrics of the labelled task, and the directory that evaluate wrote."""
    output = tmp_path_factory.mktemp("evaluated") / "a" / "b"
    return evaluate(labelled, [str(tiny_run)], output=str(output)), output


LOSSES = [
    "validation/loss",
    "validation/cross_entropy",
    "validation/token_accuracy",
    "validation/z_loss",
]


def test_modules_that_a_checkpoint_lacks(tiny_run, labelled):
    """The error comes before anything is read; the base alone is what it is."""
    with pytest.raises(
        InputError, match=r"adapters.use: checkpoint \S+: no adapter has the name 'rte'; there"
    ):
        evaluate(labelled, [str(tiny_run)], use="rte")
    with pytest.raises(InputError, match=r"adapters.use: checkpoint \S+: column 6 of 'rte \+'"):
        load_using(str(tiny_run), use="rte +")
    assert load_using(str(tiny_run), use=" ").learner.adapters == ()


def measurement(tiny_run, experiment, *, workdir=None):
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    mesh = make_mesh(MeshConfig())
    return Measurement(
        experiment, loaded.learner, loaded.vocabulary, mesh=mesh, workdir=workdir
    ), loaded


@pytest.mark.slow
def test_names_are_those_of_the_metrics(tiny_run, labelled, evaluated):
    made, loaded = measurement(tiny_run, labelled)
    assert made.names(loaded.learner.shapes) == [*LOSSES, "validation/accuracy", "validation/score"]
    assert list(evaluated[0]) == [*LOSSES, "validation/accuracy", "validation/score"]


def test_samples_are_added_at_every_evaluation(tiny_run, labelled, tmp_path):
    few = dataclasses.replace(
        labelled,
        evaluation=Evaluation(
            loss=False,
            max_examples=4,
            max_decode_length=4,
            num_samples=3,
            class_metrics=("macro_f1", "weighted_f1"),
        ),
    )
    made, loaded = measurement(tiny_run, few, workdir=tmp_path)
    names = ["accuracy", "macro_f1", "weighted_f1", "score"]
    assert made.names(loaded.params) == [f"validation/{name}" for name in names]
    metrics = made(5, loaded.params)
    assert list(metrics) == [f"validation/{name}" for name in names]
    assert metrics["validation/score"] == metrics["validation/accuracy"]
    made(10, loaded.params)
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    assert [sample["step"] for sample in samples] == [5, 5, 5, 10, 10, 10]
    assert [list(sample) for sample in samples] == [["step", "inputs", "targets", "prediction"]] * 6
    assert samples[0]["inputs"].startswith("sst2 sentence: ")
    assert [sample["targets"] for sample in samples[:3]] == ["negative", "positive", "negative"]
    lines = (tmp_path / "classes.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert (first["step"], second["step"], first["task"]) == (5, 10, "glue_sst2")
    assert list(first["classes"]) == ["negative", "positive"]
    assert [sum(row) for row in first["confusion"]] == [2, 2]
    assert first["averages"]["macro average"]["f1"] == metrics["validation/macro_f1"]


@pytest.mark.slow
def test_the_loss_of_each_cache(tiny_run, tiny_experiment, tmp_path):
    """One compiled program; that of all is their mean, weighted by tokens."""
    for name in ("en", "sw"):
        output = str(tmp_path / name)
        cache(saved(tiny_experiment, tmp_path), output=output, splits=("validation",))
    caches = tuple(f"{tmp_path / name}={rate}" for name, rate in (("en", 1), ("sw", 1)))
    both = dataclasses.replace(
        tiny_experiment,
        data=dataclasses.replace(tiny_experiment.data, cache=caches),
        evaluation=Evaluation(loss_of_each_cache=True),
    )
    made, loaded = measurement(tiny_run, both)
    names = [*LOSSES, "validation/en/loss", "validation/sw/loss"]
    assert made.names(loaded.learner.shapes) == names
    found = made(5, loaded.params)
    assert list(found) == names
    assert found["validation/en/loss"] == found["validation/sw/loss"]
    np.testing.assert_allclose(found["validation/en/loss"], found["validation/loss"], rtol=0.02)
    with pytest.raises(InputError, match="needs the held-out loss"):
        Evaluation(loss=False, loss_of_each_cache=True)


@pytest.mark.slow
def test_a_task_without_metrics_has_its_loss(tiny_run, tiny_experiment):
    made, loaded = measurement(tiny_run, tiny_experiment)
    assert not made.evaluators
    assert made.names(loaded.learner.shapes) == LOSSES


def test_evaluate_writes_metrics_and_predictions(evaluated, tiny_glue):
    metrics, output = evaluated
    assert sorted(path.name for path in output.iterdir()) == [
        "classes.jsonl",
        "metrics.json",
        "predictions.jsonl",
    ]
    content = json.loads((output / "metrics.json").read_text())
    assert 0 <= content.pop("invalid_predictions") <= 8
    assert content == {"step": 10, **metrics}
    predictions = [
        json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()
    ]
    rows = Path(tiny_glue, "SST-2", "dev.tsv").read_text().splitlines()[1:]
    assert len(predictions) == len(rows) == 8
    for prediction, row in zip(predictions, rows, strict=True):
        sentence, label = row.split("\t")
        assert list(prediction) == ["inputs", "targets", "prediction"]
        assert prediction["inputs"].removeprefix("sst2 sentence: ") == sentence
        assert prediction["targets"] == ("negative", "positive")[int(label)]
    right = sum(p["prediction"] == p["targets"] for p in predictions)
    assert metrics["validation/accuracy"] == right / 8
    assert 4 < metrics["validation/loss"] < 8


@pytest.mark.slow
def test_evaluate_prints_one_line_of_json(tiny_run, tiny_experiment, capsys):
    loss_only = dataclasses.replace(tiny_experiment, evaluation=Evaluation(max_batches=1))
    metrics = evaluate(loss_only, [str(tiny_run)], step=5)
    assert json.loads(capsys.readouterr().out) == {"step": 5, **metrics}


@pytest.mark.slow
def test_an_ensemble_has_the_task_s_metrics_alone(tiny_run, labelled, capsys, caplog, tmp_path):
    caplog.set_level("INFO", logger="t5x_lite")
    few = dataclasses.replace(labelled, evaluation=Evaluation(max_examples=4, max_decode_length=4))
    steps = [str(tiny_run / "checkpoints" / step) for step in ("10", "5")]
    metrics = evaluate(few, steps, output=str(tmp_path / "out"))
    assert list(metrics) == ["validation/accuracy", "validation/score"]
    assert json.loads(capsys.readouterr().out) == {"step": [10, 5], **metrics}
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["step"] == [10, 5]
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 4
    told = (
        "computing only task metrics, because a held-out loss is not supported for several "
        "checkpoints (an ensemble)"
    )
    assert caplog.messages[0] == told


def test_an_ensemble_on_a_task_without_metrics_is_refused(tiny_run, tiny_experiment):
    with pytest.raises(InputError, match="has no metrics, and a held-out loss is not supported"):
        evaluate(tiny_experiment, [str(tiny_run), str(tiny_run)])


@pytest.mark.slow
def test_labels_are_ranked(tiny_run, labelled, tmp_path):
    ranked = dataclasses.replace(labelled, evaluation=Evaluation(loss=False, rank=True))
    metrics = evaluate(ranked, [str(tiny_run)], output=str(tmp_path))
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    predictions = [json.loads(line) for line in lines]
    assert {p["prediction"] for p in predictions} <= {"negative", "positive"}
    right = sum(p["prediction"] == p["targets"] for p in predictions)
    assert metrics == {"validation/accuracy": right / 8, "validation/score": right / 8}
    # By hand: the likelier of the two words.
    model = Checkpoint.load([str(tiny_run)])
    inputs = model.inputs([predictions[0]["inputs"]])[0] * 2
    scores = model.scorer(batch_size=2).run(
        model.params, inputs, model.targets(["negative", "positive"])
    )
    likelier = ("negative", "positive")[scores.index(max(scores))]
    assert predictions[0]["prediction"] == likelier


def test_a_task_without_labels_cannot_be_ranked(tiny_run, tiny_experiment):
    ranked = dataclasses.replace(tiny_experiment, evaluation=Evaluation(rank=True))
    with pytest.raises(InputError, match="needs a task with a fixed set of labels"):
        evaluate(ranked, [str(tiny_run)])


@pytest.mark.slow
def test_beams_answer(tiny_run, labelled):
    evaluation = Evaluation(
        loss=False, max_examples=2, max_decode_length=4, num_beams=2, length_penalty=1.0
    )
    wide = dataclasses.replace(labelled, evaluation=evaluation)
    assert list(evaluate(wide, [str(tiny_run)])) == ["validation/accuracy", "validation/score"]


@pytest.mark.slow
def test_a_vocabulary_that_is_gone_is_that_of_the_checkpoint(tiny_run, tiny_experiment, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    data = dataclasses.replace(tiny_experiment.data, vocabulary="work/vocabulary")
    elsewhere = dataclasses.replace(
        tiny_experiment, data=data, evaluation=Evaluation(max_batches=1)
    )
    assert evaluate(elsewhere, [str(tiny_run)])["validation/loss"] > 4
    assert caplog.messages == [
        "data.vocabulary work/vocabulary does not exist here; using the vocabulary of "
        f"checkpoint {tiny_run}/checkpoints/10"
    ]


def test_other_words_than_in_training_are_told(tiny_run, labelled, caplog):
    [member] = Checkpoint.load([str(tiny_run)]).members
    trained = dataclasses.replace(member, experiment=labelled)
    measuring._tell_other_words(trained, labelled.data)
    worded = dataclasses.replace(
        labelled.data, prefix="", layout=layouts.PrefixLM(separator=" target:")
    )
    assert caplog.messages == []
    measuring._tell_other_words(trained, worded)
    ends, words = caplog.messages
    assert ends.endswith("with PrefixLM(separator=' target:'), which ends inputs differently")
    assert words.endswith("data.template '' and data.prefix None, but is evaluated with '' and ''")
    measuring._tell_other_words(member, dataclasses.replace(labelled.data, prefix="x"))
    assert len(caplog.messages) == 2


def test_another_vocabulary_is_refused(tiny_run, labelled, tmp_path):
    data = dataclasses.replace(labelled.data, extra_ids=90)
    with pytest.raises(
        InputError, match=r"differs from the vocabulary of the checkpoint .*; use --data\.v"
    ):
        evaluate(dataclasses.replace(labelled, data=data), [str(tiny_run)])


@pytest.mark.slow
def test_retrieval_needs_neither_data_nor_task(tmp_path, capsys, monkeypatch, compile_once):
    monkeypatch.chdir(Path(__file__).parents[2])
    pytest.importorskip("pytrec_eval")
    checkpoint = write_checkpoint(tmp_path, "bert")
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", ["b c", "a d", "c c"]), ("queries", ["c c"])):
        lines = [json.dumps({"_id": f"{name}{i}", "text": text}) for i, text in enumerate(texts)]
        (tmp_path / "beir" / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("\nqueries0\tcorpus2\t1\n")
    experiment = config.load(
        "configs/retrieve/beir.py",
        ["--evaluation.retrieval.directory", str(tmp_path / "beir")],
    )
    metrics = evaluate(experiment, [str(checkpoint)], output=str(tmp_path / "out"))
    assert metrics == dict.fromkeys([f"test/{name}" for name in BEIR_METRICS], 1.0)
    assert json.loads(capsys.readouterr().out)["test/mrr_at_10"] == 1.0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "metrics.json",
        "rankings.trec",
    ]
    lines = (tmp_path / "out" / "rankings.trec").read_text().splitlines()
    assert lines[0].split()[:4] == ["queries0", "Q0", "corpus2", "1"]
    assert len(lines) == 3
    with pytest.raises(
        InputError, match=r"evaluation\.retrieval does not support several checkpoints"
    ):
        evaluate(experiment, [str(checkpoint), str(checkpoint)])
    # The data of the config would not fit every objective: the checkpoint's own stay.
    loaded = Loaded.from_checkpoint(str(checkpoint), step=None)
    own = loaded.experiment
    data = dataclasses.replace(own.data, layout=layouts.Groups(), pack=False)
    trained = dataclasses.replace(own, objective=Contrastive(), data=data)
    model = Checkpoint((dataclasses.replace(loaded, experiment=trained),), 16)
    [member] = measuring.as_configured(model, experiment).members
    assert member.experiment.data == data
    assert member.experiment.evaluation == experiment.evaluation
    made = Measurement(
        member.experiment,
        member.learner,
        loaded.vocabulary,
        mesh=make_mesh(MeshConfig()),
        workdir=None,
    )
    assert made.names(loaded.learner.shapes) == list(metrics)
    nothing = config.load("configs/retrieve/beir.py")
    with pytest.raises(InputError, match=r"nothing to evaluate; pass .*retrieval\.directory DIR"):
        evaluate(nothing, [str(checkpoint)])


def test_rows_longer_than_the_table_of_positions_are_refused(tmp_path):
    checkpoint = write_checkpoint(tmp_path, "bert")
    own = Loaded.from_checkpoint(str(checkpoint), step=None).experiment
    longer = dataclasses.replace(own, data=dataclasses.replace(own.data, inputs_length=1000))
    with pytest.raises(
        InputError, match=r"inputs_length is 1000 tokens, but model has only \d+ positions"
    ):
        evaluate(longer, [str(checkpoint)])


def test_an_output_in_a_bucket_is_refused(tiny_run, labelled, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"--output gs://b/x must be a local path"):
        evaluate(labelled, [str(tiny_run)], output="gs://b/x")
    assert not any(tmp_path.iterdir())


def test_an_output_that_is_a_file_is_refused(tiny_run, labelled, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="is not a directory"):
        evaluate(labelled, [str(tiny_run)], output=str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "mine"
