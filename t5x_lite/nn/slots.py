"""Slots of layers for adapters, and the conversion of a module to nested dicts and back.

Conversion of Flax modules to nested dicts of arrays and back.

Outside nn/, models/, objectives/ and adapters/, parameters are plain nested dicts. `bind` rebuilds
the module inside a traced function, at no run-time cost.

    graphdef, params, axes = split(T5Config().build(rngs=nnx.Rngs(0)))
    model = bind(graphdef, cast(params, jnp.bfloat16))

Slots: attributes of a layer that may hold an adapter, None by default.

    Dense.slot                 DenseSlot    x W -> x W + branch(x), and the bias
    Attention.slot, MLP.slot   HiddenSlot   the input of the last layer of the block
    Attention.prefix           KeySlot      keys and values in addition to the source's
    model.prompt               TokenSlot    vectors before the token embeddings of an encoder
    model.invertible           InvertibleSlot    after an encoder's embeddings
    layer.after_attention      BlockSlot    instead of x + f, or norm(x + f)
    layer.after_cross_attention
    layer.after_mlp

This module defines only protocols and names; adapters/ implements the adapters. All model families
use these names of adapter sites (named positions in a layer or model):

    attention/query    attention/key    attention/value    attention/out
    cross_attention/query ...           of a decoder
    mlp/in    mlp/gate    mlp/out       mlp/gate only in gated layers
    attention/hidden    cross_attention/hidden    mlp/hidden
    attention/prefix    cross_attention/prefix
    prompt    invertible                of a model, not of its layers

An adapter of stacked layers has stacked parameters; a scan over the layers slices both.
"""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.tied_parameters import Int8
from t5x_lite.core.trees import Array, Axes, Key, Params
from t5x_lite.nn.masks import Visibility

GraphDef = nnx.GraphDef


def split(module: nnx.Module) -> tuple[GraphDef, Params, Axes]:
    """Split a module into its structure, its parameters and their logical axes.

    Returns:
      graphdef: static structure of the module.
      params: nested dict of arrays.
      axes: nested dict of the same structure, with the logical axis names of each array; None for
        the axes of layers from other libraries, such as `nnx.Linear`, which are not sharded.
    """
    graphdef, state = nnx.split(module)
    axes = jax.tree.map(
        _axes,
        state,
        is_leaf=lambda node: isinstance(node, nnx.Variable),
    )
    return graphdef, nnx.to_pure_dict(state), nnx.to_pure_dict(axes)


def _axes(variable: nnx.Variable) -> tuple[str | None, ...]:
    return tuple(variable.get_metadata().get("logical", (None,) * variable.get_value().ndim))


def bind(graphdef: GraphDef, params: Params) -> Any:
    """Build a module from its structure and a nested dict of arrays."""
    return nnx.merge(graphdef, params)


def cast(params: Params, dtype: Any) -> Params:
    """Cast floating-point parameters to a dtype; integer arrays are unchanged."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x,
        params,
        is_leaf=lambda x: isinstance(x, Int8),
    )


def shapes(build: Callable[[nnx.Rngs], nnx.Module]) -> tuple[GraphDef, Any, Axes]:
    """Return the structure, parameter shapes and axes of a module without allocating memory.

    Returns:
      The graphdef, a nested dict of `jax.ShapeDtypeStruct`, and the axes.
    """
    static: list[tuple[GraphDef, Axes]] = []

    def traced(key: Key) -> Params:
        graphdef, params, axes = split(build(_streams(key)))
        static.append((graphdef, axes))
        return params

    abstract = jax.eval_shape(traced, jax.random.key(0))
    graphdef, axes = static[0]
    return graphdef, abstract, axes


def init(build: Callable[[nnx.Rngs], nnx.Module], key: Key) -> Params:
    """Return a module's initial parameters; a pure function of the key, for `jax.jit`."""
    return split(build(_streams(key)))[1]


class _Stream(nnx.RngStream):
    """Flax's stream with a faster count: `count[...] += 1` formats an error in each trace."""

    def __call__(self) -> Key:
        count = self.count.get_value()
        self.count.set_value(count + 1)
        return jax.random.fold_in(self.key.get_value(), count)


def _streams(key: Key) -> nnx.Rngs:
    rngs: Any = nnx.Rngs(params=key)
    rngs.params = _Stream(key, tag="params")
    return rngs


