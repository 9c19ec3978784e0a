"""Parameters that are computed from other, stored parameters.

A checkpoint, an optimizer and a train state hold the stored parameters. A module reads the
parameters that the views compute, and the gradient goes back through the views.

    views = (Same("decoder/mlp/*", "encoder/mlp/*"),)
    seen = read(views, stored)       # decoder/mlp/wi/kernel is the array of encoder/mlp/wi/kernel,
    stored = write(views, seen)      # which is stored once

A pattern is the path of one array, or ends in "/*" and matches all arrays below it. Views are read
in their order and written in the opposite one. This module does not depend on the model's modules.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.core import trees
from t5x_lite.core.trees import Array, Axes, LazyArray, Params

Flat = Mapping[str, Any]
"""Path -> leaf."""


@runtime_checkable
class View(Protocol):
    """One relation between parameters; its methods take and give leaves by path.

    Attributes:
      computes: True if reading makes new arrays instead of only moving stored ones.
    """

    computes: ClassVar[bool]

    def stored(self, shapes: Flat, axes: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return shapes and logical axes of the stored parameters, given the read ones.

        Raises:
          ValueError: if the view does not fit the parameters.
        """
        ...

    def fresh(self, seen: Flat) -> dict[str, Any]:
        """Return the stored parameters of a newly initialized model."""
        ...

    def read(self, stored: Flat) -> dict[str, Any]:
        """Return the parameters that the modules have."""
        ...

    def write(self, seen: Flat) -> dict[str, Any]:
        """Return stored parameters that `read` turns into `seen`: for import, and for --init."""
        ...

    def mentions(self, path: str) -> bool:
        """Return True if the view affects the array at a path."""
        ...


