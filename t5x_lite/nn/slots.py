"""Slots: the places of a layer that an adapter may stand in. Their default is None.

    Dense.slot                 DenseSlot    x W -> x W + branch(x), and the bias
    Attention.slot, MLP.slot   HiddenSlot   what the last layer of the block reads
    Attention.prefix           KeySlot      keys and values in addition to those of the source
    model.prompt               TokenSlot    rows before those of the tokens, in an encoder
    model.invertible           InvertibleSlot    after an encoder's embeddings
    layer.after_attention      BlockSlot    in place of x + f, or norm(x + f)
    layer.after_cross_attention
    layer.after_mlp

Here are protocols and names only; what stands in a slot is in adapters/. The names of sites are
those of all families:

    attention/query    attention/key    attention/value    attention/out
    cross_attention/query ...           of a decoder
    mlp/in    mlp/gate    mlp/out       the gate is that of a gated layer
    attention/hidden    cross_attention/hidden    mlp/hidden
    attention/prefix    cross_attention/prefix
    prompt    invertible                of a model, not of its layers

A slot of a stacked layer has stacked parameters, and a scan slices them with the layer's own.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Float, Int

from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.masks import Visibility


@runtime_checkable
class DenseSlot(Protocol):
    """A change of the product of a dense layer."""

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """Return the layer's result without its bias, in float32.

        Args:
          x: input of the layer.
          y: its product, without the bias, in float32.
          kernel: kernel of the layer.
        """
        ...

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the kernel with which the layer gives the same result without the slot."""
        ...

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        """Return the bias added to the result of the slot, or None."""
        ...


@runtime_checkable
class WholeSlot(Protocol):
    """A `DenseSlot` that adds the bias itself: rows may have different ones."""

    @property
    def per_row(self) -> bool:
        """True if rows differ, so that no kernel is equivalent."""
        ...

    def with_bias(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
        bias: Float[Array, " O"] | None,
        seen: Any,
    ) -> Float[Array, "*batch O"]:
        """Return the layer's result, in float32.

        Args:
          x: input of the layer.
          y: its product, without the bias, in float32.
          kernel: kernel of the layer.
          bias: bias of the layer.
          seen: as of `GatedSlot`.
        """
        ...


@runtime_checkable
class GatedSlot(Protocol):
    """A `DenseSlot` that weighs its branch by what the tokens of a row are."""

    def gated(
        self,
        x: Float[Array, "*B T I"],
        y: Float[Array, "*B T O"],
        kernel: Float[Array, "I O"],
        seen: Any,
    ) -> Float[Array, "*B T O"]:
        """Return the layer's result without its bias, in float32.

        Args:
          x: input of the layer.
          y: its product, without the bias, in float32.
          kernel: kernel of the layer.
          seen: mask of the row's positions, as in `Around.mask`.
        """
        ...


@runtime_checkable
class HiddenSlot(Protocol):
    """A change of the input of a block's last dense layer.

    In a feed-forward block it is the hidden layer after its activation, in attention the mixed
    values of all heads.
    """

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """Return the layer's input, in the dtype that it has without the slot."""
        ...

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the layer's kernel that gives the same result without the slot."""
        ...


@runtime_checkable
class KeySlot(Protocol):
    """Keys and values that every query of an attention sees, in addition to those of its source."""

    def __call__(self) -> tuple[Float[Array, "P H K"], Float[Array, "P H K"]]:
        """Keys and values; no mask and no bias is theirs."""
        ...


@runtime_checkable
class PlacedKeySlot(Protocol):
    """A `KeySlot` whose keys lie before a row's first token, so that a relative bias is theirs."""

    @property
    def num_before(self) -> int:
        """P."""
        ...


@runtime_checkable
class PositionHost(Protocol):
    """A model whose tokens may have positions in a table.

    Attributes:
      num_before: positions before a row's first token, which keys of a `PlacedKeySlot` have.
    """

    num_before: int


@runtime_checkable
class GatedKeySlot(Protocol):
    """A `KeySlot` of an encoder whose keys and values are weighed for each row."""

    def gated(
        self, x: Float[Array, "B T D"], seen: Any
    ) -> tuple[Float[Array, "B P H K"], Float[Array, "B P H K"]]:
        """Keys and values of each row.

        Args:
          x: source of the queries.
          seen: mask of the row's positions, as in `Around.mask`.
        """
        ...


