"""Adapters that change whole arrays of the model, or train copies of them.

Masks, sparse differences and differences in a subspace change whole arrays. They need no modules in
the layers: `Learner.bind` applies them to the model's arrays in float32, before the cast to the
compute dtype. Their parameters are at adapters/NAME/PATH, where PATH is the path of the array.

Copies of the base's arrays are trained while the base is frozen.

    layers(last=2)                     the two highest layers of each stack
    layers(only=(0, 5))                layers 0 and 5; decoder layers come after encoder layers
    copy("model/embedding", ".*/norm") arrays by their paths
    copy("model/token_embedding/table", rows=(32100, 32101))    two rows of an array

A copy W' is stored as its difference from the base, W' - W, which starts as 0. So it fits the base
of any `--init`, it is additive in the algebra of deltas, and weight decay pulls it to the base
instead of to 0. The sum is computed in float32, before the cast to the compute dtype.
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
from t5x_lite.nn.slots import split

_LAYERS = "layers"

Rows = tuple[int, ...] | None
"""Numbers of the layers to change in a stacked array; None for an array without a layer axis."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Shape and logical axes of one model array.

    Attributes:
      shape: shape of the array.
      axes: logical axes of the array.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> tuple[int, tuple[int, ...]]:
        """Number of stacked layers (1 if not stacked), and the array shape of one layer."""
        return (self.shape[0], self.shape[1:]) if self.is_stacked else (1, self.shape)

    @property
    def is_stacked(self) -> bool:
        """True if the first axis is the layer axis."""
        return self.axes[:1] == (_LAYERS,)

    @property
    def all_rows(self) -> Rows:
        """Numbers of the stacked layers; None if the array is not stacked."""
        return tuple(range(self.shape[0])) if self.is_stacked else None


def arrays_of(model: nnx.Module) -> dict[str, Leaf]:
    """Return the shapes and logical axes of a model's arrays by path."""
    _, params, axes = split(model)
    names = trees.flatten(axes)
    return {
        path: Leaf(tuple(leaf.shape), names[path]) for path, leaf in trees.flatten(params).items()
    }


def table_of(model: nnx.Module) -> tuple[str, Leaf] | None:
    """Return the path and shape of the model's token embedding; None if the model has none."""
    tables = {p: leaf for p, leaf in arrays_of(model).items() if leaf.axes == ("vocab", "embed")}
    return next(iter(tables.items()), None)


MODEL = "model/"
EVERYWHERE = (".*",)
_MOST = 1 << 31
"""Maximum number of entries of an array, because the adapters index entries by int32."""

