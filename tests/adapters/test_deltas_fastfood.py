"""Fastfood's projection against the product of its matrices, its adjoint, and its algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_parts import (
    Dense,
    Fastfood,
    Subspace,
    draws,
    fastfood,
    folded,
    hadamard,
    padded,
    shuffled,
)

KEY = jax.random.key(3)


@pytest.mark.parametrize(("size", "d"), [(200, 7), (256, 300), (1, 3), (5, 5)])
def test_it_is_the_product_of_its_matrices(size, d):
    length = padded(size)
    assert length // 2 < size <= length
    signs, order, normal = (np.asarray(x, np.float64) for x in draws(KEY, length))
    h = scipy.linalg.hadamard(length).astype(np.float64) if length > 1 else np.ones((1, 1))
    permutation = np.eye(length)[order.astype(int)]
    whole = h @ np.diag(normal) @ permutation @ h @ np.diag(signs)
    whole /= np.sqrt(length * np.sum(normal**2)) * np.sqrt(size / length)
    z = np.random.default_rng(0).normal(size=d).astype(np.float32)
    rest = np.zeros(-(-d // length) * length)
    rest[:d] = z
    expected = (whole @ rest.reshape(-1, length).sum(axis=0))[:size]
    np.testing.assert_allclose(fastfood(jnp.asarray(z), KEY, size=size), expected, atol=2e-5)


@pytest.mark.slow
def test_the_transform_and_the_permutation():
    x = np.random.default_rng(1).normal(size=1024).astype(np.float32)
    expected = scipy.linalg.hadamard(1024) @ x.astype(np.float64)
    np.testing.assert_allclose(hadamard(jnp.asarray(x)), expected, atol=1e-3)
    for length in (1, 2, 4, 64, 1024):
        order = np.asarray(shuffled(KEY, length))
        assert sorted(order) == list(range(length))
    moved = np.asarray(shuffled(KEY, 1024))
    assert abs(np.corrcoef(moved, np.arange(1024))[0, 1]) < 0.1
    assert not np.array_equal(moved, shuffled(jax.random.key(4), 1024))
    np.testing.assert_array_equal(folded(jnp.arange(5.0), 2), [0 + 2 + 4, 1 + 3])


@pytest.mark.slow
def test_reverse_mode_is_the_adjoint():
    """<P z, g> = <z, P' g>; SAID's own backward pass is 1 / sqrt(L) of it."""
    rng = np.random.default_rng(2)
    z, g = (jnp.asarray(rng.normal(size=n).astype(np.float32)) for n in (20, 100))
    value, pull = jax.vjp(lambda z: fastfood(z, KEY, size=100), z)
    np.testing.assert_allclose(jnp.vdot(value, g), jnp.vdot(z, pull(g)[0]), rtol=1e-5)


@pytest.mark.slow
def test_lengths_stay_about_as_they_are():
    """Each number of P(z) has a variance of |z|^2 / D, whatever L is."""
    z = jnp.zeros(64).at[:8].set(1.0)
    for size in (1000, 1024, 600):
        norms = [np.linalg.norm(fastfood(z, jax.random.key(k), size=size)) for k in range(8)]
        assert np.mean(norms) == pytest.approx(np.sqrt(8), rel=0.05)


@pytest.mark.exhaustive
def test_parts_are_added_negated_and_made_for_each_layer():
    space = Subspace("model/w", (2, 3, 4), True, seed=5)
    z, scale = np.arange(1.0, 7.0, dtype=np.float32), np.array([1.0, 2.0], np.float32)
    part = Fastfood(z, scale, space)
    value = part.dense()
    assert value.shape == part.shape == (2, 3, 4)
    assert not np.allclose(value[1], 2 * value[0])  # layers have projections of their own
    other = Fastfood(z, scale, Subspace("model/v", (2, 3, 4), True, seed=5))
    assert not np.allclose(other.dense(), value)  # and so have arrays
    base = {"model": {"w": jnp.ones((2, 3, 4))}}
    delta = Delta({"model/w": part})
    np.testing.assert_allclose(delta.apply(base)["model"]["w"], 1 + value, rtol=1e-5)
    np.testing.assert_allclose((-0.5 * delta).parts["model/w"].dense(), -0.5 * value, atol=1e-6)
    twice = (delta + delta).parts["model/w"]
    assert isinstance(twice, Fastfood)
    assert twice.z.shape == (6,)
    np.testing.assert_allclose(twice.dense(), 2 * value, atol=1e-5)
    mixed = (delta + Delta({"model/w": Dense(np.ones((2, 3, 4), np.float32))})).parts["model/w"]
    assert isinstance(mixed, Dense)
    np.testing.assert_allclose(mixed.dense(), 1 + value, atol=1e-6)
    assert np.all((delta - delta).parts["model/w"].dense() == 0)


def test_a_dense_matrix():
    space = Subspace("model/w", (500,), False, projection="dense")
    columns = jax.vmap(lambda z: space.project(z, jnp.float32(1)))(jnp.eye(4))
    assert np.std(columns) == pytest.approx(0.01, rel=0.1)
