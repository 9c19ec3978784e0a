"""Parts of the base that train: its biases (BitFit), its norms, or what patterns name.

BitFit (Ben Zaken et al. 2022, arXiv:2106.10199) trains biases, and heads as all adapters do. T5 has
none: there each dense layer gets one that begins as 0, and the scales of the norms train, as in
t-few (Liu et al. 2022). Such biases have no place in a T5 and are not merged into it.
"""

import dataclasses
import re
from collections.abc import Hashable, Iterable

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Adapter, Modules, Site, check_patterns
from t5x_lite.errors import InputError
from t5x_lite.trees import covers
from t5x_lite.types import Array

_MODEL = "model/"
_NORM = re.compile(r"model/(.*/)?(\w*_)?norm/(scale|bias)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BitFit(Adapter):
    """The biases of the base; where it has none, new ones.

    Attributes:
      sites: dense layers that get a bias if they have none.
    """

    name: str = "bitfit"
    sites: tuple[str, ...] = ("(cross_)?attention/.*", "mlp/(in|gate|out)")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The adapter's biases, the model's, and the scales of norms that have no bias."""
        paths = set(paths)
        found = [path for path in paths if path.startswith(_MODEL) and path.endswith("/bias")]
        for path in paths:
            norm = _NORM.fullmatch(path)
            if norm and norm[3] == "scale" and f"{path.removesuffix('scale')}bias" not in paths:
                found.append(path)
        return (*super().trains(paths), *sorted(found))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the biases of layers that have none."""

        def bias(site: Site, rngs: nnx.Rngs) -> AddedBias:
            return AddedBias(site.dense.kernel.shape[-1], site.dense.axes[1])

        return Modules(
            self.at_sites(model, dense=bias, where=lambda site: not site.dense.has_bias, rngs=rngs)
        )


class AddedBias(nnx.Module):
    """A `DenseSlot`: the bias of a layer that has none.

    Args:
      size: size of the layer's output.
      axis: its logical name.
    """

    def __init__(self, size: int, axis: str | None):
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), logical=(axis,))

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """y as it is."""
        return y

    def kind(self) -> Hashable:
        """Equal for biases of one size."""
        return (type(self), self.bias.shape)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """The kernel as it is."""
        return kernel

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"]:
        """The slot's bias, and the layer's."""
        own = self.bias[...]
        return own if bias is None else bias + own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Params(Adapter):
    """Parameters of the base by their paths; no new ones.

    Attributes:
      train: paths, or regular expressions that match them, as "model/encoder/.*/kernel".
    """

    name: str = "params"
    sites: tuple[str, ...] = (".*",)
    train: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_patterns("train", self.train)

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The paths of the base that the patterns mean.

        Raises:
          InputError: there is no pattern, or one means no parameter of the base.
        """
        if not self.train:
            raise InputError(
                f"adapter {self.name!r} names nothing to train: give it train='model/...'"
            )
        base = [path for path in paths if path.startswith(_MODEL)]
        for pattern in self.train:
            if not any(covers(pattern, path) for path in base):
                raise InputError(
                    f"adapter {self.name!r}: {pattern!r} matches no parameter of the model"
                )
        return tuple(p for p in base if any(covers(pattern, p) for pattern in self.train))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes nothing."""
        return Modules()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norms(Adapter):
    """Scales and biases of the base's norms; no new ones."""

    name: str = "norms"
    sites: tuple[str, ...] = (".*",)

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """All norms."""
        return norms_of(paths)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes nothing."""
        return Modules()


def norms_of(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths of the model's norms."""
    return tuple(path for path in paths if _NORM.fullmatch(path))
