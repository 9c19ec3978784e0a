"""The keys that queries attend to, and the biases of their logits, such as T5's relative one.

Relative position buckets and the bias that T5 adds to attention logits (paper section 2.1).

The bucket of a key depends only on its distance n from the query: buckets are exact up to half of
the buckets, then logarithmic up to `max_distance`, and all larger distances share the last bucket.
The first distance of each bucket is an integer from a table, so no device computes a floating-point
logarithm (backends differ in its last bit).

    relative_position_bucket(key - query): bidirectional, 32 buckets, 0..15 left, 16..31 right
    ...  -8 -7 ... -1  0   1  ...  7   8  ...
    ...   8  7      1  0  17      23  24  ...

Attention patterns: the keys that queries attend to, and the bias of their logits.

    Pattern(masks.causal(8))                         an array: plain attention over all keys
    Pattern(masks.of_decoder())                      a Visibility: attention in blocks of keys
    pattern.biased(relative_bias, bidirectional=True)

A stack builds one pattern for all of its layers. Mask and bias have the same form: two arrays for
plain attention, or a `Visibility` and a `RelativeTable` for attention in blocks.

The module also computes DeBERTa's attention by content and distance, over all queries at once or in
blocks of queries:

    logits[q, k] = Q[q] K[k] + Q[q] Kr[q - k] + K[k] Qr[q - k]

The rows of Kr and Qr depend only on q - k, so the products with these rows are [T, 2 T - 1].
Shifting row t by t positions gives [T, T], without a gather. A block of b queries needs T + b - 1
of the rows, so no array of T * T elements is allocated. The backward pass recomputes each block.
"""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.dense import WeightDropout, einsum, kept_keys, thinned
from t5x_lite.nn.masks import MASKED, Visibility, segments

Positions = tuple[Int[Array, " queries"], Int[Array, " keys"]]
"""Positions of queries and keys in their row; only their differences matter."""

# First distance of each bucket with 32 buckets and max_distance 128 (t5x layers.py:580-625).
BIDIRECTIONAL_STARTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)
CAUSAL_STARTS = (
    *range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113,
)  # fmt: skip


@functools.cache
def bucket_starts(num_buckets: int, max_distance: int) -> tuple[int, ...]:
    """Return the first distance of each of `num_buckets` one-sided buckets, in ascending order.

    Args:
      num_buckets: number of buckets on one side (16 in a bidirectional table of 32).
      max_distance: distance from which on all distances share the last bucket.

    Returns:
      A tuple of num_buckets integers: constants for T5's sizes, else computed once in float64.

    Raises:
      ValueError: if there are fewer than 2 buckets, or max_distance is at most num_buckets // 2.
    """
    if (num_buckets, max_distance) == (16, 128):
        return BIDIRECTIONAL_STARTS
    if (num_buckets, max_distance) == (32, 128):
        return CAUSAL_STARTS
    exact = num_buckets // 2
    if num_buckets < 2 or max_distance <= exact:
        raise ValueError(
            f"relative positions need at least 2 buckets and a max_distance above half of them: "
            f"got {num_buckets} buckets and max_distance {max_distance}"
        )
    distance = np.arange(exact, max_distance + 1)
    spread = np.log(distance / exact + np.finfo(np.float32).eps) / np.log(max_distance / exact)
    bucket = np.minimum(exact + (spread * (num_buckets - exact)).astype(int), num_buckets - 1)
    starts = [*range(exact)]
    starts += [int(distance[np.argmax(bucket >= index)]) for index in range(exact, num_buckets)]
    return tuple(starts)


