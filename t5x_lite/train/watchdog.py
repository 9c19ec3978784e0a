"""Ends a run whose steps have stopped: a chip that hangs, a collective that waits for ever.

    with Watchdog(spent, seconds=600, directory=workdir) as watchdog:
        for step in ...:
            state, metrics = train_step(state, batch)
            watchdog.finished(step)

The stacks of all threads go to standard error and to stacks/process_0.txt of the directory, and the
process ends at once with code 1, so that what started it can start it again: it goes on from its
last checkpoint. Unwinding would wait for what hangs.
"""

import contextlib
import faulthandler
import os
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from t5x_lite.train.goodput import Goodput

_TIMES = 20
"""Of the usual step, that it may take."""
_WINDOW = 101
"""Steps that the usual one is the median of."""
_LATER = 60.0
"""Seconds after which a process ends, too, in which no thread of Python's can run any more."""


class Watchdog:
    """Looks at the steps from a thread of its own; a context manager."""

    def __init__(
        self,
        spent: Goodput,
        *,
        seconds: float,
        directory: str | os.PathLike,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watches nothing yet.

        Args:
          spent: says whether steps are being taken; compilation, evaluations and saving are not.
          seconds: without a finished step, after which the run is ended; twenty times the usual
            step where that is longer. 0 watches nothing.
          directory: on this machine, for the stacks.
          clock: gives seconds.
        """
        self._spent = spent
        self._seconds = seconds
        self._directory = Path(directory)
        self._clock = clock
        self._took: deque[float] = deque(maxlen=_WINDOW)
        self._step = 0
        self._finished = 0.0
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> "Watchdog":
        self._finished = self._clock()
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._left.set()
        if self._seconds:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def finished(self, step: int) -> None:
        """A step was dispatched, and those that it does not wait for have ended."""
        now = self._clock()
        self._took.append(now - self._finished)  # the first with its compilation
        self._step, self._finished = step, now

    @property
    def limit(self) -> float:
        """Seconds that a step may take."""
        took = tuple(self._took)  # at once: the steps go on meanwhile
        usual = statistics.median(took) if took else 0.0
        return max(self._seconds, _TIMES * usual)

    def _watch(self) -> None:
        since = self._clock()
        while not self._left.wait(min(1.0, self._seconds / 10)):
            now = self._clock()
            if not self._spent.is_stepping:
                faulthandler.cancel_dump_traceback_later()
                since = now
                continue
            since = max(since, self._finished)
            # Where this thread cannot run, a thread of C ends the process, a little later.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                faulthandler.dump_traceback_later(self.limit + _LATER, exit=True, file=_stderr())
            if now - since > self.limit:
                self._end(now - since)

    def _end(self, seconds: float) -> None:
        """Says what hangs, and leaves."""
        path = self._directory / "stacks" / f"process_{jax.process_index()}.txt"
        with contextlib.suppress(OSError, ValueError, AttributeError):
            faulthandler.dump_traceback(file=_stderr())
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                faulthandler.dump_traceback(file=file)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            print(
                f"error: process {jax.process_index()} of {jax.process_count()}: no step has ended "
                f"for {seconds:.0f} s, after step {self._step} (--hosts.watchdog): see the stacks "
                f"of its threads above and in {path}; the same command resumes from the last "
                "checkpoint",
                file=sys.stderr,
                flush=True,
            )
        os._exit(1)


def _stderr() -> Any:
    """A standard error that is a file, whatever has been put in its place."""
    return sys.__stderr__
