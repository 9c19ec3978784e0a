"""Modules of whole arrays of the model, and copies that train in their place.

Modules of whole arrays of the model: masks, sparse differences, differences in a subspace.

They stand in no slot. `Learner.bind` reads the model's arrays through them, in float32 and before
the cast; their parameters are at adapters/NAME/PATH, where PATH is the array's own.

The arrays of a model, as adapters that change whole arrays see them.

Copies of the base's arrays that train in their place, while the base stays frozen.

    layers(last=2)                     the two highest layers of each stack
    layers(only=(0, 5))                layers 0 and 5; a decoder's come after the encoder's
    copy("model/embedding", ".*/norm") arrays by their paths

A copy W' is stored as its difference from the base, W' - W, which begins as 0: so it fits whatever
base `--init` brings, it is a sum in the algebra of deltas, and a decay of weights draws it to the
base and not to 0. The sum is made in float32, before the cast to the compute dtype.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.adapter_tree import stacks_of
from t5x_lite.adapters.base import ADAPTERS, Adapter, Modules, check_patterns
from t5x_lite.adapters.delta_parts import Dense, Part, Sparse
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count
from t5x_lite.core.trees import Array, Key, covers
from t5x_lite.nn.bind import split

_LAYERS = "layers"

Rows = tuple[int, ...] | None
"""Numbers of the layers within their stack; None of an array that is no stack."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """An array of the model.

    Attributes:
      shape: its shape.
      axes: its logical axes.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]

    @property
    def size(self) -> int:
        """Its number of entries."""
        return math.prod(self.shape)

    @property
    def rows(self) -> tuple[int, tuple[int, ...]]:
        """Its number of layers, 1 of an array that is not stacked, and the shape of one."""
        return (self.shape[0], self.shape[1:]) if self.is_stacked else (1, self.shape)

    @property
    def is_stacked(self) -> bool:
        """Whether its first axis is that of layers."""
        return self.axes[:1] == (_LAYERS,)

    @property
    def all_rows(self) -> Rows:
        """All of its layers."""
        return tuple(range(self.shape[0])) if self.is_stacked else None


def arrays_of(model: nnx.Module) -> dict[str, Leaf]:
    """The model's arrays by path.

    Args:
      model: shapes are enough.
    """
    _, params, axes = split(model)
    names = trees.flatten(axes)
    return {
        path: Leaf(tuple(leaf.shape), names[path]) for path, leaf in trees.flatten(params).items()
    }


def table_of(model: nnx.Module) -> tuple[str, Leaf] | None:
    """Path and array of the table of token embeddings; None of a model that has none."""
    tables = {p: leaf for p, leaf in arrays_of(model).items() if leaf.axes == ("vocab", "embed")}
    return next(iter(tables.items()), None)


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


