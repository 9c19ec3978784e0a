"""Work next to the main thread, in processes and threads, and the display of its progress.

Progress of long work: a progress bar on terminals, and regular log lines elsewhere.

    with counting("embedding", unit="texts", total=1000) as advance:
        for chunk in chunks:
            advance(len(chunk))

    with waiting("training a vocabulary"):
        train()

A terminal shows a bar with count, rate and, if the total is known, the remaining time. Elsewhere a
line is logged every 15 seconds, even if the count has not changed: "embedding: 12,345 of 50,000
texts, 410 texts/s, ETA 0:01:32". A terminal has one bar; a nested `counting` shows nothing there.

Code deep inside the work reports progress by `step`, without a reference to the bar. Training
(`train.track`) and the stages of C4 (`c4.local`) have their own bars.

`print_result` prints the result of a command: a table on a terminal, JSON in a pipe.

Worker processes, and an iterator that reads ahead in a thread.

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
import contextvars
import datetime
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Generic, TypeVar

from t5x_lite.core.project import safe_path

_logger = logging.getLogger(__name__)


Advance = Callable[[int], None]
"""Function that is called with the number of newly finished items."""

SECONDS_BETWEEN_LINES = 15.0
_SILENT_SECONDS = 25.0
"""Maximum time in seconds that a command stays silent."""

_package_logger = logging.getLogger("t5x_lite")


def on_terminal() -> bool:
    """Return True if standard error is a terminal that can show a progress bar."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


Row = Mapping[str, Any]
"""Row of a table: column name -> cell; missing columns are shown as empty cells."""


def print_result(result: Any, rows: Iterable[Row], *, indent: int | None = 1) -> None:
    """Print a result to standard output: a table on a terminal, JSON elsewhere.

    run    mrr@10  ndcg@10
    bm25   0.1840   0.2284
    """
    if sys.stdout.isatty():
        print(as_table(rows))
        return
    for one in result if isinstance(result, list) else [result]:
        print(json.dumps(one, indent=None if isinstance(result, list) else indent))


