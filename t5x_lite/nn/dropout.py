"""Dropout as a function of a key; no key, no dropout."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Float

from t5x_lite.types import Array, Key


def dropout(x: Array, rate: float, *, key: Key | None, broadcast_axes: Sequence[int] = ()) -> Array:
    """Zeroes elements with probability `rate` and scales the others by 1 / (1 - rate).

    Args:
      x: any array.
      rate: in [0, 1).
      key: None is deterministic: x as it is.
      broadcast_axes: axes along which the mask is the same. T5 shares the mask of hidden states
        over the length (axis -2) and that of attention weights over the queries (axis -2).

    Returns:
      An array of x's shape and dtype.

    Raises:
      ValueError: rate outside [0, 1).
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"a dropout rate must be in [0, 1): got {rate}")
    if key is None or rate == 0.0:
        return x
    shape = list(x.shape)
    for axis in broadcast_axes:
        shape[axis] = 1
    keep = jax.random.bernoulli(key, 1.0 - rate, tuple(shape))
    # A product with a small mask is one pass over x, forward and backward.
    return x * (keep.astype(x.dtype) / jnp.asarray(1.0 - rate, x.dtype))


@dataclasses.dataclass(frozen=True)
class WeightDropout:
    """Dropout of attention weights, drawn for each query and key.

    Attributes:
      key: of the draws.
      rate: in (0, 1); it is drawn to a multiple of 2 ** -16.
    """

    key: Key
    rate: float

    @property
    def scale(self) -> float:
        """What a kept weight is multiplied with, 1 / (1 - rate)."""
        return 1.0 / (1.0 - _drawn_rate(self.rate) / 2**16)

    def kept(self, shape: Sequence[int], block: int | Array = 0) -> Array:
        """True where a weight is kept, at random.

        Each random word gives two of them: half the time of a word for each.

        Args:
          shape: of the weights; [B, H, T, S].
          block: the number of the block of weights that these are.
        """
        key = jax.random.fold_in(self.key, block)
        *batch, columns = shape
        words = jax.random.bits(key, (*batch, -(-columns // 2)), jnp.uint32)
        draws = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*batch, -1)
        return draws[..., :columns] >= _drawn_rate(self.rate)


def _drawn_rate(rate: float) -> int:
    return min(round(rate * 2**16), 2**16 - 1)


def thinned(weights: Array, kept: Array | None) -> Array:
    """Weights with zeros where they are not kept."""
    return weights if kept is None else jnp.where(kept, weights, 0)


def split_key(key: Key | None, num: int) -> list[Key | None]:
    """`num` keys, or as many Nones."""
    return [None] * num if key is None else list(jax.random.split(key, num))


def hidden_dropout(x: Float[Array, "B T D"], rate: float, key: Key | None) -> Float[Array, "B T D"]:
    """Dropout of hidden states, its mask shared over the length."""
    return dropout(x, rate, key=key, broadcast_axes=(-2,))
