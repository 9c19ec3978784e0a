import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.composition import MultiTask
from t5x_lite.adapters.evaluation import (
    HiddenState,
    by_row,
    chosen_rows,
    rows_of,
    slices,
    wide_bias,
)
from t5x_lite.core.errors import InputError
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.masks import Visibility

IDS = jnp.array([1, 0, 2, 1])


def test_each_row_of_its_own_array():
    state = HiddenState(jnp.zeros((4, 1, 2)), IDS)
    arrays = [jnp.full((4, 1, 2), 1.0), jnp.full((4, 1, 2), 2.0)]
    assert chosen_rows(state, arrays)[:, 0, 0].tolist() == [2.0, 1.0, 0.0, 2.0]
    block = MultiTask(("a", "b"))
    for ids, message in (
        (None, "requires the batch feature adapter_ids"),
        (IDS[:3], "have 3 rows, but"),
    ):
        with pytest.raises(InputError, match=message):
            HiddenState(state.hidden, ids).check_ids(block)


def test_each_row_by_its_own_module():
    def dense(factor):
        made = Dense(2, 2, axes=(None, None), rngs=nnx.Rngs(0))
        made.kernel[...] = factor * jnp.eye(2)
        return made

    x = jnp.arange(8.0).reshape(4, 2)
    found = by_row([dense(1), dense(10), dense(100)], IDS, lambda m, row: m.product(row), x)
    np.testing.assert_allclose(found, x * jnp.array([10.0, 1.0, 100.0, 10.0])[:, None])


def test_parts_of_rows():
    assert slices((1, 3)) == [slice(0, 1), slice(1, 4)]
    mask = Visibility(keys=jnp.arange(8).reshape(4, 2))
    assert rows_of(mask, slice(1, 3)).keys.tolist() == [[2, 3], [4, 5]]
    shared, own = jnp.ones((1, 1, 2, 2)), jnp.ones((4, 1, 2, 2))
    assert rows_of(shared, slice(1, 3)) is shared
    assert rows_of(own, slice(1, 3)).shape[0] == 2
    assert rows_of(None, slice(1, 3)) is None
    assert wide_bias(None, jnp.ones((4, 3, 2))).shape == (4, 1, 2)
