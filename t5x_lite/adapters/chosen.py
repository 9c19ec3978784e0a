"""Masks that are made of scores inside a step: the K highest, or those above a threshold.

    top(scores, k)          exactly k entries are True; equal scores go by the flat index
    straight_through(mask, scores)      mask, whose gradient goes to the scores as it is

The K-th score is looked for by halving the range of the numbers' bits, 32 times, so nothing is
sorted and k may be traced.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, UInt32

from t5x_lite.types import Array

_SIGN = np.uint32(1 << 31)


def top(scores: Float[Array, "*axes"], k: Array | int) -> Bool[Array, "*axes"]:
    """The k entries of highest score.

    Args:
      scores: float32, finite.
      k: int32 scalar, at least 1 and at most the number of entries.
    """
    keys = _ordered(scores.reshape(-1))
    limit = _kth(keys, jnp.asarray(k, jnp.int32))
    above, equal = keys > limit, keys == limit
    left = k - jnp.sum(above, dtype=jnp.int32)
    kept = above | (equal & (jnp.cumsum(equal, dtype=jnp.int32) <= left))
    return kept.reshape(scores.shape)


def straight_through(
    mask: Bool[Array, "*axes"], scores: Float[Array, "*axes"]
) -> Float[Array, "*axes"]:
    """The mask as 0 and 1; its gradient is that of the scores (Bengio et al. 2013)."""
    return _straight(scores, mask.astype(scores.dtype))


@jax.custom_jvp
def _straight(scores: Array, mask: Array) -> Array:
    del scores
    return mask


@_straight.defjvp
def _straight_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    return primals[1], tangents[0]


def _ordered(scores: Float[Array, " D"]) -> UInt32[Array, " D"]:
    """Unsigned numbers in the order of the scores; -0.0 is 0.0."""
    bits = jax.lax.bitcast_convert_type(scores.astype(jnp.float32) + 0.0, jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _kth(keys: UInt32[Array, " D"], k: Array) -> UInt32[Array, ""]:
    """The k-th largest key: the highest one that k keys reach."""

    def bit(number: Array, limit: Array) -> Array:
        tried = limit | (_SIGN >> number.astype(jnp.uint32))
        return jnp.where(jnp.sum(keys >= tried, dtype=jnp.int32) >= k, tried, limit)

    return jax.lax.fori_loop(0, 32, bit, jnp.uint32(0))