def relative_position_bucket(
    relative_position: Int[Array, "T S"],
    *,
    bidirectional: bool,
    num_buckets: int = 32,
    max_distance: int = 128,
) -> Int[Array, "T S"]:
    """Return the bias bucket of each relative position.

    Args:
      relative_position: key position minus query position.
      bidirectional: True in an encoder, where half of the buckets are for keys to the right. If
        False, as in a decoder, all keys to the right share bucket 0 (they are masked).
      num_buckets: number of rows of the bias table.
      max_distance: distance from which on all distances share a bucket.

    Returns:
      int32 in [0, num_buckets).

    Source: t5x layers.py:580-625 (from mesh_tensorflow's transformer_layers).
    """
    one_side = num_buckets // 2 if bidirectional else num_buckets
    starts = bucket_starts(one_side, max_distance)
    # Table from distance to bucket, by integer comparisons on the host.
    table = np.searchsorted(np.asarray(starts), np.arange(max_distance + 1), side="right") - 1
    if bidirectional:
        distance = jnp.abs(relative_position)
        offset = jnp.where(relative_position > 0, one_side, 0)
    else:
        distance = jnp.maximum(-relative_position, 0)
        offset = 0
    distance = jnp.minimum(distance, max_distance)
    return jnp.asarray(table, jnp.int32)[distance] + offset


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeTable:
    """Table of relative position biases, for queries and keys at positions 0, 1, 2, ...

    Attributes:
      table: bias of each distance bucket and head, float32 [buckets, H].
      bidirectional: True in an encoder, where half of the buckets are for keys to the right.
      max_distance: distance from which on all distances share a bucket.
    """

    table: Float[Array, "buckets H"]
    bidirectional: bool
    max_distance: int

    def block(
        self, num_queries: int, start: int | Int[Array, ""], size: int
    ) -> Float[Array, "H T size"]:
        """Return the bias of the first `num_queries` queries and of `size` keys from `start` on.

        The bias is the same along each diagonal. Only num_queries + size - 1 distances are
        therefore looked up, and the gradient is first summed over each diagonal.
        """
        num_distances = num_queries + size - 1
        # Key minus query; from the last key and the first query on.
        relative = start + (size - 1) - jnp.arange(num_distances)
        bucket = relative_position_bucket(
            relative[None],
            bidirectional=self.bidirectional,
            num_buckets=self.table.shape[0],
            max_distance=self.max_distance,
        )[0]
        row = jnp.take(self.table.T, bucket, axis=1)
        heads = row.shape[0]
        # Rows are one longer than their content, so row k begins k positions later.
        rows = jnp.broadcast_to(row[:, None], (heads, size, num_distances)).reshape(heads, -1)
        moved = jnp.pad(rows, ((0, 0), (0, size))).reshape(heads, size, num_distances + 1)
        return moved[:, ::-1, :num_queries].swapaxes(1, 2)


class RelativeBias(nnx.Module):
    """Relative position bias: a learned scalar for each head and relative position bucket.

    T5 has one table for all layers of a stack, and umT5 has one for each layer.

    Args:
      num_heads: number of heads H.
      num_buckets: number of rows of the table.
      max_distance: distance from which on all distances share a bucket.
      rngs: random streams; "params" is used.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        rngs: nnx.Rngs,
    ):
        init = jax.nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        table = init(rngs.params(), (num_buckets, num_heads), jnp.float32)
        self.table = nnx.Param(table, logical=("relpos_buckets", "heads"))
        self.num_buckets = num_buckets
        self.max_distance = max_distance

    def __call__(
        self,
        query_positions: Int[Array, " T"],
        key_positions: Int[Array, " S"],
        *,
        bidirectional: bool,
    ) -> Float[Array, "1 H T S"]:
        """Return the relative bias of all pairs of queries and keys, in float32.

        Args:
          query_positions: positions of the queries in the row (not in their segment).
          key_positions: positions of the keys in the row.
          bidirectional: True in an encoder, where half of the buckets are for keys to the right.
        """
        bucket = relative_position_bucket(
            key_positions[None, :] - query_positions[:, None],
            bidirectional=bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        table = self.table[...].astype(jnp.float32)
        # A lookup of scalars in [H, T, S] order: its gradient is a scatter without a transposition.
        row = jnp.arange(table.shape[1])[:, None, None] * self.num_buckets + bucket
        return jnp.take(table.T.reshape(-1), row)[None]

    def reading(self, *, bidirectional: bool) -> RelativeTable:
        """Return the bias as a float32 `RelativeTable`, for attention in blocks."""
        return RelativeTable(
            table=self.table[...].astype(jnp.float32),
            bidirectional=bidirectional,
            max_distance=self.max_distance,
        )


def document_positions(segment_ids: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Return positions within each segment: segment ids [1, 1, 2, 2, 2] give [0, 1, 0, 1, 2].

    Padding (segment 0) gets position 0, which every position embedding has.
    """
    place = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None]
    begins = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))
    positions = place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)
    return jnp.where(segment_ids > 0, positions, 0)


