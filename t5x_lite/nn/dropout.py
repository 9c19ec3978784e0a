"""Dropout, normalization layers, and sums over leading axes.

Dropout is a function of a random key; without a key, nothing is dropped.

The gradient of an array shared over a batch is a sum over leading axes. On CPU, XLA compiles this
sum to a strided loop, 70 times slower than adding the slices (T5-small's relative bias spent a
third of the backward pass there). Other devices use the plain sum.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core.sharding import traced_kind
from t5x_lite.core.trees import Array, Key


def dropout(x: Array, rate: float, *, key: Key | None, broadcast_axes: Sequence[int] = ()) -> Array:
    """Zero elements with probability `rate` and scale the others by 1 / (1 - rate).

    The mask is sampled by `kept_elements` on TPUs, and by JAX's generator on other devices.

    Args:
      x: any array.
      rate: dropout rate in [0, 1).
      key: random key; None returns x unchanged.
      broadcast_axes: axes along which the mask is the same. T5 shares the mask of hidden states
        over the length (axis -2) and the mask of attention weights over the queries (axis -2).

    Returns:
      An array of x's shape and dtype.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"a dropout rate must be in [0, 1): got {rate}")
    if key is None or rate == 0.0:
        return x
    shape = list(x.shape)
    for axis in broadcast_axes:
        shape[axis] = 1
    if traced_kind().startswith("TPU"):
        keep, kept = kept_elements(key, rate, shape), 1.0 - _drawn_rate(rate) / 2**16
    else:
        keep, kept = jax.random.bernoulli(key, 1.0 - rate, tuple(shape)), 1.0 - rate
    # A product with a small mask is one pass over x, forward and backward.
    return x * (keep.astype(x.dtype) / jnp.asarray(kept, x.dtype))


def kept_elements(key: Key, rate: float, shape: Sequence[int]) -> Bool[Array, "..."]:
    """Sample a dropout mask by a hash of the elements' indices; True keeps an element.

    This mask is for TPUs, where JAX's generator takes 2.5 ms and the hash 0.1 ms for the same
    elements, by the compiler's estimate (docs/benchmarks.md).

    Args:
      key: PRNG key.
      rate: dropout rate in (0, 1), rounded to a multiple of 2 ** -16.
      shape: shape of the mask.
    """
    *leading, size = (1, *shape)
    seeds = _seed(key)
    for length in leading:
        seeds = _mixed(seeds[..., None] + _numbers(length) * _STEP)
    return kept_keys(rate, seeds, 0, size).reshape(shape)


