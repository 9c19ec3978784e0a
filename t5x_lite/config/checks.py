"""Checks of config fields, and the parser of `evaluation.per_task`.

A line of `evaluation.per_task` has settings for the tasks that match a name or a pattern:

    parse_line("wmt_*: num_beams=4, length_penalty=0.6")
    # Line(pattern="wmt_*", values={"num_beams": 4, "length_penalty": 0.6})

A line is read by Python's `ast` and never executed. If several lines match a task, later lines
override earlier ones. All other settings are the evaluation's.
"""

import ast
import dataclasses
import fnmatch
import functools
import types
import typing
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import did_you_mean, is_config


def check_given(where: str, config: Any) -> None:
    """Raise InputError if a required config field has the value None, at any depth.

    Args:
      where: dotted name of the config, for the error; "" for the root.
      config: a dataclass, a tuple or a value.
    """
    if is_config(config):
        required = _required(type(config))
        for field in dataclasses.fields(config):
            name = f"{where}.{field.name}" if where else field.name
            value = getattr(config, field.name)
            if value is None and field.name in required:
                raise InputError(f"{name} must have a value, got None")
            check_given(name, value)
    elif isinstance(config, tuple):
        for number, each in enumerate(config):
            check_given(f"{where}.{number}", each)


@functools.cache
def _required(config: type) -> frozenset[str]:
    try:
        hints = typing.get_type_hints(config)
    except NameError:  # a config of a user, with names that only a type checker reads
        return frozenset()
    return frozenset(name for name, hint in hints.items() if not _takes_none(hint))


def _takes_none(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_takes_none(each) for each in typing.get_args(hint))
    return hint in (type(None), Any, object) or isinstance(hint, typing.TypeVar)


def check_numbers(where: str, config: Any) -> None:
    """Raise InputError if an integer in a config is out of range, at any depth.

    Shapes, steps and indices have 32 bits. Seeds and numbers of bytes have 64 bits.

    Args:
      where: dotted name of the config, for the error; "" for the root.
      config: a dataclass, a tuple or a value.
    """
    if is_config(config):
        for field in dataclasses.fields(config):
            name = f"{where}.{field.name}" if where else field.name
            check_numbers(name, getattr(config, field.name))
    elif isinstance(config, tuple):
        for number, each in enumerate(config):
            check_numbers(f"{where}.{number}", each)
    elif isinstance(config, int):
        long = any(word in where.rpartition(".")[2] for word in _LONG)
        bits = 63 if long else 31
        if abs(config) >= 1 << bits:
            raise InputError(f"{where} must be below 2^{bits}, got {shown(config)}")


_LONG = ("seed", "bytes", "tokens")


FIELDS: dict[str, tuple[type, ...]] = {
    "num_beams": (int,),
    "length_penalty": (float, type(None)),
    "max_decode_length": (int,),
    "rank": (bool,),
    "max_examples": (int, type(None)),
    "batch_size": (int, type(None)),
    "inputs_length": (int,),
    "examples_of": (str,),
}
"""Types of the value of each setting in `evaluation.per_task`."""

OF_DATA = ("inputs_length", "examples_of")
"""Settings in `evaluation.per_task` that change the examples, not the evaluation."""

_TYPES = {
    int: "a whole number",
    bool: "True or False",
    float: "a number",
    str: "a string",
    type(None): "None",
}


@dataclasses.dataclass(frozen=True)
class Line:
    """Parsed line of `evaluation.per_task`: settings for the tasks that match a pattern.

    Attributes:
      pattern: task name; * matches any letters, ? one letter.
      values: settings by name.
    """

    pattern: str
    values: Mapping[str, Any]

    def matches(self, names: Sequence[str]) -> bool:
        """Return True if the line's pattern matches one of a task's names."""
        return any(fnmatch.fnmatchcase(name, self.pattern) for name in names)


def parse_line(text: str) -> Line:
    """Parse a line of `evaluation.per_task`: "PATTERN: SETTING=VALUE, SETTING=VALUE".

    Raises:
      InputError: if the syntax is wrong, a setting is unknown, or a value has the wrong type.
    """
    first, equals, rest = text.partition("=")  # values and patterns may contain colons
    pattern, colon, name = first.rpartition(":")
    settings = name + equals + rest
    if not colon or not pattern.strip():
        raise InputError(
            f"evaluation.per_task must be PATTERN: SETTING=VALUE, ..., such as 'wmt_*: "
            f"num_beams=4', got {text!r}"
        )
    where = f"evaluation.per_task {pattern.strip()!r}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarning
            node = ast.parse(f"settings({settings})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if not isinstance(node, ast.Call) or node.args or not node.keywords:
        raise InputError(f"{where}: expected SETTING=VALUE, ..., got {settings.strip()!r}")
    values: dict[str, Any] = {}
    for keyword in node.keywords:
        name, value = _setting(keyword, where=where)
        if name in values:
            raise InputError(f"{where}: {name} is given twice")
        values[name] = value
    if values.get("inputs_length", 1) < 1:
        raise InputError(
            f"{where}: inputs_length must be at least 1, got {values['inputs_length']}"
        )
    return Line(pattern.strip(), values)


def _setting(keyword: ast.keyword, *, where: str) -> tuple[str, Any]:
    """Parse one SETTING=VALUE into its name and value."""
    name = str(keyword.arg)
    if name not in FIELDS:
        raise InputError(
            f"{where} has no setting {name}{did_you_mean(name, FIELDS)}; the settings are "
            f"{', '.join(FIELDS)}"
        )
    try:
        value = ast.literal_eval(keyword.value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        value = ...
    if float in FIELDS[name] and type(value) is int:
        value = float(value)
    if type(value) not in FIELDS[name]:
        wanted = [_TYPES[each] for each in FIELDS[name]]
        raise InputError(
            f"{where}: {name} must be {' or '.join(wanted)}, got {ast.unparse(keyword.value)}"
        )
    return name, value
