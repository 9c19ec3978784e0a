"""Array types, dimension names, and nested dicts of arrays with paths "a/b/c".

Dimension names in jaxtyping annotations and einsum strings:

    B batch          T query length   S key length    D d_model
    H heads          K d_kv           F d_ff          V vocabulary
    N layers         J heads * d_kv   R rank          C classes     P prefix

Keys of a batch are seqio's: encoder_input_tokens, decoder_input_tokens, decoder_target_tokens,
decoder_loss_weights, and with packing *_segment_ids and *_positions.

A tree is a nested dict with string keys. Everything that is not a mapping is a leaf (an array, a
shape, a tuple of axis names). A path is the keys joined by "/". For example

    {"encoder": {"norm": {"scale": s}}, "embedding": e}

flattens to {"encoder/norm/scale": s, "embedding": e}. Empty dicts are dropped.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from t5x_lite.core import patterns

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
"""Typed random key, `jax.random.key(seed)`; None disables dropout and other randomness."""

Params: TypeAlias = Mapping[str, Any]
"""Parameter tree: a nested dict of arrays."""

Axes: TypeAlias = Mapping[str, Any]
"""Tree with the structure of `Params` and tuples of logical axis names as leaves."""

ComputeDtype = Literal["float32", "bfloat16"]
"""Dtype of activations; sums are computed in float32."""

Batch: TypeAlias = Mapping[str, Any]
"""Batch: seqio's feature name -> array [B, length]."""


SEPARATOR = "/"
_LISTED = 10


def flatten(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Flatten a tree to a dict from path to leaf, in the order of the tree.

    Raises:
      ValueError: if a key is not a string, is empty, or contains "/".
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str) or not key or SEPARATOR in key:
            raise ValueError(
                f"keys of a tree must be non-empty strings without '/', but got {key!r}"
            )
        if isinstance(value, Mapping):
            for path, leaf in flatten(value).items():
                flat[key + SEPARATOR + path] = leaf
        else:
            flat[key] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Build a nested dict from a dict of path to leaf; the inverse of `flatten`.

    Raises:
      ValueError: if a path has an empty part, or is also the parent of another path.
    """
    tree: dict[str, Any] = {}
    made = {id(tree)}
    for path, leaf in flat.items():
        *parents, last = path.split(SEPARATOR)
        if not last or not all(parents):
            raise ValueError(f"a path must be non-empty parts joined by '/', but got {path!r}")
        node = tree
        for part in parents:
            if part not in node:
                node[part] = {}
                made.add(id(node[part]))
            node = node[part]
            if id(node) not in made:
                raise ValueError(f"a parent of the path {path!r} is a leaf")
        if last in node:
            raise ValueError(f"the path {path!r} is a leaf, but also the parent of other paths")
        node[last] = leaf
    return tree


def partition(
    tree: Mapping[str, Any], predicate: Callable[[str, Any], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a tree in two by `predicate(path, leaf)`; `merge` is the inverse.

    Returns:
      The tree of selected leaves, and the tree of all other leaves.
    """
    selected: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for path, leaf in flatten(tree).items():
        (selected if predicate(path, leaf) else rest)[path] = leaf
    return unflatten(selected), unflatten(rest)


def merge(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Merge trees with disjoint paths into one nested dict.

    Raises:
      ValueError: if two trees contain the same path.
    """
    flat: dict[str, Any] = {}
    for tree in trees:
        new = flatten(tree)
        twice = sorted(flat.keys() & new.keys())
        if twice:
            raise ValueError(f"trees to merge must have different paths, but share {_list(twice)}")
        flat.update(new)
    return unflatten(flat)


def overlaid(tree: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with its leaves replaced by leaves of `above` at the same paths."""
    return {
        key: value
        if key not in above
        else overlaid(value, above[key])
        if isinstance(value, Mapping)
        else above[key]
        for key, value in tree.items()
    }


def rename(
    tree: Mapping[str, Any],
    rules: Sequence[tuple[str, str]],
    *,
    expected: Iterable[str] | None = None,
) -> dict[str, Any]:
    r"""Rename paths by regular expressions; paths that no rule matches keep their names.

    With the rule (r"layer/(\w+)/kernel", r"block/\1/weight") the path "layer/wi/kernel" becomes
    "block/wi/weight".

    Args:
      tree: nested dict.
      rules: pairs of an `re` pattern and a replacement; the first pattern that matches the complete
        path is used.
      expected: paths that the result must have; None disables the check.

    Raises:
      ValueError: if a rule matches no path, two paths get the same name, or the paths of the result
        differ from `expected`.
    """
    renamed: dict[str, Any] = {}
    matched: set[str] = set()
    for path, leaf in flatten(tree).items():
        new = path
        for pattern, replacement in rules:
            match = re.fullmatch(pattern, path)
            if match:
                matched.add(pattern)
                new = match.expand(replacement)
                break
        if new in renamed:
            raise ValueError(f"two paths are renamed to {new!r}; the second one is {path!r}")
        renamed[new] = leaf
    unused = [pattern for pattern, _ in rules if pattern not in matched]
    if unused:
        raise ValueError(f"rename rules must match a path, but these match none: {_list(unused)}")
    if expected is not None:
        wrong = difference(expected, renamed)
        if wrong:
            raise ValueError(f"the renamed tree does not have the expected paths: {wrong}")
    return unflatten(renamed)


def difference(expected: Iterable[str], got: Iterable[str]) -> str:
    """Return one line that lists missing and unexpected paths, or "" if the paths are equal.

    For example "missing: decoder/norm/scale; unexpected: head/bias".
    """
    wanted, found = set(expected), set(got)
    parts = []
    if wanted - found:
        parts.append(f"missing: {_list(sorted(wanted - found))}")
    if found - wanted:
        parts.append(f"unexpected: {_list(sorted(found - wanted))}")
    return "; ".join(parts)


def covers(pattern: str, path: str) -> bool:
    """Return True if a pattern is a path, a parent of it, or a regular expression that matches it.

    covers("heads/mlm", "heads/mlm/bias") and covers(".*/bias", "heads/mlm/bias") are True.
    """
    stem = pattern.rstrip("/")
    return path == stem or path.startswith(f"{stem}/") or patterns.fullmatch(pattern, path)


def count_parameters(tree: Mapping[str, Any]) -> int:
    """Return the total number of elements of all leaves; leaves only need a `shape`."""
    return sum(math.prod(leaf.shape) for leaf in flatten(tree).values())


def _list(paths: Sequence[str]) -> str:
    more = len(paths) - _LISTED
    return ", ".join(paths[:_LISTED]) + (f" and {more} more" if more > 0 else "")


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """Array that is loaded when it is needed, so that a model need not fit in memory.

    Attributes:
      shape: shape of the array.
      dtype: dtype of the array.
      read: function that loads the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize
