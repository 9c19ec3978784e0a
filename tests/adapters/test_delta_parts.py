import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.delta_parts import Dense, Dora, LowRank, Replace, Scale, Several, Sparse
from t5x_lite.core.errors import InputError

W = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
LOW = LowRank(np.array([[1.0], [2.0]], np.float32), np.array([[1.0, 0.0, -1.0]], np.float32), 0.5)
SPARSE = Sparse(np.array([1, 5], np.int32), np.array([10.0, -10.0], np.float32), (2, 3))
NORMS = np.sqrt([17.0, 29.0, 45.0])


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Dense(np.ones((2, 3), np.float32)), [[2, 3, 4], [5, 6, 7]]),
        (SPARSE, [[1, 12, 3], [4, 5, -4]]),
        (LOW, [[1.5, 2, 2.5], [5, 5, 5]]),
        (Scale(np.array([0.0, 1.0, 2.0], np.float32)), [[0, 2, 6], [0, 5, 12]]),
        (Scale(np.array([1.0, 2.0], np.float32), -2), [[1, 2, 3], [8, 10, 12]]),
        (Replace(np.zeros((2, 3), np.float32)), np.zeros((2, 3))),
        (
            Dora(np.zeros((2, 1), np.float32), LOW.b, np.array([1.0, 2.0, 3.0], np.float32)),
            W * [1, 2, 3] / NORMS,
        ),
        (Several((LOW, Scale(np.array([1.0, 2.0], np.float32), -2))), [[1.5, 2, 2.5], [10] * 3]),
    ],
)
def test_what_a_part_makes_of_an_array(part, expected):
    np.testing.assert_allclose(part.read(jnp.asarray(W)), expected, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda p, w: p.read(w))(part, W), expected, rtol=1e-6)
    # Layers come first: two of them are the same twice.
    if not isinstance(part, Sparse):
        twice = jax.tree.map(lambda x: np.stack([x, x]), part)
        np.testing.assert_allclose(twice.read(jnp.stack([W, W])), [expected] * 2, rtol=1e-6)


def test_lengths_beside_those_of_the_columns():
    part = Dora(LOW.a, LOW.b, np.array([1.0, 0.0, -1.0], np.float32), 0.5, relative=True)
    moved = W + LOW.dense()
    sizes = (np.linalg.norm(W, axis=0) + np.array([1, 0, -1])) / np.linalg.norm(moved, axis=0)
    np.testing.assert_allclose(part.read(jnp.asarray(W)), moved * sizes, rtol=1e-6)


def test_sums_and_products():
    total = LOW.plus(LOW.times(2.0))
    assert (total.rank, total.scale, total.shape) == (2, 1.0, (2, 3))
    np.testing.assert_allclose(total.dense(), 3 * LOW.dense())
    assert LOW.plus(LOW).scale == 0.5  # one scale stays one
    other = Sparse(np.array([0, 1], np.int32), np.array([1.0, 1.0], np.float32), (2, 3))
    union = SPARSE.plus(other)
    assert isinstance(union, Sparse)
    np.testing.assert_array_equal(union.indices, [0, 1, 5])
    np.testing.assert_array_equal(union.values, [1, 11, -10])
    mixed = SPARSE.plus(LOW)
    assert isinstance(mixed, Dense)
    np.testing.assert_array_equal(mixed.dense(), SPARSE.dense() + LOW.dense())
    np.testing.assert_array_equal(SPARSE.times(-1.0).dense(), -SPARSE.dense())
    assert SPARSE.nbytes == 2 * 8
    with pytest.raises(
        InputError,
        match=r"two changes of the same array have different shapes, \(2, 3\) and \(3,\)",
    ):
        LOW.plus(Dense(np.zeros(3, np.float32)))


def test_flat_places_above_those_that_jax_counts():
    part = Sparse(np.array([1, 5]), np.array([10.0, -10.0], np.float32), (2, 3))
    assert part.indices.dtype == np.int64
    np.testing.assert_array_equal(part.read(jnp.asarray(W)), SPARSE.read(jnp.asarray(W)))


def test_what_is_no_sum_says_the_remedy():
    scale = Scale(np.ones(3, np.float32))
    for operation in (lambda: scale.times(2.0), lambda: LOW.plus(scale), scale.dense):
        with pytest.raises(InputError, match=r"a Scale change .*delta.materialise\(base\)"):
            operation()
    two = Scale(np.array([1.0, 2.0, 3.0], np.float32))
    np.testing.assert_array_equal(two.then(two).value, [1, 4, 9])
    assert isinstance(LOW.then(two), Several)
    with pytest.raises(InputError, match="a LowRank change cannot follow a delta with a Scale"):
        two.then(LOW)


@pytest.mark.parametrize(("shape", "axis"), [((2,), -1), ((3,), -2), ((4, 3), -1), ((2, 3), -2)])
def test_factors_of_other_axes(shape, axis):
    with pytest.raises(InputError, match=r"do not fit an array of shape \(2, 3\)"):
        Scale(np.ones(shape, np.float32), axis).read(jnp.asarray(W))


def test_several_parts_have_the_shape_of_one():
    factors = Scale(np.ones(3, np.float32))
    assert (Several((factors, LOW)).shape, Several((factors, factors)).shape) == ((2, 3), ())
