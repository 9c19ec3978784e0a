"""(IA)^3: scales of keys, values and the feed-forward layer (Liu et al. 2022, arXiv:2205.05638).

    k = l_k (x W + b)      v = l_v (x W + b)      all l begin as 1: at the start nothing changes

| place | | |
|---|---|---|
| after | wo(l_ff act(wi x)) | the paper's, and PEFT's feedforward_modules |
| before | wo(act(l_ff (wi x + b))) | the library `adapters` |

Both are the same where the scaled product is the linear half of a gated layer (T5 1.1), and where
l_ff > 0 and the activation is relu.
"""

import dataclasses
from collections.abc import Hashable
from typing import Literal, get_args

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Adapter, Modules, Site
from t5x_lite.deltas.parts import Part, Scale
from t5x_lite.errors import InputError
from t5x_lite.types import Array

Place = Literal["after", "before"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ia3(Adapter):
    """Scales of what dense layers give, and of what the last layer of a block reads.

    Attributes:
      sites: dense layers whose output is scaled.
      place: of the feed-forward block's scale: "after" the activation, or "before" it.
      feed_forward: whether the feed-forward block has a scale.
      attention_out: whether what the attention's output layer reads is scaled, too, in each
        attention at `sites`: PEFT's list of BERT's modules does that by its suffix.
    """

    name: str = "ia3"
    sites: tuple[str, ...] = ("(cross_)?attention/(key|value)",)
    place: Place = "after"
    feed_forward: bool = True
    attention_out: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.place not in get_args(Place):
            raise InputError(f"place must be one of {get_args(Place)}: got {self.place!r}")

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the scales."""
        outputs, inner = list(self.sites), []
        if self.feed_forward and self.place == "before":
            outputs.append("mlp/in")
        if self.feed_forward and self.place == "after":
            inner.append("mlp/hidden")
        if self.attention_out:
            inner.append("(cross_)?attention/hidden")

        def output(site: Site, rngs: nnx.Rngs) -> OutputScale:
            return OutputScale(site.dense.kernel.shape[-1], site.dense.axes[1])

        def hidden(site: Site, rngs: nnx.Rngs) -> HiddenScale:
            return HiddenScale(site.dense.kernel.shape[-2], site.dense.axes[0])

        found = self.at_sites(model, dense=output, sites=outputs, rngs=rngs)
        for stack, sites in self.at_sites(model, hidden=hidden, sites=inner, rngs=rngs).items():
            found.setdefault(stack, {}).update(sites)
        return Modules(found)


class OutputScale(nnx.Module):
    """A `DenseSlot`: l (x W + b).

    Args:
      size: of the layer's output.
      axis: its logical name.
    """

    def __init__(self, size: int, axis: str | None):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), logical=(axis,))

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """l y, in float32."""
        return y * self.scale[...].astype(jnp.float32)

    def kind(self) -> Hashable:
        """Equal for scales of one size."""
        return (type(self), self.scale.shape)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """The columns times l, in the dtype of W."""
        scale = self.scale[...].astype(jnp.float32)
        return (kernel.astype(jnp.float32) * scale[..., None, :]).astype(kernel.dtype)

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"] | None:
        """l b, in the dtype of b."""
        if bias is None:
            return None
        return (bias.astype(jnp.float32) * self.scale[...].astype(jnp.float32)).astype(bias.dtype)

    def parts(self) -> dict[str, Part]:
        """The changes of its host, as parts of a delta."""
        return {"kernel": Scale(self.scale[...]), "bias": Scale(self.scale[...])}


class HiddenScale(nnx.Module):
    """A `HiddenSlot`: l h.

    Args:
      size: of what is scaled.
      axis: its logical name.
    """

    def __init__(self, size: int, axis: str | None):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), logical=(axis,))

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """l h, in the dtype of h."""
        return hidden * self.scale[...].astype(hidden.dtype)

    def kind(self) -> Hashable:
        """Equal for scales of one size."""
        return (type(self), self.scale.shape)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """The rows times l, in the dtype of W."""
        scale = self.scale[...].astype(jnp.float32)
        return (kernel.astype(jnp.float32) * scale[..., :, None]).astype(kernel.dtype)

    def parts(self) -> dict[str, Part]:
        """The change of the layer that reads the hidden states, as a part of a delta."""
        return {"kernel": Scale(self.scale[...], -2)}