_MODEL = "model/"
_EVERYWHERE = (".*",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy(Adapter):
    """Copies of arrays of the base.

    Attributes:
      sites: not to be set: `of` says which arrays.
      of: their paths, or regular expressions that match them, as "model/encoder/.*/kernel".
      l1: times the mean of |copy - base|, which is added to the loss in training.
    """

    name: str = "copy"
    sites: tuple[str, ...] = _EVERYWHERE
    of: tuple[str, ...] = ()
    l1: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sites(self, "of")
        check_patterns("of", self.of)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "Copies":
        """Makes the differences, which are 0.

        Raises:
          InputError: there is no pattern, or one means no array of the model.
        """
        if not self.of:
            raise InputError(
                f"adapter {self.name!r} copies nothing: give it paths, copy('model/...')"
            )
        arrays = arrays_of(model)
        for pattern in self.of:
            if not any(covers(pattern, _MODEL + path) for path in arrays):
                raise InputError(
                    f"adapter {self.name!r}: {pattern!r} matches no parameter of the model"
                )
        meant = [p for p in arrays if any(covers(each, _MODEL + p) for each in self.of)]
        return Copies({path: (arrays[path], arrays[path].all_rows) for path in meant}, l1=self.l1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layers(Adapter):
    """Copies of layers of the base, with all that is in them.

    Attributes:
      sites: not to be set: `last` or `only` says which layers.
      last: how many of the highest layers, in each stack.
      only: their numbers; layers count from 0, a decoder's after the encoder's.
    """

    name: str = "layers"
    sites: tuple[str, ...] = _EVERYWHERE
    last: Count | None = None
    only: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sites(self, "last or only")
        if self.last is not None and self.only:
            raise InputError("layers are named by last or by only, and not by both")

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "Copies":
        """Makes the differences, which are 0.

        Raises:
          InputError: there are no such layers, or none are named.
        """
        if self.last is None and not self.only:
            raise InputError(f"adapter {self.name!r} names no layer: give it last=2 or only=(0, 1)")
        arrays, places = arrays_of(model), _places(model)
        found: dict[str, tuple[Leaf, Rows]] = {}
        first, highest = 0, 0
        for layers in stacks_of(model).values():
            stem = f"{places[id(layers)]}/"
            inside = {p: x for p, x in arrays.items() if p.startswith(stem) and x.is_stacked}
            num = next(iter(inside.values())).shape[0]
            rows = self._rows(num, first=first)
            if rows:
                found |= {path: (leaf, rows) for path, leaf in inside.items()}
            first, highest = first + num, max(highest, num)
        if self.last is not None and self.last > highest:
            raise InputError(
                f"adapter {self.name!r}: the stacks have {highest} layers at most: got last "
                f"{self.last}"
            )
        wrong = [layer for layer in self.only if not 0 <= layer < first]
        if wrong:
            raise InputError(
                f"adapter {self.name!r}: layers are 0 to {first - 1}: got layer {wrong[0]}"
            )
        return Copies(found)

    def _rows(self, num: int, *, first: int) -> tuple[int, ...]:
        """Which layers of a stack."""
        if self.last is not None:
            return tuple(range(max(0, num - self.last), num))
        return tuple(row for row in range(num) if first + row in self.only)


def _check_sites(adapter: Adapter, named_by: str) -> None:
    if adapter.sites != _EVERYWHERE:
        raise InputError(f"it has no sites: {named_by} says what is copied")


def _places(model: nnx.Module) -> dict[int, str]:
    return {id(node): "/".join(map(str, path)) for path, node in nnx.iter_graph(model)}


class Copies(Modules):
    """Differences from arrays of the model, at the arrays' own paths.

    Args:
      arrays: path in the model -> the array, and which of its layers.
      l1: times the mean of the differences' magnitudes, which is a penalty.
    """

    def __init__(self, arrays: "Mapping[str, tuple[Leaf, Rows]]", *, l1: float = 0.0):
        super().__init__()
        self.l1 = l1
        self.rows = tuple((path, rows) for path, (_, rows) in arrays.items())
        for path, (leaf, rows) in arrays.items():
            *above, last = path.split("/")
            node: Any = self
            for part in above:
                if getattr(node, part, None) is None:
                    setattr(node, part, Modules())
                node = getattr(node, part)
            shape = leaf.shape if rows is None else (len(rows), *leaf.shape[1:])
            setattr(node, last, nnx.Param(jnp.zeros(shape, jnp.float32), logical=leaf.axes))

    def claims(self) -> tuple[str, ...]:
        """The arrays, or each of the layers of one."""
        return tuple(
            f"{_MODEL}{path}" + ("" if row is None else f", layer {row}")
            for path, rows in self.rows
            for row in rows or (None,)
        )

    def copied(self) -> tuple[str, ...]:
        """Paths in the model of the arrays that it has copies of."""
        return tuple(path for path, _ in self.rows)

    def read(self, model: Mapping[str, Array], *, key: Key | None = None) -> dict[str, Array]:
        """The copies in float32; of an array with some layers, the others are the model's.

        Args:
          model: its arrays by path.
          key: not used.
        """
        copies = {}
        for path, rows in self.rows:
            base = model[path].astype(jnp.float32)
            copies[path] = _added(base, self._difference(path).astype(jnp.float32), rows)
        return copies

    def penalty(self) -> Array | None:
        """The penalty of l1; None where that is 0."""
        if not self.l1:
            return None
        each = [self._difference(path) for path, _ in self.rows]
        total = sum((jnp.sum(jnp.abs(x)) for x in each), start=jnp.float32(0))
        return self.l1 * total / sum(x.size for x in each)

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        """The differences as parts of a delta, by path in the model.

        Args:
          shapes: path -> the shape of the model's array.
        """
        return {
            path: _part(np.asarray(self._difference(path), np.float32), shapes[path], rows)
            for path, rows in self.rows
        }

    def _difference(self, path: str) -> Any:
        node: Any = self
        for part in path.split("/"):
            node = getattr(node, part)
        return node[...]


def _added(
    base: Float[Array, "*axes"], difference: Float[Array, "*rows"], rows: Rows
) -> Float[Array, "*axes"]:
    """The sum, of some layers alone where these are named."""
    if rows is None or len(rows) == base.shape[0]:
        return base + difference
    return base.at[np.asarray(rows)].add(difference, unique_indices=True, indices_are_sorted=True)


def _part(difference: np.ndarray, shape: tuple[int, ...], rows: Rows) -> Part:
    """The difference as what is added to the whole array."""
    if rows is None or len(rows) == shape[0]:
        return Dense(difference)
    whole = np.zeros(shape, np.float32)
    whole[list(rows)] = difference
    if 2 * len(rows) >= shape[0]:
        return Dense(whole)
    size = int(np.prod(shape[1:], dtype=np.int64))
    return Sparse.of(whole, np.concatenate([np.arange(r * size, (r + 1) * size) for r in rows]))
