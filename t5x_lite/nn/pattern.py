"""What queries attend to, as one object: which keys they see, and what is added to their logits.

    Pattern(masks.causal(8))                         an array: plain attention over all keys
    Pattern(masks.of_decoder())                      a Visibility: attention in blocks of keys
    pattern.biased(relative_bias, bidirectional=True)

A stack makes the pattern once, for all of its layers. The forms go together by themselves: an array
beside a mask that is an array, a table that each block reads beside a `Visibility`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from t5x_lite.nn.distance_attention import Distances
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.positions import Positions, RelativeBias, RelativeTable
from t5x_lite.types import Array


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A mask and a bias in one form.

    Attributes:
      mask: True where a query may see a key, None where it sees all; or what such a mask is made
        of, for attention in blocks.
      bias: float32, added to the logits and shared over the batch; a table that blocks read; or
        DeBERTa's distances, in either form. None is none.
      positions: row positions of queries and of keys, which a relative bias of the first form
        reads.
      valid: of the slots of a cache that come before the first step, False at the padding that
        stands before a row's first token; None is no padding.
      relative: row positions of queries and of keys -> the relative bias; None without one.
      by_head: whether one head of one row is to be attended at a time (`headwise_attention`).

    Raises:
      ValueError: mask and bias have different forms.
    """

    mask: Bool[Array, "_ 1 _ S"] | Visibility | None = None
    bias: Float[Array, "1 H _ S"] | RelativeTable | Distances | None = None
    positions: Positions | None = None
    valid: Bool[Array, "B _"] | None = None
    relative: Callable[[Array, Array], Array] | None = None
    by_head: bool = False

    def __post_init__(self) -> None:
        wrong = jax.Array if isinstance(self.mask, Visibility) else RelativeTable
        if isinstance(self.bias, wrong):
            raise ValueError(
                "mask and bias must both be arrays, or a Visibility and a RelativeTable: got "
                f"{type(self.mask).__name__} and {type(self.bias).__name__}"
            )

    def biased(self, relative: RelativeBias, *, bidirectional: bool) -> "Pattern":
        """The pattern with a relative bias in its form.

        Args:
          relative: the table.
          bidirectional: True in an encoder; see `positions.relative_position_bucket`.

        Raises:
          ValueError: the mask is an array, and the positions are not known.
        """
        if isinstance(self.mask, Visibility):
            bias: Any = relative.reading(bidirectional=bidirectional)
        elif self.positions is None:
            raise ValueError("a relative bias beside an array needs the pattern's positions")
        else:
            bias = relative(*self.positions, bidirectional=bidirectional)

        def read(queries: Array, keys: Array) -> Array:
            return relative(queries, keys, bidirectional=bidirectional)

        return dataclasses.replace(self, bias=bias, relative=read)

    def bias_before(self, num: int) -> Float[Array, "#B H #T P"] | None:
        """The relative bias of so many keys that lie before each row's first token.

        None without a relative bias.
        """
        if self.relative is None or self.positions is None:
            return None
        queries, keys = self.positions[0], jnp.arange(-num, 0)
        if self.valid is None:
            return self.relative(queries, keys)
        skipped = jnp.sum(~self.valid, axis=1)
        relative = self.relative
        return jax.vmap(lambda padding: relative(queries - padding, keys)[0])(skipped)


EVERYTHING = Pattern()
"""All keys, without a bias."""
