"""Training with batches of several shapes: its programs, its losses, and how it goes on."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.config.batches import batch_flops, step_flops
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache.making import write_cache
from t5x_lite.data.config import Bucketed, Data, Fixed, shapes_of
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.evaluate.results import LossEvaluator
from t5x_lite.inference.loading import Loaded, learner_of
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train import training
from tests import tokenizer_files


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, vocabulary):
    """Ten sentences to train on and five to validate, of 3 to 12 letters."""
    directory = tmp_path_factory.mktemp("sst2")
    (directory / "SST-2").mkdir()
    for name, sizes in (("train", (3, 9, 4, 6, 12, 5, 3, 7, 4, 11)), ("dev", (3, 12, 5, 9, 4))):
        rows = (f"{' '.join('abcdefghijkl'[:size])}\t{size % 2}\n" for size in sizes)
        (directory / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    (directory / "SST-2" / "test.tsv").write_text("index\tsentence\n0\ta b c\n")
    data = Data(
        task="tasks.glue:sst2",
        vocabulary=str(vocabulary.model_path),
        directory=str(directory),
        layout=layouts.Labelled(),
        batches=Bucketed({8: 4, 16: 2}),
        batch_size=2,
        inputs_length=16,
        pack=False,
    )
    write_cache(data, vocabulary, directory / "cache")
    model = BertConfig(
        vocab_size=120, d_model=8, d_ff=16, num_heads=2, num_layers=1, max_positions=16
    )
    return Experiment(
        model=model.replace(dropout_rate=0.0),
        objective=Classify(num_classes=2),
        data=dataclasses.replace(data, cache=str(directory / "cache")),
        optimizer=AdamW(schedule=Constant(value=0.01)),
        steps=6,
        log_period=1,
        checkpoints=Checkpoints(period=3),
        evaluation=Evaluation(period=6, task_metrics=False),
    )


@pytest.fixture
def steps(monkeypatch):
    """The compiled steps of the runs."""
    found = []
    make = training.make_train_step

    def keep(*args, **options):
        found.append(make(*args, **options))
        return found[-1]

    monkeypatch.setattr(training, "make_train_step", keep)
    return found


def params_of(workdir):
    return Loaded.from_checkpoint(str(workdir), step=6).params


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.gate("True")
@pytest.mark.slow
def test_a_run_compiles_a_program_a_shape_and_goes_on(experiment, tmp_path, steps, cached):
    if not cached:
        data = dataclasses.replace(experiment.data, cache="")
        experiment = dataclasses.replace(experiment, data=data)
    whole = dataclasses.replace(experiment, workdir=str(tmp_path / "whole"))
    training.train(whole)
    (step,) = steps
    assert step._cache_size() == 2
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    logged = {record["step"]: record for record in records if "loss" in record}
    assert sorted(logged) == [1, 2, 3, 4, 5, 6]
    assert all(np.isfinite(record["loss"]) for record in logged.values())
    # The first step of each shape compiles, and has no rates.
    assert sum("tokens_per_second" not in record for record in logged.values()) == 2
    parts = dataclasses.replace(whole, workdir=str(tmp_path / "parts"))
    training.train(dataclasses.replace(parts, steps=3))
    training.train(parts)
    jax.tree.map(
        np.testing.assert_array_equal, params_of(tmp_path / "whole"), params_of(tmp_path / "parts")
    )


@pytest.mark.slow
def test_the_held_out_loss_is_that_of_rows_padded_to_the_longest(experiment, vocabulary):
    learner = learner_of(experiment)
    params = learner.init(jax.random.key(0))
    found, shapes = [], []
    for batches in (experiment.data.batches, Fixed()):
        data = dataclasses.replace(experiment.data, batches=batches)
        given = list(data_batches.eval_batches(data, vocabulary))
        shapes.append([batch["encoder_input_tokens"].shape for batch in given])
        mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
        found.append(LossEvaluator(learner.whole_loss, lambda g=given: g, mesh=mesh).run(params))
    assert shapes == [[(2, 16), (4, 8)], [(2, 16)] * 3]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_bucket_has_the_loss_and_the_gradient_of_the_same_rows_padded_to_the_longest(
    experiment, vocabulary
):
    learner = learner_of(experiment)
    params = learner.init(jax.random.key(1))
    batches = data_batches.train_batches(experiment.data, vocabulary, seed=0)
    batch = next(batch for batch in batches if len(batch["encoder_input_tokens"]) == 4)
    batches.close()
    padded = {
        name: np.pad(value, ((0, 0), (0, 8))) if value.shape[1:] == (8,) else value
        for name, value in batch.items()
    }
    assert padded["encoder_input_tokens"].shape == (4, 16)

    def value(params, batch):
        return learner.whole_loss(params, batch).value()

    gradient = jax.jit(jax.value_and_grad(value))
    one, other = (gradient(params, given) for given in (batch, padded))
    np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one[1], other[1])


def test_flops_are_those_of_the_batchs_own_shape(experiment, vocabulary):
    flops = batch_flops(experiment)
    batches = data_batches.train_batches(experiment.data, vocabulary, seed=0)
    found = {flops(batch) for _, batch in zip(range(6), batches, strict=False)}
    batches.close()
    alone = [dataclasses.replace(experiment, data=shape) for shape in shapes_of(experiment.data)]
    assert found == {step_flops(each) for each in alone}
    assert len(found) == 2
    assert step_flops(experiment) == step_flops(alone[1])
