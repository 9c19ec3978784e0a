"""The record of a run: metrics.jsonl, TensorBoard events, and what a person sees meanwhile.

Every number that a run reports goes through one `Tracker`, on process 0. `metrics.jsonl` is
always written, one object a line, flushed at once, so that a killed run keeps all but perhaps
its last line; not a number and infinity become null. A step that is repeated after a restart
is logged again, and readers let the later line win. TensorBoard events are written where
tensorboardX is installed. On a terminal a progress bar is shown, otherwise one plain line a
record:

    step 200/1000  loss 5.4321  lr 0.0100  12.3k tokens/s  ETA 0:03:20
    step 200/1000  validation/loss 5.2176  validation/accuracy 0.2113

Worked example:

    throughput = Throughput()
    throughput.start()
    with Tracker(workdir, total_steps=1000) as tracker:
        for step in range(1, 1001):
            state, loss = train_step(state, batch)
            throughput.add(batch_tokens)
            if step % 100 == 0:
                tracker.log(step, {"loss": loss} | throughput.rates())
"""

import datetime
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

_package_logger = logging.getLogger("t5x_lite")
_logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
"""The file's name in a work directory: {"step": 1, "time": seconds since the epoch, ...} a line."""

_RESERVED = ("step", "time")
_NOT_SHOWN = ("steps_per_second", "gradient_norm", "num_parameters")
_SHOWN_LAST = ("learning_rate", "tokens_per_second")


