"""The held-out loss: sums over the split, divided once; a pass of its own for every run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.evaluate.results import LossEvaluator
from t5x_lite.objectives.base import Loss, Roc, Term

# Rows of a value and a weight; the last batch is filled up with a row of weight 0.
BATCHES = [
    {"value": np.array([[1.0], [2.0]], np.float32), "weight": np.array([[1.0], [1.0]], np.float32)},
    {"value": np.array([[6.0], [9.0]], np.float32), "weight": np.array([[2.0], [0.0]], np.float32)},
]


def loss_function(params, batch):
    weight = jnp.sum(batch["weight"])
    total = jnp.sum(batch["value"] * batch["weight"]) * params["scale"]
    return Loss(
        terms={"main": Term(total, weight), "penalty": Term(weight, weight, 10.0)},
        metrics={
            "accuracy": (jnp.sum(batch["value"] > 1.5), weight),
            "none": (total * 0, total * 0),
        },
    )


def evaluator(batches, *, loss_function=loss_function):
    return LossEvaluator(loss_function, batches, mesh=make_mesh(MeshConfig()))


def test_sums_are_divided_once():
    # (1 + 2 + 2 * 6) / 4, and the penalty: the mean of the batches' means would be 3.75.
    assert evaluator(lambda: BATCHES).run({"scale": jnp.float32(1)}) == {
        "loss": 3.75 + 10.0,
        "accuracy": 0.75,
        "none": 0.0,
    }
    uneven = [BATCHES[0], {name: value[:1] * 3 for name, value in BATCHES[1].items()}]
    # Weights 2 and 6: (3 + 18 * 6) / 8.
    assert evaluator(lambda: uneven).run({"scale": jnp.float32(1)})["loss"] == 111 / 8 + 10


def test_a_curve_is_that_of_the_whole_split():
    def ranks(params, batch):
        value, weight = batch["value"][:, 0], batch["weight"][:, 0]
        loss = loss_function(params, batch)
        return loss._replace(metrics={"auc": Roc.of(value, value > 1.5, weight)})

    got = evaluator(lambda: BATCHES, loss_function=ranks)
    assert got.run({"scale": jnp.float32(1)})["auc"] == 1.0
    assert got.names({"scale": jnp.float32(1)}) == ["loss", "auc"]


def test_every_run_reads_the_split_anew_and_takes_its_parameters():
    passes = []

    def batches():
        passes.append(1)
        return iter(BATCHES)

    measured = evaluator(batches)
    losses = [measured.run({"scale": jnp.float32(s)})["loss"] for s in (1, 2, 1)]
    assert losses == [13.75, 17.5, 13.75]
    assert len(passes) == 3


def test_float64_sums_do_not_lose_small_parts():
    one = {name: np.ones((1, 1), np.float32) for name in ("value", "weight")}
    large = {"value": np.full((1, 1), 2.0**25, np.float32), "weight": np.ones((1, 1), np.float32)}

    def plain(params, batch):
        return Loss(terms={"t": Term(jnp.sum(batch["value"]), jnp.float32(0.5))}, metrics={})

    got = evaluator(lambda: [large, one, one, one], loss_function=plain).run({})
    assert got["loss"] == pytest.approx((2.0**25 + 3) / 2, abs=0.5)


def test_names_need_no_parameters():
    shapes = {"scale": jax.ShapeDtypeStruct((), jnp.float32)}
    assert evaluator(lambda: BATCHES).names(shapes) == ["loss", "accuracy", "none"]


def test_no_batch_is_an_error():
    with pytest.raises(ValueError, match="the evaluation split yields no batch"):
        evaluator(list).run({"scale": jnp.float32(1)})
