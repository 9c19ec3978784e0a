"""Rules that map the tensors of another library to t5x_lite's parameters.

Parameters of t5x_lite are nested dicts, with layers stacked on axis 0. Kernels are [in, out], and
relative biases [buckets, heads]. A rule has the path of a parameter and the name of its tensors:

    Rule("encoder/layers/mlp/wo/kernel",
         "encoder.block.{layer}.layer.1.DenseReluDense.wo.weight", transpose=True)

If the parameter's shape is [2, 24, 16], this rule expands to two pieces (tensors of the file), one
for each layer. Each is a tensor [16, 24] that is transposed. `pieces` expands a table of rules, and
raises ValueError unless it has one rule for each parameter. The `check_` functions raise InputError
for wrong tensors in a user's file.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import LazyArray

LAYER = "{layer}"
_CHUNK = 1 << 22
"""Number of elements to check for NaN at a time."""


def value_of(array: np.ndarray | LazyArray) -> np.ndarray:
    """Return an array or a lazy array as a NumPy array in memory."""
    return array.read() if isinstance(array, LazyArray) else array


def is_same(a: np.ndarray | LazyArray, b: np.ndarray | LazyArray) -> bool:
    """Return True if two tensors are equal, compared in blocks to save memory."""
    if tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype:
        return False
    first, second = value_of(a), value_of(b)
    if first.__array_interface__["data"] == second.__array_interface__["data"]:
        return True  # one storage under two names
    blocks = range(0, len(first), 4096)
    return all(
        np.array_equal(first[i : i + 4096], second[i : i + 4096], equal_nan=True) for i in blocks
    )


@dataclasses.dataclass(frozen=True)
class Rule:
    """Mapping between a parameter path and the tensor names of another library.

    Attributes:
      ours: parameter path, such as "encoder/layers/mlp/wo/kernel".
      theirs: tensor name; "{layer}" in the name is replaced by the layer index.
      transpose: True to swap the last two axes of the tensor.
      stack_axis: layer axis of a tensor with all layers, moved to axis 0; None for other tensors.
      shape: shape of one layer of the tensor; None if it follows from the parameter's shape.
      aliases: alternative names of the tensor in files.
    """

    ours: str
    theirs: str
    transpose: bool = False
    stack_axis: int | None = None
    shape: tuple[int, ...] | None = None
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if LAYER in self.theirs and self.stack_axis is not None:
            raise ValueError(
                f"conversion rule {self.theirs}: the layer index must be either in the tensor name "
                "or on stack_axis, but is in both"
            )


@dataclasses.dataclass(frozen=True)
class Piece:
    """Tensor of another library's file, and its position in a t5x_lite parameter.

    Attributes:
      path: path of the parameter.
      layer: layer index on axis 0 of the parameter; None if the tensor is the complete parameter.
      name: tensor name.
      aliases: alternative names of the tensor.
      shape: required shape of the tensor.
      target: shape of the tensor after the conversion to t5x_lite's layout.
      rule: rule that defines the conversion.
    """

    path: str
    layer: int | None
    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    target: tuple[int, ...]
    rule: Rule

    def to_ours(self, tensor: np.ndarray) -> np.ndarray:
        """Convert a tensor to t5x_lite's layout."""
        stack_axis = self.rule.stack_axis
        if stack_axis is not None:
            tensor = np.moveaxis(tensor, stack_axis, 0)
        if self.rule.transpose:
            tensor = np.swapaxes(tensor, -1, -2)
        return tensor.reshape(self.target)

    def to_theirs(self, array: np.ndarray) -> np.ndarray:
        """Convert a parameter to the layout of the other library's tensor."""
        if self.rule.stack_axis is None:
            return self._layout(array.reshape(_swapped(self.shape, self.rule.transpose)))
        rest = _without(self.shape, self.rule.stack_axis)
        layers = self.shape[self.rule.stack_axis]
        stacked = array.reshape(layers, *_swapped(rest, self.rule.transpose))
        return np.moveaxis(self._layout(stacked), 0, self.rule.stack_axis)

    def of(self, array: np.ndarray) -> np.ndarray:
        return array if self.layer is None else array[self.layer]

    def _layout(self, array: np.ndarray) -> np.ndarray:
        return np.swapaxes(array, -1, -2) if self.rule.transpose else array


def check_layers(where: object, counts: Mapping[str, int], tensors: Mapping[str, Any]) -> None:
    """Raise InputError if a config has more layers than the tensor file."""
    for name, count in counts.items():
        if count > len(tensors):
            raise InputError(
                f"{where}: config field {name} is {count}, but the file has only {len(tensors)} "
                "tensors"
            )


def pieces(table: Iterable[Rule], shapes: Mapping[str, tuple[int, ...]]) -> list[Piece]:
    """Return the tensors of another library that correspond to the t5x_lite parameters."""
    rules = list(table)
    paths = [rule.ours for rule in rules]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    difference = trees.difference(shapes, paths)
    if twice or difference:
        raise ValueError(
            "the conversion rules must have each parameter path exactly once; repeated paths: "
            f"{twice}; {difference}"
        )
    found = [piece for rule in rules for piece in _written_out(rule, tuple(shapes[rule.ours]))]
    names = [piece.name for piece in found]
    if len(set(names)) < len(names):
        raise ValueError(f"two conversion rules have the same tensor name; the names are {names}")
    return found


