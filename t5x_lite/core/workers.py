"""Worker processes, and an iterator that reads ahead in a thread.

`WorkerContext` starts processes for `concurrent.futures` in plain scripts and in notebooks:

    with ProcessPoolExecutor(8, mp_context=WorkerContext()) as pool: ...

Processes are spawned, because the threads of TensorFlow and JAX do not survive a fork. Two effects
of spawning are disabled. A worker does not run the main script again, which would start the pool
again without `if __name__ == "__main__"`. A worker also does not search the current directory for
modules.

`Prefetch` computes elements of an iterator ahead of time in a thread:

    ahead = Prefetch(iter_of_batches, depth=4)
    next(ahead)

An error of the iterator is raised by next() at the element's position.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Generic, TypeVar

from t5x_lite.core.project import safe_path

_SECONDS = 5.0


class WorkerContext(SpawnContext):
    """Multiprocessing context that spawns workers, and reports how a worker ended."""

    def __init__(self) -> None:
        super().__init__()
        self._started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:
        """Create a process that does not run the main script."""
        process = _Worker(*args, **kwargs)
        self._started.append(process)
        return process

    def kill(self) -> None:
        """Kill all workers."""
        for process in self._started:
            if process.is_alive():
                process.kill()

    def why_broken(self) -> str:
        """Return how a worker ended and broke a pool, such as "a worker was killed by SIGKILL"."""
        started = [process for process in self._started if process.pid is not None]
        until = time.monotonic() + _SECONDS
        # The pool's own thread waits for them too: what it has seen first, `join` here would miss.
        while any(process.exitcode is None for process in started) and time.monotonic() < until:
            time.sleep(0.01)
        codes = [process.exitcode for process in started if process.exitcode]
        # The pool ends the other workers by SIGTERM.
        codes.sort(key=lambda code: code == -signal.SIGTERM)
        if not codes:
            return "a worker ended unexpectedly"
        if codes[0] > 0:
            return f"a worker ended with exit code {codes[0]}; its own message is above"
        why = ", perhaps for its memory" if codes[0] == -signal.SIGKILL else ""
        return f"a worker was killed by {signal.Signals(-codes[0]).name}{why}"


class _Worker(SpawnProcess):
    """Spawned process that does not import the main module of its parent."""

    def start(self) -> None:
        with without_main_module(), safe_path(), _without_interrupts():
            super().start()


def end_with_parent() -> None:
    """End this worker process as soon as its parent process has ended."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT, so that processes started in the `with` block ignore Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Hide the main module from multiprocessing, so that workers do not run it."""
    main = vars(sys.modules["__main__"])
    hidden = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    main.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        main.update(hidden)


T = TypeVar("T")

_WAIT_SECONDS = 0.1


class Prefetch(Iterator[T], Generic[T]):
    """Iterator that computes `depth` elements ahead in a thread, from the first next() on."""

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
        """End the thread, after the element that it currently computes."""
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
