"""Mixture of experts: each token goes through K of E feed-forward blocks.

    y_t = sum_k w_tk FFN_{e_tk}(x_t)        e [.., K] the chosen experts, w [.., K] their weights

Tokens are sorted by expert into blocks of S tokens. At most one block of each expert is partly
empty, and blocks without tokens are skipped. No token is dropped (Gale et al. 2022, MegaBlocks,
arXiv:2211.15841, has blocks of this kind). On a mesh, the experts are split over the axis `tensor`:
each device runs the tokens of its experts, and the results are summed.

    blocks = in_blocks(chosen, num=4)                   # chosen [M]: expert number of each token
    rows = blocks.taken(x)                              # x [M, D] -> [N, S, D]
    made = over_blocks(blocks, rows, lambda rows, number: ...)
    blocks.put_back(made)                               # [N, S, O] -> [M, O]

Layers report auxiliary values, which are summed over all layers:

    with collecting() as found:
        model(...)                      # its routers call add("router/r", x)
    found                               # {"router/r": the sum of x over all layers and calls}

`scan_layers` carries the values out of its loop. Outside of `collecting`, reported values are
discarded. The collected values are arrays of the program that is being traced.
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core.sharding import partition_spec
from t5x_lite.core.trees import Array
from t5x_lite.nn.dense import Activation, activate, einsum

_BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Assignment of tokens to blocks of equal size, each for one expert.

    Attributes:
      token: index of the token at each position of a block; `total` at empty positions.
      number: expert number of each block.
      is_used: True if the block has tokens.
      total: number of tokens.
    """

    token: Int[Array, "N S"]
    number: Int[Array, " N"]
    is_used: Bool[Array, " N"]
    total: int

    def taken(self, x: Array) -> Array:
        """Gather tokens [M, ...] into blocks [N, S, ...]; empty positions repeat the last token."""
        return x[jnp.minimum(self.token, self.total - 1)]

    def put_back(self, made: Array) -> Array:
        """Scatter blocks [N, S, ...] to token order [M, ...]; tokens without a block get 0."""
        nothing = jnp.zeros((self.total, *made.shape[2:]), made.dtype)
        return nothing.at[self.token.reshape(-1)].set(
            made.reshape(-1, *made.shape[2:]), mode="drop"
        )


