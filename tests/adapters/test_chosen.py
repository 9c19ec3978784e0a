"""Masks of scores inside a step: exactly k, ties by index, and the straight-through gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.masks import straight_through, top


@pytest.mark.parametrize("k", [1, 3, 4, 8])
def test_exactly_k_and_ties_by_the_flat_index(k):
    scores = jnp.array([[0.0, -1.0, 2.0, 0.0], [-0.0, 3.0, -2.0, 0.0]])
    order = [5, 2, 0, 3, 4, 7, 1, 6]  # -0.0 is 0.0
    expected = np.zeros(8, bool)
    expected[order[:k]] = True
    np.testing.assert_array_equal(jax.jit(top)(scores, k).reshape(-1), expected)


def test_many_scores_against_a_sort():
    scores = np.random.default_rng(0).normal(size=1000).astype(np.float32).round(1)
    order = np.argsort(-scores, kind="stable")
    for k in (1, 10, 500, 999):
        expected = np.zeros(1000, bool)
        expected[order[:k]] = True
        np.testing.assert_array_equal(top(jnp.asarray(scores), k), expected)


def test_the_gradient_of_a_score_is_that_of_the_mask():
    """dS = dL/d(W mask) W, of entries that are masked, too."""
    w, scores = jnp.array([2.0, 3.0, 5.0]), jnp.array([1.0, -1.0, 0.5])

    def loss(scores):
        return jnp.sum(jnp.array([1.0, 10.0, 100.0]) * w * straight_through(scores > 0, scores))

    value, gradient = jax.value_and_grad(loss)(scores)
    assert value == 2.0 + 500.0
    np.testing.assert_array_equal(gradient, [2.0, 30.0, 500.0])
