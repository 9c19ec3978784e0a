"""Command-line options of a frozen dataclass, parsed by tyro, with errors of one line.

tyro turns the fields of a (nested) dataclass into options and prints errors in a box.
Here an unknown option is rejected first, with the nearest known name, and tyro's box is reduced to
its message:

    >>> parse(Experiment, ["--model.d-modle", "64"], prog="t5x-lite train", default=experiment)
    OptionError: unknown option --model.d-modle; did you mean --model.d-model?

Bounds of a value are given once, in the annotation, for options and for the fields of configs:

    @dataclass(frozen=True)
    class Lora(Adapter):
        rank: Annotated[int, AtLeast(1)] = 8        # Count

    Lora(rank=0)        # InputError: rank must be at least 1: got 0

Nothing here imports JAX: `t5x-lite --help` only needs this module.
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
"""Python's words of a value that an option does not take, and ours."""


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """The smallest value of a number."""

    minimum: float | int

    def admits(self, value: float | int) -> bool:
        """Return True if a value is within it; NaN is not."""
        return value >= self.minimum

    def __str__(self) -> str:
        return f"at least {_plain(self.minimum)}"


@dataclasses.dataclass(frozen=True)
class Above:
    """A limit that a number is above."""

    limit: float | int

    def admits(self, value: float | int) -> bool:
        """Return True if a value is within it; NaN is not."""
        return value > self.limit

    def __str__(self) -> str:
        return f"above {_plain(self.limit)}"


@dataclasses.dataclass(frozen=True)
class In:
    """An interval; a square bracket in `ends` includes that end."""

    low: float | int
    high: float | int
    ends: Literal["[)", "(]", "[]", "()"] = "[)"

    def admits(self, value: float | int) -> bool:
        """Return True if a value is within it; NaN is not."""
        left = value >= self.low if self.ends[0] == "[" else value > self.low
        return left and (value <= self.high if self.ends[1] == "]" else value < self.high)

    def __str__(self) -> str:
        return f"in {self.ends[0]}{_plain(self.low)}, {_plain(self.high)}{self.ends[1]}"


@dataclasses.dataclass(frozen=True)
class Formerly:
    """The earlier name of an option, which is still accepted."""

    name: str


def former_names(target: Any) -> dict[str, str]:
    """Return earlier name -> name, of the parameters of a function or the fields of a dataclass."""
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
"""In [0, 1), such as a dropout rate."""
Share = Annotated[float, In(0, 1, "[]")]


def check_bounds(config: Any, *, prefix: str = "") -> None:
    """Raise InputError for a field outside of the bounds of its annotation.

    A number with a bound is finite, and whole where the annotation is an int. A field that is a
    Literal must be one of its values. None and words of a Literal are within all bounds; each
    entry of a tuple is checked.

    Args:
      config: a dataclass.
      prefix: prefix of the field's name, such as "model.".
    """
    for name, rule in _rules_of(type(config)):
        value = getattr(config, name)
        if wrong := rule.refusal(value):
            raise InputError(f"{prefix}{name} must be {wrong}: got {shown(value)}")


@dataclasses.dataclass(frozen=True)
class _Rule:
    """The bounds that an annotation sets for a value.

    Attributes:
      bounds: the bounds of numbers.
      whole: True if the numbers are int.
      words: values of a Literal, with or without numbers.
      choices: valid values; () if the annotation is not a Literal.
    """

    bounds: tuple[AtLeast | Above | In, ...]
    whole: bool
    words: tuple[Any, ...]
    choices: tuple[Any, ...]

    @classmethod
    def of(cls, *hints: Any) -> "_Rule":
        bounds = tuple(dict.fromkeys(mark for hint in hints for mark in _marks(hint)))
        parts = [*_parts(hints[0])]
        whole = int in parts and float not in parts and bool not in parts
        words = (typing.get_args(part) for part in parts if typing.get_origin(part) is Literal)
        return cls(bounds, whole, tuple(itertools.chain(*words)), _choices_of(hints[0]))

    def refusal(self, value: Any) -> str | None:
        """Return the violated requirement of a value, or None."""
        if self.choices and value not in self.choices:
            return f"one of {self.choices}"
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
    """Return the name and the rule of each field that has one.

    The bounds of a base's field hold where a subclass gives it another default.
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
    """Return the bounds of the fields of a dataclass that have some, such as "at least 1"."""
    found = {name: rule.bounds for name, rule in _rules_of(config)}
    return {name: " and ".join(map(str, bounds)) for name, bounds in found.items() if bounds}


def refusal(hint: Any, value: Any) -> str | None:
    """Return the violated requirement, such as "at least 1", or None."""
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
    """Return the values of a Literal, or of Literal | None; () of another annotation."""
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
    """An option that is unknown, missing or has an invalid value; the message is one line."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `name` is most likely a misspelling of, or None."""
    close = difflib.get_close_matches(name, list(candidates), n=1)
    return close[0] if close else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return "; did you mean X?" with the nearest candidate, or "" where none is near."""
    close = nearest(name, candidates)
    return f"; did you mean {close}?" if close else ""


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def suggesting(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function reject an unknown keyword with its nearest known one, as the command line.

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
                near = did_you_mean(name, known) or f"; there are {', '.join(known)}"
                raise OptionError(f"{function.__name__}: unknown keyword {name}{near}")
        return function(*args, **kwargs)

    return checked


def given_options(options: Sequence[str]) -> frozenset[str]:
    """Return the names of the options in a command line, spelled with dashes."""
    names = (each.partition("=")[0] for each in options if each.startswith("--"))
    return frozenset(name.replace("_", "-") for name in names)


def option_names(config: Any, *, prefix: str = "--") -> list[str]:
    """List the options that tyro makes of a dataclass."""
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
    """Return True if a value is an instance of a dataclass (and not the class)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def is_configs(hint: Any) -> bool:
    """Return True if an annotation is a tuple of dataclasses; its elements have options."""
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
    """Build a dataclass from options; `--help` prints them and leaves by SystemExit(0).

    A boolean takes a value like everything else: `--data.pack False`. `arrange` gets the help that
    tyro writes, and returns the one to print.
    """
    import tyro

    args = _with_names_of_today(args, former_names(target))
    _refuse_repeated(args)
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
    """A buffer with the encoding of standard output, by which tyro chooses its lines."""

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


def _refuse_repeated(args: Sequence[str]) -> None:
    """Raise OptionError for the first option that comes twice; tyro would take the last."""
    seen: set[str] = set()
    for arg in args:
        name = arg.partition("=")[0].replace("_", "-")
        if not name.startswith("--") or name == "--":
            continue
        if name in seen:
            raise OptionError(
                f"{name} is given twice; give it once, with several values after it if it takes "
                "them"
            )
        seen.add(name)


def _option_error(error: BaseException | None) -> OptionError | None:
    """Return the OptionError of a dataclass's own __post_init__ that tyro gave up for, if any."""
    while error is not None and not isinstance(error, OptionError):
        error = error.__cause__ or error.__context__
    return error


def _one_line(box: str, *, prog: str) -> str:
    """Reduce the box that tyro drew, or printed without lines to a plain terminal."""
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
