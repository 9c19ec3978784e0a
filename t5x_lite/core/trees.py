r"""Types of arrays, nested dicts by the paths "a/b/c", and patterns matched in bounded time.

Regular expressions from options and files, matched in bounded time.

Python's `re` backtracks, so `(.*)*x` takes exponential time on a long name, and an expression from
a file could block a command forever. Here `re` only matches expressions with few ways to match a
name. For other expressions, the code computes the set of positions that each part can reach, as the
bits of an integer, and visits each part once per position:

    fullmatch(r"(?:.*\.)?(q|v)", "layer.0.q")      True, by re
    fullmatch(r"(.*)*x", "a" * 200)                False, by positions

Both methods give the same result. Expressions with many ways are rejected if they contain
references to groups, atomic groups or possessive repeats.

Array types, dimension names, and nested dicts of arrays with paths "a/b/c".

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
import functools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from re import _compiler, _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from t5x_lite.core.errors import InputError, shown

_LONGEST = 20_000
"""Maximum length of an expression, in characters."""
_WAYS = 10**7
"""Maximum number of ways to match a name for which `re` is used."""
_ROUNDS = 10**5
"""Maximum number of parts of an expression, with repeats unrolled, for which `re` is used."""
_NAME = 200
"""Assumed length of a name, in characters, when ways to match it are counted."""
_STEPS, _ALL_STEPS = 500_000, 5_000_000
"""Maximum steps of one match (about 1 s), and of all matches of an expression (about 10 s)."""
_ONE = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
"""Kinds of parts of an expression that match one character, as named by Python's parser."""
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_REFUSED = ("GROUPREF", "GROUPREF_EXISTS", "ATOMIC_GROUP", "POSSESSIVE_REPEAT")


def check(where: str, pattern: object) -> None:
    """Raise InputError unless a value is a supported regular expression."""
    if not isinstance(pattern, str):
        raise InputError(
            f"{where}: a regular expression must be a string, but got {shown(pattern)}"
        )
    if len(pattern) > _LONGEST:
        raise InputError(
            f"{where}: a regular expression may have at most {_LONGEST:,} characters, but this one "
            f"has {len(pattern):,}"
        )
    try:
        _parsed(pattern)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


@functools.lru_cache(maxsize=65_536)
def fullmatch(pattern: str, text: str) -> bool:
    """Return True if a regular expression matches the complete text."""
    parsed = _parsed(pattern)
    if parsed.few_ways and len(text) <= _NAME:
        return parsed.plain.fullmatch(text) is not None
    return _Positions(parsed, text).reached()


def is_simple(pattern: str) -> bool:
    """Return True if Python's `re` can match a regular expression in bounded time."""
    return _parsed(pattern).few_ways


def groups(pattern: str, text: str) -> re.Match[str] | None:
    """Match the complete text by `re`, and return the match with its groups, or None."""
    check_groups("pattern", pattern)
    return _parsed(pattern).plain.fullmatch(text)


def check_groups(where: str, pattern: object) -> None:
    """Raise InputError unless a regular expression can be matched in bounded time."""
    check(where, pattern)
    if not _parsed(str(pattern)).few_ways:
        raise InputError(
            f"{where}: the regular expression {shown(pattern)} can match in too many ways; remove "
            "repeats inside repeats"
        )


class _Parsed:
    """Regular expression, compiled and parsed."""

    def __init__(self, pattern: str):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.plain = re.compile(pattern)
            self.parts: Any = _parser.parse(pattern)
        self.flags: int = self.parts.state.flags
        self.few_ways = _ways(self.parts) <= _WAYS and _rounds(self.parts) <= _ROUNDS
        self.steps = 0
        self._single: dict[tuple[int, int], re.Pattern[str]] = {}
        if not self.few_ways and (kind := _refused(self.parts)):
            raise InputError(
                f"the regular expression {shown(pattern)} combines {kind} with repeats that can "
                "match in too many ways; simplify it"
            )

    def single(self, part: Any, flags: int) -> re.Pattern[str]:
        key = id(part), flags
        if key not in self._single:
            alone = _parser.SubPattern(self.parts.state, [part])
            self._single[key] = _compiler.compile(alone, flags)
        return self._single[key]


@functools.lru_cache(maxsize=1024)
def _parsed(pattern: str) -> _Parsed:
    try:
        return _Parsed(pattern)
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        raise InputError(f"{shown(pattern)} is not a regular expression ({error})") from error


def _children(part: Any) -> list[Any]:
    kind, value = str(part[0]), part[1]
    if kind in _REPEATS:
        return [value[2]]
    if kind == "SUBPATTERN":
        return [value[3]]
    if kind in ("ASSERT", "ASSERT_NOT"):
        return [value[1]]
    if kind == "BRANCH":
        return list(value[1])
    if kind == "ATOMIC_GROUP":
        return [value]
    if kind == "GROUPREF_EXISTS":
        return [each for each in value[1:] if each is not None]
    return []


