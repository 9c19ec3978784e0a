"""Iterators of tf.data that are closed before the interpreter ends.

    examples = closed_at_exit(read(dataset))       # a generator, or any object with close()

Where an iterator is let go of, tf.data waits for its threads; one of them may run NumPy code, and
waits for the interpreter. In a program that keeps an iterator in a global variable, the interpreter
would be ending by then, and neither would go on: a script or a notebook that never ends.
"""

import atexit
import contextlib
import weakref
from typing import Protocol, TypeVar, runtime_checkable

from t5x_lite.buckets import asking


@runtime_checkable
class _Closes(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T", bound=_Closes)
_open: "weakref.WeakSet[_Closes]" = weakref.WeakSet()


def closed_at_exit(iterator: _T) -> _T:
    """The same iterator; if it is still there at the end of the program, it is closed."""
    _open.add(iterator)
    return iterator


@atexit.register
def _close() -> None:
    asking.stop()  # a thread that waits for a bucket would be waited for
    for iterator in list(_open):
        with contextlib.suppress(ValueError):  # a generator that runs at this moment, in a thread
            iterator.close()
