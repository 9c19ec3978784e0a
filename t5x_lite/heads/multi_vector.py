"""The head that makes a vector of each token of a text (ColBERT's way, as BGE-M3 has it).

    E_i = norm(W h_i + b)          heads/multi_vector/out; i from 1: [CLS] has none, [SEP] has one
    score(q, p) = (1 / N_q) sum_i max_j E_q,i . E_p,j          N_q: real tokens of q without [CLS]

Padding has no vector: it takes no part in the maximum. In FlagEmbedding's code it has vectors of
zeros, so that a passage whose similarities are all negative has the score 0 (Chen et al. 2024,
arXiv:2402.03216; FlagEmbedding m3/modeling.py).
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, encoder_of
from t5x_lite.heads.dense import unit
from t5x_lite.heads.lexical import in_chunks, linear
from t5x_lite.models.base import ModelConfig
from t5x_lite.types import Array

_LARGEST = 1 << 24
"""Similarities of tokens that are made at a time."""
_NONE = -1e9
"""The similarity with padding; finite, so that a passage of padding has no NaN."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiVector(Head):
    """A vector of each token but the first.

    Attributes:
      size: numbers of a vector; None is as many as the states have.
      normalize: whether vectors have length 1.
    """

    name: str = "multi_vector"
    size: int | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size is not None and self.size < 1:
            raise InputError(f"size of multi-vectors must be at least 1, or None: got {self.size}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "MultiVectorHead":
        """Makes the module."""
        return MultiVectorHead(self, encoder_of(self, model).d_model, rngs=rngs)


class MultiVectorHead(nnx.Module):
    """linear, then length 1, at each position but the first.

    Args:
      config: of the head.
      d_model: size of the states.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: MultiVector, d_model: int, *, rngs: nnx.Rngs):
        self.config = config
        self.out = linear(d_model, config.size or d_model, rngs=rngs)

    def __call__(
        self, hidden: Float[Array, "B S D"], segment_ids: Int[Array, "B S"]
    ) -> Float[Array, "B N K"]:
        """Float32 vectors of the S - 1 positions behind the first; zeros where there is padding.

        Args:
          hidden: the encoder's states.
          segment_ids: 0 is padding.
        """
        vectors = self.out.product(hidden[:, 1:])
        vectors = unit(vectors) if self.config.normalize else vectors
        return jnp.where(segment_ids[:, 1:, None] > 0, vectors, 0.0)


def late_scores(
    queries: tuple[Float[Array, "*A G Lq K"], Bool[Array, "*A G Lq"]],
    passages: tuple[Float[Array, "*A N Lp K"], Bool[Array, "*A N Lp"]],
) -> Float[Array, "*A G N"]:
    """The mean over a query's tokens of their largest similarity with a token of the passage.

    Similarities are made for some passages at a time, [*A, G, c, Lq, Lp], and again in the backward
    pass; a query or a passage without tokens has the score 0.

    Args:
      queries: vectors, and which are of tokens.
      passages: the same of passages; *A are blocks of rows, apart from each other.
    """
    (asked, there), (shown, real) = queries, passages
    blocks, (num, length) = asked.shape[:-3], shown.shape[-3:-1]
    whole = asked.size // asked.shape[-1] * length
    each = in_chunks(num, at_most=max(1, _LARGEST // whole))
    count = jnp.sum(there, axis=-1, dtype=jnp.float32)[..., None]
    axis = len(blocks)

    @jax.checkpoint
    def some(_: None, these: tuple[Array, Array]) -> tuple[None, Array]:
        vectors, of_tokens = these
        similar = jnp.einsum(
            "...GSK,...CTK->...GCST", asked, vectors, precision=jax.lax.Precision.HIGHEST
        )
        similar = jnp.where(of_tokens[..., None, :, None, :], similar, _NONE)
        best = jnp.max(similar, axis=-1)
        counts = there[..., None, :] & jnp.any(of_tokens, axis=-1)[..., None, :, None]
        return None, jnp.sum(jnp.where(counts, best, 0.0), axis=-1)

    def chunked(x: Array) -> Array:
        split = x.reshape(*blocks, num // each, each, *x.shape[axis + 1 :])
        return jnp.moveaxis(split, axis, 0)

    _, sums = jax.lax.scan(some, None, (chunked(shown), chunked(real)))
    # [chunks, *A, G, c] -> [*A, G, chunks * c]
    sums = jnp.moveaxis(sums, 0, -2).reshape(*asked.shape[:-2], num)
    return sums / jnp.maximum(count, 1.0)
