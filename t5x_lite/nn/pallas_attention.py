"""Attention as a Pallas kernel for TPUs: its interface, and the blocks that fit in VMEM.

    out = pallas_attention(query, key, value, visible=masks.of_decoder(segments), bias=table)

The result equals `t5x_lite.nn.fused_attention`. Queries are in blocks too, and everything between
the products stays in VMEM: logits, bias and mask are never in HBM. The kernels are in
`pallas_kernels`. If the program is not for a TPU, blocked attention runs instead, with the same
memory in HBM; on GPUs a line is logged. Dropout of attention weights shared by all queries, as in
T5, scales the values outside this module (`attention.dot_product_attention`). Dropout for each
query and key is sampled inside the kernels, in both passes and also in blocked attention, by a hash
of the key's words, row, head, query and key (`dropout.kept_keys`). It costs a TPU 5.5 integer
operations per logit in either kernel.

On a mesh, each device computes its rows (replica, data, fsdp) and heads (tensor); the gradient of
the bias table is summed over the devices of the rows. A mesh that splits the length (sequence) is
rejected.

Costs of T5 1.1 base, bfloat16, from `costs`: 12 heads of 64, blocks of 256. GFLOPs and MB from and
to HBM are per row, and VMEM is per program. FLOPs are over all 128 lanes of two heads, even if a
product contracts over one head's 64. The useful fraction is 2/3 in the forward pass and 5/7 in the
backward pass.

|                      | forward GFLOP, MB, MiB of VMEM | backward GFLOP, MB, MiB of VMEM |
|---|---|---|
| encoder, 512         | 1.21, 7.9, 3.2                 | 2.82, 9.6, 5.9                  |
| encoder, 2048        | 19.3, 108, 4.2                 | 45.1, 75.9, 9.4                 |
| encoder, 8192        | 309, 1643, 4.2                 | 722, 938, 15.4                  |
| decoder, 114         | 0.08, 1.2, 0.8                 | 0.18, 2.2, 1.4                  |
| decoder, 2048        | 10.9, 108, 3.2                 | 25.4, 75.9, 7.4                 |
| across, 114 to 512   | 0.30, 3.6, 1.1                 | 0.70, 5.7, 1.7                  |

Larger blocks move fewer bytes for long rows, because keys are read once for each block of queries,
but need more VMEM. In the backward pass VMEM also grows with the length, because it holds the
gradient of a row's queries. A block that does not fit the chip is halved (`fitting`):

    fitting(layout_of, 512, kind="TPU v4", itemsize=2)     # a Layout with blocks of 256

For the backward kernel, which needs more VMEM, the estimate (`Cost.vmem`) and the compiler's figure
were 17.48 and 17.42, 28.05 and 28.10 MiB (2,048 tokens in blocks of 384 and 512, libtpu 0.0.42).
"""

import dataclasses
import functools
import logging
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import check_whole_rows, partition_spec, traced_kind
from t5x_lite.core.trees import Array
from t5x_lite.nn import fused_attention as blocked
from t5x_lite.nn.attention_pattern import RelativeTable
from t5x_lite.nn.dense import WeightDropout
from t5x_lite.nn.fused_attention import Rows, Rules
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.pallas_kernels import (
    LANES,
    SUBLANES,
    T5,
    Cost,
    Form,
    Interpret,
    Layout,
    backward_cost,
    backward_kernel,
    forward_cost,
    forward_kernel,
)

_logger = logging.getLogger(__name__)

MIB = 2**20

_VMEM = {
    "TPU v4": 16,
    "TPU v5 lite": 128,
    "TPU v5e": 128,
    "TPU v5": 64,
    "TPU v5p": 64,
    "TPU v6 lite": 128,
    "TPU v6e": 128,
    "TPU7x": 64,
}
"""MiB of VMEM of a core by device kind (docs.jax.dev, Pallas, "TPU Hardware Reference")."""

_MARGIN = MIB // 8
"""Safety margin in bytes: the estimate of VMEM may be too low by this much."""


