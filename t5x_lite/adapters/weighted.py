"""Weighted sums of what modules make of one array."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Float

from t5x_lite.types import Array


def weighted_sum(arrays: Sequence[Array], weights: Sequence[float]) -> Array:
    """sum w_i x_i in float32, in the dtype of x."""
    total = sum(w * x.astype(jnp.float32) for x, w in zip(arrays, weights, strict=True))
    return jnp.asarray(total).astype(arrays[0].dtype)


def weighted_sum_of_some(biases: Sequence[Array | None], weights: Sequence[float]) -> Array | None:
    """The weighted sum of biases; one that is not there is 0."""
    known = [(bias, w) for bias, w in zip(biases, weights, strict=True) if bias is not None]
    return weighted_sum(*zip(*known, strict=True)) if known else None


def with_changes(array: Array, others: Sequence[Array], weights: Float[Array, "#B #T K"]) -> Array:
    """x + sum_k w_k (x_k - x) in float32, in the dtype of x.

    Args:
      array: x [B, T, O].
      others: each x_k.
      weights: w.
    """
    own = array.astype(jnp.float32)
    total = own
    for number, other in enumerate(others):
        total = total + weights[..., number, None] * (other.astype(jnp.float32) - own)
    return total.astype(array.dtype)
