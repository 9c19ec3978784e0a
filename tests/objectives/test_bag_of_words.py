"""The bag of words against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from t5x_lite.objectives.retromae import bag_losses, bag_scores, largest

B, S, E, V = 3, 5, 4, 7
RNG = np.random.default_rng(0)
STATES, TABLE = (RNG.normal(size=size).astype(np.float32) for size in ((B, S, E), (V, E)))
BIAS = RNG.normal(size=V).astype(np.float32)
TOKENS = np.array([[1, 5, 5, 6, 0], [1, 3, 0, 0, 0], [1, 0, 0, 0, 0]])
READ = np.array([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
COUNTED = np.array([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)


def losses(states, table, bias, chunk):
    return bag_losses(
        states, table, bias, jnp.asarray(TOKENS), read=jnp.asarray(READ),
        counted=jnp.asarray(COUNTED), chunk=chunk,
    )  # fmt: skip


@pytest.mark.parametrize("chunk", [2, 5])
def test_the_loss_of_each_row(chunk):
    logits = np.where(READ[..., None], STATES @ TABLE.T + BIAS, -1000.0)
    scores = logits.max(axis=1)
    scores = scores - scores.max(axis=-1, keepdims=True)
    log_p = scores - np.log(np.sum(np.exp(scores), axis=-1, keepdims=True))
    # Token 5 counts once, and the length of the first row is 3.
    expected = [-(log_p[0, 5] + log_p[0, 6]) / 3, -log_p[1, 3], 0.0]
    got, there = jax.jit(losses, static_argnums=3)(STATES, TABLE, BIAS, chunk)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert there.tolist() == [1, 1, 0]


def test_gradients_equal_finite_differences():
    def total(states, table, bias):
        each, there = losses(states, table, bias, 2)
        return jnp.sum(each * there)

    given = tuple(map(jnp.asarray, (STATES, TABLE, BIAS)))
    check_grads(jax.jit(total), given, order=1, modes=["rev"], atol=2e-2, rtol=2e-2)


def test_scores_are_the_highest_logits_of_what_is_read():
    arrays = map(jnp.asarray, (STATES, TABLE, BIAS))
    found = bag_scores(*arrays, read=jnp.asarray(READ), chunk=2)
    logits = STATES @ TABLE.T + BIAS
    np.testing.assert_allclose(found[0], logits[0, 1:4].max(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found[1], logits[1, 1], rtol=1e-5)
    assert float(found[2].max()) == -1000.0


def test_the_largest_scores_stay_where_they_are():
    scores = jnp.array([[3.0, -1.0, 2.0, 5.0], [-1000.0] * 4])
    assert largest(scores, 2).tolist() == [[3.0, 0.0, 0.0, 5.0], [0.0] * 4]
    assert largest(scores, 9)[0].tolist() == [3.0, -1.0, 2.0, 5.0]
