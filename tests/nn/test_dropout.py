import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn import dense as module
from t5x_lite.nn.dense import WeightDropout, dropout, kept_elements, kept_keys, thinned

KEY = jax.random.key(3)


def test_no_key_and_rate_0_leave_x_as_it_is():
    x = jnp.arange(6.0).reshape(2, 3)
    assert dropout(x, 0.5, key=None) is x
    assert dropout(x, 0.0, key=KEY) is x


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0])
def test_rate_outside_its_range(rate):
    with pytest.raises(ValueError, match=r"dropout rate must be in \[0, 1\): got"):
        dropout(jnp.ones(2), rate, key=None)


def test_elements_are_zero_or_scaled_by_what_is_kept():
    dropped = dropout(jnp.full((1000, 100), 3.0), 0.25, key=KEY)
    assert np.unique(dropped).tolist() == [0.0, 4.0]
    np.testing.assert_allclose(np.mean(dropped == 0), 0.25, atol=0.01)
    np.testing.assert_allclose(np.mean(dropped), 3.0, atol=0.03)


@pytest.mark.parametrize(
    ("axes", "shared"), [((), []), ((-2,), [1]), ((0,), [0]), ((0, -1), [0, 2])]
)
def test_mask_is_shared_along_the_broadcast_axes(axes, shared):
    kept = np.asarray(dropout(jnp.ones((8, 16, 32)), 0.5, key=KEY, broadcast_axes=axes)) > 0
    for axis in range(3):
        first = np.take(kept, [0], axis=axis)
        assert np.all(kept == first) == (axis in shared)


def test_the_mask_is_a_function_of_the_key():
    x = jnp.ones((4, 100))
    np.testing.assert_array_equal(dropout(x, 0.5, key=KEY), dropout(x, 0.5, key=KEY))
    other = dropout(x, 0.5, key=jax.random.key(4))
    assert np.any(dropout(x, 0.5, key=KEY) != other)


def test_gradient_is_the_mask():
    x = jnp.arange(1.0, 101.0)
    grad = jax.grad(lambda x: jnp.sum(dropout(x, 0.5, key=KEY)))(x)
    np.testing.assert_array_equal(grad * x, dropout(x, 0.5, key=KEY))


def test_dtype_is_that_of_x():
    dropped = dropout(jnp.ones((50, 50), jnp.bfloat16), 0.5, key=KEY)
    assert dropped.dtype == jnp.bfloat16
    assert np.unique(dropped.astype(jnp.float32)).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_weights_are_kept_at_random_and_scaled_by_their_share(rate):
    draws = WeightDropout(KEY, rate)
    kept = np.asarray(draws.kept((4, 2, 100, 301)))
    np.testing.assert_allclose(kept.mean(), 1 - rate, atol=0.005)
    np.testing.assert_allclose(kept.mean(axis=(0, 1, 2)), 1 - rate, atol=0.06)
    np.testing.assert_allclose(draws.scale, 1 / (1 - rate), rtol=2e-5)
    # The two draws of one word do not depend on each other.
    pairs = kept[..., :300].reshape(-1, 2)
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.02
    np.testing.assert_array_equal(kept, draws.kept((4, 2, 100, 301), 0))
    assert (kept != np.asarray(draws.kept((4, 2, 100, 301), 1))).any()


def test_thinned():
    weights = jnp.asarray([1.0, 2.0])
    assert thinned(weights, None) is weights
    assert thinned(weights, jnp.asarray([True, False])).tolist() == [1.0, 0.0]


