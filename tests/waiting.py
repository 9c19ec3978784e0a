"""Waits for another thread or process: a condition with a deadline, never a fixed sleep."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE = 120.0
"""Seconds after which a test fails. A loaded machine may take long; a passing test never waits."""


def wait_until(
    condition: Callable[[], Value], *, seconds: float = PATIENCE, why: Callable[[], str] = str
) -> Value:
    """Returns the value of a condition once it is true; fails with `why()` after the deadline."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, why()
        time.sleep(0.01)
    return value
