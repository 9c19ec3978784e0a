"""Weighted sums."""

import jax.numpy as jnp
import numpy as np

from t5x_lite.adapters.evaluation import weighted_sum, weighted_sum_of_some, with_changes


def test_sums():
    arrays = [jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])]
    np.testing.assert_array_equal(weighted_sum(arrays, (2.0, -1.0)), [-1.0, 0.0])
    np.testing.assert_array_equal(weighted_sum_of_some([None, arrays[1]], (2.0, 0.5)), [1.5, 2.0])
    assert weighted_sum_of_some([None], (1.0,)) is None


def test_changes():
    """Of three tokens: both by halves, the second alone, and twice the first."""
    x = jnp.ones((1, 3, 2))
    weights = jnp.array([[[0.5, 0.5], [0.0, 1.0], [2.0, 0.0]]])
    found = with_changes(x, [x + 2, x - 4], weights)
    np.testing.assert_array_equal(found[0, :, 0], [0.0, -3.0, 5.0])
    half = with_changes(x.astype(jnp.bfloat16), [x, x], weights[:, :1])
    assert half.dtype == jnp.bfloat16
