"""Views: rules that compute a model's parameters from stored parameters, such as tied weights.

A checkpoint, an optimizer and a train state hold the stored parameters. A module reads the
parameters that the views compute. Gradients flow through the views to the stored parameters.

    views = (Same("decoder/mlp/*", "encoder/mlp/*"),)
    seen = read(views, stored)       # decoder/mlp/wi/kernel is the array of encoder/mlp/wi/kernel,
    stored = write(views, seen)      # which is stored once

A pattern is the path of one array, or ends in "/*" and matches all arrays below it. Views are read
in order and written in reverse order.

Frozen kernels can be stored in int8, with a float32 scale for each column at PATH_scale. `joined`
combines the two to an `Int8`, which a layer reads as a dense array.
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
"""Flat parameter tree: path -> array, shape or tuple of axis names."""


@runtime_checkable
class View(Protocol):
    """Rule for tied arrays: conversion between their stored form and the form that modules use.

    All methods take and return flat parameter trees: path -> array.

    Attributes:
      computes: True if `read` computes new arrays; False if it only copies references.
    """

    computes: ClassVar[bool]

    def stored(self, shapes: Flat, axes: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return shapes and logical axes of the stored parameters.

        Raises:
          ValueError: if the rule does not fit the parameters.
        """
        ...

    def fresh(self, seen: Flat) -> dict[str, Any]:
        """Convert newly initialized parameters from the form of modules to the stored form."""
        ...

    def read(self, stored: Flat) -> dict[str, Any]:
        """Convert stored parameters to the parameters that modules use."""
        ...

    def write(self, seen: Flat) -> dict[str, Any]:
        """Convert the parameters that modules use to stored parameters; the inverse of `read`."""
        ...

    def mentions(self, path: str) -> bool:
        """Return True if this rule reads or computes the array at a path."""
        ...


