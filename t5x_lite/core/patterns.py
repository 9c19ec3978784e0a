r"""Regular expressions from options and files, matched in bounded time.

Python's `re` backtracks, so `(.*)*x` takes exponential time on a long name, and an expression from
a file could block a command forever. Here `re` only matches expressions with few ways to match a
name. For other expressions, the code computes the set of positions that each part can reach, as the
bits of an integer, and visits each part once per position:

    fullmatch(r"(?:.*\.)?(q|v)", "layer.0.q")      True, by re
    fullmatch(r"(.*)*x", "a" * 200)                False, by positions

Both methods give the same result. Expressions with many ways are rejected if they contain
references to groups, atomic groups or possessive repeats.
"""

import functools
import re
import warnings
from re import _compiler, _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

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
    """Return True if an expression is simple enough for Python's `re` in bounded time."""
    return _parsed(pattern).few_ways


def groups(pattern: str, text: str) -> re.Match[str] | None:
    """Match the complete text by `re`, and return the match with its groups, or None."""
    check_groups("pattern", pattern)
    return _parsed(pattern).plain.fullmatch(text)


def check_groups(where: str, pattern: object) -> None:
    """Raise InputError unless `groups` can match a regular expression in bounded time."""
    check(where, pattern)
    if not _parsed(str(pattern)).few_ways:
        raise InputError(
            f"{where}: the regular expression {shown(pattern)} can match in too many ways; remove "
            "repeats inside repeats"
        )


class _Parsed:
    """Regular expression in compiled form and as its parsed parts."""

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
    """Return the number of ways in which `re` may try to match a name, capped at _WAYS + 1."""
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
    """Return the number of parts of an expression, with repeats unrolled to a name's length."""
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
    """Matcher that computes which text positions the parts of an expression can reach."""

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
        """Return the positions in the text at which a repeated part can end."""
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
        """Return the positions in the text at which a sequence of parts can end."""
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
