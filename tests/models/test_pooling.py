import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.models.vector_heads import check_pooling, pool

HIDDEN = jnp.array([[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]], [[5.0, 7.0], [9.0, 9.0], [9.0, 9.0]]])
MASK = jnp.array([[True, True, False], [False, False, False]])


def test_the_state_of_the_first_token():
    np.testing.assert_array_equal(pool(HIDDEN, MASK, "cls"), [[1.0, 2.0], [5.0, 7.0]])


def test_the_mean_without_padding_and_zero_of_padding_alone():
    np.testing.assert_array_equal(pool(HIDDEN, MASK, "mean"), [[2.0, 4.0], [0.0, 0.0]])


def test_segment_ids_are_a_mask():
    ids = jnp.array([[1, 1, 0], [2, 2, 2]])
    np.testing.assert_allclose(pool(HIDDEN, ids, "mean"), [[2.0, 4.0], [23 / 3, 25 / 3]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["cls", "mean"])
def test_the_vectors_are_float32(kind):
    assert pool(HIDDEN.astype(jnp.bfloat16), MASK, kind).dtype == jnp.float32


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match=r"pooling must be one of \('cls', 'mean'\): got 'max'"):
        check_pooling("pooling", "max")
