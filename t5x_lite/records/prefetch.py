"""Elements of an iterator, made ahead of their time in a thread.

    ahead = Prefetch(iter_of_batches, depth=4)
    next(ahead)

What the iterator raises is raised by next() at the element's place.
"""

import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_WAIT_SECONDS = 0.1


class Prefetch(Iterator[T], Generic[T]):
    """An iterator that is `depth` elements ahead; the thread begins with the first next()."""

    def __init__(self, elements: Iterator[T], *, depth: int = 4):
        self._queue: queue.Queue = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=_fill, args=(elements, self._queue, self._closed), daemon=True
        )
        # The thread holds no reference to this object, and ends with it or with the interpreter: a
        # thread that is still in C++ when the interpreter goes would abort the process.
        self._end = weakref.finalize(self, _end, self._closed, self._thread)

    def __next__(self) -> T:
        if self._closed.is_set():
            raise StopIteration
        if self._thread.ident is None:
            self._thread.start()
        element, error = self._queue.get()
        if error is not None:
            self._closed.set()
            raise error
        return element

    def close(self) -> None:
        """Ends the thread, and waits for the element that it is making."""
        self._end()


def _end(closed: threading.Event, thread: threading.Thread) -> None:
    closed.set()
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join()


def _fill(elements: Iterator[Any], ahead: queue.Queue, closed: threading.Event) -> None:
    while not closed.is_set():
        try:
            item = next(elements), None
        except BaseException as error:  # it is raised where the element is asked for
            item = None, error
        while not closed.is_set():
            try:
                ahead.put(item, timeout=_WAIT_SECONDS)
                break
            except queue.Full:
                continue
        if item[1] is not None:
            return
