"""Several updates of one step: each trains its part, and begins where the one before has ended."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.objectives.base import Loss, Term
from t5x_lite.optim.partial import Update, check_updates, joint_optimizer
from t5x_lite.train.step import init_state, make_train_step, state_shardings

PARAMS = {"a": {"w": np.float32(2)}, "b": {"w": np.float32(3), "v": np.float32(1)}}
AXES = {"a": {"w": ()}, "b": {"w": (), "v": ()}}
BATCH = {"x": np.array([[1.0], [2.0], [5.0], [4.0]], np.float32)}


def first_loss(params, batch, key):
    """w_a * mean(x); leaves x * w_a for the second."""
    del key
    y = params["a"]["w"] * batch["x"]
    metrics = {"first": (jnp.sum(y), jnp.float32(y.size))}
    return Loss(
        terms={"first": Term(jnp.sum(y), jnp.float32(y.size))},
        metrics=metrics,
        features={"y": jax.lax.stop_gradient(y)},
    )


def second_loss(params, batch, key):
    """(w_b + w_a) * mean(y): y of the first w_a, and w_a of now."""
    del key
    total = jnp.sum((params["b"]["w"] + params["b"]["v"] * params["a"]["w"]) * batch["y"])
    weight = jnp.float32(batch["x"].size)
    return Loss(terms={"second": Term(total, weight)}, metrics={"second": (total, weight)})


def descent(rate):
    def update(grads, state, params):
        del params
        return jax.tree.map(lambda grad: -rate * grad, grads), {"count": state["count"] + 1}

    return optax.GradientTransformation(lambda _: {"count": jnp.int32(0)}, update)


UPDATES = (
    Update(first_loss, descent(0.1), lambda _: 0.1, "one", lambda path: path.startswith("a/")),
    Update(second_loss, descent(0.01), lambda _: 0.01, "two", lambda path: path.startswith("b/")),
)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_two_updates_by_hand(microbatches):
    mesh = make_mesh(MeshConfig())
    layout = state_shardings(mesh, AXES, {"one": {"count": ()}, "two": {"count": ()}})
    optimizer = joint_optimizer(UPDATES)
    state = init_state(lambda _: jax.tree.map(jnp.asarray, PARAMS), optimizer, layout, seed=0)
    step = make_train_step(UPDATES, mesh=mesh, layout=layout, seed=0, microbatches=microbatches)
    state, metrics = step(state, BATCH)
    # w_a: 2 - 0.1 * 3 = 1.7. The second has y = 2 x, of mean 6, and (3 + 1 * 1.7) * 6 = 28.2;
    # w_b: 3 - 0.01 * 6, v: 1 - 0.01 * 1.7 * 6. Its loss moves w_a no further.
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {
            "loss": 6 + 28.2,
            "learning_rate": 0.1,
            "gradient_norm": np.sqrt(3**2 + 6**2 + 10.2**2),
            "one_learning_rate": 0.1,
            "one_gradient_norm": 3.0,
            "two_learning_rate": 0.01,
            "two_gradient_norm": np.sqrt(6**2 + 10.2**2),
            "first": 6.0,
            "second": 28.2,
        }
    )
    got = jax.tree.map(float, state.params)
    assert got["a"] == pytest.approx({"w": 1.7})
    assert got["b"] == pytest.approx({"w": 2.94, "v": 0.898})
    assert jax.tree.map(int, state.optimizer) == {"one": {"count": 1}, "two": {"count": 1}}


def test_one_update_has_the_state_of_its_optimizer():
    optimizer = descent(0.1)
    assert joint_optimizer([Update(first_loss, optimizer, lambda _: 0.1)]) is optimizer
    with pytest.raises(TypeError, match="no joint optimizer"):
        joint_optimizer(UPDATES).update({}, {}, {})


def test_numbers_that_follow_from_the_step():
    update = Update(lambda *_: None, optax.sgd(0.1), lambda step: 0.1)
    params = {"a": {"share": 1.0, "w": 2.0}}
    assert update.at_step(params, 3) is params
    halved = dataclasses.replace(update, scheduled=lambda step: {"a/share": 1 / (1 + step)})
    assert halved.at_step(params, 3) == {"a": {"share": 0.25, "w": 2.0}}


def test_every_path_is_trained_once():
    check_updates(UPDATES, ["a/w", "b/w", "b/v"])
    with pytest.raises(ValueError, match=r"exactly one update; wrong counts: c/w \(0\)"):
        check_updates(UPDATES, ["a/w", "c/w"])
    with pytest.raises(ValueError, match=r"a/w \(2\)"):
        check_updates([*UPDATES, Update(first_loss, descent(0.1), float, "three")], ["a/w"])
    with pytest.raises(ValueError, match=r"must have different names, got \['one', 'one'\]"):
        check_updates([UPDATES[0], UPDATES[0]], [])
