"""Modules of whole arrays of the model: masks, sparse differences, differences in a subspace.

They stand in no slot. `Learner.bind` reads the model's arrays through them, in float32 and before
the cast; their parameters are at adapters/NAME/PATH, where PATH is the array's own.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.arrays import Leaf, arrays_of
from t5x_lite.adapters.base import ADAPTERS, Adapter, Modules, check_patterns
from t5x_lite.deltas.parts import Part
from t5x_lite.errors import InputError
from t5x_lite.trees import covers
from t5x_lite.types import Array, Key

MODEL = "model/"
EVERYWHERE = (".*",)
_MOST = 1 << 31
"""Entries of an array: places are int32 numbers."""

MOST_ROUNDS = 1000
"""Maximum rounds of a method: each is a training of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayAdapter(Adapter):
    """Base of the adapters that change whole arrays.

    Attributes:
      sites: not to be set: `targets` says which arrays.
      targets: their paths, or regular expressions that match them, as "model/encoder/.*/kernel".
    """

    sites: tuple[str, ...] = EVERYWHERE
    targets: tuple[str, ...] = ("model",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != EVERYWHERE:
            raise InputError("it has no sites: targets says which arrays it changes")
        if not self.targets:
            raise InputError("targets names no array: give it paths, targets=('model/...',)")
        check_patterns("targets", self.targets)

    def leaves(self, model: nnx.Module) -> dict[str, Leaf]:
        """The arrays that `targets` means, by path in the model.

        Raises:
          InputError: a pattern means none, or an array has more entries than int32 counts.
        """
        arrays = arrays_of(model)
        for pattern in self.targets:
            if not any(covers(pattern, MODEL + path) for path in arrays):
                raise InputError(
                    f"adapter {self.name!r}: {pattern!r} matches no parameter of the model"
                )
        meant = {
            path: leaf
            for path, leaf in arrays.items()
            if any(covers(each, MODEL + path) for each in self.targets)
        }
        for path, leaf in meant.items():
            if leaf.size >= _MOST:
                raise InputError(
                    f"adapter {self.name!r}: {MODEL}{path} has {leaf.size} entries, and {_MOST} "
                    "are counted at most: leave it out by targets"
                )
        return meant

    def trains_leaves(self, names: Iterable[str]) -> tuple[str, ...]:
        """Patterns of the parameters of these names, of all arrays."""
        return tuple(rf"{ADAPTERS}{self.name}/(?:.*/)?{name}" for name in names)


class ArrayModule(nnx.Module):
    """What a module has for one array of the model."""

    def __call__(self, base: Float[Array, "*axes"], *, key: Key | None) -> Float[Array, "*axes"]:
        """The array in its place.

        Args:
          base: the model's, in float32.
          key: of what is drawn in training; None of what is not trained.
        """
        raise NotImplementedError

    def part(self, shape: tuple[int, ...]) -> Part:
        """The same as a part of a delta."""
        raise NotImplementedError

    def penalty(self) -> Array | None:
        """What is added to the loss in training; None adds nothing."""
        return None


class ArrayModules(Modules):
    """Modules at the paths of arrays.

    Args:
      leaves: path in the model -> array.
      make: (path, array) -> its module; None leaves the array out.
      exclusive: whether they are masks, of which an array has one; others are sums.
    """

    def __init__(
        self,
        leaves: Mapping[str, Leaf],
        make: Callable[[str, Leaf], ArrayModule | None],
        *,
        exclusive: bool = True,
    ):
        super().__init__()
        made = {path: module for path, leaf in leaves.items() if (module := make(path, leaf))}
        self.arrays = tuple(made)
        self.exclusive = exclusive
        for path, module in made.items():
            *above, last = path.split("/")
            node: Any = self
            for part in above:
                if getattr(node, part, None) is None:
                    setattr(node, part, Modules())
                node = getattr(node, part)
            setattr(node, last, module)

    def claims(self) -> tuple[str, ...]:
        """The arrays; none of modules that are sums, of which an array may have several."""
        return tuple(MODEL + path for path in self.arrays) if self.exclusive else ()

    @property
    def masks_arrays(self) -> bool:
        """Whether it masks what other modules have made of an array."""
        return self.exclusive

    def copied(self) -> tuple[str, ...]:
        """Paths in the model of the arrays that it changes."""
        return self.arrays

    def read(self, model: Mapping[str, Array], *, key: Key | None = None) -> dict[str, Array]:
        """The changed arrays in float32."""
        changed = {}
        for path in self.arrays:
            own = None if key is None else jax.random.fold_in(key, zlib.crc32(path.encode()))
            changed[path] = self.of(path)(model[path].astype(jnp.float32), key=own)
        return changed

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        """The changes as parts of a delta, by path in the model."""
        return {path: self.of(path).part(shapes[path]) for path in self.arrays}

    def penalty(self) -> Array | None:
        """The sum of the arrays' penalties."""
        each = [found for path in self.arrays if (found := self.of(path).penalty()) is not None]
        return sum(each[1:], start=each[0]) if each else None

    def of(self, path: str) -> ArrayModule:
        """The module of an array."""
        node: Any = self
        for part in path.split("/"):
            node = getattr(node, part)
        return node
