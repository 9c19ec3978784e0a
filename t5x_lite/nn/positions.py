"""Relative position buckets and the bias that T5 adds to attention logits (paper section 2.1).

The bucket of a key depends only on its distance n from the query: buckets are exact up to half of
the buckets, then logarithmic up to `max_distance`, and all larger distances share the last bucket.
The first distance of each bucket is an integer from a table, so no device computes a floating-point
logarithm (backends differ in its last bit).

    relative_position_bucket(key - query): bidirectional, 32 buckets, 0..15 left, 16..31 right
    ...  -8 -7 ... -1  0   1  ...  7   8  ...
    ...   8  7      1  0  17      23  24  ...
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.trees import Array

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
      A tuple of num_buckets integers. Published sizes are constants; for other sizes, the distances
        are computed once on the host, in float64.

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
    """Relative bias table, and its settings for queries and keys at positions 0, 1, 2, ...

    Attributes:
      table: float32 [buckets, H].
      bidirectional: True in an encoder; see `relative_position_bucket`.
      max_distance: distance from which on all distances share a bucket.
    """

    table: Float[Array, "buckets H"]
    bidirectional: bool
    max_distance: int

    def block(
        self, num_queries: int, start: int | Int[Array, ""], size: int
    ) -> Float[Array, "H T size"]:
        """Return the bias of the first `num_queries` queries and of `size` keys from `start` on.

        The bias is the same along each diagonal. Only one row of T + size - 1 distances is looked
        up, and the column of each key is this row shifted by one. The gradient sums the diagonals
        first, so that few values are scattered into the table.
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

    T5 has one table per stack, and umT5 one per layer. Encoder and decoder read a table
    differently.

    Args:
      num_heads: number of heads H.
      num_buckets: number of rows of the table.
      max_distance: see `relative_position_bucket`.
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
          bidirectional: True in an encoder; see `relative_position_bucket`.
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
        """Return the relative bias in compact form, for attention in blocks."""
        return RelativeTable(
            table=self.table[...].astype(jnp.float32),
            bidirectional=bidirectional,
            max_distance=self.max_distance,
        )


def document_positions(segment_ids: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """Return positions within each segment: segment ids [1, 1, 2, 2, 2] give [0, 1, 0, 1, 2].

    Padding (segment 0) gets position 0, because it may be longer than a position embedding.
    """
    place = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None]
    begins = jnp.pad(segment_ids[:, 1:] != segment_ids[:, :-1], ((0, 0), (1, 0)))
    positions = place - jax.lax.cummax(jnp.where(begins, place, 0), axis=1)
    return jnp.where(segment_ids > 0, positions, 0)