@runtime_checkable
class TokenSlot(Protocol):
    """Rows that stand before the embedded tokens of a text."""

    @property
    def length(self) -> int:
        """P, how many."""
        ...

    def __call__(
        self, x: Float[Array, "B S D"], table: Float[Array, "V _"]
    ) -> Float[Array, "B L D"]:
        """Return the rows and the tokens: [B, P + S, D]."""
        ...


@runtime_checkable
class TokenHost(Protocol):
    """A model with an encoder, which has places for a `TokenSlot` and an `InvertibleSlot`."""

    prompt: Any
    invertible: Any

    def stacks(self) -> dict[str, Any]:
        """Return its stacked layers by name."""
        ...

    def token_table(self) -> Any:
        """Return the table of tokens [V, E]; its shape is enough."""
        ...


def after_prompt(rows: Int[Array, "B S"], prompt: TokenSlot | None) -> Int[Array, "B _"]:
    """Return tokens or segment ids with a 1 for each row of a prompt before them, for masks."""
    if prompt is None:
        return rows
    return jnp.pad(rows, ((0, 0), (prompt.length, 0)), constant_values=1)


def seen_after_prompt(mask: Visibility, prompt: TokenSlot) -> Visibility:
    """Return the mask behind a prompt; the prompt's rows attend to the first segment."""
    ids = (mask.keys, mask.queries)
    keys, queries = (None if each is None else after_prompt(each, prompt) for each in ids)
    return dataclasses.replace(mask, keys=keys, queries=queries)


@runtime_checkable
class InvertibleSlot(Protocol):
    """An invertible change of the embedded tokens."""

    def __call__(self, x: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """Return the input of the rest of the model."""
        ...

    def inverse(self, y: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """Invert the change, before the product with the token embedding."""
        ...


@runtime_checkable
class OutputHost(Protocol):
    """A head that multiplies states with the table of tokens."""

    inverse: Any
    """Of the model's `InvertibleSlot`."""


@runtime_checkable
class BlockSlot(Protocol):
    """A replacement of the residual tail of a block."""

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: "Around",
    ) -> Float[Array, "B T D"]:
        """Return the output of the block.

        Args:
          f: the block's output, after its dropout.
          x: input of the block, for the residual.
          norm: norm of a post-norm block; None in a pre-norm one.
          around: the rest of what the layer knows.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Around:
    """Context of a block in addition to its states.

    Attributes:
      source: input of the block: x, or in a pre-norm layer its norm.
      mask: which positions of the row a position sees: an array [B, 1, T, T], or what it is made
        of; None in a decoder, whose positions must not know of those behind them.
      key: turns dropout on.
    """

    source: Float[Array, "B T D"]
    mask: Any = None
    key: Key | None = None


@runtime_checkable
class Host(Protocol):
    """A layer, or a stack of layers, that has slots."""

    def dense_sites(self) -> dict[str, Any]:
        """Name of a site -> its `Dense`."""
        ...

    def hidden_sites(self) -> dict[str, Any]:
        """Name of a site -> the block, whose `slot` is a `HiddenSlot`."""
        ...

    def key_sites(self) -> dict[str, Any]:
        """Name of a site -> the attention, whose `prefix` is a `KeySlot`."""
        ...

    def block_sites(self) -> tuple[str, ...]:
        """Return the names of its `BlockSlot` attributes."""
        ...


@runtime_checkable
class PerRow(Protocol):
    """A slot that may treat the rows of a batch differently."""

    @property
    def per_row(self) -> bool:
        """True if rows differ."""
        ...


def is_per_row(slot: Any) -> bool:
    """Return True if what stands in a slot, None too, treats rows differently."""
    return isinstance(slot, PerRow) and slot.per_row


def named(prefix: str, sites: dict[str, Any]) -> dict[str, Any]:
    """Sites below a name: {"query": ...} of "attention" -> {"attention/query": ...}."""
    return {f"{prefix}/{name}": dense for name, dense in sites.items()}
