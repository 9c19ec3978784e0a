"""Disentangled attention of DeBERTa as a Pallas kernel for TPUs.

    out = pallas_disentangled(operands, segment_ids, block=512)

The result equals `t5x_lite.nn.attention_pattern.attend_in_blocks`, which runs if the program is not
for a TPU. The kernels are the ones of `pallas_kernels` with two more terms of the logits:

    logits[k, q] = K[k] Q[q] + K[k] Qr[q - k] + Q[q] Kr[k - q]

A strip holds the rows of Qr or Kr by distance, and stays in VMEM for all rows of the batch. A term
is a product of 128 keys or queries with the strip's rows of all distances to a block, and is then
moved to its place. With 4 for 128:

    keys x distances      keys x queries         distances x queries     keys x queries
    . a b c d e f g       d e f g   key 0        . . . .                 d c b a   key 0
    . a b c d e f g       c d e f   key 1        a a a a                 e d c b   key 1
    . a b c d e f g       b c d e                b b b b                 f e d c
    . a b c d e f g       a b c d                 ...                    g f e d

Row k of the first term moves by k lanes (`skew_lanes`): a gather in a vector register. Column q of
the second moves by q sublanes (`skew_rows`): four selections move it by multiples of 8, and a
gather by the rest. No term needs a transposition, and no array of T * T elements leaves VMEM. The
gradient of the logits moves back the same way. The gradients of the strips are summed in VMEM in
float32.

On a mesh, each device computes its rows and heads, and the gradients of the strips are summed over
the devices of the rows. A mesh that splits the length is rejected.

Costs of DeBERTaV3 base per row, as in `pallas_attention`. A block of 512 has fewer products than
blocks of 256, and compiles more slowly. TPU v4 has no gather along sublanes: `supports` is False.

|                        | forward GFLOP, MiB of VMEM | backward GFLOP, MiB of VMEM |
|---|---|---|
| 512 in blocks of 256   | 3.62, 3.4                  | 7.65, 7.3                   |
| 512 in a block of 512  | 3.22, 8.3                  | 6.85, 12.6                  |
| 2048 in blocks of 512  | 51.5, 11.3                 | 110, 26.1                   |
"""

import dataclasses
import functools
import itertools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import check_whole_rows, partition_spec, traced_kind
from t5x_lite.core.trees import Array
from t5x_lite.nn.attention_pattern import Operands, attend_in_blocks
from t5x_lite.nn.dense import WeightDropout
from t5x_lite.nn.fused_attention import stored
from t5x_lite.nn.masks import MASKED
from t5x_lite.nn.pallas_attention import (
    fitting,
    kernel_inputs,
    run_backward,
    run_forward,
    tell_elsewhere,
)
from t5x_lite.nn.pallas_kernels import (
    LANES,
    SUBLANES,
    Cost,
    Form,
    Interpret,
    Layout,
    Refs,
    add_weighted_values,
    backward_cost,
    forward_cost,
    grad_of_logits,
    only,
    product,
    seen,
    transpose,
)


def skew_lanes(x: Float[Array, "R W"]) -> Float[Array, "R C"]:
    """Move row r by r lanes: y[r, c] = x[r, c + R - r], with C = W - R.

    Args:
      x: float32 scores of R rows by distance; R is a power of 2 and divides W.
    """
    size, width = x.shape
    row, lane = _places(size)
    source = (lane - row) & (size - 1)
    tiles = [x[:, start : start + size] for start in range(0, width, size)]
    # Row r reads two tiles, but no lane of both.
    merged = [jnp.where(row + lane < size, b, a) for a, b in itertools.pairwise(tiles)]
    return jnp.concatenate([_gathered(tile, source, 1) for tile in merged], axis=1)


def unskew_lanes(y: Float[Array, "R C"]) -> Float[Array, "R W"]:
    """Move rows back: x[r, c + R - r] = y[r, c] with W = C + R, and 0 elsewhere."""
    size, width = y.shape
    row, lane = _places(size)
    source = (lane + row) & (size - 1)
    tiles = [_gathered(y[:, start : start + size], source, 1) for start in range(0, width, size)]
    none = jnp.zeros((size, size), y.dtype)
    pairs = itertools.pairwise([none, *tiles, none])
    return jnp.concatenate([jnp.where(row + lane < size, a, b) for a, b in pairs], axis=1)


