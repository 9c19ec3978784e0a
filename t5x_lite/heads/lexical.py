"""The head that weighs the terms of a text: one number of each token (BGE-M3's sparse retrieval).

    w_i = relu(W h_i + b)                      heads/lexical/out, W [d, 1]
    weight of a term t = max of w_i over its places, for each t that is no special token

    tokens   0 5 9 5 2          (0 begins, 2 ends)
    w        .9 .2 .4 .7 .1
    terms    5: .7, 9: .4

The score of two texts is the sum over their common terms of the products of weights (Chen et al.
2024, arXiv:2402.03216; FlagEmbedding's m3/modeling.py). That code makes it of vectors [B, L, V] of
the vocabulary; here a text stays as long as it is: `term_weights` keeps a term's largest weight at
its place and has 0 elsewhere, and `scores` sums over pairs of places of one token.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, encoder_of
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.dense import Dense
from t5x_lite.types import Array, Key

XLM_R = (0, 1, 2, 3)
"""The tokens of XLM-R that begin a text, pad, end a text, and stand for what has no piece."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lexical(Head):
    """Weights of a text's tokens as terms.

    Attributes:
      specials: tokens that are no terms: those that begin and end a text, padding, the unknown one.
    """

    name: str = "lexical"
    specials: tuple[int, ...] = XLM_R

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(token < 0 for token in self.specials):
            raise InputError(f"specials are tokens from 0 on: got {self.specials}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "LexicalHead":
        """Makes the module."""
        return LexicalHead(self, encoder_of(self, model).d_model, rngs=rngs)


class LexicalHead(nnx.Module):
    """linear -> relu, at each position.

    Args:
      config: of the head.
      d_model: size of the states.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: Lexical, d_model: int, *, rngs: nnx.Rngs):
        self.config = config
        self.out = linear(d_model, 1, rngs=rngs)

    def __call__(self, hidden: Float[Array, "B S D"]) -> Float[Array, "B S"]:
        """Float32 weights from 0 on of all positions, special tokens' among them."""
        return jax.nn.relu(self.out.product(hidden)[..., 0])

    def terms(
        self,
        hidden: Float[Array, "B S D"],
        tokens: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"],
    ) -> Float[Array, "B S"]:
        """`term_weights` of the states of texts; 0 in segment_ids is padding."""
        return term_weights(self(hidden), tokens, self.is_term(tokens, segment_ids))

    def is_term(
        self, tokens: Int[Array, "B S"], segment_ids: Int[Array, "B S"]
    ) -> Bool[Array, "B S"]:
        """What is no padding, where segment_ids are 0, and no special token."""
        specials = jnp.asarray(self.config.specials, jnp.int32)
        return (segment_ids > 0) & ~jnp.isin(tokens, specials)


def linear(d_in: int, d_out: int, *, rngs: nnx.Rngs) -> Dense:
    """A dense layer as PyTorch begins one: kernel and bias uniform below 1 / sqrt(d_in)."""
    bound = 1 / math.sqrt(d_in)

    def uniform(key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
        return jax.random.uniform(key, shape, dtype, minval=-bound, maxval=bound)

    layer = Dense(d_in, d_out, axes=("embed", None), initializer=uniform, bias=True, rngs=rngs)
    layer.bias[...] = uniform(rngs.params(), (d_out,), jnp.float32)
    return layer


def term_weights(
    weights: Float[Array, "B S"], tokens: Int[Array, "B S"], is_term: Bool[Array, "B S"]
) -> Float[Array, "B S"]:
    """The largest weight of each term at its place, and 0 at all other places.

    It is the maximum over the places of one token, without an array of the vocabulary: places are
    sorted by token and weight, and the last of each token stays. Of equal weights one place stays,
    and has the gradient alone.

    Args:
      weights: of all places, from 0 on.
      tokens: ids.
      is_term: what is no padding and no special token.
    """
    known = jnp.where(is_term, tokens, -1)
    order = jnp.lexsort((jax.lax.stop_gradient(weights), known), axis=1)
    ordered = jnp.take_along_axis(known, order, axis=1)
    ends = ordered[:, :-1] != ordered[:, 1:]
    last = jnp.concatenate([ends, jnp.ones_like(ordered[:, :1], bool)], axis=1)
    rows = jnp.arange(len(tokens))[:, None]
    stays = jnp.zeros(tokens.shape, bool).at[rows, order].set(last & (ordered >= 0))
    return jnp.where(stays, weights, 0.0)


def scores(
    queries: tuple[Int[Array, "G Lq"], Float[Array, "G Lq"]],
    passages: tuple[Int[Array, "N Lp"], Float[Array, "N Lp"]],
) -> Float[Array, "G N"]:
    """Sums over common terms of the products of weights, of each query and each passage.

    Two ways give the same numbers, and the one with the smaller arrays is taken: an equality of all
    pairs of places [G, c, Lq, Lp], c passages at a time; or passages as vectors [N, U] of the
    queries' own tokens, of which there are U = G Lq at most.

    Args:
      queries: tokens, and weights by `term_weights`.
      passages: the same of passages.
    """
    num, length = queries[0].shape
    by_terms = num < passages[0].shape[1] or num * length <= 4096
    return (scores_by_terms if by_terms else scores_by_pairs)(queries, passages)


def scores_by_terms(
    queries: tuple[Int[Array, "G Lq"], Float[Array, "G Lq"]],
    passages: tuple[Int[Array, "N Lp"], Float[Array, "N Lp"]],
) -> Float[Array, "G N"]:
    """`scores` by vectors of the queries' tokens; the arguments are those of `scores`."""
    (asked, asked_weights), (shown, shown_weights) = queries, passages
    terms = jnp.unique(asked, size=asked.size, fill_value=jnp.iinfo(jnp.int32).max)

    def vectors(tokens: Array, weights: Array) -> Array:
        places = jnp.minimum(jnp.searchsorted(terms, tokens), terms.size - 1)
        own = jnp.where(terms[places] == tokens, weights, 0.0)
        rows = jnp.arange(len(tokens))[:, None]
        return jnp.zeros((len(tokens), terms.size), jnp.float32).at[rows, places].add(own)

    highest = jax.lax.Precision.HIGHEST
    vector_pairs = vectors(asked, asked_weights), vectors(shown, shown_weights)
    return jnp.einsum("GU,NU->GN", *vector_pairs, precision=highest)


_LARGEST = 1 << 22
"""Pairs of places that `scores_by_pairs` compares at a time."""


def scores_by_pairs(
    queries: tuple[Int[Array, "G Lq"], Float[Array, "G Lq"]],
    passages: tuple[Int[Array, "N Lp"], Float[Array, "N Lp"]],
) -> Float[Array, "G N"]:
    """`scores` by an equality of places; the arguments are those of `scores`."""
    (asked, asked_weights), (shown, shown_weights) = queries, passages
    each = in_chunks(len(shown), at_most=max(1, _LARGEST // (asked.size * shown.shape[1])))

    @jax.checkpoint
    def some(_: None, these: tuple[Array, Array]) -> tuple[None, Array]:
        tokens, weights = these
        same = (asked[:, None, :, None] == tokens[None, :, None, :]).astype(jnp.float32)
        highest = jax.lax.Precision.HIGHEST
        found = jnp.einsum("GCST,CT->GCS", same, weights, precision=highest)
        return None, jnp.einsum("GCS,GS->CG", found, asked_weights, precision=highest)

    chunks = [x.reshape(-1, each, x.shape[1]) for x in (shown, shown_weights)]
    _, found = jax.lax.scan(some, None, tuple(chunks))
    return found.reshape(len(shown), len(asked)).T


def in_chunks(num: int, *, at_most: int) -> int:
    """The size of equal chunks: the largest divisor of a number up to a limit."""
    return max(size for size in range(1, min(num, at_most) + 1) if num % size == 0)