def as_table(rows: Iterable[Row]) -> str:
    """Format rows as a text table: first column left-aligned, numbers with four decimals."""
    rows = list(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns, *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_shown: contextvars.ContextVar[Advance | None] = contextvars.ContextVar("shown", default=None)
"""Progress display that `step` advances: the innermost active `counting(steps=True)`."""
_has_bar = threading.Lock()
"""Lock that is held while the terminal shows a progress bar."""


@contextlib.contextmanager
def counting(
    description: str, *, unit: str, total: int | None = None, done: int = 0, steps: bool = False
) -> Iterator[Advance]:
    """Show the number of finished items while the `with` block runs.

    Args:
      description: description of the work.
      unit: unit of the count, such as "texts".
      total: total number of items; None if unknown.
      done: number of items that an earlier process finished.
      steps: True to also count calls of `step` within the `with` block.
    """
    with _displayed(description, unit=unit, total=total, done=done) as advance:
        token = _shown.set(advance) if steps else None
        try:
            yield advance
        finally:
            if token is not None:
                _shown.reset(token)


@contextlib.contextmanager
def waiting(description: str) -> Iterator[None]:
    """Show the elapsed time while the `with` block runs, for work without countable items."""
    with _displayed(description, unit="", total=None):
        yield


@contextlib.contextmanager
def never_silent(description: str, *, seconds: float = _SILENT_SECONDS) -> Iterator[None]:
    """Log the elapsed time of the `with` block whenever nothing was shown for `seconds`."""
    ended, start = threading.Event(), time.monotonic()
    told()

    def tell() -> None:
        while not ended.wait(max(0.01, _told_at[0] + seconds - time.monotonic())):
            if time.monotonic() - _told_at[0] >= seconds and not _has_bar.locked():
                _logger.info(
                    "%s: running for %s so far", description, _time(time.monotonic() - start)
                )
                told()
            elif _has_bar.locked():
                told()

    thread = threading.Thread(target=tell, daemon=True, name="progress")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # no line comes after the block


def take_bar() -> bool:
    """Reserve the terminal's progress bar for the caller; return False if another bar is shown."""
    return _has_bar.acquire(blocking=False)


def release_bar() -> None:
    """Release the terminal's progress bar after `take_bar`."""
    _has_bar.release()


_told_at = [0.0]


def told() -> None:
    """Record that the user was just shown output, so `never_silent` waits longer."""
    _told_at[0] = time.monotonic()


def step(number: int) -> None:
    """Count `number` finished items in the innermost active `counting(steps=True)`, if any."""
    advance = _shown.get()
    if advance is not None:
        advance(number)


@contextlib.contextmanager
def _displayed(
    description: str, *, unit: str, total: int | None, done: int = 0
) -> Iterator[Advance]:
    if not on_terminal():
        lines = Lines(description, unit=unit, total=total, done=done)
        with lines.regularly():
            yield lines
    elif _has_bar.acquire(blocking=False):
        try:
            with _bar(description, unit=unit, total=total, done=done) as advance:
                yield advance
        finally:
            _has_bar.release()
    else:
        yield lambda more: None


class Lines:
    """Logger of a progress line every 15 seconds.

    Args:
      description: description of the work.
      unit: unit of the count; if "", lines only show the elapsed time.
      total: total number of items; None if unknown.
      done: number of items that an earlier process finished.
      clock: function that returns the time in seconds.
    """

    def __init__(
        self,
        description: str,
        *,
        unit: str,
        total: int | None = None,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._description, self._unit, self._total = description, unit, total
        self._done, self._before, self._clock = done, done, clock
        self._start = clock()

    def __call__(self, more: int) -> None:
        self._done += more

    def line(self) -> str:
        """Return the progress line, such as "embedding: 12 of 50 texts, 4 texts/s, ETA 0:00:10"."""
        seconds = self._clock() - self._start
        if not self._unit:
            return f"{self._description}: {_time(seconds)} so far"
        total = "" if self._total is None else f" of {self._total:,}"
        parts = [f"{self._description}: {self._done:,}{total} {self._unit}"]
        rate = (self._done - self._before) / max(seconds, 1e-9)
        if rate:
            parts.append(f"{_rate(rate)} {self._unit}/s")
        if rate and self._total is not None:
            parts.append(f"ETA {_time(max(0, self._total - self._done) / rate)}")
        return ", ".join(parts)

    @contextlib.contextmanager
    def regularly(self, seconds: float = SECONDS_BETWEEN_LINES) -> Iterator[None]:
        """Log the progress line at regular intervals while the `with` block runs."""
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(seconds):
                _logger.info("%s", self.line())

        thread = threading.Thread(target=tell, daemon=True, name="progress")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()  # no line comes after the block


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _time(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


@contextlib.contextmanager
def above_a_bar() -> Iterator[None]:
    """Print log messages above rich's progress bar within the `with` block."""
    moved: list[tuple[logging.StreamHandler[Any], Any]] = []
    for handler in (*_package_logger.handlers, *logging.getLogger().handlers):
        stream = getattr(handler, "stream", None)
        if isinstance(handler, logging.StreamHandler) and stream is sys.__stderr__:
            # rich has put a stream that prints above the bar at sys.stderr.
            moved.append((handler, handler.setStream(sys.stderr)))
    try:
        yield
    finally:
        for handler, stream in moved:
            if stream is not None:
                handler.setStream(stream)


@contextlib.contextmanager
def _bar(description: str, *, unit: str, total: int | None, done: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[Any] = [TextColumn("{task.description}", markup=False)]
    if unit:
        columns += [BarColumn(), TextColumn("{task.fields[count]}", markup=False)]
        columns += [TextColumn("{task.fields[rate]}", markup=False)]
    else:
        columns.append(SpinnerColumn())
    columns.append(TimeElapsedColumn())
    if total is not None:
        columns += [TaskProgressColumn(), TextColumn("ETA"), TimeRemainingColumn()]
    console, start, before = Console(stderr=True, highlight=False), time.monotonic(), done

    def fields() -> dict[str, Any]:
        of = "" if total is None else f"/{total:,}"
        rate = (done - before) / max(time.monotonic() - start, 1e-9)
        return {"count": f"{done:,}{of} {unit}", "rate": f"{_rate(rate)}/s" if rate else ""}

    with Progress(*columns, console=console) as shown, above_a_bar():
        task = shown.add_task(description, total=total, completed=done, **fields())

        def advance(more: int) -> None:
            nonlocal done
            done += more
            shown.update(task, completed=done, **fields())

        yield advance


_SECONDS = 5.0


class WorkerContext(SpawnContext):
    """Multiprocessing context that spawns workers, and reports how a worker ended."""

    def __init__(self) -> None:
        super().__init__()
        self._started: list[SpawnProcess] = []
        _start_tracker()

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
        """Describe how a worker process ended, such as "a worker was killed by SIGKILL"."""
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


def _start_tracker() -> None:
    """Start the process that unlinks the semaphores of a killed parent; no signal ends it."""
    ignored = "ignore:resource_tracker"  # the process gets it; it warns of what it unlinks
    sys.warnoptions.append(ignored)
    try:
        with safe_path(), _blocked(signal.SIGHUP):  # it ignores SIGINT and SIGTERM itself
            resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(ignored)


class _Worker(SpawnProcess):
    """Spawned process that does not import the main module of its parent."""

    def start(self) -> None:
        with without_main_module(), safe_path(), _blocked(signal.SIGINT):
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
def _blocked(signum: signal.Signals) -> Iterator[None]:
    """Block a signal, so that processes started in the `with` block ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signum})
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
        """End the background thread after the element that it is computing."""
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
