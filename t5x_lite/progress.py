"""Progress of work that counts: a bar on terminals, a log line now and then elsewhere.

    with counting("embedding", unit="texts", total=1000) as advance:
        for chunk in chunks:
            advance(len(chunk))

A terminal shows count, rate and, with a total, the time left; other text scrolls above. Elsewhere
there is a line every half minute, "embedding: 12,345 texts (410/s)". Training has a bar of its own
(`train.display`), and C4 one for each stage (`c4.progress`).

`print_result` prints what a command measured: a table on a terminal, JSON in a pipe.
"""

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Advance = Callable[[int], None]
"""Called with how many more are done."""

SECONDS_BETWEEN_LINES = 30.0

_package_logger = logging.getLogger("t5x_lite")
_logger = logging.getLogger(__name__)


def on_terminal() -> bool:
    """Whether standard error is a terminal that shows bars."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


Row = Mapping[str, Any]
"""Cells by column; a column that a row lacks is empty."""


def print_result(result: Any, rows: Iterable[Row], *, indent: int | None = 1) -> None:
    """Print a result to standard output: a table on a terminal, JSON elsewhere.

        run    mrr@10  ndcg@10
        bm25   0.1840   0.2284

    Args:
      result: the JSON; of a list, each entry has a line.
      rows: the table.
      indent: of the JSON; None is one line.
    """
    if sys.stdout.isatty():
        print(as_table(rows))
        return
    for one in result if isinstance(result, list) else [result]:
        print(json.dumps(one, indent=None if isinstance(result, list) else indent))


def as_table(rows: Iterable[Row]) -> str:
    """Return a table of text: the first column to the left, numbers with four decimals."""
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


@contextlib.contextmanager
def counting(description: str, *, unit: str, total: int | None = None) -> Iterator[Advance]:
    """Shows how much is done while the block runs.

    Args:
      description: of the work, in one or two words.
      unit: of what is counted.
      total: how many there are; None where that is unknown.
    """
    if on_terminal():
        with _bar(description, unit=unit, total=total) as advance:
            yield advance
    else:
        yield Lines(description, unit=unit, total=total)


class Lines:
    """A log line every half minute.

    Args:
      description: of the work.
      unit: of what is counted.
      total: how many there are; None where that is unknown.
      clock: gives seconds.
    """

    def __init__(
        self,
        description: str,
        *,
        unit: str,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._words = f"{description}: %s {unit} (%.3g/s)"
        self._total, self._clock = total, clock
        self._done, self._start = 0, clock()
        self._due = self._start + SECONDS_BETWEEN_LINES

    def __call__(self, more: int) -> None:
        self._done += more
        now = self._clock()
        if now < self._due:
            return
        self._due = now + SECONDS_BETWEEN_LINES
        number = f"{self._done:,}" + ("" if self._total is None else f" of {self._total:,}")
        _logger.info(self._words, number, self._done / (now - self._start))


@contextlib.contextmanager
def above_a_bar() -> Iterator[None]:
    """Leads the package's messages around a bar of rich, which stands at the foot meanwhile."""
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
def _bar(description: str, *, unit: str, total: int | None) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[Any] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f} {task.fields[unit]}", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
    ]
    if total is not None:
        columns += [TaskProgressColumn(), TextColumn("ETA"), TimeRemainingColumn()]
    console, start = Console(stderr=True, highlight=False), time.monotonic()
    done = 0
    with Progress(*columns, console=console) as shown, above_a_bar():
        task = shown.add_task(description, total=total, unit=unit, rate="")

        def advance(more: int) -> None:
            nonlocal done
            done += more
            rate = done / max(time.monotonic() - start, 1e-9)
            shown.update(task, completed=done, rate=f"{rate:,.3g}/s")

        yield advance
