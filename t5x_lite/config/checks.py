"""Checks of the fields of a config; an error names the field and the value."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.errors import InputError


def at_least(minimum: int, values: Mapping[str, Any]) -> None:
    """Raises InputError for a value that is not None and is no int of at least the minimum."""
    for name, value in values.items():
        valid = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        if value is not None and not valid:
            raise InputError(f"{name} must be a whole number of at least {minimum}, got {value!r}")


def one_of(choices: Sequence[str], values: Mapping[str, Any]) -> None:
    """Raises InputError for a value that is none of the choices."""
    for name, value in values.items():
        if value not in choices:
            raise InputError(f"{name} must be {' or '.join(choices)}, got {value!r}")
