"""Cache of incremental decoding: keys, values, and the ancestors of each row.

An input is decoded in W rows (beams or samples): R = B * W, and row w of input b has the index b *
W + w. The cross-attention keys of an input, and the keys of the decoder's prefix (start token and
prompt), are stored once and shared by all rows of the input. The self-attention has S = P + L * W
slots (cached positions):

    p0 p1 | a0 a1  b0 b1  c0 c1     2 prefix slots; tokens a, b, c of rows 0 and 1

A beam search reorders rows every step. The keys are not moved: `ancestors[row, l]` is the row that
wrote the l-th new token of this row's past, and a row attends to exactly these slots. Reordering
the rows is a gather in this small table (`select`). A gather of the keys would read and write all
of them, for beams of 4 about as many bytes as the decoder's weights. The cost is W times the
products of the self-attention, which share the reads of the keys.

    row 1 with ancestors [0, 1, 1] attends to p0 p1 a0 b1 c1 in the third step

Values are [.., H, S, K]. Keys are [.., N * H, K, b], in N consecutive blocks of b slots, so that
the two products of attention read memory in order. With many slots in one block, [.., H, K, S], a
CPU reads in several strided passes and takes up to twice the time. All W slots of a step are in one
block: b is a multiple of W, and the prefix is padded on the left to a multiple of W.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from t5x_lite.core.trees import Array, Size
from t5x_lite.nn import masks
from t5x_lite.nn.attention_pattern import Positions
from t5x_lite.nn.layers import KeysAndValuesByHead

BLOCK = 32
"""Approximate number of cached positions per block of keys; fewer than 2 * BLOCK form one block."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
    """State of incremental decoding, as a pytree.

    Attributes:
      own: pair (keys, values) of the self-attention for each layer, or one pair with a leading axis
        of layers. Keys are [B, N * H, K, b], in N blocks of b positions; values are [B, H, S, K].
      across: keys and values of the cross-attention, with the inputs' length I instead of S, or
        None.
      cross_mask: bool [B, 1, 1, I], mask of the inputs, or None.
      valid: bool [B, P], False for padding among the first tokens (`Prefix`).
      ancestors: int32 [R, L]: at [r, l], the row of the same input that computed token l of row r.
      index: int32, number of new tokens so far.
    """

    own: Any
    across: Any
    cross_mask: Any
    valid: Any
    ancestors: Any
    index: Any

    @property
    def num_rows(self) -> int:
        """Number of rows per input, such as beams."""
        return self.ancestors.shape[0] // self.valid.shape[0]


def _map_pairs(function: Callable[[Array, Array], tuple[Array, Array]], pairs: Any) -> Any:
    if pairs is None:
        return None
    if isinstance(pairs[0], jax.Array):
        return function(*pairs)
    return tuple(_map_pairs(function, pair) for pair in pairs)


