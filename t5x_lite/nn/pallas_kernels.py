"""Pallas kernels of attention for TPUs: blocks, forward pass and backward pass.

A program computes one block of queries and one block of keys of one row, for the few heads that
fill 128 lanes ([B, T, H * K] as the projections return it: nothing is transposed or padded in HBM).
Inside a program, keys lie along the first axis and queries along the second. Values per query (the
largest logit, the sum of exponentials) are therefore rows, and the softmax reduces over sublanes.

The bias depends only on key - query, and is constant from the start of the last bucket on. If
blocks of queries and keys have the same size, the bias of a block depends only on its diagonal of
blocks, and few diagonals differ: 5 with blocks of 256 and a max_distance of 128, for rows of any
length. The bias of a head is therefore built once in VMEM, for all rows of the batch, from the
head's column of the bucket table:

    block 4, keys 0..3 (down) and queries 4..7: key - query        strip of 8 rows, moved right
      -4 -5 -6 -7                                                  by 8 for every 8 further keys
      -3 -4 -5 -6
      -2 -3 -4 -5
      -1 -2 -3 -4

The gradient of the bias is summed in the same form, and reduced to buckets once, at the end.

The forward kernel computes a softmax over consecutive blocks of keys. Its grid is (groups of heads,
rows, blocks of queries, blocks of keys). The largest logit of each query, the sum of its
exponentials and the weighted sum of the values stay in VMEM while the query's keys are processed
(Dao et al. 2022, FlashAttention, algorithm 1). The bias of the heads stays in VMEM for all rows.

The backward kernel computes all gradients in one pass over the pairs of blocks. Its grid is (groups
of heads, rows, blocks of keys, blocks of queries). The weights of each block are recomputed from
the largest logit and the sum of the exponentials. The gradients of a block of keys and values are
summed over the blocks of queries, the gradients of a row's queries over the row, and the gradient
of the heads' bias over all rows (Dao et al. 2022, FlashAttention, algorithm 4).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from t5x_lite.core.trees import Array
from t5x_lite.nn.attention_pattern import bucket_starts
from t5x_lite.nn.dense import hashed, least_draw, word_of
from t5x_lite.nn.masks import MASKED

LANES = 128
SUBLANES = 8

Interpret = Any
"""Interpretation of a kernel as plain operations.