class Distances(NamedTuple):
    """Rows of a relative position embedding for all distances between the positions of a sequence.

    Attributes:
      rows: embeddings of the distances that occur, [R, D].
      index: int32 [2 T - 1], index into `rows` for each distance -(T - 1), ..., T - 1.
    """

    rows: Float[Array, "R D"]
    index: np.ndarray


class Operands(NamedTuple):
    """Projected and scaled inputs of disentangled attention, as in DeBERTa.

    Attributes:
      query: projected queries.
      key: projected keys.
      value: projected values.
      position_key: keys of the distances k - q = -(T - 1), ..., T - 1; None if the score has no
        content-to-position term.
      position_query: queries of the distances q - k = -(T - 1), ..., T - 1; None if the score has
        no position-to-content term.
      prefix_key: prefix keys, which all queries attend to by content only; None without a prefix.
      prefix_value: prefix values; None without a prefix.
    """

    query: Float[Array, "B T H K"]
    key: Float[Array, "B S H K"]
    value: Float[Array, "B S H K"]
    position_key: Float[Array, "W H K"] | None
    position_query: Float[Array, "W H K"] | None
    prefix_key: Float[Array, "B P H K"] | None = None
    prefix_value: Float[Array, "B P H K"] | None = None


def by_distance(x: Float[Array, "*batch T W"]) -> Float[Array, "*batch T S"]:
    """Re-index columns by key instead of distance, without a gather: y[t, s] = x[t, s - t + T - 1].

    Args:
      x: values by row t and distance s - t, with the distances -(T - 1), ..., S - 1.
    """
    *batch, length, width = x.shape
    flat = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]).reshape(*batch, length * (width + 1))
    flat = flat[..., length - 1 : length - 1 + length * width]
    return flat.reshape(*batch, length, width)[..., : width - length + 1]


@jax.custom_vjp
def masked_weighting(
    logits: Float[Array, "B H T S"],
    value: Float[Array, "B S H K"],
    mask: Bool[Array, "#B 1 #T S"],
    kept: Bool[Array, "B H T S"] | None = None,
) -> Float[Array, "B T H K"]:
    """Compute softmax(logits) value over the visible keys; 0 for queries without visible keys.

    Logits and softmax are float32, and the product is in the dtype of value. Forward and backward
    pass work as in `attention.softmax_attention`. Weights are 0 where `kept` is False.

    Source: microsoft/DeBERTa deberta/ops.py, XSoftmax.
    """
    return _weighting_forward(logits, value, mask, kept)[0]


def _weighting_forward(
    logits: Array, value: Array, mask: Array, kept: Array | None = None
) -> tuple[Array, tuple]:
    logits = jnp.where(mask, logits, MASKED)
    exponentials = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    exponentials = jnp.where(mask, exponentials, 0.0)
    normaliser = jnp.sum(exponentials, axis=-1)
    weights = exponentials.astype(value.dtype)
    scale = 1.0 / jnp.where(normaliser > 0, normaliser, 1.0).swapaxes(1, 2)[..., None]
    out = einsum("BHTS,BSHK->BTHK", thinned(weights, kept), value)
    out = (out * scale).astype(value.dtype)
    return out, (value, weights, scale, out, kept)


