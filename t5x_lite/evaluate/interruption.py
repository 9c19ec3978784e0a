"""Ending an evaluation between two of its batches.

    with stopping_on(lambda: stop.requested(mesh) is not None):
        evaluator.run(params)       # raises Stopped between two batches, once that is true

Evaluators call `between_batches` in their loops. Of several processes all ask equally often, and
must be given the same answer.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

_requested: contextvars.ContextVar[Callable[[], bool] | None] = contextvars.ContextVar(
    "requested", default=None
)


class Stopped(Exception):
    """The evaluation was asked to end, and has no outcome."""


@contextlib.contextmanager
def stopping_on(requested: Callable[[], bool]) -> Iterator[None]:
    """Within the block, evaluators end by `Stopped` when a function says so."""
    token = _requested.set(requested)
    try:
        yield
    finally:
        _requested.reset(token)


def between_batches() -> None:
    """Where an evaluator may be ended.

    Raises:
      Stopped: it is to end.
    """
    requested = _requested.get()
    if requested is not None and requested():
        raise Stopped