The value is a bool, or `pltpu.InterpretParams` with the TPU features to simulate.
"""

Refs = Mapping[str, Any]
"""References to the blocks of a program, by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes and settings of the attention kernels on one device, fixed at compile time.

    Attributes:
      num_queries: number of queries T per row.
      num_keys: number of keys S per row.
      num_heads: number of heads H.
      d_kv: size K of a head.
      query_block: number of queries per block.
      key_block: number of keys per block; equal to query_block if there is a bias.
      causal: True for causal attention, to which `Visibility.both_ways` may add later keys.
      skips: True if blocks above the diagonal may be skipped. Only queries without any visible key,
        which attend to all keys equally, read these blocks.
      buckets: number of rows of the bias table; None without a bias.
      bidirectional: True if the bias has separate buckets for later keys.
      max_distance: distance from which on all distances share a bucket.
      dropout_rate: dropout rate of the weights, per query and key; 0 disables it.
      zeros: True if a query without any visible key gets zeros, instead of the mean of the values.
    """

    num_queries: int
    num_keys: int
    num_heads: int
    d_kv: int
    query_block: int
    key_block: int
    causal: bool = False
    skips: bool = False
    buckets: int | None = None
    bidirectional: bool = False
    max_distance: int = 0
    dropout_rate: float = 0.0
    zeros: bool = False

    @property
    def group(self) -> int:
        """Number of heads per kernel program, enough to fill 128 lanes."""
        fits = LANES // math.gcd(LANES, self.d_kv)
        return fits if self.num_heads % fits == 0 else self.num_heads

    @property
    def lanes(self) -> int:
        """Number of lanes (columns) of a kernel program: heads times head size."""
        return self.group * self.d_kv

    @property
    def blocks(self) -> tuple[int, int]:
        """Number of query blocks, and of key blocks, in a row."""
        return -(-self.num_queries // self.query_block), -(-self.num_keys // self.key_block)

    @property
    def padded(self) -> tuple[int, int]:
        """Numbers of queries and keys per row, rounded up to complete blocks."""
        rows, columns = self.blocks
        return rows * self.query_block, columns * self.key_block

    @property
    def diagonals(self) -> tuple[int, int]:
        """First and last diagonal of blocks for which the kernel computes the relative bias.

        Diagonal n consists of the blocks of queries i and keys i + n. Other diagonals have the bias
        of the nearest diagonal in this range.
        """
        if self.buckets is None:
            return 0, 0
        one_side = self.buckets // 2 if self.bidirectional else self.buckets
        # The nearest key of diagonal n is (n - 1) * block + 1 away.
        start = bucket_starts(one_side, self.max_distance)[-1]
        reach = max(1, 1 + -(-(start - 1) // self.key_block))
        rows, columns = self.blocks
        right = 0 if self.skips else reach if self.bidirectional else 1
        return -min(rows - 1, reach), min(columns - 1, right)

    @property
    def num_diagonals(self) -> int:
        """Number of diagonals of blocks for which the kernel computes the relative bias."""
        low, high = self.diagonals
        return high - low + 1

    @property
    def strip(self) -> int:
        """Number of columns of the bias values from which a block's bias is built."""
        return self.query_block + self.key_block

    @property
    def bias_shape(self) -> tuple[int, ...]:
        """Shape of the relative bias of the heads of one kernel program."""
        return self.num_diagonals, self.group, self.key_block, self.query_block

    def heads(self) -> Sequence[slice]:
        """Return the slice of lanes that each head of a kernel program uses."""
        return [slice(head * self.d_kv, (head + 1) * self.d_kv) for head in range(self.group)]


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of one call of a kernel on one device.

    Attributes:
      flops: FLOPs of the matrix products over all 128 lanes. With d_kv 64, two heads share the
        lanes, and some products count twice the useful work.
      exponentials: number of computed exponentials.
      bytes: bytes moved between HBM and the kernel; a block counts each time it is fetched.
      vmem: bytes of VMEM per program: input and output blocks, which count twice because of
        prefetching; scratch memory; and three temporaries of the logits.
    """

    flops: int
    exponentials: int
    bytes: int
    vmem: int


def forward_cost(layout: Layout, *, batch: int, itemsize: int) -> Cost:
    """Return the cost of the forward kernel; `itemsize` is the bytes per number of the queries."""
    (rows, columns), (queries, keys) = layout.blocks, layout.padded
    programs = batch * (layout.num_heads // layout.group)
    pairs = programs * _visited(layout) * layout.query_block * layout.key_block
    lanes, d_kv, group = layout.lanes, layout.d_kv, layout.group
    blocks = (2 * layout.query_block + 2 * layout.key_block) * _wide(lanes) * itemsize
    ids = 4 * (LANES * layout.key_block + SUBLANES * layout.query_block)
    statistics = 4 * 2 * group * layout.query_block
    kept = 4 * (lanes * layout.query_block + 2 * SUBLANES * layout.query_block)
    moved = (2 * queries + 2 * keys * rows) * lanes * itemsize + 4 * 2 * group * queries
    moved += (4 * LANES * keys * rows) + 4 * queries * columns
    streams, drawn = _dropout_bytes(layout)
    moved += streams * rows
    return Cost(
        flops=2 * pairs * group * (lanes + d_kv),
        exponentials=pairs * group,
        bytes=programs * moved,
        vmem=2 * (blocks + ids + statistics + streams)
        + kept
        + _bias_bytes(layout)
        + _temporaries(layout)
        + drawn,
    )


def backward_cost(layout: Layout, *, batch: int, itemsize: int) -> Cost:
    """Return the cost of the backward kernel: five matrix products, as logits are recomputed."""
    columns, (queries, keys) = layout.blocks[1], layout.padded
    programs = batch * (layout.num_heads // layout.group)
    pairs = programs * _visited(layout) * layout.query_block * layout.key_block
    lanes, d_kv, group = layout.lanes, layout.d_kv, layout.group
    blocks = (2 * layout.query_block + 4 * layout.key_block + queries) * _wide(lanes) * itemsize
    ids = 4 * (LANES * layout.key_block + SUBLANES * layout.query_block)
    statistics = 4 * 3 * group * layout.query_block
    kept = 4 * lanes * queries + 4 * 2 * lanes * layout.key_block
    kept += 2 * itemsize * lanes * layout.query_block  # transposed
    table = 4 * (layout.buckets or 0) * group * layout.strip
    moved = (2 * queries * columns + 4 * keys + queries) * lanes * itemsize
    moved += 4 * 3 * group * queries * columns + 4 * LANES * keys + 4 * queries * columns
    streams, drawn = _dropout_bytes(layout)
    moved += streams * layout.blocks[0] * columns
    return Cost(
        flops=2 * pairs * group * (2 * lanes + 3 * d_kv),
        exponentials=pairs * group,
        bytes=programs * moved + (layout.num_heads // layout.group) * table,
        vmem=2 * (blocks + ids + statistics + streams + table)
        + kept
        + 2 * _bias_bytes(layout)
        + _temporaries(layout)
        + drawn,
    )


def _visited(layout: Layout) -> int:
    rows, columns = layout.blocks
    return sum(min(columns, row + 1) if layout.skips else columns for row in range(rows))


def _wide(lanes: int) -> int:
    return -(-lanes // LANES) * LANES


def _bias_bytes(layout: Layout) -> int:
    return 0 if layout.buckets is None else 4 * math.prod(layout.bias_shape)


def _dropout_bytes(layout: Layout) -> tuple[int, int]:
    if not layout.dropout_rate:
        return 0, 0
    return 4 * layout.group * layout.query_block, 4 * layout.query_block * layout.key_block


def _temporaries(layout: Layout) -> int:
    return 3 * 4 * layout.query_block * layout.key_block


def compiler_params(cost: Cost) -> pltpu.CompilerParams:
    """Return the compiler options of a kernel, such as its VMEM limit."""
    return pltpu.CompilerParams(
        dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary"),
        vmem_limit_bytes=max(16 * 2**20, 3 * cost.vmem // 2),
    )


def estimate(cost: Cost) -> pl.CostEstimate:
    """Convert a cost to Pallas' cost estimate, which appears in the compiled program's text."""
    return pl.CostEstimate(
        flops=cost.flops, transcendentals=cost.exponentials, bytes_accessed=cost.bytes
    )


def product(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Multiply two matrices over the given axes, in float32."""
    dimensions = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def transpose(x: Array) -> Array:
    """Transpose a matrix by way of float32, which every chip can transpose."""
    return x.astype(jnp.float32).T.astype(x.dtype)


