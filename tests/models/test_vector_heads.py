"""Weights of terms: the largest of each token, and scores without a vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.models.published import t5_small
from t5x_lite.models.vector_heads import (
    Lexical,
    LexicalHead,
    in_chunks,
    linear,
    scores,
    scores_by_pairs,
    scores_by_terms,
    term_weights,
)
from tests.models.modules import MODEL, dense, filled, normal


@pytest.mark.slow
def test_the_largest_weight_of_each_term_stays():
    tokens = jnp.array([[0, 5, 9, 5, 2, 1], [0, 2, 1, 1, 1, 1], [0, 7, 3, 7, 7, 2]])
    weights = jnp.array([[0.9, 0.2, 0.4, 0.7, 0.1, 0.8], [0.5] * 6, [0.1, 0.3, 0.9, 0.3, 0.2, 0.4]])
    is_term = ~jnp.isin(tokens, jnp.array([0, 1, 2, 3]))
    found = np.asarray(term_weights(weights, tokens, is_term))
    np.testing.assert_allclose(found[0], [0, 0, 0.4, 0.7, 0, 0], rtol=1e-6)
    assert not found[1].any()  # special tokens alone
    # Of two equal weights one place stays.
    assert sorted(found[2].tolist()) == pytest.approx([0, 0, 0, 0, 0, 0.3])
    slope = jax.grad(lambda w: jnp.sum(term_weights(w, tokens, is_term)))(weights)
    np.testing.assert_array_equal(np.asarray(slope), found > 0)


def test_the_head_is_a_linear_layer_and_a_relu():
    head, params = filled(lambda rngs: Lexical().build(MODEL, rngs=rngs))
    hidden = normal(2, 5, 6)
    expected = np.maximum(dense(np.asarray(hidden, np.float64), params["out"])[..., 0], 0)
    assert (expected == 0).any()
    np.testing.assert_allclose(head(hidden), expected, rtol=1e-5, atol=1e-6)
    tokens = jnp.array([[0, 5, 6, 2, 1], [0, 3, 7, 7, 2]])
    is_term = head.is_term(tokens, (tokens != 1).astype(jnp.int32))
    np.testing.assert_array_equal(is_term, [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0]])


def test_a_fresh_layer_is_uniform_as_pytorch_s():
    layer = linear(16, 400, rngs=nnx.Rngs(0))
    for leaf in (np.asarray(layer.kernel[...]), np.asarray(layer.bias[...])):
        assert 0.24 < np.max(np.abs(leaf)) <= 0.25
        assert abs(np.mean(leaf)) < 0.02


def by_vocabulary(asked, shown, size=40):
    """As FlagEmbedding has it: vectors of the vocabulary, a maximum at each token."""

    def vectors(tokens, weights):
        found = np.zeros((len(tokens), size))
        for row, (ids, own) in enumerate(zip(tokens, weights, strict=True)):
            np.maximum.at(found[row], ids, own)
        return found

    return vectors(*asked) @ vectors(*shown).T


def texts(num, length, *, seed):
    """Tokens with repetitions, weights, and what of them is a term."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(4, 12, (num, length)).astype(np.int32)
    tokens[:, -1] = 2
    tokens[0, 1:] = 1
    return tokens, rng.random((num, length)).astype(np.float32) * (tokens > 3)


@pytest.mark.gate("scores_by_pairs", "scores_by_terms")
@pytest.mark.parametrize("way", [scores, scores_by_pairs, scores_by_terms])
def test_scores_are_those_of_vectors_of_the_vocabulary(way, monkeypatch):
    asked, shown = texts(3, 5, seed=0), texts(6, 7, seed=1)

    def ours(weights, rest):
        both = []
        for tokens, own in zip((asked[0], shown[0]), (weights, rest), strict=True):
            ids, of_terms = jnp.asarray(tokens), jnp.asarray(tokens > 3)
            both.append((ids, term_weights(jnp.asarray(own), ids, of_terms)))
        return way(*both)

    expected = by_vocabulary(asked, shown)
    monkeypatch.setattr("t5x_lite.models.vector_heads._LARGEST_TERMS", 3 * 5 * 7 * 2)
    np.testing.assert_allclose(ours(asked[1], shown[1]), expected, rtol=1e-6, atol=1e-6)
    # The gradient of a weighted sum beside a finite difference, where weights are no ties.
    pull = np.random.default_rng(2).random(expected.shape)
    slope = jax.grad(lambda w: jnp.sum(ours(w, shown[1]) * pull))(jnp.asarray(asked[1]))
    for place in np.ndindex(asked[1].shape):
        nudged = asked[1].astype(np.float64)
        nudged[place] += 1e-6 * (asked[0][place] > 3)
        change = np.sum((by_vocabulary((asked[0], nudged), shown) - expected) * pull) / 1e-6
        assert float(slope[place]) == pytest.approx(change, abs=1e-3)


def test_what_cannot_be():
    with pytest.raises(InputError, match=r"specials must be at least 0: got \(-1,\)"):
        Lexical(specials=(-1,))
    with pytest.raises(InputError, match="needs an encoder, but the model is a"):
        Lexical().build(t5_small(), rngs=nnx.Rngs(0))
    assert isinstance(Lexical().build(MODEL, rngs=nnx.Rngs(0)), LexicalHead)
    assert [in_chunks(12, at_most=n) for n in (1, 5, 100)] == [1, 4, 12]