def _weighting_backward(saved: tuple, g: Array) -> tuple[Array, Array, None, None]:
    value, weights, scale, out, kept = saved
    g32 = g.astype(jnp.float32) * scale
    inner = jnp.sum(g32 * out.astype(jnp.float32), axis=-1).swapaxes(1, 2)[..., None]
    g = g32.astype(value.dtype)
    grad_value = einsum("BHTS,BTHK->BSHK", thinned(weights, kept), g).astype(value.dtype)
    grad_weights = thinned(einsum("BTHK,BSHK->BHTS", g, value), kept)
    return weights.astype(jnp.float32) * (grad_weights - inner), grad_value, None, None


masked_weighting.defvjp(_weighting_forward, _weighting_backward)


def attend(
    operands: Operands, mask: Bool[Array, "#B 1 #T S"], draws: WeightDropout | None = None
) -> Float[Array, "B T H K"]:
    """Compute disentangled attention of all queries at once, in the dtype of value.

    A query without visible keys gets zeros.

    Args:
      operands: projected inputs, with as many queries as keys.
      mask: True where a query attends to a key.
      draws: dropout of the weights; values are already scaled by 1 / (1 - rate). None disables it.
    """
    logits = _logits(operands)
    kept = None if draws is None else draws.kept(logits.shape)
    return _weighted(logits, operands, mask, kept)


def _weighted(
    logits: Float[Array, "B H T S"],
    operands: Operands,
    mask: Bool[Array, "#B 1 #T S"],
    kept: Bool[Array, "B H T S"] | None,
) -> Float[Array, "B T H K"]:
    _, _, values, _, _, key, value = operands
    if key is None or value is None:
        return masked_weighting(logits, values, mask, kept)
    room = [(0, 0)] * 3 + [(key.shape[1], 0)]
    before = einsum("BTHK,BPHK->BHTP", operands.query, key)
    return masked_weighting(
        jnp.concatenate([before, logits], axis=-1),
        jnp.concatenate([value, values], axis=1),
        jnp.pad(mask, room, constant_values=True),
        None if kept is None else jnp.pad(kept, room, constant_values=True),
    )


def _logits(operands: Operands) -> Float[Array, "B H T S"]:
    logits = einsum("BTHK,BSHK->BHTS", operands.query, operands.key)
    if operands.position_key is not None:
        scores = einsum("BTHK,WHK->BHTW", operands.query, operands.position_key)
        logits += by_distance(scores)
    if operands.position_query is not None:
        scores = einsum("BSHK,WHK->BHSW", operands.key, operands.position_query)
        logits += by_distance(scores).swapaxes(2, 3)
    return logits


def attend_in_blocks(
    operands: Operands,
    segment_ids: Int[Array, "B T"],
    *,
    block: int,
    draws: WeightDropout | None = None,
    streams: tuple[float, Int[Array, "B H T"]] | None = None,
) -> Float[Array, "B T H K"]:
    """Compute disentangled attention in blocks of queries; memory is linear in length.

    Args:
      operands: projected inputs, with as many queries as keys.
      segment_ids: segment of each position, which attends within its segment; 0 is padding.
      block: number of queries per block; the length T need not be a multiple.
      draws: dropout of the weights; its random bits are regenerated in the backward pass.
      streams: rate and random seeds of `WeightDropout.streams`, to drop the weights that the
        kernel for TPUs drops; used instead of `draws`.
    """
    if block < 1:
        raise ValueError(
            f"blocked attention requires at least one query per block, but block is {block}"
        )
    length = operands.query.shape[1]
    block = min(block, length)
    missing = -length % block

    def padded(rows: Array | None, before: int, after: int) -> Array | None:
        return None if rows is None else jnp.pad(rows, ((before, after), (0, 0), (0, 0)))

    whole = operands._replace(
        query=jnp.pad(operands.query, ((0, 0), (0, missing), (0, 0), (0, 0))),
        position_key=padded(operands.position_key, missing, 0),
        position_query=padded(operands.position_query, missing, missing),
    )
    rate, source = (0.0, None) if draws is None else (draws.rate, draws.key)
    if streams is not None:
        rate, source = streams
        source = jnp.pad(source, ((0, 0), (0, 0), (0, missing)))
    out: Any = _attend_blocks(block, rate, whole, segment_ids, source)
    return out[:, :length]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend_blocks(
    block: int, rate: float, operands: Operands, segment_ids: Array, source: Key | Array | None
) -> Array:
    return _blocks_forward(block, rate, operands, segment_ids, source)[0]