def only(x: Array, lanes: slice) -> Array:
    """Set a matrix to zero outside the given lanes."""
    if (lanes.stop - lanes.start) == x.shape[1]:
        return x
    lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    kept = (lane >= lanes.start) & (lane < lanes.stop)
    return jnp.where(kept, x.astype(jnp.float32), 0.0).astype(x.dtype)


def positions(layout: Layout, query_block: Any, key_block: Any) -> tuple[Array, Array]:
    """Return the query position and the key position in the row, as two arrays [keys, queries]."""
    shape = (layout.key_block, layout.query_block)
    key = key_block * layout.key_block + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    query = query_block * layout.query_block + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    return query, key


def seen(layout: Layout, ids: Refs, query_block: Any, key_block: Any) -> Array | None:
    """Return the attention mask of a block, bool [keys, queries]; None if nothing is masked.

    Args:
      layout: sizes and settings of the kernel.
      ids: segment ids "keys" and "queries"; "key_groups" and "query_groups", ids of positions that
        attend in both directions. Ids of keys are column vectors, ids of queries row vectors; all
        are optional.
      query_block: index of the block of queries.
      key_block: index of the block of keys.
    """
    shape = (layout.key_block, layout.query_block)

    def both(name: str, other: str) -> tuple[Array, Array]:
        column, row = ids[name][0], ids[other][0]
        return jnp.broadcast_to(column, shape), jnp.broadcast_to(row, shape)

    found = None
    if layout.causal:
        query, key = positions(layout, query_block, key_block)
        found = key <= query
        if "key_groups" in ids:
            key, query = both("key_groups", "query_groups")
            found = found | ((key == query) & (key > 0))
    if "keys" in ids:
        if "queries" in ids:  # keys that nothing sees have an id of no query
            key, query = both("keys", "queries")
            here = key == query
        else:
            here = jnp.broadcast_to(ids["keys"][0], shape) > 0
        found = here if found is None else found & here
    return found


def is_worked_on(layout: Layout, ids: Refs, query_block: Any, key_block: Any) -> Any:
    """Return True if a pair of blocks must be computed, or False if it may be skipped."""
    if not layout.skips:
        return True
    reached = key_block * layout.key_block < (query_block + 1) * layout.query_block
    if "queries" not in ids:
        return reached
    # A query of segment 0 sees nothing, and so attends to every key.
    return reached | (jnp.min(jnp.abs(ids["queries"][0].astype(jnp.float32))) == 0.0)


