"""Copies of the base's arrays that train in their place, while the base stays frozen.

    layers(last=2)                     the two highest layers of each stack
    layers(only=(0, 5))                layers 0 and 5; a decoder's come after the encoder's
    copy("model/embedding", ".*/norm") arrays by their paths

A copy W' is stored as its difference from the base, W' - W, which begins as 0: so it fits whatever
base `--init` brings, it is a sum in the algebra of deltas, and a decay of weights draws it to the
base and not to 0. The sum is made in float32, before the cast to the compute dtype.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.arrays import Leaf, Rows, arrays_of
from t5x_lite.adapters.base import Adapter, Modules, check_patterns
from t5x_lite.adapters.places import stacks_of
from t5x_lite.deltas.parts import Dense, Part, Sparse
from t5x_lite.errors import InputError
from t5x_lite.trees import covers
from t5x_lite.types import Array, Key

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
    l1: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sites(self, "of")
        check_patterns("of", self.of)
        if self.l1 < 0:
            raise InputError(f"l1 must be at least 0: got {self.l1}")

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
    last: int | None = None
    only: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sites(self, "last or only")
        if self.last is not None and self.only:
            raise InputError("layers are named by last or by only, and not by both")
        if self.last is not None and self.last < 1:
            raise InputError(f"last must be at least 1: got {self.last}")

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
        """Which layers of a stack.

        Args:
          num: number of layers of the stack.
          first: number of its first layer, counted over all stacks.
        """
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