def stacked(build: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs, *, num: int) -> Any:
    """Build `num` modules of the same structure as one module with stacked parameters.

    Each parameter gets a leading "layers" axis. Each layer is initialized from its own random key.
    """
    if num < 1:
        raise ValueError(f"a stack of layers must have at least one layer, but num is {num}")
    structures: list[GraphDef] = []

    def initialized(key: Key) -> Params:
        graphdef, params, _ = split(build(_streams(key)))
        structures.append(graphdef)
        return params

    params = jax.vmap(initialized)(jax.random.split(rngs.params(), num))
    module = bind(structures[0], params)
    for _, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Variable):
            unnamed = (None,) * (node.get_value().ndim - 1)
            node.set_metadata(logical=("layers", *node.get_metadata().get("logical", unnamed)))
    return module


@runtime_checkable
class DenseSlot(Protocol):
    """Protocol of adapters that change the product of a dense layer, such as LoRA."""

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """Return the result of the adapted layer in float32, without its bias.

        Args:
          x: input of the layer.
          y: product of x and the kernel in float32, without the bias.
          kernel: kernel of the layer.
        """
        ...

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the kernel with the adapter merged into it."""
        ...

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        """Return the bias of the adapted layer, or None if it has no bias."""
        ...


@runtime_checkable
class WholeSlot(Protocol):
    """Protocol of dense-layer adapters that also add the bias of the layer."""

    @property
    def per_row(self) -> bool:
        """True if the adapter treats the rows of a batch differently."""
        ...

    def with_bias(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
        bias: Float[Array, " O"] | None,
        seen: Any,
    ) -> Float[Array, "*batch O"]:
        """Return the result of the adapted layer in float32, with its bias.

        Args:
          x: input of the layer.
          y: product of x and the kernel in float32, without the bias.
          kernel: kernel of the layer.
          bias: bias of the layer.
          seen: mask of the positions that each position attends to.
        """
        ...


@runtime_checkable
class GatedSlot(Protocol):
    """Protocol of dense-layer adapters with a gate, computed from the tokens of each row."""

    def gated(
        self,
        x: Float[Array, "*B T I"],
        y: Float[Array, "*B T O"],
        kernel: Float[Array, "I O"],
        seen: Any,
    ) -> Float[Array, "*B T O"]:
        """Return the result of the adapted layer in float32, without its bias.

        Args:
          x: input of the layer.
          y: product of x and the kernel in float32, without the bias.
          kernel: kernel of the layer.
          seen: mask of the positions that each position attends to.
        """
        ...


@runtime_checkable
class DropoutSlot(Protocol):
    """Protocol of dense-layer adapters with dropout of the layer's input.

    Attributes:
      dropout_rate: dropout rate; 0 needs no random key.
      dropout_key: random key of one call in training; None disables dropout.
    """

    dropout_rate: float
    dropout_key: Any


def with_dropout(slot: Any, key: Key | None, name: str) -> Any:
    """Return a copy of an adapter with a random key for dropout; without dropout, the adapter.

    Args:
      slot: adapter at a dense layer, or None.
      key: random key of the layer in a training step; None disables dropout.
      name: name of the adapter or its site, folded into the key.
    """
    if key is None or not isinstance(slot, DropoutSlot) or not slot.dropout_rate:
        return slot
    graphdef, params, _ = split(slot)  # pyright: ignore[reportArgumentType]
    made = bind(graphdef, params)
    own = jax.random.fold_in(key, zlib.crc32(name.encode()))
    made.dropout_key = nnx.Variable(own, logical=())
    return made


def seeded(key: Key | None, layer: "Host") -> Key | None:
    """Set the dropout keys of the adapters at a layer's dense layers, in place, and return `key`.

    Args:
      key: random key of the layer in a training step; None changes nothing.
      layer: layer with the adapters, a copy made for this call.
    """
    for name, dense in layer.dense_sites().items() if key is not None else ():
        dense.slot = with_dropout(dense.slot, key, name)
    return key


@runtime_checkable
class HiddenSlot(Protocol):
    """Protocol of adapters that change the input of the last dense layer of a block.

    In a feed-forward block this input is the hidden layer after its activation, and in attention
    the mixed values of all heads.
    """

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """Return the hidden states changed by the adapter, in their original dtype."""
        ...

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the kernel with the adapter merged into it."""
        ...


@runtime_checkable
class KeySlot(Protocol):
    """Protocol of adapters that add keys and values to an attention layer (prefix tuning)."""

    def __call__(self) -> tuple[Float[Array, "P H K"], Float[Array, "P H K"]]:
        """Return the adapter's keys and values, which have no mask and no bias."""
        ...


@runtime_checkable
class PlacedKeySlot(Protocol):
    """Protocol of prefix adapters with keys at positions before a row's first token."""

    @property
    def num_before(self) -> int:
        """Number of keys P before a row's first token."""
        ...


@runtime_checkable
class PositionHost(Protocol):
    """Protocol of models that may have an embedding of token positions.

    Attributes:
      num_before: number of prefix keys with positions before a row's first token.
    """

    num_before: int