@dataclasses.dataclass(frozen=True)
class Same:
    """Tied arrays, stored once and read at two paths, such as tied embeddings.

    Attributes:
      path: pattern of the paths that are not stored.
      owner: pattern of the paths that are stored.
    """

    path: str
    owner: str

    computes: ClassVar[bool] = False

    def stored(self, shapes: Flat, axes: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
        _check_alike(self.path, self.owner, shapes)
        return self.write(shapes), self.write(axes)

    def fresh(self, seen: Flat) -> dict[str, Any]:
        return self.write(seen)

    def read(self, stored: Flat) -> dict[str, Any]:
        if there := _at(self.path, stored):
            raise ValueError(
                f"parameter {there[0]} is tied to {self.owner}, so it must not be stored separately"
            )
        copies = {_moved(p, self.owner, self.path): stored[p] for p in _at(self.owner, stored)}
        return {**stored, **copies}

    def write(self, seen: Flat) -> dict[str, Any]:
        return {path: leaf for path, leaf in seen.items() if not _matches(self.path, path)}

    def mentions(self, path: str) -> bool:
        return _matches(self.path, path) or _matches(self.owner, path)


@dataclasses.dataclass(frozen=True)
class Difference:
    """Arrays that are stored as their difference from base arrays.

        read = stop_gradient(base) + stored          stored begins as zero

    Attributes:
      path: pattern of the arrays.
      base: pattern of the base arrays.
    """

    path: str
    base: str

    computes: ClassVar[bool] = True

    def stored(self, shapes: Flat, axes: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
        _check_alike(self.path, self.base, shapes)
        return dict(shapes), dict(axes)

    def fresh(self, seen: Flat) -> dict[str, Any]:
        return {**seen, **{path: jnp.zeros_like(seen[path]) for path in _at(self.path, seen)}}

    def read(self, stored: Flat) -> dict[str, Any]:
        sums = {p: _sum(stored[self._base(p)], stored[p]) for p in _at(self.path, stored)}
        return {**stored, **sums}

    def write(self, seen: Flat) -> dict[str, Any]:
        less = {p: _difference(seen[p], seen[self._base(p)]) for p in _at(self.path, seen)}
        return {**seen, **less}

    def mentions(self, path: str) -> bool:
        return _matches(self.path, path) or _matches(self.base, path)

    def _base(self, path: str) -> str:
        return _moved(path, self.path, self.base)


@dataclasses.dataclass(frozen=True)
class Repeat:
    """Array that all N layers of a stack share: stored as [...], read as [N, ...].

    Attributes:
      path: pattern of the arrays.
      num: number of layers, N.
    """

    path: str
    num: int

    computes: ClassVar[bool] = True

    def stored(self, shapes: Flat, axes: Flat) -> tuple[dict[str, Any], dict[str, Any]]:
        first, rest = {}, {}
        for path in _some(self.path, shapes):
            shape = tuple(shapes[path].shape)
            if shape[:1] != (self.num,):
                raise ValueError(
                    f"parameter {path} must have {self.num} layers as its first axis, but its "
                    f"shape is {shape}"
                )
            first[path] = jax.ShapeDtypeStruct(shape[1:], shapes[path].dtype)
            rest[path] = tuple(axes[path][1:])
        return {**shapes, **first}, {**axes, **rest}

    def fresh(self, seen: Flat) -> dict[str, Any]:
        return {**seen, **{path: seen[path][0] for path in _at(self.path, seen)}}

    def read(self, stored: Flat) -> dict[str, Any]:
        each = {path: stored[path] for path in _at(self.path, stored)}
        return {**stored, **{p: jnp.broadcast_to(x, (self.num, *x.shape)) for p, x in each.items()}}

    def write(self, seen: Flat) -> dict[str, Any]:
        return {**seen, **{path: jnp.mean(seen[path], axis=0) for path in _at(self.path, seen)}}

    def mentions(self, path: str) -> bool:
        return _matches(self.path, path)


SCALE = "_scale"
"""Suffix of the path of an int8 array's scales."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8:
    """Array in int8; column j is values[:, j] * scale[j]. `self[...]` is the dense array.

    Attributes:
      values: int8 [..., I, O], from -127 to 127.
      scale: float32 [..., 1, O], the largest magnitude of a column / 127.
      dtype: dtype of the dense array.
    """

    values: Any
    scale: Any
    dtype: Any = dataclasses.field(default=jnp.dtype("float32"), metadata={"static": True})

    @classmethod
    def of(cls, array: Array) -> "Int8":
        """Round an array [..., I, O] to int8, with the scale that fits its largest magnitudes."""
        x = array.astype(jnp.float32)
        scale = jnp.max(jnp.abs(x), axis=-2, keepdims=True) / 127
        values = jnp.round(x / jnp.where(scale > 0, scale, 1)).astype(jnp.int8)
        return cls(values, scale, array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def astype(self, dtype: Any) -> "Int8":
        return dataclasses.replace(self, dtype=jnp.dtype(dtype))

    def __getitem__(self, index: Any) -> Array:
        dense = self.values.astype(jnp.float32) * self.scale
        return dense.astype(self.dtype)[index]


def with_int8(shapes: Params, axes: Axes, paths: Iterable[str]) -> tuple[Params, Axes]:
    """Return stored shapes and axes with the arrays at some paths in int8."""
    its_shapes, its_axes = trees.flatten(shapes), trees.flatten(axes)
    for path in paths:
        *leading, _, columns = its_shapes[path].shape
        its_shapes[path] = jax.ShapeDtypeStruct(its_shapes[path].shape, jnp.int8)
        its_shapes[path + SCALE] = jax.ShapeDtypeStruct((*leading, 1, columns), jnp.float32)
        its_axes[path + SCALE] = (*its_axes[path][:-2], None, its_axes[path][-1])
    return trees.unflatten(its_shapes), trees.unflatten(its_axes)


def _scaled(flat: Flat) -> list[str]:
    return [path for path in flat if path + SCALE in flat]


def joined(stored: Params) -> Params:
    """Combine the int8 arrays of a parameter tree with their scales, to `Int8`."""
    flat: dict[str, Any] = trees.flatten(stored)
    if not (paths := _scaled(flat)):
        return stored
    pairs = {path: Int8(flat[path], flat.pop(path + SCALE)) for path in paths}
    return trees.unflatten({**flat, **pairs})


def in_float32(shapes: Params) -> Params:
    """Return the shapes and shardings of arrays with float32 as dtype, without scales of int8."""
    flat = trees.flatten(shapes)
    scales = {path + SCALE for path in _scaled(flat)}
    whole = {
        path: jax.ShapeDtypeStruct(leaf.shape, "float32", sharding=leaf.sharding)
        for path, leaf in flat.items()
        if path not in scales
    }
    return trees.unflatten(whole)


def in_dtypes_of(params: Params, shapes: Params) -> Params:
    """Return a parameter tree with the dtypes of the given shapes, which may be int8."""
    flat, found = trees.flatten(params), {}
    for path, leaf in trees.flatten(shapes).items():
        if path in found:  # scale of an array before it
            continue
        array = flat[path]
        if array.dtype == leaf.dtype:
            found[path] = array
        elif leaf.dtype == jnp.int8:
            rounded = Int8.of(array)
            found |= {path: rounded.values, path + SCALE: rounded.scale}
        else:
            found[path] = array.astype(leaf.dtype)
    return trees.unflatten(found)


def stored(views: Sequence[View], shapes: Params, axes: Axes) -> tuple[Params, Axes]:
    """Return stored shapes and axes, given the shapes and axes of the modules' parameters."""
    if not views:
        return shapes, axes
    its_shapes, its_axes = trees.flatten(shapes), trees.flatten(axes)
    for view in reversed(views):
        its_shapes, its_axes = view.stored(its_shapes, its_axes)
    return trees.unflatten(its_shapes), trees.unflatten(its_axes)


def fresh(views: Sequence[View], seen: Params) -> Params:
    """Convert newly initialized parameters from the form of modules to the stored form."""
    return _through([view.fresh for view in reversed(views)], seen)


def read(views: Sequence[View], stored: Params) -> Params:
    """Convert stored parameters to the parameters that modules use."""
    return _through([view.read for view in views], stored)


def read_lazily(views: Sequence[View], stored: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
    """Convert stored parameters, as lazy arrays, to the parameters that modules use."""
    if not views:
        return dict(stored)
    computed = mentioned([view for view in views if view.computes], stored)
    arrays = {path: a.read() if path in computed else a for path, a in stored.items()}
    try:
        seen = trees.flatten(read(views, trees.unflatten(arrays)))
    except KeyError as error:
        raise ValueError(f"the model has no parameters at {error}") from error
    return {
        path: leaf if isinstance(leaf, LazyArray) else _made(np.asarray(leaf))
        for path, leaf in seen.items()
    }


def _made(array: np.ndarray) -> LazyArray:
    return LazyArray(array.shape, array.dtype, lambda: array)


def write(views: Sequence[View], seen: Params) -> Params:
    """Convert the parameters that modules use to stored parameters."""
    return _through([view.write for view in reversed(views)], seen)


def mentioned(views: Sequence[View], paths: Iterable[str]) -> set[str]:
    """Select the paths of arrays that some rule for tied arrays reads or computes."""
    return {path for path in paths if any(view.mentions(path) for view in views)}


def copies(views: Sequence[View], seen: Iterable[str]) -> dict[str, str]:
    """Map the path of each tied array that is not stored to the path of the stored array."""
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
    return pattern.removesuffix("*")


def _matches(pattern: str, path: str) -> bool:
    return path.startswith(_stem(pattern)) if pattern.endswith("/*") else path == pattern


def _at(pattern: str, flat: Iterable[str]) -> list[str]:
    return [path for path in flat if _matches(pattern, path)]


def _some(pattern: str, flat: Iterable[str]) -> list[str]:
    paths = _at(pattern, flat)
    if not paths:
        raise ValueError(f"the model has no parameters at {pattern}")
    return paths


def _moved(path: str, pattern: str, other: str) -> str:
    return _stem(other) + path.removeprefix(_stem(pattern))


def _check_alike(path: str, other: str, shapes: Flat) -> None:
    ours = {_moved(p, path, other): tuple(shapes[p].shape) for p in _some(path, shapes)}
    theirs = {p: tuple(shapes[p].shape) for p in _at(other, shapes)}
    if ours != theirs:
        raise ValueError(
            f"the parameters at {path} and {other} must have equal shapes, but have {ours} and "
            f"{theirs}"
        )


@jax.jit
def _sum(base: Array, stored: Array) -> Array:
    return jax.lax.stop_gradient(base) + stored


@jax.jit  # other processes may have parts of the arrays, too
def _difference(seen: Array, base: Array) -> Array:
    return seen - base
