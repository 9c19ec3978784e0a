"""Command-line options for the fields of a frozen dataclass, parsed by tyro, with one-line errors.

tyro turns the fields of a (nested) dataclass into options and prints errors in a box. `parse` first
rejects unknown options with the nearest known name, and reduces tyro's box to its message:

    >>> parse(Experiment, ["--model.d-modle", "64"], prog="t5x-lite train", default=experiment)
    OptionError: unknown option --model.d-modle; did you mean --model.d-model?

An annotation sets the bounds of a value, both for an option and for a config field:

    @dataclass(frozen=True)
    class Lora(Adapter):
        rank: Annotated[int, AtLeast(1)] = 8        # Count

    Lora(rank=0)        # InputError: rank must be at least 1: got 0

This module does not import JAX, so `t5x-lite --help` is fast.
"""

import contextlib
import dataclasses
import difflib
import functools
import inspect
import io
import itertools
import math
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from t5x_lite.core.errors import InputError, shown

Config = TypeVar("Config")

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_BORDER = re.compile(r"^(│|╭─+|╰─+)| *(│|─*╮|─*╯)$")
_RULE = re.compile(r"[\s─-]*")
_PLAIN = {
    "invalid literal for int() with base 10: ": "must be a whole number, got ",
    "could not convert string to float: ": "must be a number, got ",
}
"""Beginning of Python's message about an invalid value -> beginning of our message."""


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """Inclusive lower bound of a number."""

    minimum: float | int

    def admits(self, value: float | int) -> bool:
        """Return True if the value is within the bound; False for NaN."""
        return value >= self.minimum

    def __str__(self) -> str:
        return f"at least {_plain(self.minimum)}"


@dataclasses.dataclass(frozen=True)
class Above:
    """Exclusive lower bound of a number."""

    limit: float | int

    def admits(self, value: float | int) -> bool:
        return value > self.limit

    def __str__(self) -> str:
        return f"above {_plain(self.limit)}"


@dataclasses.dataclass(frozen=True)
class In:
    """Interval of valid numbers; in `ends`, square brackets mark inclusive ends."""

    low: float | int
    high: float | int
    ends: Literal["[)", "(]", "[]", "()"] = "[)"

    def admits(self, value: float | int) -> bool:
        left = value >= self.low if self.ends[0] == "[" else value > self.low
        return left and (value <= self.high if self.ends[1] == "]" else value < self.high)

    def __str__(self) -> str:
        return f"in {self.ends[0]}{_plain(self.low)}, {_plain(self.high)}{self.ends[1]}"


@dataclasses.dataclass(frozen=True)
class Formerly:
    """Annotation that lets an option still accept a former name."""

    name: str


def former_names(target: Any) -> dict[str, str]:
    """Map the former option names of a function or dataclass to their present names."""
    if not isinstance(target, type):
        hints = {name: p.annotation for name, p in inspect.signature(target).parameters.items()}
    else:
        hints = typing.get_type_hints(target, include_extras=True)
    return {
        mark.name: name
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Formerly)
    }


def _plain(number: float | int) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


Count = Annotated[int, AtLeast(1)]
OptionalCount = Annotated[int | None, AtLeast(1)]
Whole = Annotated[int, AtLeast(0)]
Rate = Annotated[float, In(0, 1)]
"""Number in [0, 1), such as a dropout rate."""
Share = Annotated[float, In(0, 1, "[]")]


def check_bounds(config: Any, *, prefix: str = "") -> None:
    """Raise InputError if a field violates the bounds or the Literal values of its annotation.

    A bounded number must also be finite, and a whole number if the annotation is an int. Each
    element of a tuple is checked. None is always valid.

    Args:
      config: dataclass instance to check.
      prefix: prefix of the field names in the message, such as "model.".
    """
    for name, rule in _rules_of(type(config)):
        value = getattr(config, name)
        if wrong := rule.refusal(value):
            raise InputError(f"{prefix}{name} must be {wrong}: got {shown(value)}")


@dataclasses.dataclass(frozen=True)
class _Rule:
    """Valid values of an annotation."""

    bounds: tuple[AtLeast | Above | In, ...]
    whole: bool
    single: bool
    words: tuple[Any, ...]
    choices: tuple[Any, ...]

    @classmethod
    def of(cls, *hints: Any) -> "_Rule":
        bounds = tuple(dict.fromkeys(mark for hint in hints for mark in _marks(hint)))
        parts = [*_parts(hints[0])]
        whole = int in parts and float not in parts and bool not in parts
        origins = {typing.get_origin(part) for part in parts}
        single = origins <= {None, Literal, Annotated, typing.Union, types.UnionType}
        words = (typing.get_args(part) for part in parts if typing.get_origin(part) is Literal)
        return cls(bounds, whole, single, tuple(itertools.chain(*words)), _choices_of(hints[0]))

    def refusal(self, value: Any) -> str | None:
        """Return the requirement that a value violates, such as "at least 1", or None."""
        if self.choices and value not in self.choices:
            return f"one of {self.choices}"
        if self.single and self.bounds and isinstance(value, list | tuple):
            return "a whole number" if self.whole else "a number"
        for each in value if isinstance(value, list | tuple) else (value,):
            if each in self.words:
                continue
            if self.whole and self.bounds and isinstance(each, bool | float | str):
                return "a whole number"
            if not isinstance(each, int | float):
                continue
            for bound in self.bounds:
                if not bound.admits(each):
                    return str(bound)
            if self.bounds and isinstance(each, float) and not math.isfinite(each):
                return "finite"
        return None


