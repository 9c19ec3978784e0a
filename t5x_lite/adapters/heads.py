"""Masks of attention heads (Michel et al. 2019, arXiv:1905.10650).

    mask_h Att_h(x)         one number for each head of each layer, 1 at first: nothing changes

A mask of 0 prunes the head: `t5x-lite merge` writes the base with its rows of the output layer at
0. `t5x_lite.evaluate.head_importance` says which heads matter least. A mask that trains is a soft
gate of its head.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Adapter, Modules, Site
from t5x_lite.adapters.places import stacks_of
from t5x_lite.deltas.parts import Part, Scale
from t5x_lite.errors import InputError
from t5x_lite.types import Array

_HIDDEN = "attention/hidden"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heads(Adapter):
    """A mask of each attention head.

    Attributes:
      sites: the attentions, or regular expressions that match their hidden sites.
    """

    name: str = "heads"
    sites: tuple[str, ...] = ("(cross_)?attention/hidden",)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the masks.

        Raises:
          InputError: no attention is at a site.
        """
        stacks: dict[str, Any] = stacks_of(model)

        def mask(site: Site, rngs: nnx.Rngs) -> HeadMask:
            block = stacks[site.stack].hidden_sites()[site.name]
            return HeadMask(block.num_heads, block.d_kv)

        found = self.at_sites(
            model, hidden=mask, where=lambda site: site.name.endswith(_HIDDEN), rngs=rngs
        )
        if not found:
            raise InputError(f"adapter {self.name!r}: no attention is at {', '.join(self.sites)}")
        return Modules(found)


class HeadMask(nnx.Module):
    """A `HiddenSlot`: the mixed values of each head times its mask.

    Args:
      num_heads: H.
      d_kv: K.
    """

    def __init__(self, num_heads: int, d_kv: int):
        self.mask = nnx.Param(jnp.ones((num_heads,), jnp.float32), logical=("heads",))
        self.d_kv = d_kv

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """The masked values, in the dtype of the values."""
        return hidden * self._rows().astype(hidden.dtype)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """The rows times their heads' masks, in the dtype of W."""
        rows = self._rows().astype(jnp.float32)
        return (kernel.astype(jnp.float32) * rows[..., :, None]).astype(kernel.dtype)

    def parts(self) -> dict[str, Part]:
        """The change of the layer that reads the heads, as a part of a delta."""
        return {"kernel": Scale(self._rows(), -2)}

    def _rows(self) -> Float[Array, "*layers I"]:
        """The mask of each row of the layer that reads the heads, H K of them."""
        return jnp.repeat(self.mask[...], self.d_kv, axis=-1)