def _written_out(rule: Rule, shape: tuple[int, ...]) -> list[Piece]:
    if LAYER not in rule.theirs:
        theirs = _their_shape(rule, shape)
        return [Piece(rule.ours, None, rule.theirs, rule.aliases, theirs, shape, rule)]
    return [
        Piece(
            rule.ours,
            layer,
            rule.theirs.replace(LAYER, str(layer)),
            tuple(alias.replace(LAYER, str(layer)) for alias in rule.aliases),
            _their_shape(rule, shape[1:]),
            shape[1:],
            rule,
        )
        for layer in range(shape[0])
    ]


def _their_shape(rule: Rule, ours: tuple[int, ...]) -> tuple[int, ...]:
    if rule.stack_axis is None:
        return rule.shape or _swapped(ours, rule.transpose)
    layer = rule.shape or _swapped(ours[1:], rule.transpose)
    return (*layer[: rule.stack_axis], ours[0], *layer[rule.stack_axis :])


def _swapped(shape: Sequence[int], transpose: bool) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if transpose else tuple(shape)


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def lazy_tensors(
    wanted: Iterable[Piece], arrays: Mapping[str, LazyArray], *, where: object
) -> dict[str, LazyArray]:
    """Return another library's tensors by name, as lazy arrays computed from the parameters."""

    @functools.lru_cache(maxsize=1)
    def array(path: str) -> np.ndarray:
        found = arrays[path].read()
        check_finite(where, path, found)
        return found

    def tensor(piece: Piece) -> np.ndarray:
        return piece.to_theirs(piece.of(array(piece.path)))

    return {
        piece.name: LazyArray(
            piece.shape, arrays[piece.path].dtype, functools.partial(tensor, piece)
        )
        for piece in wanted
    }


def check_names(
    where: object, wanted: Iterable[Piece], found: Iterable[str], *, ignored: Iterable[str] = ()
) -> dict[str, str]:
    """Raise InputError if a file has missing or extra tensors; return the tensors' names."""
    there = set(found)
    names: dict[str, str] = {}
    known: set[str] = set()
    missing: list[str] = []
    for piece in wanted:
        candidates = (piece.name, *piece.aliases)
        known.update(candidates)
        present = [name for name in candidates if name in there]
        if present:
            names[piece.name] = present[0]
        else:
            missing.append(piece.name)
    unexpected = {
        name for name in there - known if not any(re.fullmatch(rule, name) for rule in ignored)
    }
    if missing or unexpected:
        raise InputError(
            f"{where}: the tensors do not match its config: {trees.difference(missing, unexpected)}"
        )
    return names


def check_shape(where: object, piece: Piece, shape: Sequence[int]) -> None:
    """Raise InputError if a tensor does not have the shape that its config requires."""
    if tuple(shape) != piece.shape:
        raise InputError(
            f"{where}: {piece.name} has shape {tuple(shape)}, but the config requires {piece.shape}"
        )


def check_finite(where: object, name: str, tensor: np.ndarray) -> None:
    """Raise InputError if weights are NaN or infinite."""
    flat = np.ravel(tensor, order="K")  # does not copy a transposed tensor
    bad = sum(
        int(np.count_nonzero(~np.isfinite(flat[start : start + _CHUNK])))
        for start in range(0, flat.size, _CHUNK)
    )
    if bad:
        raise InputError(
            f"{where}: {name} holds {bad} of {flat.size} weights that are NaN or infinite"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Base class for reading the checkpoints of another library as t5x_lite parameters.

    Attributes:
      where: file or directory of the tensors, for errors.
      shapes: shapes of the t5x_lite parameters by path.
      pieces: tensors of the file, with their positions in the t5x_lite parameters.
      tensors: tensors of the file by name.
    """

    where: object
    shapes: Mapping[str, tuple[int, ...]]
    pieces: Sequence[Piece]
    tensors: Mapping[str, Any]

    def read(self, piece: Piece) -> np.ndarray:
        raise TypeError(f"class {type(self).__name__} does not define the method read")

    def lazy_arrays(self, prefix: str = "") -> dict[str, LazyArray]:
        """Return all parameters by path as lazy arrays."""
        return {
            prefix + path: LazyArray(shape, self.dtype(path), functools.partial(self.array, path))
            for path, shape in self.shapes.items()
        }

    def dtype(self, path: str) -> np.dtype:
        """Return the dtype of a parameter in the file."""
        dtypes = [self.tensors[piece.name].dtype for piece in self._pieces(path)]
        return np.dtype(functools.reduce(jnp.promote_types, dtypes))

    def array(self, path: str) -> np.ndarray:
        """Read a parameter by its path."""
        found = self._pieces(path)
        if found[0].layer is None:
            return self.read(found[0])
        array = np.empty(self.shapes[path], self.dtype(path))
        for piece in found:
            array[piece.layer] = self.read(piece)
        return array

    def _pieces(self, path: str) -> list[Piece]:
        return [piece for piece in self.pieces if piece.path == path]