def fitting(
    layout_of: Callable[[int], Layout],
    block: int,
    *,
    kind: str,
    itemsize: int,
    form: Form = T5,
) -> Layout:
    """Return the layout of the attention kernel with the largest block that fits VMEM.

    The requested block is halved until it fits; a warning names the smaller block.

    Args:
      layout_of: function from the block size to the layout.
      block: requested number of keys and queries per block.
      kind: kind of the chip; on chips with unknown VMEM, every block fits.
      itemsize: bytes per number.
      form: terms of the logits.

    Raises:
      InputError: if no block fits.
    """

    def needed_by(layout: Layout) -> int:
        return max(cost.vmem for cost in form.costs(layout, 1, itemsize))

    asked = layout = layout_of(block)
    if kind not in _VMEM:
        return asked
    room = _VMEM[kind] * MIB - _MARGIN
    while needed_by(layout) > room and block > LANES:
        block = -(-block // 2 // LANES) * LANES
        layout = layout_of(block)
    said = (
        f"rows of {max(asked.num_queries, asked.num_keys)} tokens in blocks of {{}} need "
        f"{{:.1f}} of the {_VMEM[kind]} MiB of VMEM of a {kind}"
    )
    needed = needed_by(layout) / MIB
    if needed_by(layout) > room:
        raise InputError(
            "the attention kernel does not fit into the TPU's VMEM: "
            f"{said.format(layout.key_block, needed)}; set --model.attention blocked"
        )
    if layout != asked:
        needed = needed_by(asked) / MIB
        tell(
            f"the attention kernel uses blocks of {layout.key_block} tokens, because "
            f"{said.format(asked.key_block, needed)}"
        )
    return layout


@functools.cache
def tell(message: str) -> None:
    """Log a warning once on the first process, even if a program is traced several times."""
    if jax.process_index() == 0:
        _logger.warning("%s", message)


def tell_elsewhere(kind: str, hint: str = "") -> None:
    """Log a warning once if devices are neither TPUs nor CPUs, so that no kernel runs."""
    if kind != "cpu" and not kind.startswith("TPU"):
        tell(
            f"model.attention 'pallas' needs a TPU, but the devices are {kind}; running blocked "
            f"attention instead{hint}"
        )


_UNKNOWN = -1
"""Segment id of positions that pad the last block."""

_UNSEEN = -2
"""Segment id of padding keys, if queries have segment ids: no query has this id."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Call:
    """Static settings of one call of the attention kernel.

    Attributes:
      rules: settings of blocked attention.
      buckets: number of rows of the bias table; None without a bias.
      finds_itself: True if every query outside segment 0 attends at least to its own key.
      interpret: True to run the kernels as plain operations.
    """

    rules: Rules
    buckets: int | None
    finds_itself: bool
    interpret: Interpret

    def layout(self, queries: Array, num_keys: int) -> Layout:

        def layout_of(block: int) -> Layout:
            return self.layout_of(block, queries.shape, num_keys)

        kind = "" if self.interpret else traced_kind()
        itemsize = queries.dtype.itemsize
        return fitting(layout_of, self.rules.block, kind=kind, itemsize=itemsize)

    def layout_of(self, block: int, queries: tuple[int, ...], num_keys: int) -> Layout:
        _, num_queries, num_heads, d_kv = queries
        granule = SUBLANES if self.interpret else LANES
        lengths = (num_queries, num_keys)
        # A bias is made for diagonals of square blocks.
        lengths = lengths if self.buckets is None else (max(lengths),) * 2
        query_block, key_block = (
            min(-(-block // granule), -(-length // granule)) * granule for length in lengths
        )
        return Layout(
            num_queries=num_queries,
            num_keys=num_keys,
            num_heads=num_heads,
            d_kv=d_kv,
            query_block=query_block,
            key_block=key_block,
            causal=self.rules.causal,
            skips=self.finds_itself,
            buckets=self.buckets,
            bidirectional=self.rules.bidirectional,
            max_distance=self.rules.max_distance or 0,
            dropout_rate=self.rules.dropout_rate,
        )


def pallas_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K"],
    *,
    visible: Visibility,
    bias: RelativeTable | None = None,
    draws: WeightDropout | None = None,
    interpret: Interpret = False,
) -> Float[Array, "B T H K"]:
    """Compute softmax(query key^T + bias) value by a TPU kernel, with a float32 softmax.

    As in `softmax_attention`, logits are unscaled, and products take operands in the dtype of value
    and accumulate in float32. A query without visible keys attends to all keys equally and passes
    no gradient to its logits.

    Args:
      query: projected queries, bfloat16 or float32.
      key: projected keys.
      value: projected values.
      visible: keys that each query attends to. A block has block_size keys and queries, rounded up
        to a multiple of 128; the lengths need not be multiples of the block.
      bias: relative bias; its table gets a gradient.
      draws: dropout for each query and key, sampled again in the backward pass. Values are already
        scaled.
      interpret: True to run the kernels as plain operations on any device, in blocks of multiples
        of 8; slow, for tests. `InterpretParams` also simulate the memory and the cores of a TPU.

    Raises:
      InputError: if the mesh splits the length.
    """
    check_whole_rows("the attention kernel", instead="--model.attention blocked")
    kind = traced_kind()
    if not interpret:
        tell_elsewhere(kind, " (--model.attention cudnn is a kernel for NVIDIA GPUs)")
    # Queries and keys of one array of segments: a query's own key is of its segment.
    alone = visible.keys is None and visible.queries is None
    same = visible.keys is not None and visible.queries is visible.keys
    rules = Rules.of(visible, bias, num_keys=key.shape[1])
    rows = (visible.keys, visible.queries, visible.both_ways)
    if draws is not None:
        batch, num_queries, heads, _ = query.shape
        rules = dataclasses.replace(rules, dropout_rate=draws.rate)
        rows = (*rows, None, None, draws.streams(batch, heads, num_queries))
    call = _Call(
        rules=rules,
        buckets=None if bias is None else bias.table.shape[0],
        finds_itself=visible.causal and visible.both_ways is None and (alone or same),
        interpret=interpret,
    )
    return _attend(call, query, key, value, None if bias is None else bias.table, rows)


def costs(
    *,
    batch: int,
    num_queries: int,
    num_keys: int,
    num_heads: int,
    d_kv: int,
    block: int = 256,
    itemsize: int = 2,
    causal: bool = False,
    bidirectional: bool | None = None,
) -> tuple[Cost, Cost]:
    """Return the costs of the forward and the backward kernel on one device.

    Args:
      batch: number of rows on the device.
      num_queries: number of queries T per row.
      num_keys: number of keys S per row.
      num_heads: number of heads on the device.
      d_kv: size K of a head.
      block: number of queries and keys per block.
      itemsize: bytes per number, such as 2 for bfloat16.
      causal: True if blocks above the diagonal are skipped.
      bidirectional: True for the bias of a T5 encoder with 32 buckets, False for a decoder; if
        None, no bias is added.
    """
    buckets = None if bidirectional is None else 32
    rules = Rules(block, causal, bool(bidirectional), None if buckets is None else 128)
    call = _Call(rules=rules, buckets=buckets, finds_itself=causal, interpret=False)
    layout = call.layout_of(block, (batch, num_queries, num_heads, d_kv), num_keys)
    return (
        forward_cost(layout, batch=batch, itemsize=itemsize),
        backward_cost(layout, batch=batch, itemsize=itemsize),
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    call: _Call, query: Array, key: Array, value: Array, table: Array | None, rows: Rows
) -> Array:
    return _forward(call, query, key, value, table, rows)[0]


def _forward(
    call: _Call, query: Array, key: Array, value: Array, table: Array | None, rows: Rows
) -> tuple[Array, tuple]:
    given = (query, key, value, table, rows)

    def kernel(*given: Any) -> tuple[Array, Array, Array]:
        return _on_mesh(functools.partial(_forward_here, call), given, "xss")

    def elsewhere(*given: Any) -> tuple[Array, Array, Array]:
        return blocked.forward(call.rules, *given)[1][-3:]

    if call.interpret:
        out, largest, scale = kernel(*given)
    else:
        out, largest, scale = jax.lax.platform_dependent(*given, tpu=kernel, default=elsewhere)
    # A head of 64 numbers would fill half of a tile, so heads stay joined in what is stored.
    joined = out.reshape(*out.shape[:2], -1)
    joined, largest, scale = blocked.stored(joined, largest, scale)
    return joined.reshape(out.shape), (*given, joined, largest, scale)


def _backward(call: _Call, saved: tuple, g: Array) -> tuple:
    *given, joined, largest, scale = saved
    saved = (*given, joined.reshape(g.shape), largest, scale)

    def kernel(*given: Any) -> tuple:
        return _on_mesh(functools.partial(_backward_here, call), given, "xxxt")

    def elsewhere(*given: Any) -> tuple:
        *saved, g = given
        return blocked.backward(call.rules, tuple(saved), g)[:4]

    if call.interpret:
        return *kernel(*saved, g), None
    return *jax.lax.platform_dependent(*saved, g, tpu=kernel, default=elsewhere), None


_attend.defvjp(_forward, _backward)


def _on_mesh(function: Any, given: tuple, results: str) -> Any:
    specs = {
        "x": partition_spec(("batch", None, "heads", "kv")),
        "s": partition_spec(("batch", "heads", None)),
        "t": partition_spec(("relpos_buckets", "heads")),
    }
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function(*given, axes=())
    table, rows, *more = given[3:]
    # Ids [B, T], and streams of dropout [B, H, T].
    spread = {2: partition_spec(("batch", None)), 3: specs["s"]}
    ids = [None if row is None else spread[row.ndim] for row in rows]
    rest = [specs["x"] if x.ndim == 4 else specs["s"] for x in more]
    in_specs = (*3 * (specs["x"],), None if table is None else specs["t"], tuple(ids), *rest)
    axes = partition_spec(("batch",))[0]
    out_specs = tuple(None if r == "t" and table is None else specs[r] for r in results)
    mapped = jax.shard_map(
        functools.partial(function, axes=axes),
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
    )
    return mapped(*given)


def _forward_here(
    call: _Call,
    query: Array,
    key: Array,
    value: Array,
    table: Array | None,
    rows: Rows,
    *,
    axes: Any,
) -> tuple[Array, Array, Array]:
    del axes
    layout = call.layout(query, key.shape[1])
    inputs = kernel_inputs(layout, query, key, value, table, rows)
    return run_forward(layout, inputs, query.shape, interpret=call.interpret)


def run_forward(
    layout: Layout,
    inputs: dict[str, Array],
    shape: tuple[int, ...],
    *,
    interpret: Interpret,
    form: Form = T5,
) -> tuple[Array, Array, Array]:
    """Run the forward kernel and remove the padding of its results.

    Args:
      layout: sizes and settings of the kernel.
      inputs: inputs of the kernel.
      shape: shape of the queries, [B, T, H, K].
      interpret: True to run the kernel as plain operations.
      form: terms of the logits.

    Returns:
      The weighted values [B, T, H, K]; the largest logit and 1 / sum of exponentials, [B, H, T].
    """
    out, statistics = forward_kernel(layout, inputs, interpret=interpret, form=form)
    batch, length, heads, _ = shape
    largest, scale = (
        part.reshape(batch, heads, -1)[..., :length] for part in jnp.split(statistics, 2, axis=2)
    )
    return out[:, :length].reshape(shape), largest, scale


def _backward_here(
    call: _Call,
    query: Array,
    key: Array,
    value: Array,
    table: Array | None,
    rows: Rows,
    out: Array,
    largest: Array,
    scale: Array,
    g: Array,
    *,
    axes: Any,
) -> tuple[Array, Array, Array, Array | None]:
    layout = call.layout(query, key.shape[1])
    inputs = kernel_inputs(layout, query, key, value, table, rows)
    grads = run_backward(layout, inputs, (out, largest, scale), g, interpret=call.interpret)
    query_grad, key_grad, value_grad = (
        grads[name][:, : x.shape[1]].reshape(x.shape)
        for name, x in (("query", query), ("key", key), ("value", value))
    )
    grad_table = grads.get("table")
    if grad_table is not None and axes:
        grad_table = jax.lax.psum(grad_table, axes)
    return query_grad, key_grad, value_grad, grad_table


def _sums_of_heads(a: Float[Array, "B T H K"], b: Float[Array, "B T H K"]) -> Array:
    """Sum a * b over each head, [B, H, T], by a product with ones.

    A sum over the axis K would need another layout: a head fills half of a tile.
    """
    *lengths, heads, d_kv = a.shape
    both = (x.reshape(*lengths, heads * d_kv).astype(jnp.float32) for x in (a, b))
    ones = np.repeat(np.eye(heads, dtype=np.float32), d_kv, axis=0)
    return jnp.einsum("BTJ,JH->BHT", operator.mul(*both), ones, precision=jax.lax.Precision.HIGHEST)


def run_backward(
    layout: Layout,
    inputs: dict[str, Array],
    results: tuple[Array, Array, Array],
    g: Array,
    *,
    interpret: Interpret,
    form: Form = T5,
) -> dict[str, Array]:
    """Run the backward kernel, and return its gradients with their padding.

    Args:
      layout: sizes and settings of the kernel.
      inputs: inputs of the forward kernel.
      results: results of `run_forward`.
      g: cotangent of the weighted values, [B, T, H, K].
      interpret: True to run the kernel as plain operations.
      form: terms of the logits.
    """
    out, largest, scale = results
    inner = _sums_of_heads(g, out)
    batch, length, heads, _ = out.shape
    groups, fill = heads // layout.group, layout.padded[0] - length
    statistics = jnp.concatenate(
        [x.reshape(batch, groups, layout.group, length) for x in (largest, scale, inner)], axis=2
    )
    statistics = jnp.pad(statistics, ((0, 0), (0, 0), (0, 0), (0, fill)))
    cotangent = joined(g.astype(out.dtype), layout.padded[0])
    inputs = {**inputs, "cotangent": cotangent}
    return backward_kernel(layout, inputs, statistics, interpret=interpret, form=form)


def kernel_inputs(
    layout: Layout, query: Array, key: Array, value: Array, table: Array | None, rows: Rows
) -> dict[str, Array]:
    """Return the inputs of the forward kernel, padded to complete blocks.

    Args:
      layout: sizes and settings of the kernel.
      query: queries [B, T, H, K].
      key: keys [B, S, H, K].
      value: values [B, S, H, K].
      table: bias table [buckets, H]; None without a bias.
      rows: per-position arrays.
    """
    queries, keys = layout.padded
    inputs = {
        "query": joined(query, queries),
        "key": joined(key, keys),
        "value": joined(value, keys),
    }
    if table is not None:
        inputs["table"] = table.astype(jnp.float32)
    of_keys, of_queries, groups, _, _, streams = (*rows, None, None, None)[:6]
    if of_keys is not None:
        ids = _filled(of_keys, keys)
        ids = ids if of_queries is None else jnp.where(ids > 0, ids, _UNSEEN)
        inputs["keys"] = ids[:, :, None]
    if of_keys is not None and of_queries is not None:
        inputs["queries"] = _filled(of_queries, queries)[:, None]
    if layout.causal and groups is not None:
        inputs["key_groups"] = _filled(groups, keys)[:, :, None]
        inputs["query_groups"] = _filled(groups, queries)[:, None]
    if streams is not None:
        streams = jnp.pad(streams, ((0, 0), (0, 0), (0, queries - streams.shape[2])))
        inputs["streams"] = streams.reshape(len(streams), -1, layout.group, queries)
    return inputs


def joined(x: Float[Array, "B T H K"], length: int) -> Array:
    """Join the axes of heads, and add zeros up to a length: [B, length, H * K]."""
    fill = length - x.shape[1]
    wide = x.reshape(*x.shape[:2], -1)
    return jnp.pad(wide, ((0, 0), (0, fill), (0, 0))) if fill else wide


def _filled(ids: Array, length: int) -> Array:
    fill = ((0, 0), (0, length - ids.shape[1]))
    return jnp.pad(ids.astype(jnp.int32), fill, constant_values=_UNKNOWN)
