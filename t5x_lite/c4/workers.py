"""A pool of processes that does tasks in any order, and leaves none behind.

    for result in run_tasks(function, tasks, workers=8): ...

A worker ends when this process does, however that ends, and a worker that is killed (out of memory)
is an error instead of a wait without end. A plain script and a notebook may call this.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from t5x_lite.records.worker_processes import WorkerContext

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int
) -> Iterator[Result]:
    """Calls a function for each task.

    Args:
      function: of a module's top level, or a `functools.partial` of one.
      tasks: to be pickled; begun in this order.
      workers: processes; 1 calls the function here.

    Yields:
      Results, as they come.

    Raises:
      RuntimeError: a worker was killed, or did not begin.
      Exception: whatever the function raised first; what is not begun then is left.
    """
    if workers == 1:
        yield from map(function, tasks)
        return
    context = WorkerContext()
    pipe: Any = context.Pipe(duplex=False)
    theirs, ours = pipe
    pool = ProcessPoolExecutor(
        min(workers, max(1, len(tasks))), mp_context=context, initializer=_begin, initargs=(theirs,)
    )
    try:
        waiting = {pool.submit(function, task) for task in tasks}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise RuntimeError(
            f"{context.why_broken()}; start the same again, with fewer workers if memory is short: "
            "what is finished stays"
        ) from error
    finally:
        ours.close()  # ends the workers that are still at a task
        pool.shutdown(wait=False, cancel_futures=True)
        theirs.close()


def _begin(parent: Any) -> None:
    """Makes a worker end with the process that started it, and leave interrupts to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    try:
        parent.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