@dataclasses.dataclass(frozen=True)
class WeightDropout:
    """Dropout of attention weights, sampled for each query and key.

    Attributes:
      key: PRNG key.
      rate: dropout rate in (0, 1), rounded to a multiple of 2 ** -16.
    """

    key: Key
    rate: float

    @property
    def scale(self) -> float:
        """Factor of a kept weight, 1 / (1 - rate)."""
        return 1.0 / (1.0 - _drawn_rate(self.rate) / 2**16)

    def kept(self, shape: Sequence[int], block: int | Array = 0) -> Array:
        """Sample the dropout mask of attention weights; True keeps a weight.

        Each random word decides two weights, which halves the time. On TPUs, `kept_elements`
        samples the mask.

        Args:
          shape: shape of the weights, [B, H, T, S].
          block: index of the block of weights; each block has its own mask.
        """
        key = jax.random.fold_in(self.key, block)
        if traced_kind().startswith("TPU"):
            return kept_elements(key, self.rate, shape)
        *batch, columns = shape
        words = jax.random.bits(key, (*batch, -(-columns // 2)), jnp.uint32)
        draws = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*batch, -1)
        return draws[..., :columns] >= _drawn_rate(self.rate)

    def streams(self, rows: int, heads: int, queries: int) -> Int[Array, "B H T"]:
        """Return a random word for each row, head and query, the seed for the dropout of its keys.

        Args:
          rows: number of rows B.
          heads: number of heads H.
          queries: number of queries T.
        """
        by_row = _mixed(_seed(self.key) + _numbers(rows) * _STEP)
        by_head = _mixed(by_row[:, None] + _numbers(heads) * _STEP)
        return _mixed(by_head[..., None] + _numbers(queries) * _STEP)


def kept_keys(
    rate: float, streams: Int[Array, "..."], start: int | Array, size: int
) -> Bool[Array, "... size"]:
    """Sample the dropout mask of keys by a hash of row, head, query and key; True keeps a weight.

    The attention kernel for TPUs samples the same mask (`t5x_lite.nn.pallas_kernels`).

    Args:
      rate: dropout rate.
      streams: random words from `WeightDropout.streams`, or other random words.
      start: index of the first key.
      size: number of keys.
    """
    keys = start + jnp.arange(size, dtype=jnp.int32)
    words = hashed(streams[..., None], word_of(keys))
    return jnp.where((keys & 8) > 0, words << 16, words) >= least_draw(rate)


def least_draw(rate: float) -> int:
    """Return the smallest random int32 that keeps a weight; the lower 16 bits are ignored."""
    return (_drawn_rate(rate) << 16) - 2**31


_STEP = np.int32(0x9E3779B9 - 2**32)
"""Odd step near 2 ** 32 / golden ratio: its multiples are far apart (Weyl's sequence)."""
_FACTORS = np.int32(0x7FEB352D), np.int32(0x846CA68B - 2**32)
"""Multipliers of C. Wellons' hash lowbias32 (https://nullprogram.com/blog/2018/07/31/)."""


def hashed(streams: Int[Array, "..."], words: Int[Array, "..."]) -> Int[Array, "..."]:
    """Return random words, computed as a hash of stream seeds and word indices.

    The arguments are broadcast together. Each word holds two random numbers of 16 bits; see
    `word_of`. On a TPU, a word costs 8 integer operations, and extracting and comparing a number
    1.5.
    """
    return _once_mixed(streams + words * _STEP) * _FACTORS[1]


def word_of(keys: Int[Array, "..."]) -> Int[Array, "..."]:
    """Return the index of the random word that decides the dropout of each key.

    In each group of 16 keys, the first 8 read the upper halves of 8 words, and the last 8 the lower
    halves. A TPU register of 8 rows therefore needs only one half.
    """
    return jax.lax.shift_right_logical(keys, np.int32(4)) * 8 + (keys & 7)


def _seed(key: Key) -> Int[Array, ""]:
    words = jax.lax.bitcast_convert_type(jax.random.key_data(key), jnp.int32).reshape(-1)
    seed = jnp.int32(0)
    for word in words:
        seed = _mixed(seed + word)
    return seed


def _numbers(size: int) -> Int[Array, " size"]:
    return jnp.arange(size, dtype=jnp.int32)


def _once_mixed(x: Array) -> Array:
    x = (x ^ jax.lax.shift_right_logical(x, np.int32(16))) * _FACTORS[0]
    return x ^ jax.lax.shift_right_logical(x, np.int32(15))


def _mixed(x: Array) -> Array:
    x = _once_mixed(x) * _FACTORS[1]
    return x ^ jax.lax.shift_right_logical(x, np.int32(16))


def _drawn_rate(rate: float) -> int:
    return min(round(rate * 2**16), 2**16 - 1)


def thinned(weights: Array, kept: Array | None) -> Array:
    """Set weights to 0 where `kept` is False; `kept` None keeps all weights."""
    return weights if kept is None else jnp.where(kept, weights, 0)


def split_key(key: Key | None, num: int) -> list[Key | None]:
    """Split a random key into `num` keys; for key None, return `num` times None."""
    return [None] * num if key is None else list(jax.random.split(key, num))


def hidden_dropout(x: Float[Array, "B T D"], rate: float, key: Key | None) -> Float[Array, "B T D"]:
    """Apply dropout to hidden states, with one mask shared over the length."""
    return dropout(x, rate, key=key, broadcast_axes=(-2,))


_MOST_SLICES = 64


def sum_leading(x: Float[Array, "B *rest"]) -> Float[Array, "*rest"]:
    """Sum an array over its first axis; on CPUs, add the slices, which is faster."""
    if x.shape[0] > _MOST_SLICES:
        return jnp.sum(x, axis=0)
    return jax.lax.platform_dependent(
        x,
        cpu=lambda x: functools.reduce(operator.add, [x[row] for row in range(x.shape[0])]),
        default=lambda x: jnp.sum(x, axis=0),
    )


@jax.custom_vjp
def scale_features(x: Float[Array, "*batch D"], scale: Float[Array, " D"]) -> Array:
    """Multiply x by a scale shared over all axes but the last; both have the same dtype.

    The gradient of the scale is accumulated in float32.
    """
    return x * scale


def _scale_forward(x: Array, scale: Array) -> tuple[Array, tuple[Array, Array]]:
    return x * scale, (x, scale)


def _scale_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, scale = saved
    products = (g.astype(jnp.float32) * x.astype(jnp.float32)).reshape(-1, x.shape[-1])
    total = jnp.einsum("R,RD->D", jnp.ones(products.shape[:1], jnp.float32), products)
    return g * scale, total.astype(scale.dtype)


scale_features.defvjp(_scale_forward, _scale_backward)


class RMSNorm(nnx.Module):
    """Root-mean-square norm without mean and bias (Zhang and Sennrich 2019), as in T5.

    The statistic and the division are in float32. The result is rounded to the dtype of x BEFORE it
    is multiplied by the scale, as in t5x layers.py.

    Args:
      d_model: size of the last axis.
      epsilon: constant added to the mean square.
    """

    def __init__(self, d_model: int, *, epsilon: float = 1e-6):
        self.scale = nnx.Param(jnp.ones((d_model,), jnp.float32), logical=("embed",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        x32 = x.astype(jnp.float32)
        mean_square = jnp.mean(jax.lax.square(x32), axis=-1, keepdims=True)
        normed = x32 * jax.lax.rsqrt(mean_square + self.epsilon)
        return scale_features(normed.astype(x.dtype), self.scale[...].astype(x.dtype))


class LayerNorm(nnx.Module):
    """Layer normalization (Ba et al. 2016), computed in float32 and rounded to the dtype of x.

    Args:
      size: size of the last axis.
      epsilon: constant added to the variance.
    """

    def __init__(self, size: int, epsilon: float = 1e-12):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), logical=("embed",))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), logical=("embed",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jax.lax.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.epsilon)
        scale, bias = (p[...].astype(jnp.float32) for p in (self.scale, self.bias))
        return (normed * scale + bias).astype(x.dtype)
