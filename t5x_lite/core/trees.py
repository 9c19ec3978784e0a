"""Types of arrays, and nested dicts of them by their paths "a/b/c".

The package shares this dimension key and array aliases.

Dimension key, used in jaxtyping annotations and in einsum strings:

    B batch          T query length   S key length    D d_model
    H heads          K d_kv           F d_ff          V vocabulary
    N layers         J heads * d_kv   R rank          C classes     P prefix

Batch keys are seqio's: encoder_input_tokens, decoder_input_tokens, decoder_target_tokens,
decoder_loss_weights, and with packing *_segment_ids and *_positions.

Nested dicts of leaves <-> paths "a/b/c": flatten, unflatten, partition, merge, overlaid.

A tree is a nested dict with string keys. Everything that is not a mapping is a leaf (an array, a
shape, a tuple of axis names). A path is the keys joined by "/". For example

    {"encoder": {"norm": {"scale": s}}, "embedding": e}

flattens to {"encoder/norm/scale": s, "embedding": e}. An empty dict holds no path: it is not kept.
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
"""A typed key, `jax.random.key(seed)`; None in a call means deterministic."""

Params: TypeAlias = Mapping[str, Any]
"""A nested dict of arrays; its paths, joined by "/", are public names."""

Axes: TypeAlias = Mapping[str, Any]
"""A nested dict of the same structure, with tuples of logical axis names as leaves."""

ComputeDtype = Literal["float32", "bfloat16"]
"""Dtype of activations; sums are float32."""

Batch: TypeAlias = Mapping[str, Any]
"""One batch: seqio's feature names to arrays [B, length]."""


SEPARATOR = "/"
_LISTED = 10


def flatten(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the leaves of `tree` by path, in the order of the tree.

    Raises:
      ValueError: a key is not a string, is empty, or holds "/".
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(key, str) or not key or SEPARATOR in key:
            raise ValueError(f"a tree's keys must be non-empty strings without '/'; got {key!r}")
        if isinstance(value, Mapping):
            for path, leaf in flatten(value).items():
                flat[key + SEPARATOR + path] = leaf
        else:
            flat[key] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested dict with these paths; the inverse of `flatten`.

    Raises:
      ValueError: a path has an empty part, or one path is a leaf and another goes through it.
    """
    tree: dict[str, Any] = {}
    made = {id(tree)}
    for path, leaf in flat.items():
        *parents, last = path.split(SEPARATOR)
        if not last or not all(parents):
            raise ValueError(f"a path must be non-empty parts joined by '/'; got {path!r}")
        node = tree
        for part in parents:
            if part not in node:
                node[part] = {}
                made.add(id(node[part]))
            node = node[part]
            if id(node) not in made:
                raise ValueError(f"{path!r} goes through a path that already holds a leaf")
        if last in node:
            raise ValueError(f"{path!r} is a leaf, but other paths go through it")
        node[last] = leaf
    return tree


def partition(
    tree: Mapping[str, Any], predicate: Callable[[str, Any], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a tree in two by `predicate(path, leaf)`; `merge` puts the two together again.

    Returns:
      (selected, rest), two nested dicts with disjoint paths.
    """
    selected: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for path, leaf in flatten(tree).items():
        (selected if predicate(path, leaf) else rest)[path] = leaf
    return unflatten(selected), unflatten(rest)


def merge(*trees: Mapping[str, Any]) -> dict[str, Any]:
    """Return one nested dict with the paths of all `trees`.

    Raises:
      ValueError: two trees hold the same path.
    """
    flat: dict[str, Any] = {}
    for tree in trees:
        new = flatten(tree)
        twice = sorted(flat.keys() & new.keys())
        if twice:
            raise ValueError(f"trees to merge must have different paths; in both: {_list(twice)}")
        flat.update(new)
    return unflatten(flat)


def overlaid(tree: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree with the leaves of `above` instead of its own; what it lacks is not added.

    Empty dicts of the tree stay.
    """
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
    r"""Rename paths by regular expressions; paths that no rule matches stay.

    With the rule (r"layer/(\w+)/kernel", r"block/\1/weight") the path "layer/wi/kernel" becomes
    "block/wi/weight".

    Args:
      tree: a nested dict.
      rules: (pattern, replacement) pairs in the sense of `re`; a pattern must match a whole path,
        and for each path the first that does is used.
      expected: the paths that the result must have; None does not check.

    Returns:
      The renamed nested dict.

    Raises:
      ValueError: a rule matches no path, two paths get the same name, or the result's paths are not
        `expected` (the message lists missing and unexpected paths).
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
            raise ValueError(f"two paths are both renamed to {new!r}; the second is {path!r}")
        renamed[new] = leaf
    unused = [pattern for pattern, _ in rules if pattern not in matched]
    if unused:
        raise ValueError(f"rename rules that apply to no path: {_list(unused)}")
    if expected is not None:
        wrong = difference(expected, renamed)
        if wrong:
            raise ValueError(f"the renamed tree does not have the expected paths: {wrong}")
    return unflatten(renamed)


def difference(expected: Iterable[str], got: Iterable[str]) -> str:
    """Says in one line which paths are missing and which are unexpected; "" if none are.

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
    """Return True if a pattern is a path, a parent of it or a regular expression for all of it.

    covers("heads/mlm", "heads/mlm/bias") and covers(".*/bias", "heads/mlm/bias") are true.
    """
    stem = pattern.rstrip("/")
    return path == stem or path.startswith(f"{stem}/") or patterns.fullmatch(pattern, path)


def count_parameters(tree: Mapping[str, Any]) -> int:
    """Return the number of elements of all leaves; a leaf needs a `shape` only."""
    return sum(math.prod(leaf.shape) for leaf in flatten(tree).values())


def _list(paths: Sequence[str]) -> str:
    more = len(paths) - _LISTED
    return ", ".join(paths[:_LISTED]) + (f" and {more} more" if more > 0 else "")


@dataclasses.dataclass(frozen=True)
class LazyArray:
    """An array that is made when it is needed, so that a model need not fit in memory.

    Attributes:
      shape: its shape.
      dtype: its dtype.
      read: makes it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        """Its number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.size * self.dtype.itemsize
