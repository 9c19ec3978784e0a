"""A vector of each token, and the score of late interaction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.models.vector_heads import MultiVector, late_scores
from tests.models.modules import MODEL, dense, filled, normal


@pytest.mark.parametrize(("size", "normalize"), [(4, True), (None, False)])
def test_vectors_of_all_tokens_but_the_first(size, normalize):
    config = MultiVector(size=size, normalize=normalize)
    head, params = filled(lambda rngs: config.build(MODEL, rngs=rngs))
    hidden, there = normal(2, 4, 6), jnp.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    expected = dense(np.asarray(hidden, np.float64)[:, 1:], params["out"])
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=-1, keepdims=True)
    expected[1, 1:] = 0
    assert expected.shape == (2, 3, size or 6)
    np.testing.assert_allclose(head(hidden, there), expected, rtol=1e-5, atol=1e-6)


def literal(asked, there, shown, real):
    """A score of each query and passage, token by token."""
    found = np.zeros((len(asked), len(shown)))
    for g, n in np.ndindex(found.shape):
        rows, columns = asked[g][there[g]], shown[n][real[n]]
        if len(rows) and len(columns):
            found[g, n] = np.mean(np.max(rows @ columns.T, axis=1))
    return found


def test_the_score_is_that_of_a_loop(monkeypatch):
    rng = np.random.default_rng(0)
    asked, shown = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 6, 7, 5))
    there = np.arange(4) < np.array([[4, 2, 1], [0, 3, 4]])[..., None]
    real = np.arange(7) < rng.integers(1, 8, (2, 6))[..., None]
    real[0, 2] = False  # a passage of padding
    shown[1, 3] = -np.abs(shown[1, 3])
    asked[1, 1:] = np.abs(asked[1, 1:])  # similarities that are all below 0
    monkeypatch.setattr("t5x_lite.models.vector_heads._LARGEST_SCORES", 2 * 3 * 4 * 7 * 2)
    both = (jnp.float32(asked), jnp.asarray(there)), (jnp.float32(shown), jnp.asarray(real))
    found = np.asarray(jax.jit(late_scores)(*both))
    expected = np.stack([literal(*x) for x in zip(asked, there, shown, real, strict=True)])
    assert (expected[1, 1:, 3] < 0).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    pull = jnp.asarray(rng.normal(size=expected.shape), jnp.float32)

    def value(vectors):
        return jnp.sum(late_scores((vectors, both[0][1]), both[1]) * pull)

    slope = np.asarray(jax.grad(value)(both[0][0]), np.float64)
    assert np.isfinite(slope).all()
    assert not slope[~there].any()
    direction = rng.normal(size=asked.shape)
    nudged = [
        np.stack([literal(*x) for x in zip(asked + e * direction, there, shown, real, strict=True)])
        for e in (-1e-5, 1e-5)
    ]
    change = np.sum((nudged[1] - nudged[0]) / 2e-5 * np.asarray(pull))
    assert np.sum(slope * direction) == pytest.approx(change, rel=1e-4)


def test_what_cannot_be():
    with pytest.raises(InputError, match="size must be at least 1"):
        MultiVector(size=0)
    assert MultiVector().build(MODEL, rngs=nnx.Rngs(0)).out.kernel[...].shape == (6, 6)