def _ways(parts: Any) -> int:
    ways = 1
    for part in parts:
        inner = [_ways(child) for child in _children(part)]
        one = sum(inner) if inner else 1
        if str(part[0]) in _REPEATS:
            least, most = int(part[1][0]), min(int(part[1][1]), max(int(part[1][0]), _NAME))
            # One way more for each count; with several inside, each of them at each count.
            one = (
                most - least + 1
                if one == 1
                else min(one, _WAYS) ** min(most, 64) * (most - least + 1)
            )
        ways *= one
        if ways > _WAYS:
            return _WAYS + 1
    return ways


def _rounds(parts: Any) -> int:
    """Return the number of parts of a regular expression after unrolling its repeats."""
    total = 1
    for part in parts:
        one = sum(map(_rounds, _children(part)))
        if str(part[0]) in _REPEATS:
            one *= max(int(part[1][0]), min(int(part[1][1]), _NAME))
        total += one
    return total


def _refused(parts: Any) -> str | None:
    for part in parts:
        kind = str(part[0])
        if kind in _REFUSED:
            return kind.lower().replace("_", " ")
        for child in _children(part):
            if (found := _refused(child)) is not None:
                return found
    return None


class _Positions:
    """Matcher of a regular expression that runs in bounded time."""

    def __init__(self, parsed: _Parsed, text: str):
        self._parsed, self._text = parsed, text
        self._known: dict[tuple[int, int, int], int] = {}
        self._steps = 0

    def reached(self) -> bool:
        """Return True if the expression matches the complete text."""
        try:
            ends = self._sequence(self._parsed.parts, 1, self._parsed.flags)
        except RecursionError as error:
            raise InputError("a regular expression is nested too deeply") from error
        finally:
            self._parsed.steps += self._steps
        return bool(ends >> len(self._text) & 1)

    def _sequence(self, parts: Any, starts: int, flags: int) -> int:
        for part in parts:
            if not starts:
                break
            starts = self._from_all(part, starts, flags)
        return starts

    def _from_all(self, part: Any, starts: int, flags: int) -> int:
        ends = 0
        while starts:
            low = starts & -starts
            starts ^= low
            key = id(part), low.bit_length() - 1, flags
            if key not in self._known:
                self._known[key] = self._ends(part, key[1], flags)
            ends |= self._known[key]
            self._step()
        return ends

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _STEPS or self._parsed.steps > _ALL_STEPS:
            raise InputError("a regular expression takes too long to match; simplify it")

    def _ends(self, part: Any, start: int, flags: int) -> int:
        kind, value = str(part[0]), part[1]
        if kind in _ONE or kind == "AT":
            match = self._parsed.single(part, flags).match(self._text, start)
            return 0 if match is None else 1 << match.end()
        if kind == "SUBPATTERN":
            _, added, removed, inner = value
            return self._sequence(inner, 1 << start, (flags | added) & ~removed)
        if kind == "BRANCH":
            each = [self._sequence(inner, 1 << start, flags) for inner in value[1]]
            return functools.reduce(int.__or__, each, 0)
        if kind in ("ASSERT", "ASSERT_NOT"):
            direction, inner = value
            if direction > 0:
                holds = bool(self._sequence(inner, 1 << start, flags))
            else:
                before = start - int(inner.getwidth()[0])
                there = self._sequence(inner, 1 << before, flags) if before >= 0 else 0
                holds = bool(there >> start & 1)
            return 1 << start if holds == (kind == "ASSERT") else 0
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeated(value, start, flags)
        return 0  # FAILURE, as in an empty set

    def _repeated(self, value: Any, start: int, flags: int) -> int:
        least, most, inner = int(value[0]), int(value[1]), value[2]
        enough = 2 * len(self._text) + 2
        now = 1 << start
        for _ in range(min(least, enough)):
            now = self._from_sequence(inner, now, flags)
        ends = fresh = now
        for _ in range(min(most - least, enough)):
            fresh = self._from_sequence(inner, fresh, flags) & ~ends
            if not fresh:
                break
            ends |= fresh
        return ends

    def _from_sequence(self, parts: Any, starts: int, flags: int) -> int:
        ends = 0
        while starts:
            low = starts & -starts
            starts ^= low
            key = id(parts), low.bit_length() - 1, flags
            if key not in self._known:
                self._known[key] = self._sequence(parts, low, flags)
            ends |= self._known[key]
            self._step()
        return ends


Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
"""Typed random key, `jax.random.key(seed)`; None disables dropout and other randomness."""

Size: TypeAlias = int | Any
"""Number of rows or positions of an array: an int, or a symbolic dimension of jax.export."""

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
      ValueError: if a path has an empty component, or is also the parent of another path.
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
    return path == stem or path.startswith(f"{stem}/") or fullmatch(pattern, path)


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
