"""Feed-forward blocks of which each token goes through some: nothing else is computed.

    y_t = sum_k w_tk FFN_{e_tk}(x_t)        e [.., K] the chosen experts, w [.., K] their weights

Tokens are sorted by expert (`nn.sorted_tokens`), so no token is dropped and none meets an expert
that it did not choose; a block that is not full is the only waste. On a mesh the experts are split
over its axis `tensor`: each device runs the tokens of its own experts, and the results are added
up.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.nn.activations import Activation, activate
from t5x_lite.nn.products import einsum
from t5x_lite.nn.sorted_tokens import in_blocks, over_blocks
from t5x_lite.sharding import partition_spec
from t5x_lite.types import Array

_AXIS = "tensor"


@dataclasses.dataclass(frozen=True)
class ExpertWeights:
    """The arrays of E feed-forward blocks, as `nn.mlp` has one, or a tree of that structure.

    Attributes:
      wi: [E, D, F], of the layer that is not activated where there is a gate.
      wo: [E, F, D].
      gate: [E, D, F]; None without a gate.
      bi: [E, F]; None without biases.
      bo: [E, D].
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
    """What each token's experts make of it, weighed; in the dtype of x.

    Args:
      x: the tokens.
      chosen: numbers of the experts of each token, no two alike.
      weights: float32.
      experts: their arrays; on a mesh axis `tensor` must divide E.
      activation: of the hidden layer, or of its gate.
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
    """The sum over all devices of what each device's experts make of the tokens."""
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
    """What experts `first` and on make of the tokens; those of others give 0."""
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
    """One expert's block of rows, as `nn.mlp.MLP` computes it."""
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
    """What E experts differ by from one feed-forward block; 0 at first.

    Args:
      num: E.
      d_model: D.
      d_ff: F.
      gated: whether the block has a gate.
      bias: whether it has biases.
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
        """The experts: the block's arrays, of E = 1, and the changes; in the dtype of the block."""

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
