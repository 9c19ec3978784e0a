"""The train step: the gradient of quotients of sums, its metrics, and the key of each step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.core.sharding import MeshConfig, Parts, make_mesh
from t5x_lite.objectives.base import Loss, Term
from t5x_lite.optim.partial import Update
from t5x_lite.train.step import init_state, make_train_step, state_shardings

BATCH = {"x": np.array([[1.0], [2.0], [5.0]], np.float32)}


def loss_function(params, batch, key):
    """Two terms: w * (1 + 2 + 5) / 3 and, scaled by 10, w^2 / 2."""
    del key
    w, x = params["w"], batch["x"]
    return Loss(
        terms={
            "linear": Term(jnp.sum(w * x), jnp.float32(x.size)),
            "square": Term(w * w, jnp.float32(2), 10.0),
        },
        metrics={"accuracy": (jnp.float32(3), jnp.float32(4)), "empty": (w * 0, w * 0)},
    )


def schedule(step):
    """0.5, 0.4, 0.3, ..."""
    return 0.5 - 0.1 * step


def descend(grads, state, params):
    """Gradient descent."""
    del params
    rate = schedule(state["count"])
    return jax.tree.map(lambda grad: -rate * grad, grads), {"count": state["count"] + 1}


def made(loss_function, *, seed=0, microbatches=1):
    """A state with w = 2 and the step function."""
    mesh = make_mesh(MeshConfig())
    optimizer = optax.GradientTransformation(lambda _: {"count": jnp.int32(0)}, descend)
    layout = state_shardings(mesh, {"w": ()}, {"count": ()})
    state = init_state(lambda _: {"w": jnp.float32(2)}, optimizer, layout, seed=seed)
    step = make_train_step(
        [Update(loss_function, optimizer, schedule)],
        mesh=mesh,
        layout=layout,
        seed=seed,
        microbatches=microbatches,
    )
    return state, step


def test_one_step_by_hand():
    state, step = made(loss_function)
    state, metrics = step(state, BATCH)
    # loss = 2 * 8/3 + 10 * 4/2; its derivative 8/3 + 10 * 2 = 22.667; w = 2 - 0.5 * 22.667
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {
            "loss": 2 * 8 / 3 + 20,
            "learning_rate": 0.5,
            "gradient_norm": 8 / 3 + 20,
            "accuracy": 0.75,
            "empty": 0.0,
        }
    )
    assert all(value.dtype == jnp.float32 for value in metrics.values())
    assert float(state.params["w"]) == pytest.approx(2 - 0.5 * (8 / 3 + 20))
    assert int(state.step) == 1
    _, metrics = step(state, BATCH)
    assert float(metrics["learning_rate"]) == pytest.approx(0.4)


def test_the_state_is_donated():
    state, step = made(loss_function)
    step(state, BATCH)
    assert state.params["w"].is_deleted()


def drawn(params, batch, key):
    """A loss whose metric shows the key that the step was given."""
    number = jax.random.uniform(key)
    zero = jnp.sum(params["w"] * 0) + jnp.sum(batch["x"]) * 0
    return Loss(terms={"t": Term(zero, jnp.float32(1))}, metrics={"u": (number, jnp.float32(1))})


def test_the_key_is_a_function_of_seed_and_step():
    state, step = made(drawn, seed=7)
    numbers = []
    for _ in range(3):
        state, metrics = step(state, BATCH)
        numbers.append(float(metrics["u"]))
    base = jax.random.fold_in(jax.random.key(7), 1)
    assert numbers == [float(jax.random.uniform(jax.random.fold_in(base, i))) for i in range(3)]
    assert len(set(numbers)) == 3


def test_another_seed_draws_other_numbers():
    numbers = []
    for seed in (1, 2):
        state, step = made(drawn, seed=seed)
        numbers.append(float(step(state, BATCH)[1]["u"]))
    assert numbers[0] != numbers[1]


ROWS = {
    "x": np.array([[1.0, 2.0], [3.0, 0.0], [5.0, 0.0], [0.0, 0.0]], np.float32),
    "first": np.array([[1, 1], [1, 0], [1, 0], [0, 0]], np.float32),
    "second": np.array([[1, 0], [0, 0], [1, 0], [0, 0]], np.float32),
}


def uneven(params, batch, key):
    """Two terms, whose weights lie otherwise in every microbatch: 4 and 2 in all."""
    del key
    y = params["w"] * batch["x"]
    first, second = batch["first"], batch["second"]
    return Loss(
        terms={
            "first": Term(jnp.sum(y * first), jnp.sum(first)),
            "second": Term(jnp.sum(y**2 * second), jnp.sum(second), 10.0),
        },
        metrics={"mean": (jnp.sum(y * first), jnp.sum(first))},
    )


@pytest.mark.parametrize("microbatches", [1, 2, 4, Parts(count=2, mode="recompute")])
def test_terms_are_divided_by_their_weight_over_all_microbatches(microbatches):
    state, step = made(uneven, microbatches=microbatches)
    state, metrics = step(state, ROWS)
    # w = 2: 2 * (1 + 2 + 3 + 5) / 4 = 5.5, and 10 * 4 * (1 + 25) / 2 = 520.
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {"loss": 525.5, "learning_rate": 0.5, "gradient_norm": 2.75 + 520, "mean": 5.5}
    )
    assert all(value.dtype == jnp.float32 for value in metrics.values())
    assert float(state.params["w"]) == pytest.approx(2 - 0.5 * 522.75)


def test_every_microbatch_has_its_own_key():
    rows = {"x": np.zeros((2, 1), np.float32)}
    state, step = made(drawn, seed=7, microbatches=2)
    _, metrics = step(state, rows)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), 1), 0)
    expected = np.mean([float(jax.random.uniform(jax.random.fold_in(key, i))) for i in range(2)])
    assert float(metrics["u"]) == pytest.approx(expected)


def matrix_loss(params, batch, key):
    """A forward pass of some arithmetic, with weights that are read off the batch."""
    del key
    y = batch["x"]
    for _ in range(4):
        y = jnp.tanh(y @ params["w"])
    weight = jnp.sum(batch["x"] > 0).astype(jnp.float32)
    return Loss(terms={"t": Term(jnp.sum(y), weight)}, metrics={})


def test_the_weights_cost_no_forward_pass():
    products = {}
    for microbatches in (1, 2):
        mesh = make_mesh(MeshConfig())
        optimizer = optax.GradientTransformation(lambda _: {"count": jnp.int32(0)}, descend)
        layout = state_shardings(mesh, {"w": (None, None)}, {"count": ()})
        state = init_state(lambda _: {"w": jnp.eye(64)}, optimizer, layout, seed=0)
        step = make_train_step(
            [Update(matrix_loss, optimizer, schedule)],
            mesh=mesh,
            layout=layout,
            seed=0,
            microbatches=microbatches,
        )
        compiled = step.lower(state, {"x": np.ones((64, 64), np.float32)}).compile()
        products[microbatches] = compiled.as_text().count(" dot(")
    # Four products forward and eight backward, without the first one's input: no four more.
    assert products[2] == products[1] >= 8
