"""What a person sees of a run: a progress bar on a terminal, otherwise one plain line a record."""

import datetime
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.progress import release_bar, take_bar, told
from t5x_lite.train import goodput

_package_logger = logging.getLogger("t5x_lite")

_NOT_SHOWN = (
    *("steps_per_second", "gradient_norm", "num_parameters", "epoch"),
    *("slowest_host", "slowest_host_seconds", *goodput.FIELDS),
)
_SHOWN_LAST = ("learning_rate", "tokens_per_second", "mfu", "data_wait")
_BAR_WIDTH = 8
_ETA_WIDTH = len("ETA 0:00:00")
_LONG_WAIT = 0.1
"""The share of the time waited for data from which on it is shown."""


class Lines:
    """What a person sees of the run: one plain line a record on standard error."""

    def __init__(self, total_steps: int):
        self._total_steps = total_steps

    def training(self, step: int, metrics: Mapping[str, float], seconds_left: float | None) -> None:
        self.show(line(step, self._total_steps, metrics, seconds_left))

    def show(self, text: str) -> None:
        told()
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bar(Lines):
    """A progress bar that stays at the foot of the terminal; other text scrolls above it."""

    def __init__(self, total_steps: int):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        super().__init__(total_steps)
        self._count_width = len(f"step {total_steps}/{total_steps}")
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn(
                "step {task.completed:.0f}/{task.total:.0f}",
                table_column=Column(no_wrap=True, min_width=self._count_width),
            ),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=_BAR_WIDTH)),
            TextColumn(
                "{task.fields[metrics]}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis"),
            ),
            TextColumn(
                "{task.fields[eta]}", table_column=Column(no_wrap=True, min_width=_ETA_WIDTH)
            ),
            console=self._console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=total_steps, metrics="", eta="")
        self._has_bar = take_bar()
        self._progress.start()

    def training(self, step: int, metrics: Mapping[str, float], seconds_left: float | None) -> None:
        eta = "" if seconds_left is None else _eta(seconds_left)
        around = self._count_width + _BAR_WIDTH + max(_ETA_WIDTH, len(eta)) + 3  # and three gaps
        text = _fitting(_parts(metrics, None), self._console.width - around)
        self._progress.update(self._task, completed=step, metrics=text, eta=eta, refresh=True)

    def show(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._progress.stop()
        if self._has_bar:
            self._has_bar = False
            release_bar()


class Messages(logging.Handler):
    """Shows the package's log records beside the metrics, while a tracker is open.

    Where the application has configured logging, its handlers stay in charge, and only those
    that write to standard error are led around the progress bar.
    """

    def __init__(self, display: Lines):
        super().__init__(level=logging.INFO)
        self._display = display
        self._level = _package_logger.level
        self._moved: list[tuple[logging.StreamHandler, Any]] = []
        self._added = not _package_logger.hasHandlers()
        if self._added:
            _package_logger.addHandler(self)
            if _package_logger.getEffectiveLevel() > logging.INFO:
                _package_logger.setLevel(logging.INFO)
            return
        for handler in (*_package_logger.handlers, *logging.getLogger().handlers):
            stream = getattr(handler, "stream", None)
            if isinstance(handler, logging.StreamHandler) and stream is sys.__stderr__:
                # While a bar is up, rich has put a stream that prints above it at sys.stderr.
                self._moved.append((handler, handler.setStream(sys.stderr)))

    def emit(self, record: logging.LogRecord) -> None:
        self._display.show(self.format(record))

    def close(self) -> None:
        if self._added:
            _package_logger.removeHandler(self)
            _package_logger.setLevel(self._level)
        for handler, stream in self._moved:
            if stream is not None:
                handler.setStream(stream)
        self._moved = []
        super().close()


def open_display(total_steps: int) -> Lines:
    """A bar on a terminal, else lines."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Bar(total_steps)
    return Lines(total_steps)


def line(
    step: int, total_steps: int, metrics: Mapping[str, float], seconds_left: float | None = None
) -> str:
    """One plain line about a step."""
    return "  ".join([f"step {step}/{total_steps}", *_parts(metrics, seconds_left)])


def evaluation(step: int, total_steps: int, metrics: Mapping[str, float]) -> str:
    """An evaluation: one plain line and, of a mixture, a table with a line for each task.

    Args:
      step: when it was made.
      total_steps: of the run.
      metrics: named "<split>/<name>", of a mixture's tasks "<split>/<task>/<name>".
    """
    common = {name: value for name, value in metrics.items() if name.count("/") < 2}
    rows: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        if name not in common:
            split, task, metric = name.split("/", 2)
            rows.setdefault(f"{split}/{task}", {})[metric] = value
    text = line(step, total_steps, common)
    width = max(map(len, rows), default=0)
    for task, own in rows.items():
        ordered = sorted(own, key=lambda name: name != "score")
        values = "  ".join(f"{name} {_number(own[name])}" for name in ordered)
        text += f"\n  {task:<{width}}  {values}"
    return text


def _parts(metrics: Mapping[str, float], seconds_left: float | None) -> list[str]:
    """The metrics as words: the loss first, then the others, the learning rate and the rate."""
    names = [name for name in metrics if name not in (*_NOT_SHOWN, *_SHOWN_LAST)]
    names.sort(key=lambda name: name != "loss")
    parts = [f"{name} {_number(metrics[name])}" for name in names]
    if "learning_rate" in metrics:
        parts.append(f"lr {_number(metrics['learning_rate'])}")
    if "tokens_per_second" in metrics:
        parts.append(f"{_thousands(metrics['tokens_per_second'])} tokens/s")
    if "mfu" in metrics:
        parts.append(f"mfu {metrics['mfu']:.2f}")
    if metrics.get("data_wait", 0.0) >= _LONG_WAIT:
        parts.append(f"{metrics['data_wait']:.0%} waiting for data")
    if seconds_left is not None:
        parts.append(_eta(seconds_left))
    return parts


def _eta(seconds: float) -> str:
    return f"ETA {datetime.timedelta(seconds=round(seconds))}"


def _fitting(parts: Sequence[str], width: int) -> str:
    """The first parts that a line of this width holds; the step, the bar and the ETA stay."""
    text = ""
    for part in parts:
        longer = f"{text}  {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text


def _number(value: float) -> str:
    """Four decimals, or powers of ten where those would say too little or too much."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def _thousands(value: float) -> str:
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}"