@functools.cache
def _rules_of(config: type) -> tuple[tuple[str, _Rule], ...]:
    """Return the name and the validation rule of each config field that has a rule.

    Subclasses that redefine a field inherit its rule.
    """
    try:
        hints = [
            typing.get_type_hints(one, include_extras=True)
            for one in config.__mro__
            if dataclasses.is_dataclass(one)
        ]
    except NameError:  # a config of a user, with names that only a type checker reads
        return ()
    found = []
    for name in (field.name for field in dataclasses.fields(config)):
        rule = _Rule.of(*(one[name] for one in hints if name in one))
        if rule.bounds or rule.choices:
            found.append((name, rule))
    return tuple(found)


def bounds_of(config: type) -> dict[str, str]:
    """Return field name -> bounds, such as "at least 1", for the bounded fields of a dataclass."""
    found = {name: rule.bounds for name, rule in _rules_of(config)}
    return {name: " and ".join(map(str, bounds)) for name, bounds in found.items() if bounds}


def refusal(hint: Any, value: Any) -> str | None:
    """Return the requirement that a value violates, such as "at least 1", or None."""
    return _Rule.of(hint).refusal(value)


def _marks(hint: Any) -> Iterable[Any]:
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, AtLeast | Above | In):
            yield mark
    for part in typing.get_args(hint):
        if typing.get_args(part):
            yield from _marks(part)


def _parts(hint: Any) -> Iterable[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)


def _choices_of(hint: Any) -> tuple[Any, ...]:
    """Return the values of a Literal or a Literal | None; () for other annotations."""
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    parts = (
        typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()
    )
    if parts and all(part is type(None) or typing.get_origin(part) is Literal for part in parts):
        nothing = (None,) if type(None) in parts else ()
        return (*(value for part in parts for value in typing.get_args(part)), *nothing)
    return ()


class OptionError(ValueError):
    """Error of an option that is unknown, missing or invalid, with a one-line message."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `name` most likely misspells, or None."""
    close = difflib.get_close_matches(name, list(candidates), n=1)
    return close[0] if close else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return "; did you mean X?" with the candidate closest to a misspelled name, or ""."""
    close = nearest(name, candidates)
    return f"; did you mean {close}?" if close else ""


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def suggesting(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap a function so that its error for an unknown keyword suggests the nearest known keyword.

    >>> load("work/sst2", batchsize=8)
    OptionError: load: unknown keyword batchsize; did you mean batch_size?
    """
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]

    @functools.wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name in kwargs:
            if name not in known:
                near = did_you_mean(name, known) or f"; known keywords are {', '.join(known)}"
                raise OptionError(f"{function.__name__}: unknown keyword {name}{near}")
        return function(*args, **kwargs)

    return checked


def given_options(options: Sequence[str]) -> frozenset[str]:
    """Return the option names in a command line, with dashes instead of underscores."""
    names = (each.partition("=")[0] for each in options if each.startswith("--"))
    return frozenset(name.replace("_", "-") for name in names)


def option_names(config: Any, *, prefix: str = "--") -> list[str]:
    """Return the names of the options that tyro creates for a dataclass."""
    hints = typing.get_type_hints(
        type(config) if is_config(config) else config, include_extras=True
    )
    names = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        name = prefix + field.name.replace("_", "-")
        if is_config(value):
            names += option_names(value, prefix=f"{name}.")
        elif is_configs(hints[field.name]):
            for i, item in enumerate(value or ()):
                names += option_names(item, prefix=f"{name}.{i}.")
        elif not is_positional(hints[field.name]):
            names.append(name)
    return names