def to_blocks(keys: Float[Array, "*layers H K S"], *, num_rows: int = 1) -> Array:
    """Split cached keys into N blocks [*layers, N * H, K, b], padded with zeros at the end.

    Args:
      keys: keys of S cached positions.
      num_rows: number of rows per input, such as beams.
    """
    *layers, heads, size, slots = keys.shape
    block = num_rows * max(1, BLOCK // num_rows) if slots >= 2 * BLOCK else slots
    keys = jnp.pad(keys, [(0, 0)] * (keys.ndim - 1) + [(0, -slots % block)])
    blocks = keys.reshape(*layers, heads, size, -1, block)
    return jnp.moveaxis(blocks, -2, -4).reshape(*layers, -1, size, block)


def from_blocks(blocks: Array, *, num_heads: int, num_slots: int) -> Float[Array, "*layers H K S"]:
    """Join blocks of cached keys into the keys of all positions, the inverse of `to_blocks`."""
    *layers, _, size, block = blocks.shape
    keys = jnp.moveaxis(blocks.reshape(*layers, -1, num_heads, size, block), -4, -2)
    return keys.reshape(*layers, num_heads, size, -1)[..., :num_slots]


def start(
    own: Any,
    across: Any,
    *,
    cross_mask: Bool[Array, "B 1 1 I"] | None,
    valid: Bool[Array, "B P"],
    max_length: int,
) -> Cache:
    """Return the decoding cache after the first tokens (`Prefix`), with one row for each input.

    Args:
      own: self-attention keys [.., H, K, P] and values [.., H, P, K], in pairs.
      across: cross-attention keys and values in the same form, or None.
      cross_mask: mask of the inputs, or None.
      valid: False for padding among the first tokens.
      max_length: maximum number of new tokens.
    """
    if max_length < 1:
        raise ValueError(f"max_length of a decoding cache must be at least 1: got {max_length}")
    length = max(1, max_length - 1)

    def with_room(keys: Array, values: Array) -> tuple[Array, Array]:
        room = [(0, 0)] * (keys.ndim - 1) + [(0, length)]
        return to_blocks(jnp.pad(keys, room)), jnp.pad(values, [*room[:-2], room[-1], (0, 0)])

    return Cache(
        own=_map_pairs(with_room, own),
        across=_map_pairs(lambda keys, values: (to_blocks(keys), values), across),
        cross_mask=cross_mask,
        valid=valid,
        ancestors=jnp.zeros((valid.shape[0], length), jnp.int32),
        index=jnp.zeros((), jnp.int32),
    )


def unstack(tree: Any, num: int) -> tuple:
    """Split stacked arrays into a tuple with the arrays of each of the `num` layers."""
    return tuple(jax.tree.map(lambda array, n=n: array[n], tree) for n in range(num))


def put(old: Any, new: KeysAndValuesByHead, slot: Int[Array, ""], *layer: Int[Array, ""]) -> Any:
    """Write the keys and values of new tokens into the cache, from position `slot` on.

    Args:
      old: cached pair of keys and values.
      new: keys [B, H, K, W] and values of W new tokens of one layer.
      slot: first position to write; if too few positions follow, the last positions are
        overwritten.
      *layer: index of the layer, if the pair holds all layers.
    """
    (keys, values), (new_keys, new_values) = old, new
    slot = jnp.minimum(slot, values.shape[-2] - new_values.shape[-2])
    block = keys.shape[-1]
    first = slot // block * values.shape[-3]
    outer = (None,) * len(layer)
    return (
        jax.lax.dynamic_update_slice(keys, new_keys[outer], (*layer, 0, first, 0, slot % block)),
        jax.lax.dynamic_update_slice(values, new_values[outer], (*layer, 0, 0, slot, 0)),
    )


def view(cache: Cache) -> tuple[Int[Array, ""], Bool[Array, "B 1 W S"], Positions]:
    """Return the next token's cache position, its attention mask, and query and key positions.

    Returns:
      First cache position to write; mask of the cached keys that each row attends to; positions of
        the new query and of the cached keys.
    """
    batch_size, prefix = cache.valid.shape
    num_rows, length = cache.num_rows, cache.ancestors.shape[1]
    ancestors = cache.ancestors.reshape(batch_size, num_rows, length, 1)
    time = jnp.arange(length)
    past = (time <= cache.index)[:, None] & (ancestors == jnp.arange(num_rows))
    past = past.reshape(batch_size, 1, num_rows, length * num_rows)
    before = jnp.broadcast_to(cache.valid[:, None, None, :], (batch_size, 1, num_rows, prefix))
    keys = jnp.concatenate([jnp.arange(prefix), prefix + jnp.repeat(time, num_rows)])
    query = jnp.reshape(prefix + cache.index, (1,))
    slot = prefix + cache.index * num_rows
    return slot, jnp.concatenate([before, past], axis=-1), (query, keys)


def repeat(cache: Cache, num: int) -> Cache:
    """Repeat each row `num` times: row r becomes rows r * num, ..., r * num + num - 1.

    Args:
      cache: cache at any step; repetition is cheapest after the prefill.
      num: number of copies, at least 1.
    """
    if num < 1:
        raise ValueError(
            f"rows of a decoding cache must be repeated at least once, but num is {num}"
        )
    if num == 1:
        return cache
    prefix, length = cache.valid.shape[1], cache.ancestors.shape[1]
    num_rows = cache.num_rows * num
    missing = -prefix % num_rows  # slots added on the left of the prefix

    def widen(array: Array, axis: int) -> Array:
        # Slot (l, w) becomes (l, w * num); the num - 1 slots after it are free.
        slots = jnp.moveaxis(array, axis, 0)
        before, new = slots[:prefix], slots[prefix:, None]
        before = jnp.pad(before, [(missing, 0)] + [(0, 0)] * (before.ndim - 1))
        new = jnp.pad(new, [(0, 0), (0, num - 1)] + [(0, 0)] * (new.ndim - 2))
        new = new.reshape(length * num_rows, *slots.shape[1:])
        return jnp.moveaxis(jnp.concatenate([before, new]), 0, axis)

    def widen_pair(keys: Array, values: Array) -> tuple[Array, Array]:
        *_, num_heads, num_slots, _ = values.shape
        keys = widen(from_blocks(keys, num_heads=num_heads, num_slots=num_slots), -1)
        return to_blocks(keys, num_rows=num_rows), widen(values, -2)

    cache = dataclasses.replace(
        cache,
        own=_map_pairs(widen_pair, cache.own),
        valid=jnp.pad(cache.valid, ((0, 0), (missing, 0))),
        ancestors=jnp.repeat(cache.ancestors * num, num, axis=0),
    )
    return select(cache, jnp.arange(cache.ancestors.shape[0]))


def select(cache: Cache, rows: Int[Array, " R"]) -> Cache:
    """Reorder rows, as in a beam search: row r continues the former row rows[r].

    Args:
      cache: cache at any step.
      rows: indices into the R rows; each row continues a row of the same input.
    """
    num_rows, length = cache.num_rows, cache.ancestors.shape[1]
    own = (jnp.arange(rows.shape[0]) % num_rows)[:, None]  # for later tokens of the row
    written = jnp.arange(length) < cache.index
    return dataclasses.replace(
        cache, ancestors=jnp.where(written, cache.ancestors[rows], own).astype(jnp.int32)
    )


def advance(cache: Cache, own: Any) -> Cache:
    """Advance the cache by one token, with the keys and values that the layers wrote."""
    return dataclasses.replace(cache, own=own, index=cache.index + 1)


class Prefix(NamedTuple):
    """First tokens that a decoder reads (start token, inputs, prompt), right-aligned to [B, P].

    Attributes:
      tokens: int32; 0 for the padding on the left and for the start token.
      valid: bool, False for padding.
      part: int32, number of the part (inputs, prompt) that holds a token, from 1; 0 is the start
        token.
    """

    tokens: Any
    valid: Any
    part: Any


def align(*parts: Int[Array, "B _"], batch_size: Size) -> Prefix:
    """Concatenate the start token, inputs and prompt of each row, right-aligned.

    align([[5, 6, 0], [7, 8, 9]], [[3, 0], [4, 2]], batch_size=2)

    tokens 0 0 0 5 6 3      valid 0 0 1 1 1 1      part 0 0 0 1 1 2     (start, 5, 6, 3)
           0 7 8 9 4 2            1 1 1 1 1 1           0 1 1 1 2 2

    Args:
      *parts: tokens, padded with 0 on the right; parts may differ in their number of columns.
      batch_size: number of rows B, needed for a call without parts.
    """
    columns = [jnp.zeros((batch_size, 1), jnp.int32), *(part.astype(jnp.int32) for part in parts)]
    tokens = jnp.concatenate(columns, axis=1)
    number = jnp.concatenate([jnp.full(c.shape[1], i) for i, c in enumerate(columns)])
    valid = (tokens > 0).at[:, 0].set(True)
    order = jnp.argsort(valid, axis=1, stable=True)
    valid = jnp.take_along_axis(valid, order, axis=1)
    part = jnp.where(valid, number[order], 0)
    return Prefix(jnp.take_along_axis(tokens, order, axis=1), valid, part)


def prefix_mask(
    valid: Bool[Array, "B P"], both_ways: Bool[Array, "B P"] | None = None
) -> Bool[Array, "B 1 P P"]:
    """Return the attention mask of a decoder's first tokens: causal, or both ways between inputs.

    Args:
      valid: False for padding, which no position attends to.
      both_ways: True for positions that attend to each other in both directions (the inputs of a
        prefix LM); None for a causal mask.
    """
    mask = masks.causal(valid.shape[1])
    if both_ways is not None:
        mask = mask | (both_ways[:, None, :, None] & both_ways[:, None, None, :])
    return mask & valid[:, None, None, :]
