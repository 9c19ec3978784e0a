r"""Regular expressions of options and files, matched in bounded time.

Python's `re` tries one way after another, so `(.*)*x` takes exponential time on a long name. An
expression that came with a file could stop a command for ever. Here an expression with few ways is
left to `re`. For any other, the set of the positions that each part can reach is computed as the
bits of one number, and each part is looked at once for each position:

    fullmatch(r"(?:.*\.)?(q|v)", "layer.0.q")      True, by re
    fullmatch(r"(.*)*x", "a" * 200)                False, by positions

Both give the same result. Expressions that need another method (references to groups, atomic
groups, possessive repeats) are rejected if they have many ways.
"""

import functools
import re
import warnings
from re import _compiler, _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

from t5x_lite.core.errors import InputError, shown

_LONGEST = 20_000
"""Maximum characters of an expression."""
_WAYS = 10**7
"""Ways up to which `re` may try all of them."""
_ROUNDS = 10**5
"""Parts up to which `re` may repeat a part that is inside fixed repeats."""
_NAME = 200
"""Characters of a name, by which ways are counted."""
_STEPS, _ALL_STEPS = 500_000, 5_000_000
"""Maximum steps of one match, and of all matches of one expression: a second, and ten."""
_ONE = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
"""Parts that match one character."""
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
_REFUSED = ("GROUPREF", "GROUPREF_EXISTS", "ATOMIC_GROUP", "POSSESSIVE_REPEAT")


def check(where: str, pattern: object) -> None:
    """Raise InputError, beginning with `where`, unless a value is a supported expression."""
    if not isinstance(pattern, str):
        raise InputError(f"{where}: a regular expression is a string, got {shown(pattern)}")
    if len(pattern) > _LONGEST:
        raise InputError(
            f"{where}: a regular expression has at most {_LONGEST:,} characters, got "
            f"{len(pattern):,}"
        )
    try:
        _parsed(pattern)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


@functools.lru_cache(maxsize=65_536)
def fullmatch(pattern: str, text: str) -> bool:
    """Return whether an expression matches a whole text."""
    parsed = _parsed(pattern)
    if parsed.few_ways and len(text) <= _NAME:
        return parsed.plain.fullmatch(text) is not None
    return _Positions(parsed, text).reached()


def is_simple(pattern: str) -> bool:
    """Return whether `re` matches an expression of the supported kind in few ways."""
    return _parsed(pattern).few_ways


def groups(pattern: str, text: str) -> re.Match[str] | None:
    """Return the match of a whole text, for its groups."""
    check_groups("pattern", pattern)
    return _parsed(pattern).plain.fullmatch(text)


def check_groups(where: str, pattern: object) -> None:
    """Raise InputError unless `groups` can match an expression."""
    check(where, pattern)
    if not _parsed(str(pattern)).few_ways:
        raise InputError(
            f"{where}: the regular expression {shown(pattern)} can match in too many ways; remove "
            "repeats inside repeats"
        )


class _Parsed:
    """An expression, compiled by `re`, and its parts."""

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
                f"the regular expression {shown(pattern)} has {kind}, and repeats that can match "
                "in too many ways; simplify it"
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
    """Return the number of ways that `re` may try on a name, or more than _WAYS."""
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
    """Return the number of parts if each repeat is written out, up to the length of a name."""
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
    """The positions of a text that parts of an expression reach from a position.

    Args:
      parsed: the expression.
      text: the text.
    """

    def __init__(self, parsed: _Parsed, text: str):
        self._parsed, self._text = parsed, text
        self._known: dict[tuple[int, int, int], int] = {}
        self._steps = 0

    def reached(self) -> bool:
        """Return whether the whole expression reaches the end from the beginning."""
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
        """Return the ends of a repeat. Rounds beyond twice the text's length change nothing."""
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
        """As `_sequence`, each start once."""
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