def draws_of(key, rate=0.1, *, rows=2, heads=3, queries=128, keys=256, start=0):
    streams = WeightDropout(key, rate).streams(rows, heads, queries)
    return np.asarray(kept_keys(rate, streams, start, keys))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_hashed_draws_are_as_random_as_dropout_needs(rate):
    """Bounds are five standard deviations of independent draws."""
    kept = draws_of(KEY, rate)
    deviation = np.sqrt(rate * (1 - rate))
    z = (kept - (1 - rate)) / deviation
    assert abs(z.mean()) < 5 / np.sqrt(z.size)
    for axis in range(4):  # of each row, head, query and key
        others = tuple(other for other in range(4) if other != axis)
        assert np.abs(z.mean(axis=others)).max() < 5 / np.sqrt(z.size / z.shape[axis])

    def uncorrelated(one, other):
        assert abs(np.mean(one * other)) < 5 / np.sqrt(one.size)

    for lag in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 32, 64, 128):
        uncorrelated(z[..., lag:], z[..., :-lag])
        if lag < z.shape[2]:
            uncorrelated(z[:, :, lag:], z[:, :, :-lag])
    for lag in range(1, 9):
        uncorrelated(z[:, :, lag:, lag:], z[:, :, :-lag, :-lag])
        uncorrelated(z[:, :, lag:, :-lag], z[:, :, :-lag, lag:])
    uncorrelated(z[1:], z[:-1])
    uncorrelated(z[:, 1:], z[:, :-1])
    # Three keys, and two queries of two keys.
    uncorrelated(z[..., :-2] * z[..., 1:-1], z[..., 2:])
    uncorrelated(z[..., 1:, 1:] * z[..., :-1, :-1], z[..., 1:, :-1] * z[..., :-1, 1:])
    # Keys of the next steps, and microbatches.
    base = jax.random.key(0)
    steps = [draws_of(jax.random.fold_in(base, step), rate) for step in range(4)]
    steps.append(draws_of(jax.random.fold_in(jax.random.fold_in(base, 0), 1), rate))
    scaled = [(step - (1 - rate)) / deviation for step in steps]
    for index, one in enumerate(scaled):
        for other in scaled[:index]:
            uncorrelated(one, other)


@pytest.mark.parametrize("impl", ["threefry2x32", "unsafe_rbg"])
def test_hashed_draws_depend_on_row_head_query_and_key_alone(impl):
    key = jax.random.key(5, impl=impl)
    whole = draws_of(key, 0.5, rows=4, heads=4, queries=40, keys=96)
    part = draws_of(key, 0.5, rows=3, heads=2, queries=24, keys=19, start=37)
    np.testing.assert_array_equal(part, whole[:3, :2, :24, 37:56])
    assert np.any(
        whole != draws_of(jax.random.key(6, impl=impl), 0.5, rows=4, heads=4, queries=40, keys=96)
    )


@pytest.mark.parametrize("axes", [(), (-2,)])
def test_dropout_on_tpus_draws_by_the_hash(monkeypatch, axes):
    """Bounds are five standard deviations of independent draws."""
    monkeypatch.setattr(module, "traced_kind", lambda: "TPU v5 lite")
    rate, x = 0.25, jnp.ones((16, 96, 256))
    dropped = np.asarray(dropout(x, rate, key=KEY, broadcast_axes=axes))
    assert np.unique(dropped) == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-4)
    kept = np.asarray(kept_elements(KEY, rate, (16, *((96,) if not axes else (1,)), 256)))
    np.testing.assert_array_equal(dropped > 0, np.broadcast_to(kept, dropped.shape))
    z = (kept - (1 - rate)) / np.sqrt(rate * (1 - rate))
    assert abs(z.mean()) < 5 / np.sqrt(z.size)
    for axis in range(3):
        for lag in (1, 2, 8):
            if z.shape[axis] > lag:
                one, other = np.split(np.moveaxis(z, axis, 0), [lag])[1], np.moveaxis(z, axis, 0)
                product = one * other[:-lag]
                assert abs(product.mean()) < 5 / np.sqrt(product.size)
    assert (kept != np.asarray(kept_elements(jax.random.key(4), rate, kept.shape))).any()
    weights = WeightDropout(KEY, rate).kept((2, 3, 40, 50), 1)
    wanted = kept_elements(jax.random.fold_in(KEY, 1), rate, (2, 3, 40, 50))
    np.testing.assert_array_equal(weights, wanted)
    # A part of the rows has the draws of the whole: meshes do not change them.
    np.testing.assert_array_equal(kept_elements(KEY, rate, (4, *kept.shape[1:])), kept[:4])
