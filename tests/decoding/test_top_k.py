import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.decoding.sampling import argmax, top_k


@pytest.mark.parametrize("size", [5, 128, 130, 1280])
def test_argmax_equals_that_of_jax(size):
    logits = jax.random.normal(jax.random.key(size), (3, size))
    assert argmax(logits).tolist() == jnp.argmax(logits, axis=-1).tolist()


def test_argmax_takes_the_lowest_of_equals():
    logits = jnp.zeros((2, 384)).at[0, jnp.array([130, 140, 300])].set(1.0)
    assert argmax(logits).tolist() == [130, 0]


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("size", [9, 1280, 2560])
def test_top_k_equals_that_of_jax_ties_and_minus_infinity_included(size, k):
    rng = np.random.default_rng(0)
    ties = rng.integers(0, 5, size=(4, size)).astype(np.float32)
    sparse = np.full((4, size), -np.inf, np.float32)
    sparse[:, [2, size - 1]] = 1.0
    for logits in (rng.normal(size=(4, size)).astype(np.float32), ties, sparse):
        values, ids = top_k(jnp.asarray(logits), k)
        expected, places = jax.lax.top_k(logits, k)
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(ids, places)
