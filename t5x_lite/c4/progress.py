"""What a person sees while C4 is made: bars on a terminal, otherwise a plain line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from t5x_lite.progress import above_a_bar, on_terminal, told

Progress = Callable[[str, int, int], None]
"""Called with a stage, how many of its tasks are done, and how many there are."""

SECONDS_BETWEEN_LINES = 10.0
_WORDS = {
    "read": "reading files",
    "clean": "cleaning pages",
    "duplicates": "finding duplicates",
    "filter": "filtering pages",
    "write": "writing shards",
}


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Bars on standard error where that is a terminal, else lines."""
    if on_terminal():
        with _bars() as progress:
            yield progress
    else:
        yield Lines()


class Lines:
    """A line when a stage begins and ends, and every ten seconds between."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._shown = -SECONDS_BETWEEN_LINES

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = self._clock()
        if 0 < done < total and now - self._shown < SECONDS_BETWEEN_LINES:
            return
        self._shown = now
        print(f"{_WORDS.get(stage, stage)}  {done}/{total}", file=sys.stderr, flush=True)
        told()


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, console=console) as shown, above_a_bar():
        tasks = {}

        def progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(_WORDS.get(stage, stage), total=total)
            shown.update(tasks[stage], completed=done, total=total)

        yield progress