@dataclasses.dataclass(frozen=True)
class Same:
    """Arrays that are read from others and not stored: tied tables, shared layers.

    `write` drops the copies and keeps the owner's arrays.

    Attributes:
      path: pattern of the copies.
      owner: pattern of the arrays that are stored.
    """

    path: str
    owner: str

    computes: ClassVar[bool] = False

    def stored(self, shapes: Flat, axes: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return all arrays except the copies at `path`.

        Raises:
          ValueError: if no array is at `path`, or the arrays at `owner` have other names or shapes.
        """
        _check_alike(self.path, self.owner, shapes)
        return self.write(shapes), self.write(axes)

    def fresh(self, seen: Flat) -> dict[str, Any]:
        """Return all arrays except the copies at `path`."""
        return self.write(seen)

    def read(self, stored: Flat) -> dict[str, Any]:
        """Return the parameters with the arrays at `owner` also at `path`.

        Raises:
          ValueError: if arrays at `path` are stored.
        """
        if there := _at(self.path, stored):
            raise ValueError(f"{there[0]} is stored, and should be read from {self.owner}")
        copies = {_moved(p, self.owner, self.path): stored[p] for p in _at(self.owner, stored)}
        return {**stored, **copies}

    def write(self, seen: Flat) -> dict[str, Any]:
        """Return all arrays except the copies at `path`."""
        return {path: leaf for path, leaf in seen.items() if not _matches(self.path, path)}

    def mentions(self, path: str) -> bool:
        """Return True if the path is of a copy or of its owner."""
        return _matches(self.path, path) or _matches(self.owner, path)


@dataclasses.dataclass(frozen=True)
class Difference:
    """Arrays that are stored as their difference from base arrays, which get no gradient from them.

        read = stop_gradient(base) + stored          stored begins as zero

    Attributes:
      path: pattern of the arrays.
      base: pattern of the base arrays.
    """

    path: str
    base: str

    computes: ClassVar[bool] = True

    def stored(self, shapes: Flat, axes: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the shapes and axes unchanged.

        Raises:
          ValueError: if nothing is at `path`, or the arrays at `base` differ.
        """
        _check_alike(self.path, self.base, shapes)
        return dict(shapes), dict(axes)

    def fresh(self, seen: Flat) -> dict[str, Any]:
        """Return the parameters with zeros as the differences."""
        return {**seen, **{path: jnp.zeros_like(seen[path]) for path in _at(self.path, seen)}}

    def read(self, stored: Flat) -> dict[str, Any]:
        """Return the parameters with sums of base and difference at `path`."""
        sums = {p: _sum(stored[self._base(p)], stored[p]) for p in _at(self.path, stored)}
        return {**stored, **sums}

    def write(self, seen: Flat) -> dict[str, Any]:
        """Return the parameters with differences from the base at `path`."""
        less = {p: _difference(seen[p], seen[self._base(p)]) for p in _at(self.path, seen)}
        return {**seen, **less}

    def mentions(self, path: str) -> bool:
        """Return True if the path is of a difference or of its base."""
        return _matches(self.path, path) or _matches(self.base, path)

    def _base(self, path: str) -> str:
        return _moved(path, self.path, self.base)


@dataclasses.dataclass(frozen=True)
class Repeat:
    """One array for all layers of a stack: stored as [...], read as [N, ...].

    Attributes:
      path: pattern of the arrays.
      num: N, the number of layers.
    """

    path: str
    num: int

    computes: ClassVar[bool] = True

    def stored(self, shapes: Flat, axes: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return shapes and axes without the first axis, which is for the layers.

        Raises:
          ValueError: nothing is at `path`, or there is another number of layers.
        """
        first, rest = {}, {}
        for path in _some(self.path, shapes):
            shape = tuple(shapes[path].shape)
            if shape[:1] != (self.num,):
                raise ValueError(f"{path} must have {self.num} layers: got the shape {shape}")
            first[path] = jax.ShapeDtypeStruct(shape[1:], shapes[path].dtype)
            rest[path] = tuple(axes[path][1:])
        return {**shapes, **first}, {**axes, **rest}

    def fresh(self, seen: Flat) -> dict[str, Any]:
        """Return the parameters with only the first layer's arrays."""
        return {**seen, **{path: seen[path][0] for path in _at(self.path, seen)}}

    def read(self, stored: Flat) -> dict[str, Any]:
        """Return the parameters with the same array in each layer."""
        each = {path: stored[path] for path in _at(self.path, stored)}
        return {**stored, **{p: jnp.broadcast_to(x, (self.num, *x.shape)) for p, x in each.items()}}

    def write(self, seen: Flat) -> dict[str, Any]:
        """Return the mean of the layers, which are equal where `read` made them."""
        return {**seen, **{path: jnp.mean(seen[path], axis=0) for path in _at(self.path, seen)}}

    def mentions(self, path: str) -> bool:
        """Return True if the path is of a repeated array."""
        return _matches(self.path, path)


def stored(views: Sequence[View], shapes: Params, axes: Axes) -> tuple[Params, Axes]:
    """Return shapes and axes of the stored parameters, two nested dicts, given the read ones."""
    if not views:
        return shapes, axes
    its_shapes, its_axes = trees.flatten(shapes), trees.flatten(axes)
    for view in reversed(views):
        its_shapes, its_axes = view.stored(its_shapes, its_axes)
    return trees.unflatten(its_shapes), trees.unflatten(its_axes)


def fresh(views: Sequence[View], seen: Params) -> Params:
    """Return the stored parameters of a newly initialized model."""
    return _through([view.fresh for view in reversed(views)], seen)


def read(views: Sequence[View], stored: Params) -> Params:
    """Return the modules' parameters; arrays that no view mentions stay the same objects."""
    return _through([view.read for view in views], stored)


def read_lazily(views: Sequence[View], stored: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
    """Apply `read` to lazy arrays by path; only arrays that a view computes are read."""
    if not views:
        return dict(stored)
    computed = mentioned([view for view in views if view.computes], stored)
    arrays = {path: a.read() if path in computed else a for path, a in stored.items()}
    try:
        seen = trees.flatten(read(views, trees.unflatten(arrays)))
    except KeyError as error:
        raise ValueError(f"the model has no parameters {error}") from error
    return {
        path: leaf if isinstance(leaf, LazyArray) else _made(np.asarray(leaf))
        for path, leaf in seen.items()
    }


def _made(array: np.ndarray) -> LazyArray:
    return LazyArray(array.shape, array.dtype, lambda: array)


def write(views: Sequence[View], seen: Params) -> Params:
    """Return stored parameters that `read` turns into `seen`."""
    return _through([view.write for view in reversed(views)], seen)


def mentioned(views: Sequence[View], paths: Iterable[str]) -> set[str]:
    """Return the paths that a view affects."""
    return {path for path in paths if any(view.mentions(path) for view in views)}


def copies(views: Sequence[View], seen: Iterable[str]) -> dict[str, str]:
    """Path of an array that is not stored -> path of the one that it is read from."""
    paths = list(seen)
    return {
        path: _moved(path, view.path, view.owner)
        for view in views
        if isinstance(view, Same)
        for path in _at(view.path, paths)
    }


def _through(functions: Sequence[Any], tree: Params) -> Params:
    if not functions:
        return tree
    flat: dict[str, Any] = trees.flatten(tree)
    for function in functions:
        flat = function(flat)
    return trees.unflatten(flat)


def _stem(pattern: str) -> str:
    """Return the common prefix of the paths of a pattern that ends in "/*", or the path itself."""
    return pattern.removesuffix("*")


def _matches(pattern: str, path: str) -> bool:
    return path.startswith(_stem(pattern)) if pattern.endswith("/*") else path == pattern


def _at(pattern: str, flat: Iterable[str]) -> list[str]:
    return [path for path in flat if _matches(pattern, path)]


def _some(pattern: str, flat: Iterable[str]) -> list[str]:
    paths = _at(pattern, flat)
    if not paths:
        raise ValueError(f"no parameters are at {pattern}")
    return paths


def _moved(path: str, pattern: str, other: str) -> str:
    return _stem(other) + path.removeprefix(_stem(pattern))


def _check_alike(path: str, other: str, shapes: Flat) -> None:
    ours = {_moved(p, path, other): tuple(shapes[p].shape) for p in _some(path, shapes)}
    theirs = {p: tuple(shapes[p].shape) for p in _at(other, shapes)}
    if ours != theirs:
        raise ValueError(
            f"the parameters at {path} must be as those at {other}: got {ours} for {theirs}"
        )


@jax.jit
def _sum(base: Array, stored: Array) -> Array:
    return jax.lax.stop_gradient(base) + stored


@jax.jit  # other processes may have parts of the arrays, too
def _difference(seen: Array, base: Array) -> Array:
    return seen - base