def skew_rows(x: Float[Array, "W R"]) -> Float[Array, "C R"]:
    """Move column c by c rows: y[r, c] = x[r + R - c, c], with C = W - R.

    Args:
      x: float32 scores by distance of R columns; R is a power of 2, and 8 divides W.
    """
    parts = _eights(x)
    row, lane = _places(SUBLANES, x.shape[1])
    for step in _steps(x.shape[1]):
        moved = (lane & (step * SUBLANES)) > 0
        parts = [jnp.where(moved, a, b) for a, b in zip(parts, parts[step:], strict=False)]
    parts = [_gathered(part, (row - lane) & 7, 0) for part in parts]
    below = row >= (lane & 7)
    return jnp.concatenate([jnp.where(below, b, a) for a, b in itertools.pairwise(parts)], axis=0)


def unskew_rows(y: Float[Array, "C R"]) -> Float[Array, "W R"]:
    """Move columns back: x[r + R - c, c] = y[r, c] with W = C + R, and 0 elsewhere."""
    row, lane = _places(SUBLANES, y.shape[1])
    none = [jnp.zeros((SUBLANES, y.shape[1]), y.dtype)]
    below = row >= (lane & 7)
    pairs = itertools.pairwise([*none, *_eights(y), *none])
    parts = [_gathered(jnp.where(below, a, b), (row + lane) & 7, 0) for a, b in pairs]
    for step in reversed(_steps(y.shape[1])):
        moved = (lane & (step * SUBLANES)) > 0
        later, sooner = [*parts, *step * none], [*step * none, *parts]
        parts = [jnp.where(moved, a, b) for a, b in zip(later, sooner, strict=True)]
    return jnp.concatenate(parts, axis=0)


def _places(rows: int, lanes: int | None = None) -> tuple[Array, Array]:
    shape = (rows, rows if lanes is None else lanes)
    row, lane = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    return row, lane


def _gathered(x: Array, source: Array, axis: int) -> Array:
    return jnp.take_along_axis(x, source, axis=axis, mode="promise_in_bounds")


def _eights(x: Array) -> list[Array]:
    return [x[start : start + SUBLANES] for start in range(0, x.shape[0], SUBLANES)]


def _steps(size: int) -> list[int]:
    """Return the powers of 2 below size / 8, in descending order."""
    return [step for step in (8, 4, 2, 1) if step * SUBLANES < size]


def _tiles(layout: Layout) -> list[slice]:
    """Return the slices of a block that are moved together: 128 positions, or fewer in tests."""
    size = math.gcd(layout.key_block, LANES)
    return [slice(start, start + size) for start in range(0, layout.key_block, size)]


def _window(layout: Layout, ahead: Any, tile: slice) -> Any:
    """Return the distances of a tile to the block that is `ahead` blocks after the tile's block."""
    size = tile.stop - tile.start
    first = layout.padded[0] + ahead * layout.key_block - tile.stop
    return pl.ds(pl.multiple_of(first, size), layout.key_block + size)


def _logits(layout: Layout, refs: Refs, head: int, i: Any, j: Any) -> list[Array]:
    """Return one head's logits of each tile of queries, [keys, queries], without a mask."""
    lanes = layout.heads()[head]
    query, key = only(refs["query"][0], lanes), refs["key"][0]
    found = [product(key, query[tile], (1, 1)) for tile in _tiles(layout)]
    if "position_query" in refs:
        rows, strip = only(key, lanes), refs["position_query"]
        terms = [
            skew_lanes(product(rows[tile], strip[_window(layout, i - j, tile), :], (1, 1)))
            for tile in _tiles(layout)
        ]
        for number, tile in enumerate(_tiles(layout)):
            found[number] += jnp.concatenate([term[:, tile] for term in terms], axis=0)
    if "position_key" in refs:
        strip = refs["position_key"]
        for number, tile in enumerate(_tiles(layout)):
            window = strip[_window(layout, j - i, tile), :]
            found[number] += skew_rows(product(window, query[tile], (1, 1)))
    return found


def _add_block(layout: Layout, refs: Refs, kept: Refs, i: Any, j: Any) -> None:
    values, visible = transpose(refs["value"][0]), cast("Array", seen(layout, refs, i, j))
    # The logits of all heads come first, as in `pallas_kernels`.
    of_heads = [_logits(layout, refs, head, i, j) for head in range(layout.group)]
    for head, by_tile in enumerate(of_heads):
        for tile, logits in zip(_tiles(layout), by_tile, strict=True):
            logits = jnp.where(visible[:, tile], logits, MASKED)
            add_weighted_values(layout, refs, kept, head, logits, values, j, tile)