def _block(
    block: int,
    rate: float,
    segment_ids: Array,
    source: Key | Array | None,
    index: Array,
    operands: Operands,
) -> Float[Array, "B block H K"]:
    start, length = index * block, segment_ids.shape[1]
    here = operands._replace(position_query=None)
    if operands.position_key is not None:
        first = _num_blocks(block, length) * block - block - start
        window = jax.lax.dynamic_slice_in_dim(operands.position_key, first, length + block - 1)
        here = here._replace(position_key=window)
    logits = _logits(here)
    if operands.position_query is not None:
        logits += _by_keys_blocks(block, start, operands.key, operands.position_query)
    # Queries after the last position are in segment 0 and attend to nothing.
    ids = jnp.pad(segment_ids, ((0, 0), (0, -length % block)))
    mask = segments(jax.lax.dynamic_slice_in_dim(ids, start, block, axis=1), segment_ids)
    if source is None:
        kept = None
    elif source.ndim == logits.ndim - 1:  # seeds of rows, heads and queries
        seeds = jax.lax.dynamic_slice_in_dim(source, start, block, axis=2)
        kept = kept_keys(rate, seeds, 0, length)
    else:
        kept = WeightDropout(source, rate).kept(logits.shape, index)
    return _weighted(logits, here, mask, kept)


def _by_keys_blocks(
    block: int, start: Array, key: Float[Array, "B S H K"], position_query: Array
) -> Float[Array, "B H block S"]:
    batch, length, heads, size = key.shape
    num = _num_blocks(block, length)
    keys = jnp.pad(key, ((0, 0), (0, num * block - length), (0, 0), (0, 0)))
    keys = keys.reshape(batch, num, block, heads, size)
    # The first distance of a block is of its last key and the first query.
    firsts = start + (num - 1 - jnp.arange(num)) * block
    windows = jax.vmap(
        lambda first: jax.lax.dynamic_slice_in_dim(position_query, first, 2 * block - 1)
    )(firsts)
    scores = by_distance(einsum("BNSHK,NWHK->BHNSW", keys, windows))
    return jnp.moveaxis(scores, 4, 2).reshape(batch, heads, block, -1)[..., :length]


def _num_blocks(block: int, length: int) -> int:
    return -(-length // block)


def _blocks_forward(
    block: int, rate: float, operands: Operands, segment_ids: Array, source: Key | Array | None
) -> tuple[Array, tuple]:
    def add_block(index: Array, out: Array) -> Array:
        query = jax.lax.dynamic_slice_in_dim(operands.query, index * block, block, axis=1)
        here = _block(block, rate, segment_ids, source, index, operands._replace(query=query))
        return jax.lax.dynamic_update_slice_in_dim(out, here, index * block, axis=1)

    # A loop and not a scan: rematerialization policies reach into a scan, and "dots" would keep
    # every block's logits.
    num = _num_blocks(block, segment_ids.shape[1])
    _, out = jax.lax.while_loop(
        lambda state: state[0] < num,
        lambda state: (state[0] + 1, add_block(*state)),
        (jnp.int32(0), jnp.zeros_like(operands.query)),
    )
    return out, (operands, segment_ids, source)


def _blocks_backward(block: int, rate: float, saved: tuple, g: Array) -> tuple:
    operands, segment_ids, source = saved
    others = operands._replace(query=None)

    def add_block(sums: Operands, index: Array) -> tuple[Operands, Array]:
        start = index * block
        query, grad = (
            jax.lax.dynamic_slice_in_dim(x, start, block, axis=1) for x in (operands.query, g)
        )
        _, pullback = jax.vjp(
            partial(_block, block, rate, segment_ids, source, index), operands._replace(query=query)
        )
        (grads,) = pullback(grad)
        total = jax.tree.map(lambda t, x: t + x.astype(t.dtype), sums, grads._replace(query=None))
        return total, grads.query

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), others)
    indices = jnp.arange(_num_blocks(block, segment_ids.shape[1]))
    sums, queries = jax.lax.scan(add_block, zeros, indices)
    grads = jax.tree.map(lambda t, x: t.astype(x.dtype), sums, others)
    by_row = jnp.moveaxis(queries, 0, 1).reshape(operands.query.shape)
    return grads._replace(query=by_row), None, None