class Tracker:
    """Writes a run's metrics to its work directory and shows them; a context manager."""

    def __init__(self, workdir: str | os.PathLike, *, total_steps: int, enabled: bool = True):
        """Opens the record, going on where an earlier run of this work directory ended.

        A partial last line of metrics.jsonl, which a killed run may leave, is cut.

        Args:
          workdir: the run's directory; made if it is missing.
          total_steps: the step at which the run ends, for the bar and the time left.
          enabled: False on every process but the first: nothing is written or shown.

        Raises:
          OSError: the directory or metrics.jsonl cannot be written.
        """
        self._enabled = enabled
        self._closed = False
        if not enabled:
            return
        self._directory = Path(workdir)
        self._total_steps = total_steps
        self._first: tuple[int, float] | None = None
        self._events: Any = None
        self._events_wanted = True
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / METRICS_FILE
        _cut_partial_line(path)
        self._lines = path.open("a", encoding="utf-8")
        self._display = _open_display(total_steps)
        self._messages = _Messages(self._display)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def log(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Records the metrics of one step, in metrics.jsonl before anywhere else.

        Args:
          step: steps taken so far; the first step is 1.
          metrics: name to number. Evaluation metrics are named "<split>/<name>", training
            metrics have no "/": loss, learning_rate, tokens_per_second, steps_per_second, ...

        Raises:
          ValueError: the tracker is closed, or a metric is named "step" or "time".
        """
        if not self._enabled:
            return
        if self._closed:
            raise ValueError("Tracker.log after close: log before the with block ends")
        if reserved := [name for name in _RESERVED if name in metrics]:
            raise ValueError(f"metric names 'step' and 'time' are the record's own: got {reserved}")
        values = {name: float(value) for name, value in metrics.items()}
        self._lines.write(_record(step, time.time(), values))
        self._lines.flush()
        self._write_events(step, values)
        training = {name: value for name, value in values.items() if "/" not in name}
        evaluation = {name: value for name, value in values.items() if "/" in name}
        if training:
            self._display.training(step, training, self._seconds_left(step, training))
        if evaluation:
            self._display.show(_line(step, self._total_steps, evaluation))

    def message(self, text: str) -> None:
        """Tells the reader something that is not a number, through logging at level INFO.

        The text appears above the progress bar. Processes other than the first log at DEBUG.
        """
        _logger.log(logging.INFO if self._enabled else logging.DEBUG, "%s", text)

    def close(self) -> None:
        """Closes the files and takes the progress bar down; a second call does nothing."""
        if not self._enabled or self._closed:
            return
        self._closed = True
        self._lines.close()
        if self._events is not None:
            self._events.close()
        self._display.close()
        self._messages.close()

    def _write_events(self, step: int, values: Mapping[str, float]) -> None:
        """Writes TensorBoard scalars; the first one decides which earlier steps are repeated."""
        if not self._events_wanted:
            return
        if self._events is None:
            try:
                from tensorboardX import SummaryWriter
            except ImportError:
                self._events_wanted = False
                self.message("tensorboardX is not installed: no TensorBoard events are written")
                return
            directory = str(self._directory / "tensorboard")
            # purge_step: TensorBoard drops what an earlier, killed run wrote from this step on.
            self._events = SummaryWriter(directory, purge_step=step, flush_secs=30)
        for name, value in values.items():
            if math.isfinite(value):
                self._events.add_scalar(name, value, step)

    def _seconds_left(self, step: int, training: Mapping[str, float]) -> float | None:
        """Seconds to the last step: from the measured rate, else from the time between logs."""
        now = time.monotonic()
        first_step, first_time = self._first = self._first or (step, now)
        steps_left = self._total_steps - step
        rate = training.get("steps_per_second", math.nan)
        if not math.isfinite(rate) and now > first_time:
            rate = (step - first_step) / (now - first_time)
        if steps_left <= 0 or not math.isfinite(rate) or rate <= 0:
            return None
        return steps_left / rate


class Throughput:
    """Tokens and steps a second between logs, without the first step, which compiles.

    The first `add` after construction ends the compilation: it starts the clock and counts
    nothing. Dispatch is asynchronous, so wait for the first step's result before that `add`,
    and for the last one's before `rates`; otherwise the first window looks slower than it is.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter):
        """Makes a counter; `clock` gives seconds."""
        self._clock = clock
        self._compiled = False
        self.start()

    def start(self) -> None:
        """Starts a new window; call it also after a pause, such as an evaluation."""
        self._tokens = 0.0
        self._steps = 0
        self._since = self._clock()

    def add(self, tokens: SupportsFloat) -> None:
        """Counts one step of so many tokens (over all devices)."""
        if not self._compiled:
            self._compiled = True
            self.start()
            return
        self._tokens += float(tokens)
        self._steps += 1

    def rates(self) -> dict[str, float]:
        """Ends the window and starts the next one.

        Returns:
          {"tokens_per_second", "steps_per_second"} of the window; empty if it holds no step
          (only the first one was taken), so that it can be merged into the metrics as it is.
        """
        seconds = self._clock() - self._since
        tokens, steps = self._tokens, self._steps
        self.start()
        if not steps or seconds <= 0:
            return {}
        return {"tokens_per_second": tokens / seconds, "steps_per_second": steps / seconds}


class _Lines:
    """What a person sees of the run: one plain line a record on standard error."""

    def __init__(self, total_steps: int):
        self._total_steps = total_steps

    def training(self, step: int, metrics: Mapping[str, float], seconds_left: float | None) -> None:
        self.show(_line(step, self._total_steps, metrics, seconds_left))

    def show(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class _Bar(_Lines):
    """A progress bar that stays at the foot of the terminal; other text scrolls above it."""

    def __init__(self, total_steps: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        super().__init__(total_steps)
        self._console = Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            TextColumn("{task.fields[metrics]}", markup=False, table_column=Column(no_wrap=True)),
            console=self._console,
            expand=True,
        )
        self._task = self._progress.add_task("", total=total_steps, metrics="")
        self._progress.start()

    def training(self, step: int, metrics: Mapping[str, float], seconds_left: float | None) -> None:
        text = "  ".join(_parts(metrics, seconds_left))
        self._progress.update(self._task, completed=step, metrics=text, refresh=True)

    def show(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._progress.stop()


class _Messages(logging.Handler):
    """Shows the package's log records beside the metrics, while a tracker is open.

    Where the application has configured logging, its handlers stay in charge, and only those
    that write to standard error are led around the progress bar.
    """

    def __init__(self, display: _Lines):
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


def _open_display(total_steps: int) -> _Lines:
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return _Bar(total_steps)
    return _Lines(total_steps)


def _cut_partial_line(path: Path) -> None:
    """Cuts what follows the last newline of a file; a file that is missing stays missing."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        kept = 0
        while end and not kept:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            kept = start + newline + 1 if newline >= 0 else 0
            end = start
        file.truncate(kept)


def _record(step: int, seconds: float, values: Mapping[str, float]) -> str:
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return json.dumps({"step": step, "time": round(seconds, 3), **finite}, allow_nan=False) + "\n"


def _line(
    step: int, total_steps: int, metrics: Mapping[str, float], seconds_left: float | None = None
) -> str:
    return "  ".join([f"step {step}/{total_steps}", *_parts(metrics, seconds_left)])


def _parts(metrics: Mapping[str, float], seconds_left: float | None) -> list[str]:
    """The metrics as words: the loss first, then the others, the learning rate and the rate."""
    names = [name for name in metrics if name not in (*_NOT_SHOWN, *_SHOWN_LAST)]
    names.sort(key=lambda name: name != "loss")
    parts = [f"{name} {_number(metrics[name])}" for name in names]
    if "learning_rate" in metrics:
        parts.append(f"lr {_number(metrics['learning_rate'])}")
    if "tokens_per_second" in metrics:
        parts.append(f"{_thousands(metrics['tokens_per_second'])} tokens/s")
    if seconds_left is not None:
        parts.append(f"ETA {datetime.timedelta(seconds=round(seconds_left))}")
    return parts


def _number(value: float) -> str:
    """Four decimals, or powers of ten where those would say too little or too much."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def _thousands(value: float) -> str:
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}"