def _add_backward_block(
    layout: Layout, refs: Refs, statistics: Array, out: Refs, kept: Refs, i: Any, j: Any
) -> None:
    @pl.when((pl.program_id(1) == 0) & (i == 0) & (j == 0))
    def _() -> None:
        for name in ("position_key", "position_query"):
            if name in out:
                out[name][...] = jnp.zeros(out[name].shape, jnp.float32)

    query, key, value, g = (refs[name][0] for name in ("query", "key", "value", "cotangent"))
    dtype, visible = value.dtype, cast("Array", seen(layout, refs, i, j))
    keys, queries, cotangents = transpose(key), transpose(query), transpose(g)
    by_tile = [_logits(layout, refs, head, i, j) for head in range(layout.group)]
    grad_weights = [product(only(value, lanes), g, (1, 1)) for lanes in layout.heads()]
    for head, lanes in enumerate(layout.heads()):
        logits = jnp.where(visible, jnp.concatenate(by_tile[head], axis=1), MASKED)
        mixing, grad = grad_of_logits(layout, refs, statistics, head, logits, grad_weights[head], j)
        kept["value"][lanes, :] += product(cotangents[lanes], mixing.astype(dtype), (1, 1))
        kept["key"][lanes, :] += product(queries[lanes], grad.astype(dtype), (1, 1))
        kept["query"][i, lanes, :] += product(keys[lanes], grad.astype(dtype), (1, 0))
        for tile in _tiles(layout):
            if "position_query" in refs:
                moved = unskew_lanes(grad[tile]).astype(dtype)
                window = _window(layout, i - j, tile)
                strip = refs["position_query_columns"][lanes, window]
                kept["key"][lanes, tile] += product(strip, moved, (1, 1))
                out["position_query"][lanes, window] += product(keys[lanes, tile], moved, (1, 0))
            if "position_key" in refs:
                moved = unskew_rows(grad[:, tile]).astype(dtype)
                window = _window(layout, j - i, tile)
                strip = refs["position_key_columns"][lanes, window]
                kept["query"][i, lanes, tile] += product(strip, moved, (1, 0))
                out["position_key"][lanes, window] += product(queries[lanes, tile], moved, (1, 1))