_attend_blocks.defvjp(_blocks_forward, _blocks_backward)


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Mask and bias of attention, both as arrays or both in compact form.

    Attributes:
      mask: True where a query attends to a key; None for all keys; or a `Visibility`, for attention
        in blocks.
      bias: float32 array added to the logits and shared over the batch; a `RelativeTable` for
        attention in blocks; or `Distances` for disentangled attention. None without a bias.
      positions: positions of queries and keys; needed for a relative bias with an array mask.
      valid: mask of a decoder's first tokens (start token and prompt), False for padding on the
        left; None without padding.
      relative: function from positions of queries and keys to the relative bias; None without a
        relative bias.
      by_head: True to compute one head of one row at a time (`headwise_attention`).
    """

    mask: Bool[Array, "_ 1 _ S"] | Visibility | None = None
    bias: Float[Array, "1 H _ S"] | RelativeTable | Distances | None = None
    positions: Positions | None = None
    valid: Bool[Array, "B _"] | None = None
    relative: Callable[[Array, Array], Array] | None = None
    by_head: bool = False

    def __post_init__(self) -> None:
        wrong = jax.Array if isinstance(self.mask, Visibility) else RelativeTable
        if isinstance(self.bias, wrong):
            raise ValueError(
                "attention mask and bias must both be arrays, or a Visibility and a RelativeTable: "
                f"got {type(self.mask).__name__} and {type(self.bias).__name__}"
            )

    def biased(self, relative: RelativeBias, *, bidirectional: bool) -> "Pattern":
        """Return the pattern with a relative bias: a table for a `Visibility`, else an array.

        Args:
          relative: relative position bias.
          bidirectional: True in an encoder, where half of the buckets are for keys to the right.

        Raises:
          ValueError: if the bias must be an array, but the pattern has no positions.
        """
        if isinstance(self.mask, Visibility):
            bias: Any = relative.reading(bidirectional=bidirectional)
        elif self.positions is None:
            raise ValueError(
                "a relative bias with an array mask requires positions, but the positions of "
                "queries and keys are None"
            )
        else:
            bias = relative(*self.positions, bidirectional=bidirectional)

        def read(queries: Array, keys: Array) -> Array:
            return relative(queries, keys, bidirectional=bidirectional)

        return dataclasses.replace(self, bias=bias, relative=read)

    def bias_before(self, num: int) -> Float[Array, "#B H #T P"] | None:
        """Return the bias of `num` keys before each row's first token, or None without a bias."""
        if self.relative is None or self.positions is None:
            return None
        queries, keys = self.positions[0], jnp.arange(-num, 0)
        if self.valid is None:
            return self.relative(queries, keys)
        skipped = jnp.sum(~self.valid, axis=1)
        relative = self.relative
        return jax.vmap(lambda padding: relative(queries - padding, keys)[0])(skipped)


EVERYTHING = Pattern()
"""Pattern in which all queries attend to all keys, without a bias."""
