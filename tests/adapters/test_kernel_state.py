"""Kernels and biases of a composition: what is chosen and what is added."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.composition import MultiTask
from t5x_lite.adapters.evaluation import KernelState
from t5x_lite.core.errors import InputError


def test_some_layers_of_a_stack():
    ours = KernelState(jnp.zeros((2, 1, 3)), None, has_bias=True)
    other = KernelState(jnp.ones((2, 1, 3)), jnp.full((2, 3), 5.0), has_bias=True)
    found = ours.where(jnp.array([True, False]), other)
    np.testing.assert_array_equal(found.kernel[:, 0, 0], [1.0, 0.0])
    np.testing.assert_array_equal(found.bias[:, 0], [5.0, 0.0])  # None is 0
    one = KernelState(jnp.zeros((1, 3)), None, has_bias=False)
    kept = one.where(jnp.array(False), KernelState(jnp.ones((1, 3)), None, has_bias=False))
    np.testing.assert_array_equal(kept.kernel, jnp.zeros((1, 3)))
    assert kept.bias is None


def test_rows_that_differ():
    state = KernelState(jnp.zeros((1, 3)), None, has_bias=False)
    with pytest.raises(InputError, match="each row would need its own kernel"):
        state.check_ids(MultiTask(("a", "b")))
    with pytest.raises(
        InputError,
        match="a Route block cannot be merged, because each token would need its own kernel",
    ):
        state.read()