def costs(terms: int, layout: Layout, batch: int, itemsize: int) -> tuple[Cost, Cost]:
    """Return the costs of the forward and the backward kernel on one device.

    Args:
      terms: number of terms by distance, 1 or 2.
      layout: sizes and settings of the kernel.
      batch: number of rows.
      itemsize: bytes per number, such as 2 for bfloat16.
    """
    forward, backward = (
        cost(layout, batch=batch, itemsize=itemsize) for cost in (forward_cost, backward_cost)
    )
    (length, _), block, lanes = layout.padded, layout.key_block, layout.lanes
    groups, tile = layout.num_heads // layout.group, _tiles(layout)[0].stop
    pairs = batch * layout.num_heads * length * length
    by_distance = 2 * terms * pairs * (block + tile) // block
    strips = terms * 2 * length * -(-lanes // LANES) * LANES
    scores = 4 * layout.group * block * (block + tile)
    return (
        dataclasses.replace(
            forward,
            flops=forward.flops + by_distance * lanes,
            bytes=forward.bytes + groups * strips * itemsize,
            vmem=forward.vmem + 2 * strips * itemsize + scores,
        ),
        dataclasses.replace(
            backward,
            flops=backward.flops + by_distance * (lanes + 2 * layout.d_kv),
            bytes=backward.bytes + groups * strips * (2 * itemsize + 4),
            vmem=backward.vmem + 2 * strips * (2 * itemsize + 4) + scores,
        ),
    )


def supports(kind: str, *, length: int, d_kv: int, itemsize: int) -> bool:
    """Return True if a chip runs the kernel: a TPU v5 or later, with enough VMEM for a row.

    Args:
      kind: kind of the chip; chips with unknown VMEM hold every row.
      length: length of the rows, in tokens.
      d_kv: size of a head; a program is taken to have as many heads as fill whole lanes.
      itemsize: bytes per number, such as 2 for bfloat16.
    """
    if not kind.startswith("TPU") or kind.startswith(_OLD):
        return False
    call = _Call(block=LANES, rate=0.5, terms=2, interpret=False)
    shape = (1, length, LANES // math.gcd(LANES, d_kv), d_kv)
    try:
        call.layout(shape, kind=kind, itemsize=itemsize)
    except InputError:
        return False
    return True


_LARGEST = 512
"""Maximum block; a larger one compiles for many minutes, because its tiles are not a loop."""

_OLD = ("TPU v2", "TPU v3", "TPU v4")
"""Kinds of chips that cannot gather along sublanes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Call:
    """Static settings of one call.

    Attributes:
      block: number of queries and of keys per block.
      rate: dropout rate of the weights; 0 disables dropout.
      terms: number of terms by distance, 1 or 2.
      interpret: True to run the kernels as plain operations.
    """

    block: int
    rate: float
    terms: int
    interpret: Interpret

    @property
    def form(self) -> Form:
        return Form(
            name="disentangled_attention",
            costs=functools.partial(costs, self.terms),
            add_block=_add_block,
            add_backward_block=_add_backward_block,
        )

    def layout(self, shape: tuple[int, ...], *, kind: str, itemsize: int) -> Layout:
        _, length, num_heads, d_kv = shape
        granule = SUBLANES if self.interpret else LANES

        def layout_of(block: int) -> Layout:
            most = -(-min(block, _LARGEST) // granule) * granule
            num = -(-length // most)
            block = -(-length // (num * granule)) * granule  # all blocks are as full
            return Layout(
                num_queries=length,
                num_keys=length,
                num_heads=num_heads,
                d_kv=d_kv,
                query_block=block,
                key_block=block,
                dropout_rate=self.rate,
                zeros=True,
            )

        return fitting(layout_of, self.block, kind=kind, itemsize=itemsize, form=self.form)


_Rows = tuple[Array, Array | None]
"""Segment ids [B, T], and dropout streams [B, H, T] or None."""


def pallas_disentangled(
    operands: Operands,
    segment_ids: Int[Array, "B T"],
    *,
    block: int,
    draws: WeightDropout | None = None,
    interpret: Interpret = False,
) -> Float[Array, "B T H K"]:
    """Compute disentangled attention by a TPU kernel, with a float32 softmax.

    A query without visible keys gets zeros.

    Args:
      operands: projected inputs, with as many queries as keys and without a prefix.
      segment_ids: segment of each position, which attends within its segment; 0 is padding.
      block: number of queries and of keys per block, rounded up to a multiple of 128, and at most
        512; the length T need not be a multiple.
      draws: dropout for each query and key, sampled again in the backward pass. Values are already
        scaled.
      interpret: True to run the kernels as plain operations on any device, in blocks of multiples
        of 8; slow, for tests.

    Raises:
      InputError: if the mesh splits the length, or the TPU has no gather along sublanes.
      ValueError: if the operands have a prefix, or no term by distance.
    """
    terms = sum(strip is not None for strip in operands[3:5])
    if operands.prefix_key is not None or not terms:
        raise ValueError(
            "the kernel for disentangled attention requires operands with a term by distance and "
            "without a prefix"
        )
    check_whole_rows("the attention kernel", instead="--model.attention blocked")
    kind = traced_kind()
    if kind.startswith(_OLD):
        raise InputError(
            "model.attention 'pallas' of a DeBERTa needs a TPU v5 or later, but the devices are "
            f"{kind}; set --model.attention plain or blocked"
        )
    if not interpret:
        tell_elsewhere(kind)
    batch, length, heads, _ = operands.query.shape
    rate, streams = 0.0, None
    if draws is not None:
        rate, streams = draws.rate, draws.streams(batch, heads, length)
    call = _Call(block=block, rate=rate, terms=terms, interpret=interpret)
    return _attend(call, operands, (segment_ids, streams))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: _Call, operands: Operands, rows: _Rows) -> Array:
    return _forward(call, operands, rows)[0]


def _in_blocks(call: _Call, rows: _Rows, operands: Operands) -> Array:
    ids, streams = rows
    drawn = None if streams is None else (call.rate, streams)
    return attend_in_blocks(operands, ids, block=call.block, streams=drawn)


def _by_platform(call: _Call, kernel: Any, elsewhere: Any, given: tuple) -> Any:
    if call.interpret:
        return kernel(*given)
    return jax.lax.platform_dependent(*given, tpu=kernel, default=elsewhere)


def _forward(call: _Call, operands: Operands, rows: _Rows) -> tuple[Array, tuple]:
    def kernel(*given: Any) -> tuple[Array, Array, Array]:
        return _on_mesh(functools.partial(_forward_here, call), given)

    def elsewhere(operands: Operands, rows: _Rows) -> tuple[Array, Array, Array]:
        batch, length, heads, _ = operands.query.shape
        unused = jnp.zeros((batch, heads, length), jnp.float32)
        return _in_blocks(call, rows, operands), unused, unused

    out, largest, scale = _by_platform(call, kernel, elsewhere, (operands, rows))
    joined, *statistics = stored(out.reshape(*out.shape[:2], -1), largest, scale)
    return joined.reshape(out.shape), (operands, rows, joined, *statistics)


def _backward(call: _Call, saved: tuple, g: Array) -> tuple[Operands, None]:
    operands, rows, joined, *statistics = saved
    results = (joined.reshape(g.shape), *statistics)

    def kernel(*given: Any) -> Operands:
        grads = _on_mesh(functools.partial(_backward_here, call), given)
        return jax.tree.map(lambda grad, x: grad.astype(x.dtype), grads, given[0])

    def elsewhere(operands: Operands, rows: _Rows, _: tuple, g: Array) -> Operands:
        return jax.vjp(functools.partial(_in_blocks, call, rows), operands)[1](g)[0]

    return _by_platform(call, kernel, elsewhere, (operands, rows, results, g)), None


_attend.defvjp(_forward, _backward)


def _on_mesh(function: Any, given: tuple) -> Any:
    """Run a kernel, forward without results in `given` or backward, on each device's part."""
    if jax.sharding.get_abstract_mesh().empty:
        return function(*given)
    x: Any = partition_spec(("batch", None, "heads", "kv"))
    statistics: Any = partition_spec(("batch", "heads", None))
    strip: Any = partition_spec((None, "heads", "kv"))
    ids: Any = partition_spec(("batch", None))
    operands, (_, streams), *backward = given
    of_operands = Operands(x, x, x, *(None if y is None else strip for y in operands[3:5]))
    specs = (of_operands, (ids, None if streams is None else statistics))
    results = (x, statistics, statistics)
    out_specs = of_operands if backward else results
    specs = (*specs, results, x) if backward else specs
    return jax.shard_map(function, in_specs=specs, out_specs=out_specs, check_vma=False)(*given)


def _forward_here(call: _Call, operands: Operands, rows: _Rows) -> tuple[Array, Array, Array]:
    layout, inputs = _inputs(call, operands, rows)
    shape, options = operands.query.shape, {"interpret": call.interpret, "form": call.form}
    return run_forward(layout, inputs, shape, **options)


def _backward_here(
    call: _Call, operands: Operands, rows: _Rows, results: tuple, g: Array
) -> Operands:
    layout, inputs = _inputs(call, operands, rows)
    strips = {f"{name}_columns": x.T for name, x in inputs.items() if name.startswith("position")}
    options = {"interpret": call.interpret, "form": call.form}
    grads = run_backward(layout, inputs | strips, results, g, **options)
    _, length, heads, d_kv = g.shape
    fill, axes = layout.padded[0] - length, partition_spec(("batch",))[0]
    alone = jax.sharding.get_abstract_mesh().empty
    found: dict[str, Any] = {"position_key": None, "position_query": None}
    for name, grad in grads.items():
        if name in found:
            strip = grad.T[fill + 1 : fill + 2 * length].reshape(-1, heads, d_kv)
            found[name] = strip if alone else jax.lax.psum(strip, axes)
        else:
            found[name] = grad[:, :length].reshape(g.shape)
    return Operands(**found)


def _inputs(call: _Call, operands: Operands, rows: _Rows) -> tuple[Layout, dict[str, Array]]:
    query, key, value = operands[:3]
    kind = "" if call.interpret else traced_kind()
    layout = call.layout(query.shape, kind=kind, itemsize=query.dtype.itemsize)
    by_position = (rows[0], rows[0], None, None, None, rows[1])
    inputs = kernel_inputs(layout, query, key, value, None, by_position)
    fill = layout.padded[0] - query.shape[1]
    for name in ("position_key", "position_query"):
        strip = getattr(operands, name)
        if strip is not None:
            # The first row is of a distance that no pair has.
            wide = strip.reshape(strip.shape[0], -1)
            inputs[name] = jnp.pad(wide, ((fill + 1, fill), (0, 0)))
    return layout, inputs
