"""Attention masks: boolean arrays [B or 1, 1, T, S], True where a query may see a key.

causal(3)            segments([[1, 1, 2]], [[1, 1, 2]])
1 0 0                1 1 0
1 1 0                1 1 0
1 1 1                0 0 1
"""

import jax.numpy as jnp
from jaxtyping import Bool, Int

from t5x_lite.types import Array


def padding(keys: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query sees the keys that are not padding (token 0)."""
    return (keys > 0)[:, None, None, :]


def causal(length: int) -> Bool[Array, "1 1 T T"]:
    """A query sees itself and the keys before it."""
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def segments(queries: Int[Array, "B T"], keys: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """A query sees the keys of its own segment (packed example); segment 0 is padding.

    Args:
      queries: segment id of each query.
      keys: segment id of each key.
    """
    same = queries[:, None, :, None] == keys[:, None, None, :]
    return same & (keys > 0)[:, None, None, :]


def combine(*masks: Bool[Array, "..."] | None) -> Bool[Array, "..."] | None:
    """The masks' conjunction, broadcast together; None where all of them are."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    result = given[0]
    for mask in given[1:]:
        result = result & mask
    return result
