"""The forward attention kernel: a softmax over blocks of keys, one after the other.

The grid is (groups of heads, rows, blocks of queries, blocks of keys). The largest logit of each
query, the sum of its exponentials and the values' weighted sum stay in VMEM while its keys pass
(Dao et al. 2022, FlashAttention, algorithm 1); the bias of the heads stays for all rows.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from t5x_lite.nn import pallas_blocks as blocks
from t5x_lite.nn.pallas_blocks import Layout, Refs
from t5x_lite.types import Array


def forward_kernel(
    layout: Layout, inputs: dict[str, Array], *, interpret: blocks.Interpret
) -> tuple[Array, Array]:
    """Runs the kernel on one device.

    Args:
      layout: how the work is divided.
      inputs: "query", "key", "value" [B, length, H * K], the lengths in whole blocks; "table"
        float32 [buckets, H] where there is a bias; of the ids of `blocks.seen` those that there
        are, int32, "queries" and "query_groups" [B, 1, T], "keys" and "key_groups" [B, S, 1].
      interpret: runs it as plain operations, for tests.

    Returns:
      The weighted values [B, T, H * K]; float32 [B, groups, 2 * group, T], of each head the largest
      logit, and after them of each head one over the sum of the exponentials.
    """
    batch, queries, joined = inputs["query"].shape
    groups, group, block = layout.num_heads // layout.group, layout.group, layout.query_block
    dtype = inputs["value"].dtype
    cost = blocks.forward_cost(layout, batch=batch, itemsize=dtype.itemsize)
    scratch: dict[str, Any] = {
        "largest": pltpu.VMEM((group, block), jnp.float32),
        "normaliser": pltpu.VMEM((group, block), jnp.float32),
        "total": pltpu.VMEM((layout.lanes, block), jnp.float32),
    }
    if layout.buckets is not None:
        scratch["bias"] = pltpu.VMEM(layout.bias_shape, jnp.float32)
    out, statistics = pl.pallas_call(
        functools.partial(_forward, layout),
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
        compiler_params=blocks.compiler_params(cost),
        cost_estimate=blocks.estimate(cost),
        name="t5_attention_forward",
    )(inputs)
    return out, statistics


def in_specs(layout: Layout, inputs: dict[str, Array], order: Any) -> dict[str, pl.BlockSpec]:
    """How the inputs are cut, by name.

    Args:
      layout: how the work is divided.
      inputs: of `forward_kernel`.
      order: the grid's indices -> group of heads, row, block of queries, block of keys.
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
    return {name: known[name] for name in inputs}


def _forward(layout: Layout, refs: Refs, out: Any, statistics: Any, kept: Refs) -> None:
    group_index, row, i, j = (pl.program_id(axis) for axis in range(4))
    if layout.buckets is not None:

        @pl.when((row == 0) & (i == 0) & (j == 0))
        def _() -> None:
            blocks.fill_bias(layout, refs["table"], kept["bias"], group_index)

    @pl.when(j == 0)
    def _() -> None:
        kept["largest"][...] = jnp.full(kept["largest"].shape, -jnp.inf, jnp.float32)
        kept["normaliser"][...] = jnp.zeros(kept["normaliser"].shape, jnp.float32)
        kept["total"][...] = jnp.zeros(kept["total"].shape, jnp.float32)

    @pl.when(blocks.is_worked_on(layout, refs, i, j))
    def _() -> None:
        _add_block(layout, refs, kept, i, j)

    @pl.when(j == layout.blocks[1] - 1)
    def _() -> None:
        scale = 1.0 / kept["normaliser"][...]
        for head, lanes in enumerate(layout.heads()):
            kept["total"][lanes, :] *= scale[head : head + 1]
        out[0] = kept["total"][...].T.astype(out.dtype)
        statistics[0, 0, : layout.group] = kept["largest"][...]
        statistics[0, 0, layout.group :] = scale


def _add_block(layout: Layout, refs: Refs, kept: Refs, i: Any, j: Any) -> None:
    query, key, value = (refs[name][0] for name in ("query", "key", "value"))
    visible = blocks.seen(layout, refs, i, j)
    transposed = blocks.transpose(value)
    # The logits of all heads first: the matrix units work on those of one head while the vector
    # unit is at the softmax of another.
    of_heads = [blocks.product(blocks.only(key, one), query, (1, 1)) for one in layout.heads()]
    for head, (lanes, logits) in enumerate(zip(layout.heads(), of_heads, strict=True)):
        if layout.buckets is not None:
            logits = logits + kept["bias"][blocks.diagonal_of(layout, i, j), head]
        logits = blocks.masked_logits(layout, logits, visible, i, j)
        here = slice(head, head + 1)
        before = kept["largest"][here]
        # Every block has a key, and a masked logit is finite: so is the largest.
        now = jnp.maximum(before, jnp.max(logits, axis=0, keepdims=True))
        shrink = jnp.exp(before - now)
        weights = jnp.exp(logits - now)
        total = jnp.sum(weights, axis=0, keepdims=True)
        kept["largest"][here] = now
        kept["normaliser"][here] = kept["normaliser"][here] * shrink + total
        if layout.dropout_rate:
            kept_here = blocks.kept_weights(layout, refs["streams"][0, 0, here], j)
            weights = jnp.where(kept_here, weights, 0.0)
        mixed = blocks.product(transposed[lanes], weights.astype(value.dtype), (1, 0))
        kept["total"][lanes, :] = kept["total"][lanes, :] * shrink + mixed