def is_config(value: Any) -> bool:
    """Return True if a value is a dataclass instance, not a class."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_configs(hint: Any) -> bool:
    """Return True if an annotation is a tuple of dataclasses."""
    is_tuple = typing.get_origin(hint) is tuple
    return is_tuple and dataclasses.is_dataclass(typing.get_args(hint)[0])


def is_positional(hint: Any) -> bool:
    """Return True if an annotation is `Annotated[..., tyro.conf.Positional]`."""
    import tyro

    return tyro.conf.Positional in getattr(hint, "__metadata__", ())


def parse(
    target: type[Config],
    args: Sequence[str],
    *,
    prog: str,
    default: Config | None = None,
    other_options: Iterable[str] | None = (),
    arrange: Callable[[str], str] = str,
) -> tuple[Config, list[str]]:
    """Parse command-line options into a dataclass; `--help` raises SystemExit(0).

    A boolean option takes a value, such as `--data.pack False`.

    Args:
      target: dataclass to build.
      args: words of the command line.
      prog: name of the command in messages.
      default: default values; if None, the dataclass's own defaults.
      other_options: names of options that are returned unparsed; None returns all unknown options.
      arrange: function that edits the help text before it is printed.
    """
    import tyro

    args = _with_names_of_today(args, former_names(target))
    _refuse_repeated(args, target)
    if other_options is not None:
        known = option_names(target if default is None else default)
        _refuse_unknown(args, known=known, others=other_options, prog=prog)
    told, helped = io.StringIO(), _Help()
    # A field of a config takes True or False; for a command, only its name means True.
    flags = tyro.conf.FlagCreatePairsOff if default is None else tyro.conf.FlagConversionOff
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(helped):
            config, unknown = tyro.cli(
                tyro.conf.AvoidSubcommands[target],
                prog=prog,
                args=list(args),
                default=tyro.MISSING_NONPROP if default is None else default,
                return_unknown_args=True,
                config=(flags,),
            )
    except SystemExit as stop:
        if not stop.code:
            print(arrange(helped.getvalue()), end="")
            raise
        own_check = _option_error(stop)
        raise own_check or OptionError(_one_line(told.getvalue(), prog=prog)) from stop
    if unknown and other_options is not None:
        raise OptionError(f"unexpected argument {unknown[0]!r}; {prog} --help lists the options")
    return config, unknown


class _Help(io.StringIO):
    """Text buffer with the encoding of standard output."""

    @property
    def encoding(self) -> str | None:
        return sys.__stdout__.encoding if sys.__stdout__ else None


def _refuse_unknown(
    args: Sequence[str], *, known: Sequence[str], others: Iterable[str], prog: str
) -> None:
    for arg in args:
        name = arg.partition("=")[0].replace("_", "-")
        if not name.startswith("--") or name == "--help" or name.startswith("--tyro-"):
            continue
        if name in known:
            continue
        candidates = [*known, *others]
        leaves = [full for full in candidates if full.endswith("." + name.removeprefix("--"))]
        near = leaves[0] if leaves else nearest(name, candidates)
        remedy = f"did you mean {near}?" if near else f"{prog} --help lists the options"
        raise OptionError(f"unknown option {arg.partition('=')[0]}; {remedy}")


def _with_names_of_today(args: Sequence[str], renamed: Mapping[str, str]) -> list[str]:
    options = {f"--{old}": f"--{new}" for old, new in renamed.items()}
    parts = [arg.partition("=") for arg in args]
    return [options.get(name, name) + equals + value for name, equals, value in parts]


def _refuse_repeated(args: Sequence[str], target: Any) -> None:
    """Raise OptionError for a repeated option, because tyro would silently use the last value."""
    import tyro

    hints = typing.get_type_hints(target, include_extras=True)
    appended = {
        f"--{name.replace('_', '-')}"
        for name, hint in hints.items()
        if tyro.conf.UseAppendAction in getattr(hint, "__metadata__", ())
    }
    seen: set[str] = set()
    for arg in args:
        name = arg.partition("=")[0].replace("_", "-")
        if not name.startswith("--") or name == "--" or name in appended:
            continue
        if name in seen:
            raise OptionError(
                f"option {name} is given twice; give it once, followed by all of its values"
            )
        seen.add(name)


def _option_error(error: BaseException | None) -> OptionError | None:
    while error is not None and not isinstance(error, OptionError):
        error = error.__cause__ or error.__context__
    return error


def _one_line(box: str, *, prog: str) -> str:
    """Reduce tyro's error box to a one-line message."""
    title, *lines = [_BORDER.sub("", line) for line in _ANSI.sub("", box).splitlines()] or [""]
    message = list(itertools.dropwhile(_RULE.fullmatch, lines))
    message = list(itertools.takewhile(lambda line: not _RULE.fullmatch(line), message))
    if title.strip() == "Required options":
        indented = textwrap.dedent("\n".join(message)).splitlines()
        # The choices of an option may be wrapped: {a,b, at the end of a line and c} below.
        opened = itertools.accumulate(line.count("{") - line.count("}") for line in indented)
        missing = [
            line.split()[0]
            for inside, line in zip([0, *opened], indented, strict=False)
            if re.match(r" {4}\S", line) and not inside
        ]
        return f"missing {', '.join(missing)}; see {prog} --help"
    text = " ".join(" ".join(message).split()).rstrip(".")
    for python, plain in _PLAIN.items():
        text = text.replace(python, plain)
    return text.removeprefix("Error parsing ") or f"wrong usage; see {prog} --help"