MOST_ROUNDS = 1000
"""Maximum number of pruning or selection rounds; each round is a separate training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayAdapter(Adapter):
    """Base class of the configs of adapters that change whole arrays of the model.

    Attributes:
      sites: must not be set; `targets` selects the arrays.
      targets: arrays to change: paths, or regular expressions for paths, such as
        "model/encoder/.*/kernel".
    """

    sites: tuple[str, ...] = EVERYWHERE
    targets: tuple[str, ...] = ("model",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != EVERYWHERE:
            raise InputError(
                f"adapter {self.name!r} does not support the option sites; select the arrays to "
                "change with targets"
            )
        if not self.targets:
            raise InputError(
                f"adapter {self.name!r}: option targets selects no array; set it to paths, such as "
                "targets=('model/...',)"
            )
        check_patterns("targets", self.targets)

    def leaves(self, model: nnx.Module) -> dict[str, Leaf]:
        """Return the shape and axes of each array that `targets` selects, by path.

        Raises:
          InputError: if a pattern matches no array, or an array is too large for int32 indices.
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
                    f"adapter {self.name!r}: {MODEL}{path} has {leaf.size} entries, but the "
                    f"maximum is {_MOST}; exclude the array with targets"
                )
        return meant

    def trains_leaves(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return regular expressions for this adapter's parameters with the given names."""
        return tuple(rf"{ADAPTERS}{self.name}/(?:.*/)?{name}" for name in names)


class ArrayModule(nnx.Module):
    """Base class of the adapter modules that change one array of the model."""

    def __call__(self, base: Float[Array, "*axes"], *, key: Key | None) -> Float[Array, "*axes"]:
        """Return the model array after this adapter's change.

        Args:
          base: array of the model, in float32.
          key: random key of a training step; None outside of training.
        """
        raise NotImplementedError

    def part(self, shape: tuple[int, ...]) -> Part:
        """Return this module's change of the array."""
        raise NotImplementedError

    def penalty(self) -> Array | None:
        """Return this module's regularization loss, or None if it has none."""
        return None


class ArrayModules(Modules):
    """Adapter modules that change whole arrays of a model.

    Args:
      leaves: path in the model -> shape and axes of the array.
      make: function (path, array) -> adapter module of the array; None skips the array.
      exclusive: True if no other adapter may mask the same arrays.
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
        """Return the paths of the arrays that no other adapter may mask."""
        return tuple(MODEL + path for path in self.arrays) if self.exclusive else ()

    @property
    def masks_arrays(self) -> bool:
        return self.exclusive

    def copied(self) -> tuple[str, ...]:
        return self.arrays

    def read(self, model: Mapping[str, Array], *, key: Key | None = None) -> dict[str, Array]:
        changed = {}
        for path in self.arrays:
            own = None if key is None else jax.random.fold_in(key, zlib.crc32(path.encode()))
            changed[path] = self.of(path)(model[path].astype(jnp.float32), key=own)
        return changed

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        return {path: self.of(path).part(shapes[path]) for path in self.arrays}

    def penalty(self) -> Array | None:
        each = [found for path in self.arrays if (found := self.of(path).penalty()) is not None]
        return sum(each[1:], start=each[0]) if each else None

    def of(self, path: str) -> ArrayModule:
        """Return the adapter module for the model array at a path."""
        node: Any = self
        for part in path.split("/"):
            node = getattr(node, part)
        return node


_MODEL = "model/"
_EVERYWHERE = (".*",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copy(Adapter):
    """Configuration that trains copies of model arrays while the base model is frozen.

    Attributes:
      sites: must not be set; `of` selects the arrays.
      of: arrays to copy: paths, or regular expressions for paths, such as
        "model/encoder/.*/kernel".
      rows: indices on the first axis to copy, such as the ids of new tokens in an embedding, or
        layers of a stacked array; () copies complete arrays.
      l1: loss weight of the mean of |copy - base| in training.
    """

    name: str = "copy"
    sites: tuple[str, ...] = _EVERYWHERE
    of: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    l1: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sites(self, "of")
        check_patterns("of", self.of)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "Copies":
        """Build the trained copies of model arrays, stored as differences that start as 0.

        Raises:
          InputError: if `of` is empty, a pattern matches no array, or an array lacks a row.
        """
        if not self.of:
            raise InputError(
                f"adapter {self.name!r} selects no arrays to copy; add paths, such as "
                "copy('model/...')"
            )
        arrays = arrays_of(model)
        for pattern in self.of:
            if not any(covers(pattern, _MODEL + path) for path in arrays):
                raise InputError(
                    f"adapter {self.name!r}: {pattern!r} matches no parameter of the model"
                )
        meant = [p for p in arrays if any(covers(each, _MODEL + p) for each in self.of)]
        for path in meant:
            size = arrays[path].shape[0]
            for row in self.rows:
                if not 0 <= row < size:
                    raise InputError(
                        f"adapter {self.name!r}: rows names row {row}, but {_MODEL}{path} has the "
                        f"rows 0 to {size - 1}"
                    )
        rows = tuple(sorted(set(self.rows)))
        return Copies({p: (arrays[p], rows or arrays[p].all_rows) for p in meant}, l1=self.l1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layers(Adapter):
    """Configuration that trains copies of complete layers while the base model is frozen.

    Attributes:
      sites: must not be set; `last` or `only` selects the layers.
      last: number of last layers to copy, in the encoder and in the decoder.
      only: numbers of the layers to copy, counted from 0, decoder layers after encoder layers.
    """

    name: str = "layers"
    sites: tuple[str, ...] = _EVERYWHERE
    last: Count | None = None
    only: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sites(self, "last or only")
        if self.last is not None and self.only:
            raise InputError(
                f"adapter {self.name!r}: last and only both select layers; set only one of these "
                "two options"
            )

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "Copies":
        """Build the trained copies of model arrays, stored as differences that start as 0.

        Raises:
          InputError: if a layer does not exist, or neither `last` nor `only` is set.
        """
        if self.last is None and not self.only:
            raise InputError(
                f"adapter {self.name!r} selects no layer; set last, such as last=2, or only, such "
                "as only=(0, 1)"
            )
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
                f"adapter {self.name!r}: last is {self.last}, but the model's stacks have at most "
                f"{highest} layers"
            )
        wrong = [layer for layer in self.only if not 0 <= layer < first]
        if wrong:
            raise InputError(
                f"adapter {self.name!r} names layer {wrong[0]}, but the model's layers are 0 to "
                f"{first - 1}"
            )
        return Copies(found)

    def _rows(self, num: int, *, first: int) -> tuple[int, ...]:
        if self.last is not None:
            return tuple(range(max(0, num - self.last), num))
        return tuple(row for row in range(num) if first + row in self.only)


def _check_sites(adapter: Adapter, named_by: str) -> None:
    if adapter.sites != _EVERYWHERE:
        raise InputError(
            f"adapter {adapter.name!r} does not support the option sites; select what to copy with "
            f"{named_by}"
        )


def _places(model: nnx.Module) -> dict[int, str]:
    return {id(node): "/".join(map(str, path)) for path, node in nnx.iter_graph(model)}


class Copies(Modules):
    """Trained differences between copied arrays and the base model's arrays.

    Args:
      arrays: path in the model -> shape and axes of the array, and the layer numbers to copy.
      l1: loss weight of the mean magnitude of the differences.
    """

    def __init__(self, arrays: "Mapping[str, tuple[Leaf, Rows]]", *, l1: float = 0.0):
        super().__init__()
        self.l1 = l1
        self.rows = tuple((path, rows) for path, (_, rows) in arrays.items())
        self.stacked = tuple(path for path, (leaf, _) in arrays.items() if leaf.is_stacked)
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
        return tuple(
            f"{_MODEL}{path}"
            + ("" if row is None else f", {'layer' if path in self.stacked else 'row'} {row}")
            for path, rows in self.rows
            for row in rows or (None,)
        )

    def copied(self) -> tuple[str, ...]:
        return tuple(path for path, _ in self.rows)

    def read(self, model: Mapping[str, Array], *, key: Key | None = None) -> dict[str, Array]:
        """Return the trained copies of the model's arrays, by path, in float32."""
        copies = {}
        for path, rows in self.rows:
            base = model[path].astype(jnp.float32)
            copies[path] = _added(base, self._difference(path).astype(jnp.float32), rows)
        return copies

    def penalty(self) -> Array | None:
        if not self.l1:
            return None
        each = [self._difference(path) for path, _ in self.rows]
        total = sum((jnp.sum(jnp.abs(x)) for x in each), start=jnp.float32(0))
        return self.l1 * total / sum(x.size for x in each)

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
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
    if rows is None or len(rows) == base.shape[0]:
        return base + difference
    return base.at[np.asarray(rows)].add(difference, unique_indices=True, indices_are_sorted=True)


def _part(difference: np.ndarray, shape: tuple[int, ...], rows: Rows) -> Part:
    if rows is None or len(rows) == shape[0]:
        return Dense(difference)
    whole = np.zeros(shape, np.float32)
    whole[list(rows)] = difference
    if 2 * len(rows) >= shape[0]:
        return Dense(whole)
    size = int(np.prod(shape[1:], dtype=np.int64))
    return Sparse.of(whole, np.concatenate([np.arange(r * size, (r + 1) * size) for r in rows]))