@runtime_checkable
class GatedKeySlot(Protocol):
    """Protocol of prefix adapters with a gate that weights the keys and values of each row."""

    def gated(
        self, x: Float[Array, "B T D"], seen: Any
    ) -> tuple[Float[Array, "B P H K"], Float[Array, "B P H K"]]:
        """Return the adapter's keys and values for each row, multiplied by the gate.

        Args:
          x: hidden states that the queries are computed from.
          seen: mask of the positions that each position attends to.
        """
        ...


@runtime_checkable
class TokenSlot(Protocol):
    """Protocol of adapters that add vectors before the token embeddings (prompt tuning)."""

    @property
    def length(self) -> int:
        """Number of added vectors, P."""
        ...

    def __call__(
        self, x: Float[Array, "B S D"], table: Float[Array, "V _"]
    ) -> Float[Array, "B L D"]:
        """Return the added vectors followed by the embedded tokens: [B, P + S, D]."""
        ...


@runtime_checkable
class TokenHost(Protocol):
    """Protocol of models with an encoder that accept prompt and invertible adapters."""

    prompt: Any
    invertible: Any

    def stacks(self) -> dict[str, Any]:
        """Return the stacks of layers by name."""
        ...

    def token_table(self) -> Any:
        """Return the token embedding [V, E]; callers read only its shape."""
        ...


def after_prompt(rows: Int[Array, "B S"], prompt: TokenSlot | None) -> Int[Array, "B _"]:
    """Prepend a 1 for each prompt vector to tokens or segment ids, to compute masks."""
    if prompt is None:
        return rows
    return jnp.pad(rows, ((0, 0), (prompt.length, 0)), constant_values=1)


def seen_after_prompt(mask: Visibility, prompt: TokenSlot) -> Visibility:
    """Extend an attention mask by the positions of the prompt vectors."""
    ids = (mask.keys, mask.queries)
    keys, queries = (None if each is None else after_prompt(each, prompt) for each in ids)
    return dataclasses.replace(mask, keys=keys, queries=queries)


@runtime_checkable
class InvertibleSlot(Protocol):
    """Protocol of adapters that change the token embeddings by an invertible function."""

    def __call__(self, x: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """Return the token embeddings changed by the adapter, as input of the layers."""
        ...

    def inverse(self, y: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """Return the token embeddings that the adapter changes to y."""
        ...


@runtime_checkable
class OutputHost(Protocol):
    """Protocol of heads that multiply hidden states with the token embedding."""

    inverse: Any
    """Inverse function of the model's `InvertibleSlot`."""


@runtime_checkable
class BlockSlot(Protocol):
    """Protocol of adapters that replace the residual sum and the norm at the end of a block."""

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: "Around",
    ) -> Float[Array, "B T D"]:
        """Apply the adapter, the residual connection and the norm at the end of a block.

        Args:
          f: output of attention or feed-forward, after its dropout.
          x: input of the block, for the residual connection.
          norm: norm of a post-norm block; None in a pre-norm block.
          around: other values of the block, such as the attention mask.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Around:
    """Context that a block passes to its adapter, in addition to the hidden states.

    Attributes:
      source: input of attention or feed-forward; in a pre-norm layer, the normalized x.
      mask: positions that each position attends to: an array [B, 1, T, T] or a `Visibility`. None
        in a decoder, because positions must not depend on later positions.
      key: random key of dropout; None disables dropout.
    """

    source: Float[Array, "B T D"]
    mask: Any = None
    key: Key | None = None


@runtime_checkable
class Host(Protocol):
    """Protocol of layers, or stacks of layers, that accept adapters."""

    def dense_sites(self) -> dict[str, Any]:
        """Return the dense layers that accept adapters, by name such as "attention/query"."""
        ...

    def hidden_sites(self) -> dict[str, Any]:
        """Return the blocks that accept adapters of the hidden layer, by name."""
        ...

    def key_sites(self) -> dict[str, Any]:
        """Return the attention layers that accept prefix adapters, by name."""
        ...

    def block_sites(self) -> tuple[str, ...]:
        """Return the names of the attributes for adapters at the end of a block."""
        ...


@runtime_checkable
class PerRow(Protocol):
    """Protocol of adapters that may treat the rows of a batch differently."""

    @property
    def per_row(self) -> bool:
        """True if the adapter treats the rows of a batch differently."""
        ...


def is_per_row(slot: Any) -> bool:
    """Return True if `slot` is an adapter that treats the rows of a batch differently."""
    return isinstance(slot, PerRow) and slot.per_row


def named(prefix: str, sites: dict[str, Any]) -> dict[str, Any]:
    """Add a prefix to all keys: {"query": x} becomes {"attention/query": x}."""
    return {f"{prefix}/{name}": dense for name, dense in sites.items()}