def masked_logits(
    layout: Layout, logits: Array, visible: Array | None, query_block: Any, key_block: Any
) -> Array:
    """Set masked logits to `MASKED`, and logits of keys that pad the last block to -inf."""
    if visible is not None:
        logits = jnp.where(visible, logits, MASKED)
    if layout.num_keys % layout.key_block:
        _, key = positions(layout, query_block, key_block)
        logits = jnp.where(key < layout.num_keys, logits, -jnp.inf)
    return logits


def kept_weights(layout: Layout, streams: Array, key_block: Any) -> Array:
    """Sample the dropout mask [keys, queries] of a block of attention weights.

    Args:
      layout: sizes and settings of the kernel.
      streams: random seed of each query of a head, [1, queries].
      key_block: index of the block of keys.
    """
    size, queries = layout.key_block, streams.shape[1]
    if size % (2 * SUBLANES):  # in tests only: a block reads half of its words
        keys = key_block * size + jax.lax.broadcasted_iota(jnp.int32, (size, queries), 0)
        words = hashed(streams, word_of(keys))
        draws = jnp.where((keys & SUBLANES) > 0, words << 16, words)
    else:
        numbers = jax.lax.broadcasted_iota(jnp.int32, (size // 2, queries), 0)
        words = hashed(streams, key_block * (size // 2) + numbers)
        words = words.reshape(-1, 1, SUBLANES, queries)
        draws = jnp.concatenate([words, words << 16], axis=1).reshape(size, queries)
    return draws >= least_draw(layout.dropout_rate)


def diagonal_of(layout: Layout, query_block: Any, key_block: Any) -> Any:
    """Return the index of the block diagonal that contains a pair of blocks."""
    low, high = layout.diagonals
    return jnp.clip(key_block - query_block, low, high) - low


def _strip_distances(layout: Layout, diagonal: Any) -> Array:
    shape = (SUBLANES, layout.strip)
    lane = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    query = jnp.where(lane < layout.query_block, lane, lane - layout.strip)
    key = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    low, _ = layout.diagonals
    return key - query + (diagonal + low) * layout.key_block


def by_bucket(layout: Layout, relative: Array, value: Callable[[int], Any]) -> Array:
    """Map each relative distance to value(b), where b is the index of its bias bucket."""
    assert layout.buckets is not None
    one_side = layout.buckets // 2 if layout.bidirectional else layout.buckets
    starts = bucket_starts(one_side, layout.max_distance)

    def side(distance: Array, first: int) -> Array:
        found = jnp.full(distance.shape, value(first))
        for bucket, start in enumerate(starts[1:], start=1):
            found = jnp.where(distance >= start, value(first + bucket), found)
        return found

    left = side(jnp.maximum(-relative, 0), 0)
    return jnp.where(relative > 0, side(relative, one_side), left) if layout.bidirectional else left


def fill_bias(layout: Layout, table: Any, bias: Any, group: Any) -> None:
    """Compute the relative bias for the heads of one kernel program, in VMEM.

    Args:
      layout: sizes and settings of the kernel.
      table: reference to the bias table, float32 scalars [buckets, H].
      bias: reference to the result, `layout.bias_shape`.
      group: index of the group of heads.
    """

    def fill(diagonal: Any, _: Any) -> Any:
        relative = _strip_distances(layout, diagonal)
        for head in range(layout.group):
            column = group * layout.group + head
            strip = by_bucket(layout, relative, lambda bucket, c=column: table[bucket, c])

            def put(number: Any, _: Any, head: int = head, strip: Array = strip) -> Any:
                first = pl.multiple_of(number * SUBLANES, SUBLANES)
                rows = pltpu.roll(strip, first, 1)[:, : layout.query_block]
                bias[diagonal, head, pl.ds(first, SUBLANES), :] = rows
                return 0

            jax.lax.fori_loop(0, layout.key_block // SUBLANES, put, 0)
        return 0

    jax.lax.fori_loop(0, layout.num_diagonals, fill, 0)


def gather_table(layout: Layout, bias: Any, table: Any) -> None:
    """Sum the gradient of a bias by bucket, the reverse of `fill_bias`.

    Args:
      layout: sizes and settings of the kernel.
      bias: reference to the gradient of the bias, `layout.bias_shape`.
      table: reference to the result, float32 [1, G * buckets, layout.strip] with G = layout.group.
        Its sum over the last axis is the gradient of the heads' columns of the table.
    """
    assert layout.buckets is not None
    buckets = layout.buckets
    table[...] = jnp.zeros(table.shape, jnp.float32)
    rest = jnp.zeros((SUBLANES, layout.key_block), jnp.float32)

    def gather(diagonal: Any, _: Any) -> Any:
        bucket = by_bucket(layout, _strip_distances(layout, diagonal), jnp.int32)
        for head in range(layout.group):

            def add(number: Any, strip: Array, head: int = head) -> Array:
                first = pl.multiple_of(number * SUBLANES, SUBLANES)
                rows = bias[diagonal, head, pl.ds(first, SUBLANES), :]
                wide = jnp.concatenate([rows, rest], axis=1)
                return strip + pltpu.roll(wide, layout.strip - first, 1)

            strip = jnp.zeros((SUBLANES, layout.strip), jnp.float32)
            strip = jax.lax.fori_loop(0, layout.key_block // SUBLANES, add, strip)
            for index in range(buckets):
                row = pl.ds(head * buckets + index, 1)
                here = jnp.where(bucket == index, strip, 0.0)
                table[0, row, :] += jnp.sum(here, axis=0, keepdims=True)
        return 0

    jax.lax.fori_loop(0, layout.num_diagonals, gather, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """Parts of the kernels that depend on the terms of the logits.

    Attributes:
      name: name of the kernels, without "_forward" and "_backward".
      costs: function from the layout, the number of rows and the bytes per number to the costs of
        the forward and the backward kernel.
      add_block: adds a pair of blocks to the sums in scratch memory of the forward kernel.
      add_backward_block: adds a pair of blocks to the gradients of the backward kernel.
    """

    name: str
    costs: Callable[[Layout, int, int], tuple[Cost, Cost]]
    add_block: Callable[[Layout, Refs, Refs, Any, Any], None]
    add_backward_block: Callable[[Layout, Refs, Array, Refs, Refs, Any, Any], None]


def forward_kernel(
    layout: Layout, inputs: dict[str, Array], *, interpret: Interpret, form: Form | None = None
) -> tuple[Array, Array]:
    """Run the forward attention kernel on one device.

    Args:
      layout: sizes and settings of the kernel.
      inputs: "query", "key", "value" [B, length, H * K], with lengths of complete blocks; with a
        bias, "table", float32 [buckets, H]; optional int32 ids of `seen`: "queries" and
        "query_groups" [B, 1, T], "keys" and "key_groups" [B, S, 1]; and inputs of the form.
      interpret: True to run the kernel as plain operations, for tests.
      form: terms of the logits; if None, products of queries and keys with T5's relative bias.

    Returns:
      The weighted values [B, T, H * K], and float32 statistics [B, H / G, 2 * G, T], G =
        layout.group: the largest logit of each head, then 1 / sum of exponentials of each head.
    """
    form = T5 if form is None else form
    batch, queries, joined = inputs["query"].shape
    groups, group, block = layout.num_heads // layout.group, layout.group, layout.query_block
    dtype = inputs["value"].dtype
    cost, _ = form.costs(layout, batch, dtype.itemsize)
    scratch: dict[str, Any] = {
        "largest": pltpu.VMEM((group, block), jnp.float32),
        "normaliser": pltpu.VMEM((group, block), jnp.float32),
        "total": pltpu.VMEM((layout.lanes, block), jnp.float32),
    }
    if layout.buckets is not None:
        scratch["bias"] = pltpu.VMEM(layout.bias_shape, jnp.float32)
    out, statistics = pl.pallas_call(
        functools.partial(_forward, layout, form),
        grid=(groups, batch, *layout.blocks),
        in_specs=[in_specs(layout, inputs, lambda h, b, i, j: (h, b, i, j))],
        out_specs=[
            pl.BlockSpec((1, block, layout.lanes), lambda h, b, i, j: (b, i, h)),
            pl.BlockSpec((1, 1, 2 * group, block), lambda h, b, i, j: (b, h, 0, i)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((batch, queries, joined), dtype),
            jax.ShapeDtypeStruct((batch, groups, 2 * group, queries), jnp.float32),
        ],
        scratch_shapes=[scratch],
        interpret=interpret,
        compiler_params=compiler_params(cost),
        cost_estimate=estimate(cost),
        name=f"{form.name}_forward",
    )(inputs)
    return out, statistics


def in_specs(layout: Layout, inputs: dict[str, Array], order: Any) -> dict[str, pl.BlockSpec]:
    """Return the Pallas block specs of the inputs, by name.

    Args:
      layout: sizes and settings of the kernel.
      inputs: inputs of `forward_kernel`.
      order: function from the grid's indices to group of heads, row, block of queries and block of
        keys.
    """

    def spec(shape: tuple[int, ...], index: Any) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda *grid: index(*order(*grid)))

    query, key = layout.query_block, layout.key_block
    known = {
        "query": spec((1, query, layout.lanes), lambda h, b, i, j: (b, i, h)),
        "key": spec((1, key, layout.lanes), lambda h, b, i, j: (b, j, h)),
        "queries": spec((1, 1, query), lambda h, b, i, j: (b, 0, i)),
        "keys": spec((1, key, 1), lambda h, b, i, j: (b, j, 0)),
        "streams": spec((1, 1, layout.group, query), lambda h, b, i, j: (b, h, 0, i)),
        "table": pl.BlockSpec(memory_space=pltpu.SMEM),
    }
    known |= {"value": known["key"], "cotangent": known["query"]}
    known |= {"query_groups": known["queries"], "key_groups": known["keys"]}
    length = 2 * layout.padded[0]
    strip = spec((length, layout.lanes), lambda h, b, i, j: (0, h))
    known |= {"position_key": strip, "position_query": strip}
    columns = spec((layout.lanes, length), lambda h, b, i, j: (h, 0))
    known |= {"position_key_columns": columns, "position_query_columns": columns}
    return {name: known[name] for name in inputs}


def _forward(layout: Layout, form: Form, refs: Refs, out: Any, statistics: Any, kept: Refs) -> None:
    group_index, row, i, j = (pl.program_id(axis) for axis in range(4))
    if layout.buckets is not None:

        @pl.when((row == 0) & (i == 0) & (j == 0))
        def _() -> None:
            fill_bias(layout, refs["table"], kept["bias"], group_index)

    @pl.when(j == 0)
    def _() -> None:
        kept["largest"][...] = jnp.full(kept["largest"].shape, -jnp.inf, jnp.float32)
        kept["normaliser"][...] = jnp.zeros(kept["normaliser"].shape, jnp.float32)
        kept["total"][...] = jnp.zeros(kept["total"].shape, jnp.float32)

    @pl.when(is_worked_on(layout, refs, i, j))
    def _() -> None:
        form.add_block(layout, refs, kept, i, j)

    @pl.when(j == layout.blocks[1] - 1)
    def _() -> None:
        largest, scale = kept["largest"][...], 1.0 / kept["normaliser"][...]
        if layout.zeros:
            scale = jnp.where(largest > MASKED, scale, 0.0)
        for head, lanes in enumerate(layout.heads()):
            kept["total"][lanes, :] *= scale[head : head + 1]
        out[0] = kept["total"][...].T.astype(out.dtype)
        statistics[0, 0, : layout.group] = largest
        statistics[0, 0, layout.group :] = scale


def _add_block(layout: Layout, refs: Refs, kept: Refs, i: Any, j: Any) -> None:
    query, key, value = (refs[name][0] for name in ("query", "key", "value"))
    visible = seen(layout, refs, i, j)
    transposed = transpose(value)
    # The logits of all heads come first, so that the matrix units compute the logits of one head
    # while the vector unit computes the softmax of another.
    of_heads = [product(only(key, one), query, (1, 1)) for one in layout.heads()]
    for head, logits in enumerate(of_heads):
        if layout.buckets is not None:
            logits = logits + kept["bias"][diagonal_of(layout, i, j), head]
        logits = masked_logits(layout, logits, visible, i, j)
        add_weighted_values(layout, refs, kept, head, logits, transposed, j)


def add_weighted_values(
    layout: Layout,
    refs: Refs,
    kept: Refs,
    head: int,
    logits: Array,
    values: Array,
    key_block: Any,
    columns: slice = slice(None),
) -> None:
    """Add one head's weighted values of a block of keys to the sums in scratch memory.

    Args:
      layout: sizes and settings of the kernel.
      refs: inputs of the program; with dropout, "streams" is used.
      kept: scratch memory: "largest", "normaliser" [G, queries] and "total" [lanes, queries].
      head: index of the head in its group.
      logits: masked logits of the head, float32 [keys, columns].
      values: values of all heads of the group, transposed to [lanes, keys].
      key_block: index of the block of keys.
      columns: queries of the block that the logits are of; default: all.
    """
    lanes, here = layout.heads()[head], slice(head, head + 1)
    before = kept["largest"][here, columns]
    # Every block has a key, and a masked logit is finite: so is the largest.
    now = jnp.maximum(before, jnp.max(logits, axis=0, keepdims=True))
    shrink = jnp.exp(before - now)
    weights = jnp.exp(logits - now)
    total = jnp.sum(weights, axis=0, keepdims=True)
    kept["largest"][here, columns] = now
    kept["normaliser"][here, columns] = kept["normaliser"][here, columns] * shrink + total
    if layout.dropout_rate:
        kept_here = kept_weights(layout, refs["streams"][0, 0, here, columns], key_block)
        weights = jnp.where(kept_here, weights, 0.0)
    mixed = product(values[lanes], weights.astype(values.dtype), (1, 0))
    kept["total"][lanes, columns] = kept["total"][lanes, columns] * shrink + mixed


def backward_kernel(
    layout: Layout,
    inputs: dict[str, Array],
    statistics: Array,
    *,
    interpret: Interpret,
    form: Form | None = None,
) -> dict[str, Array]:
    """Run the backward attention kernel on one device.

    Args:
      layout: sizes and settings of the kernel.
      inputs: inputs of the forward kernel, and "cotangent" [B, T, H * K].
      statistics: float32 [B, H / G, 3 * G, T] with G = layout.group: the statistics of the forward
        kernel, followed by the sum of cotangent times output for each head.
      interpret: True to run the kernel as plain operations, for tests.
      form: terms of the logits; if None, products of queries and keys with T5's relative bias.

    Returns:
      The gradients by the names of the inputs. Gradients of the table and of the strips are
        float32, and the gradients of the strips are transposed, [H * K, 2 * length].
    """
    form = T5 if form is None else form
    batch, queries, joined = inputs["query"].shape
    keys, dtype = inputs["key"].shape[1], inputs["value"].dtype
    groups, group, lanes = layout.num_heads // layout.group, layout.group, layout.lanes
    _, cost = form.costs(layout, batch, dtype.itemsize)
    scratch: dict[str, Any] = {
        "query": pltpu.VMEM((layout.blocks[0], lanes, layout.query_block), jnp.float32),
        "key": pltpu.VMEM((lanes, layout.key_block), jnp.float32),
        "value": pltpu.VMEM((lanes, layout.key_block), jnp.float32),
    }
    of_keys = pl.BlockSpec((1, layout.key_block, lanes), lambda h, b, j, i: (b, j, h))
    out_specs = {
        "query": pl.BlockSpec((1, queries, lanes), lambda h, b, j, i: (b, 0, h)),
        "key": of_keys,
        "value": of_keys,
    }
    shapes = {
        "query": jax.ShapeDtypeStruct((batch, queries, joined), dtype),
        "key": jax.ShapeDtypeStruct((batch, keys, joined), dtype),
        "value": jax.ShapeDtypeStruct((batch, keys, joined), dtype),
    }
    if layout.buckets is not None:
        scratch["bias"] = pltpu.VMEM(layout.bias_shape, jnp.float32)
        scratch["grad_bias"] = pltpu.VMEM(layout.bias_shape, jnp.float32)
        rows = (group * layout.buckets, layout.strip)
        out_specs["table"] = pl.BlockSpec((1, *rows), lambda h, b, j, i: (h, 0, 0))
        shapes["table"] = jax.ShapeDtypeStruct((groups, *rows), jnp.float32)
    for name in ("position_key", "position_query"):
        if name in inputs:
            length = 2 * layout.padded[0]
            out_specs[name] = pl.BlockSpec((lanes, length), lambda h, b, j, i: (h, 0))
            shapes[name] = jax.ShapeDtypeStruct((joined, length), jnp.float32)
    of_rows = pl.BlockSpec((1, 1, 3 * group, layout.query_block), lambda h, b, j, i: (b, h, 0, i))
    found = pl.pallas_call(
        functools.partial(_backward, layout, form),
        grid=(groups, batch, layout.blocks[1], layout.blocks[0]),
        in_specs=[in_specs(layout, inputs, lambda h, b, j, i: (h, b, i, j)), of_rows],
        out_specs=out_specs,
        out_shape=shapes,
        scratch_shapes=[scratch],
        interpret=interpret,
        compiler_params=compiler_params(cost),
        cost_estimate=estimate(cost),
        name=f"{form.name}_backward",
    )(inputs, statistics)
    if layout.buckets is not None:
        table = jnp.sum(found["table"], axis=-1).reshape(layout.num_heads, layout.buckets).T
        found = {**found, "table": table}
    return found


def _backward(
    layout: Layout, form: Form, refs: Refs, statistics: Any, out: Refs, kept: Refs
) -> None:
    group_index, row, j, i = (pl.program_id(axis) for axis in range(4))
    last_i, last_j = layout.blocks[0] - 1, layout.blocks[1] - 1
    if layout.buckets is not None:

        @pl.when((row == 0) & (i == 0) & (j == 0))
        def _() -> None:
            fill_bias(layout, refs["table"], kept["bias"], group_index)
            kept["grad_bias"][...] = jnp.zeros(layout.bias_shape, jnp.float32)

    @pl.when(j == 0)
    def _() -> None:
        kept["query"][i] = jnp.zeros((layout.lanes, layout.query_block), jnp.float32)

    @pl.when(i == 0)
    def _() -> None:
        for name in ("key", "value"):
            kept[name][...] = jnp.zeros(kept[name].shape, jnp.float32)

    @pl.when(is_worked_on(layout, refs, i, j))
    def _() -> None:
        form.add_backward_block(layout, refs, statistics[0, 0], out, kept, i, j)

    @pl.when(i == last_i)
    def _() -> None:
        for name in ("key", "value"):
            out[name][0] = kept[name][...].T.astype(out[name].dtype)

    @pl.when(j == last_j)
    def _() -> None:
        first = pl.multiple_of(i * layout.query_block, layout.query_block)
        grad = kept["query"][i].T.astype(out["query"].dtype)
        out["query"][0, pl.ds(first, layout.query_block), :] = grad

    if layout.buckets is not None:

        @pl.when((row == pl.num_programs(1) - 1) & (i == last_i) & (j == last_j))
        def _() -> None:
            gather_table(layout, kept["grad_bias"], out["table"])


def _add_backward_block(
    layout: Layout, refs: Refs, statistics: Array, out: Refs, kept: Refs, i: Any, j: Any
) -> None:
    del out
    query, key, value, g = (refs[name][0] for name in ("query", "key", "value", "cotangent"))
    visible = seen(layout, refs, i, j)
    keys, queries, cotangents = transpose(key), transpose(query), transpose(g)
    dtype, diagonal = value.dtype, diagonal_of(layout, i, j)
    # The first products of all heads come first, as in the forward kernel.
    of_heads = [
        (
            product(only(key, lanes), query, (1, 1)),
            product(only(value, lanes), g, (1, 1)),
        )
        for lanes in layout.heads()
    ]
    for head, lanes in enumerate(layout.heads()):
        logits, grad_weights = of_heads[head]
        if layout.buckets is not None:
            logits = logits + kept["bias"][diagonal, head]
        logits = masked_logits(layout, logits, visible, i, j)
        mixing, grad = grad_of_logits(layout, refs, statistics, head, logits, grad_weights, j)
        kept["value"][lanes, :] += product(cotangents[lanes], mixing.astype(dtype), (1, 1))
        if visible is not None:
            grad = jnp.where(visible, grad, 0.0)
        if layout.buckets is not None:
            kept["grad_bias"][diagonal, head] += grad
        grad = grad.astype(dtype)
        kept["key"][lanes, :] += product(queries[lanes], grad, (1, 1))
        kept["query"][i, lanes, :] += product(keys[lanes], grad, (1, 0))


def grad_of_logits(
    layout: Layout,
    refs: Refs,
    statistics: Array,
    head: int,
    logits: Array,
    grad_weights: Array,
    key_block: Any,
) -> tuple[Array, Array]:
    """Return a block's weights after dropout and the gradient of its logits, [keys, queries].

    Args:
      layout: sizes and settings of the kernel.
      refs: inputs of the program; with dropout, "streams" is used.
      statistics: statistics of the queries, as in `backward_kernel`, [3 * G, queries].
      head: index of the head in its group.
      logits: masked logits of the head, float32 [keys, queries].
      grad_weights: product of values and cotangent, before dropout.
      key_block: index of the block of keys.
    """
    group = layout.group
    largest, scale, inner = (statistics[n : n + 1] for n in (head, group + head, 2 * group + head))
    weights = jnp.exp(logits - largest) * scale
    mixing = weights
    if layout.dropout_rate:
        streams = refs["streams"][0, 0, head : head + 1]
        kept_here = kept_weights(layout, streams, key_block)
        mixing = jnp.where(kept_here, weights, 0.0)
        grad_weights = jnp.where(kept_here, grad_weights, 0.0)
    return mixing, weights * (grad_weights - inner)


def _costs(layout: Layout, batch: int, itemsize: int) -> tuple[Cost, Cost]:
    forward, backward = (
        cost(layout, batch=batch, itemsize=itemsize) for cost in (forward_cost, backward_cost)
    )
    return forward, backward


T5 = Form(
    name="t5_attention",
    costs=_costs,
    add_block=_add_block,
    add_backward_block=_add_backward_block,
)
