"""Slots: attributes of a layer that may hold an adapter, None by default.

    Dense.slot                 DenseSlot    x W -> x W + branch(x), and the bias
    Attention.slot, MLP.slot   HiddenSlot   the input of the last layer of the block
    Attention.prefix           KeySlot      keys and values in addition to the source's
    model.prompt               TokenSlot    rows before the token embeddings, in an encoder
    model.invertible           InvertibleSlot    after an encoder's embeddings
    layer.after_attention      BlockSlot    instead of x + f, or norm(x + f)
    layer.after_cross_attention
    layer.after_mlp

This module has only protocols and names; adapters/ has the contents of slots. All model families
use these names of sites:

    attention/query    attention/key    attention/value    attention/out
    cross_attention/query ...           of a decoder
    mlp/in    mlp/gate    mlp/out       mlp/gate only in gated layers
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
    """A `DenseSlot` that weights its branch by the tokens of a row."""

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
    """Keys and values that every query attends to, in addition to the source's."""

    def __call__(self) -> tuple[Float[Array, "P H K"], Float[Array, "P H K"]]:
        """Return the keys and values, which have neither mask nor bias."""
        ...


@runtime_checkable
class PlacedKeySlot(Protocol):
    """A `KeySlot` with keys before a row's first token, which therefore have a relative bias."""

    @property
    def num_before(self) -> int:
        """P."""
        ...


@runtime_checkable
class PositionHost(Protocol):
    """A model that may have a table of token positions.

    Attributes:
      num_before: positions before a row's first token, which keys of a `PlacedKeySlot` have.
    """

    num_before: int


@runtime_checkable
class GatedKeySlot(Protocol):
    """A `KeySlot` of an encoder that weights keys and values for each row."""

    def gated(
        self, x: Float[Array, "B T D"], seen: Any
    ) -> tuple[Float[Array, "B P H K"], Float[Array, "B P H K"]]:
        """Return the keys and values of each row.

        Args:
          x: source of the queries.
          seen: mask of the row's positions, as in `Around.mask`.
        """
        ...


@runtime_checkable
class TokenSlot(Protocol):
    """Rows before the embedded tokens of a text."""

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
    """A model with an encoder, which has attributes for a `TokenSlot` and an `InvertibleSlot`."""

    prompt: Any
    invertible: Any

    def stacks(self) -> dict[str, Any]:
        """Return the stacked layers by name."""
        ...

    def token_table(self) -> Any:
        """Return the token embedding [V, E]; only its shape is read."""
        ...


def after_prompt(rows: Int[Array, "B S"], prompt: TokenSlot | None) -> Int[Array, "B _"]:
    """Return tokens or segment ids with a 1 for each row of a prompt before them, for masks."""
    if prompt is None:
        return rows
    return jnp.pad(rows, ((0, 0), (prompt.length, 0)), constant_values=1)


def seen_after_prompt(mask: Visibility, prompt: TokenSlot) -> Visibility:
    """Return the mask after a prompt; the prompt's rows attend to the first segment."""
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
    """A head that multiplies hidden states with the token embedding."""

    inverse: Any
    """Inverse of the model's `InvertibleSlot`."""


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
          around: further context of the layer.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Around:
    """Context of a block in addition to its states.

    Attributes:
      source: input of the block: x, or in a pre-norm layer its norm.
      mask: positions that each position attends to: an array [B, 1, T, T] or a `Visibility`. None
        in a decoder, because positions must not depend on later positions.
      key: random key of dropout; None disables dropout.
    """

    source: Float[Array, "B T D"]
    mask: Any = None
    key: Key | None = None


@runtime_checkable
class Host(Protocol):
    """A layer, or a stack of layers, that has slots."""

    def dense_sites(self) -> dict[str, Any]:
        """Return the `Dense` of each site by name."""
        ...

    def hidden_sites(self) -> dict[str, Any]:
        """Return the block of each site by name; its `slot` is a `HiddenSlot`."""
        ...

    def key_sites(self) -> dict[str, Any]:
        """Return the attention of each site by name; its `prefix` is a `KeySlot`."""
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
    """Return whether the content of a slot, which may be None, treats rows differently."""
    return isinstance(slot, PerRow) and slot.per_row


def named(prefix: str, sites: dict[str, Any]) -> dict[str, Any]:
    """Prefix names of sites: {"query": ...} of "attention" -> {"attention/query": ...}."""
    return {f"{prefix}/{name}": dense for name, dense in sites.items()}