def in_blocks(chosen: Int[Array, " M"], num: int) -> Blocks:
    """Sort tokens by expert number into blocks.

    Args:
      chosen: expert number of each token; tokens with a number outside [0, num) are in no block.
      num: number of experts.
    """
    total = len(chosen)
    size = min(_BLOCK, total)
    own = jnp.where((chosen >= 0) & (chosen < num), chosen, num)
    counts = jnp.bincount(own, length=num + 1)[:num]
    blocks = -(-counts // size)
    ends = jnp.cumsum(blocks)
    # The block of place p of a number is its first block + p // size.
    order = jnp.argsort(own, stable=True)
    starts = jnp.cumsum(counts) - counts
    sorted_own = own[order]
    rank = jnp.arange(total) - jnp.append(starts, 0)[sorted_own]
    slots = jnp.append(ends - blocks, 0)[sorted_own] * size + rank
    num_blocks = total // size + num
    slots = jnp.where(sorted_own < num, slots, num_blocks * size)  # others fall out
    token = jnp.full((num_blocks * size,), total, jnp.int32).at[slots].set(order, mode="drop")
    number = jnp.minimum(jnp.searchsorted(ends, jnp.arange(num_blocks), side="right"), num - 1)
    is_used = jnp.arange(num_blocks) < ends[-1]
    return Blocks(token.reshape(num_blocks, size), number, is_used, total)


def over_blocks(blocks: Blocks, rows: Any, call: Callable[[Any, Array], Array]) -> Array:
    """Apply a function to each block that has tokens; empty blocks get zeros.

    Args:
      blocks: assignment of tokens to blocks.
      rows: data of N blocks of S tokens, an array [N, S, ...] or a pytree of such arrays.
      call: function of a block's rows and its expert number that returns [S, ...].
    """
    first = jax.tree.map(lambda x: x[0], rows)
    like = jax.eval_shape(call, first, blocks.number[0])

    def one(_: None, given: Any) -> tuple[None, Array]:
        own, number, is_used = given
        return None, jax.lax.cond(
            is_used, lambda: call(own, number), lambda: jnp.zeros(like.shape, like.dtype)
        )

    _, made = jax.lax.scan(one, None, (rows, blocks.number, blocks.is_used))
    return made


_AXIS = "tensor"


@dataclasses.dataclass(frozen=True)
class ExpertWeights:
    """Parameters of several experts, which are feed-forward blocks of the same size.

    Attributes:
      wi: kernels [E, D, F] of the input layers, followed by the activation only without gates.
      wo: kernels [E, F, D] of the output layers.
      gate: kernels [E, D, F] of the gates, followed by the activation; None without gates.
      bi: biases [E, F] of the input layers; None without biases.
      bo: biases [E, D] of the output layers; None without biases.
    """

    wi: Any
    wo: Any
    gate: Any = None
    bi: Any = None
    bo: Any = None


jax.tree_util.register_dataclass(ExpertWeights)


def through_experts(
    x: Float[Array, "B T D"],
    chosen: Int[Array, "B T K"],
    weights: Float[Array, "B T K"],
    experts: ExpertWeights,
    *,
    activation: Activation,
) -> Float[Array, "B T D"]:
    """Return the weighted sum of the outputs of each token's experts, in the dtype of x.

    Args:
      x: hidden states of the tokens.
      chosen: numbers of the K experts of each token, all different.
      weights: float32 weights of the chosen experts.
      experts: parameters of the experts; on a mesh, the axis `tensor` must divide E.
      activation: activation of the hidden layer, or of its gate.
    """
    run = functools.partial(_here, activation=activation)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return run(x, chosen, weights, experts, first=0)
    splits = x.shape[1] % mesh.shape["sequence"] == 0  # decoding has one token at a time
    rows = partition_spec(("batch", "length" if splits else None, None))
    mapped = jax.shard_map(
        functools.partial(_on_device, run=run),
        in_specs=(rows, rows, rows, partition_spec(("experts",))),
        out_specs=rows,
        check_vma=False,
    )
    return mapped(x, chosen, weights, experts)


def _on_device(
    x: Array, chosen: Array, weights: Array, experts: ExpertWeights, *, run: Callable[..., Array]
) -> Array:
    first = jax.lax.axis_index(_AXIS) * len(experts.wi)
    return jax.lax.psum(run(x, chosen, weights, experts, first=first), _AXIS)


def _here(
    x: Array,
    chosen: Array,
    weights: Array,
    experts: ExpertWeights,
    *,
    activation: Activation,
    first: Array | int,
) -> Array:
    num, (batch, length, width) = len(experts.wi), x.shape
    each = chosen.shape[-1]
    blocks = in_blocks(chosen.reshape(-1) - first, num)
    token = blocks.token.reshape(-1)
    padded = jnp.concatenate([x.reshape(-1, width), jnp.zeros((1, width), x.dtype)])
    rows = padded[jnp.minimum(blocks.token // each, batch * length)]

    def block(rows: Array, number: Array) -> Array:
        return _feed_forward(rows, jax.tree.map(lambda y: y[number], experts), activation)

    made = over_blocks(blocks, rows, block)
    flat = jnp.append(weights.reshape(-1), 0.0)[token]
    made = made.reshape(-1, width).astype(jnp.float32) * flat[:, None]
    nothing = jnp.zeros((batch * length, width), jnp.float32)
    summed = nothing.at[token // each].add(made, mode="drop")
    return summed.reshape(x.shape).astype(x.dtype)


def _feed_forward(x: Array, mine: ExpertWeights, activation: Activation) -> Array:
    hidden = einsum("nd,df->nf", x, mine.wi)
    hidden = hidden if mine.bi is None else hidden + mine.bi.astype(jnp.float32)
    if mine.gate is None:
        hidden = activate(hidden, activation).astype(x.dtype)
    else:
        gate = einsum("nd,df->nf", x, mine.gate).astype(x.dtype)
        hidden = activate(gate, activation) * hidden.astype(x.dtype)
    out = einsum("nf,fd->nd", hidden, mine.wo)
    return (out if mine.bo is None else out + mine.bo.astype(jnp.float32)).astype(x.dtype)


class ExpertChanges(nnx.Module):
    """Trainable differences of E experts from one feed-forward block, initially 0.

    Args:
      num: number of experts E.
      d_model: size D of the input and output.
      d_ff: size F of the hidden layer.
      gated: True if the block has a gate.
      bias: True if the block has biases.
    """

    def __init__(self, num: int, d_model: int, d_ff: int, *, gated: bool, bias: bool):
        def zeros(shape: tuple[int, ...], *axes: str | None) -> nnx.Param:
            return nnx.Param(jnp.zeros((num, *shape), jnp.float32), logical=("experts", *axes))

        self.wi = zeros((d_model, d_ff), "embed", None)
        self.wo = zeros((d_ff, d_model), None, "embed")
        if gated:
            self.gate = zeros((d_model, d_ff), "embed", None)
        if bias:
            self.bi, self.bo = zeros((d_ff,), None), zeros((d_model,), "embed")
        self.gated, self.has_bias = gated, bias

    def of(self, base: ExpertWeights) -> ExpertWeights:
        """Return E experts: the feed-forward block `base` (E = 1) plus each expert's difference.

        The sum is rounded to the dtype of the block.
        """

        def added(change: nnx.Param, array: Array) -> Array:
            total = array.astype(jnp.float32) + change[...].astype(jnp.float32)
            return total.astype(array.dtype)

        return ExpertWeights(
            wi=added(self.wi, base.wi),
            wo=added(self.wo, base.wo),
            gate=None if base.gate is None else added(self.gate, base.gate),
            bi=None if base.bi is None else added(self.bi, base.bi),
            bo=None if base.bo is None else added(self.bo, base.bo),
        )


_OPEN: contextvars.ContextVar[dict[str, Array] | None] = contextvars.ContextVar("tally")


@contextlib.contextmanager
def collecting() -> Iterator[dict[str, Array]]:
    """Collect the auxiliary values that layers report by `add` inside the context."""
    found: dict[str, Array] = {}
    before = _OPEN.set(found)
    try:
        yield found
    finally:
        _OPEN.reset(before)


def is_collected() -> bool:
    """Return True if auxiliary values are being collected by `collecting`."""
    return _OPEN.get(None) is not None


def add(name: str, value: Array) -> None:
    """Add an auxiliary value, such as a loss, to the sum collected under a name."""
    found = _OPEN.get(None)
    if found is not None:
        found[name] = found[name] + value if name in found else value
