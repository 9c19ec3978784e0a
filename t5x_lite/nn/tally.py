"""Numbers that a layer says on the side, added up over the layers that say them.

    with collecting() as found:
        model(...)                      # whose routers call add("router/r", x)
    found                               # {"router/r": the sum of x over all layers and calls}

`scan_layers` carries them out of its loop. Where nothing collects, they are dropped. It is for
traced programs: what is collected are arrays of the program that is being traced.
"""

import contextlib
import contextvars
from collections.abc import Iterator

from t5x_lite.types import Array

_OPEN: contextvars.ContextVar[dict[str, Array] | None] = contextvars.ContextVar("tally")


@contextlib.contextmanager
def collecting() -> Iterator[dict[str, Array]]:
    """What is said inside of it, by name; what collects around it gets nothing of that."""
    found: dict[str, Array] = {}
    before = _OPEN.set(found)
    try:
        yield found
    finally:
        _OPEN.reset(before)


def is_collected() -> bool:
    """Whether something collects."""
    return _OPEN.get(None) is not None


def add(name: str, value: Array) -> None:
    """Adds an array to those of its name.

    Args:
      name: of the sum.
      value: of the same shape at every call.
    """
    found = _OPEN.get(None)
    if found is not None:
        found[name] = found[name] + value if name in found else value
