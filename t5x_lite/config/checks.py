"""Checks of the fields of a config; an error names the field and the value."""

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.errors import InputError, shown
from t5x_lite.options import is_config


def at_least(minimum: int, values: Mapping[str, Any]) -> None:
    """Raises InputError for a value that is not None and is no int of at least the minimum."""
    for name, value in values.items():
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        if value is not None and not valid:
            raise InputError(
                f"{name} must be a whole number of at least {minimum}, got {shown(value)}"
            )


def check_given(where: str, config: Any) -> None:
    """Raise InputError for None in a field of a config, at any depth, that must have a value.

    Args:
      where: the dotted name of the config, for the error; "" is the whole.
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
    """Names of the fields with an annotation that excludes None."""
    try:
        hints = typing.get_type_hints(config)
    except NameError:  # a config of a user, with names that only a type checker reads
        return frozenset()
    return frozenset(name for name, hint in hints.items() if not _takes_none(hint))


def _takes_none(hint: Any) -> bool:
    """Whether an annotation admits None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_takes_none(each) for each in typing.get_args(hint))
    return hint in (type(None), Any, object) or isinstance(hint, typing.TypeVar)


def check_numbers(where: str, config: Any) -> None:
    """Raise InputError for a whole number of a config, at any depth, that is out of range.

    Shapes, steps and indices have 32 bits. Seeds and numbers of bytes have 64 bits.

    Args:
      where: the dotted name of the config, for the error; "" is the whole.
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


def one_of(choices: Sequence[str], values: Mapping[str, Any]) -> None:
    """Raises InputError for a value that is none of the choices."""
    for name, value in values.items():
        if value not in choices:
            raise InputError(f"{name} must be {' or '.join(choices)}, got {value!r}")
