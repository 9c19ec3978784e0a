"""The backward attention kernel: all gradients in one pass over the pairs of blocks.

The grid is (groups of heads, rows, blocks of keys, blocks of queries). Each block's weights are
computed again from the largest logit and the sum of the exponentials; the gradients of a block of
keys and values are added up while the queries pass, that of a row's queries while the row lasts,
and that of the heads' bias over all rows (Dao et al. 2022, FlashAttention, algorithm 4).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from t5x_lite.nn import pallas_blocks as blocks
from t5x_lite.nn.pallas_blocks import Layout, Refs
from t5x_lite.nn.pallas_forward import in_specs
from t5x_lite.types import Array


def backward_kernel(
    layout: Layout, inputs: dict[str, Array], statistics: Array, *, interpret: blocks.Interpret
) -> tuple[Array, Array, Array, Array | None]:
    """Runs the kernel on one device.

    Args:
      layout: how the work is divided.
      inputs: those of the forward kernel, and "cotangent" [B, T, H * K].
      statistics: float32 [B, groups, 3 * group, T]: what the forward kernel gives, and after it of
        each head the sum of cotangent times output.
      interpret: runs it as plain operations, for tests.

    Returns:
      The gradients of query, key and value; that of the table, or None.
    """
    batch, queries, joined = inputs["query"].shape
    keys, dtype = inputs["key"].shape[1], inputs["value"].dtype
    groups, group, lanes = layout.num_heads // layout.group, layout.group, layout.lanes
    cost = blocks.backward_cost(layout, batch=batch, itemsize=dtype.itemsize)
    scratch: dict[str, Any] = {
        "query": pltpu.VMEM((layout.blocks[0], lanes, layout.query_block), jnp.float32),
        "key": pltpu.VMEM((layout.key_block, lanes), jnp.float32),
        "value": pltpu.VMEM((layout.key_block, lanes), jnp.float32),
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
    of_rows = pl.BlockSpec((1, 1, 3 * group, layout.query_block), lambda h, b, j, i: (b, h, 0, i))
    found = pl.pallas_call(
        functools.partial(_backward, layout),
        grid=(groups, batch, layout.blocks[1], layout.blocks[0]),
        in_specs=[in_specs(layout, inputs, lambda h, b, j, i: (h, b, i, j)), of_rows],
        out_specs=out_specs,
        out_shape=shapes,
        scratch_shapes=[scratch],
        interpret=interpret,
        compiler_params=blocks.compiler_params(cost),
        cost_estimate=blocks.estimate(cost),
        name="t5_attention_backward",
    )(inputs, statistics)
    table = None
    if layout.buckets is not None:
        table = jnp.sum(found["table"], axis=-1).reshape(layout.num_heads, layout.buckets).T
    return found["query"], found["key"], found["value"], table


def _backward(layout: Layout, refs: Refs, statistics: Any, out: Refs, kept: Refs) -> None:
    group_index, row, j, i = (pl.program_id(axis) for axis in range(4))
    last_i, last_j = layout.blocks[0] - 1, layout.blocks[1] - 1
    if layout.buckets is not None:

        @pl.when((row == 0) & (i == 0) & (j == 0))
        def _() -> None:
            blocks.fill_bias(layout, refs["table"], kept["bias"], group_index)
            kept["grad_bias"][...] = jnp.zeros(layout.bias_shape, jnp.float32)

    @pl.when(j == 0)
    def _() -> None:
        kept["query"][i] = jnp.zeros((layout.lanes, layout.query_block), jnp.float32)

    @pl.when(i == 0)
    def _() -> None:
        for name in ("key", "value"):
            kept[name][...] = jnp.zeros(kept[name].shape, jnp.float32)

    @pl.when(blocks.is_worked_on(layout, refs, i, j))
    def _() -> None:
        _add_block(layout, refs, statistics[0, 0], kept, i, j)

    @pl.when(i == last_i)
    def _() -> None:
        for name in ("key", "value"):
            out[name][0] = kept[name][...].astype(out[name].dtype)

    @pl.when(j == last_j)
    def _() -> None:
        first = pl.multiple_of(i * layout.query_block, layout.query_block)
        grad = kept["query"][i].T.astype(out["query"].dtype)
        out["query"][0, pl.ds(first, layout.query_block), :] = grad

    if layout.buckets is not None:

        @pl.when((row == pl.num_programs(1) - 1) & (i == last_i) & (j == last_j))
        def _() -> None:
            blocks.gather_table(layout, kept["grad_bias"], out["table"])


def _add_block(layout: Layout, refs: Refs, statistics: Array, kept: Refs, i: Any, j: Any) -> None:
    query, key, value, g = (refs[name][0] for name in ("query", "key", "value", "cotangent"))
    visible = blocks.seen(layout, refs, i, j)
    transposed = blocks.transpose(key)
    group, dtype = layout.group, value.dtype
    diagonal = blocks.diagonal_of(layout, i, j)
    # The first products of all heads come first, as in the forward kernel.
    of_heads = [
        (
            blocks.product(blocks.only(key, lanes), query, (1, 1)),
            blocks.product(blocks.only(value, lanes), g, (1, 1)),
        )
        for lanes in layout.heads()
    ]
    for head, lanes in enumerate(layout.heads()):
        largest, scale, inner = (
            statistics[n : n + 1] for n in (head, group + head, 2 * group + head)
        )
        logits, grad_weights = of_heads[head]
        if layout.buckets is not None:
            logits = logits + kept["bias"][diagonal, head]
        logits = blocks.masked_logits(layout, logits, visible, i, j)
        weights = jnp.exp(logits - largest) * scale
        mixing = weights
        if layout.dropout_rate:
            streams = refs["streams"][0, 0, head : head + 1]
            kept_here = blocks.kept_weights(layout, streams, j)
            mixing = jnp.where(kept_here, weights, 0.0)
            grad_weights = jnp.where(kept_here, grad_weights, 0.0)
        kept["value"][...] += blocks.product(mixing.astype(dtype), blocks.only(g, lanes), (1, 0))
        grad = weights * (grad_weights - inner)
        if visible is not None:
            grad = jnp.where(visible, grad, 0.0)
        if layout.buckets is not None:
            kept["grad_bias"][diagonal, head] += grad
        grad = grad.astype(dtype)
        kept["key"][...] += blocks.product(grad, blocks.only(query, lanes), (1, 0))
        kept["query"][i, lanes, :] += blocks.product(transposed[lanes], grad, (1, 0))
