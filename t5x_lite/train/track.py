"""The record of a run: metrics.jsonl, the display, and trackers in their own threads.

Connections to TensorBoard, MLflow and Weights & Biases, each in its own thread.

    sink = Background("wandb", make, run, ids=KnownIds(workdir))
    sink.log(10, {"loss": 5.4})     # returns at once
    sink.close("finished")          # waits at most a minute for pending records

The thread keeps errors and delays of a tracker away from training.

`Events` writes TensorBoard's event file in the thread that logs:

    events = Events("work/run/tensorboard", first_step=1)
    events.add(1, {"loss": 5.4})
    events.close()

tensorboardX's own SummaryWriter uses another thread, which ends on a full disk, so that later calls
block forever; `add` raises the error instead.

MLflow needs the extra `mlflow`, and finds its server by MLFLOW_TRACKING_URI. A resumed run
continues the same MLflow run. Parameters are the config's options and values of the first start,
because MLflow does not allow changes.

Weights & Biases needs the extra `wandb`. Log in as usual: `wandb login`, WANDB_API_KEY,
WANDB_MODE=offline. A resumed run continues the same wandb run. Charts use the metric "step" as
x-axis, because wandb drops records of earlier steps.

Metrics of a run: metrics.jsonl, the progress display, and the use of time.

Every number that a run reports goes through one `Tracker`, on process 0. It appends one JSON object
per log to `metrics.jsonl`, so a killed run loses at most its last line. NaN and infinity become
null. If a step is repeated after a restart, readers use the later line. TensorBoard, Weights &
Biases, MLflow or a custom tracker get the same numbers (`config.run_options`), and cannot stop the
run. A terminal shows a progress bar; elsewhere, one plain line is printed per log:

    step 200/1000  loss 5.4321  lr 0.0100  12.3k tokens/s  mfu 0.41  ETA 0:03:20
    step 200/1000  validation/loss 5.2176  validation/accuracy 0.2113

For a mixture, a table with one line per task follows.

Worked example:

    throughput = Throughput()
    throughput.start()
    with Tracker(workdir, total_steps=1000) as tracker:
        for step in range(1, 1001):
            state, loss = train_step(state, batch)
            throughput.add(batch_tokens)
            if step % 100 == 0:
                tracker.log(step, {"loss": loss} | throughput.rates())

`Goodput` measures the fraction of time that is spent in steps, and the causes of lost time:

    spent = Goodput()                       # "start" begins
    with spent.on("compile"):
        state, metrics = train_step(...)
    spent.to("steps")
    spent.shares()      # {"goodput": 0.9, "lost_to_start": 0.04, "lost_to_compile": 0.06, ...}

Every second has exactly one cause. A resumed run adds the times of earlier processes; the time of
steps that were not saved becomes lost time. The time between two processes does not count.
"""

import contextlib
import dataclasses
import datetime
import logging
import math
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

from t5x_lite.core.errors import Interrupted
from t5x_lite.core.files import naming
from t5x_lite.core.tracking import (
    KnownIds,
    MakeTracker,
    Outcome,
    Record,
    RunTracker,
    TrackedRun,
    Tracking,
    find_trackers,
    flat,
    is_callback,
)
from t5x_lite.core.workers import release_bar, take_bar, told

_logger = logging.getLogger(__name__)


_WAITING = 10_000
"""Maximum number of pending records of a tracker; then the oldest record is dropped."""
_CLOSE_SECONDS = 60.0


class Background:
    """Tracker that creates another tracker in a background thread, and passes it all metrics.

    Args:
      name: name of the tracker, for messages and trackers.json.
      make: function that creates the tracker.
      run: description of the run for the tracker.
      ids: the run's ids in its trackers, from earlier starts of the run.
      patience: maximum seconds that `close` waits.
    """

    def __init__(
        self,
        name: str,
        make: MakeTracker,
        run: TrackedRun,
        *,
        ids: KnownIds,
        patience: float = _CLOSE_SECONDS,
    ):
        self._name, self._make, self._run, self._ids = name, make, run, ids
        self._patience = patience
        self._waiting: queue.Queue[tuple[int, Mapping[str, float]] | Outcome] = queue.Queue(
            _WAITING
        )
        self._thread: threading.Thread | None = None
        self._failed = threading.Event()
        self._overran = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue the metrics of a step; the first call starts the background thread."""
        if self._failed.is_set():
            return
        if self._thread is None:
            run = dataclasses.replace(self._run, first_step=step, id=self._ids.get(self._name))
            self._thread = threading.Thread(
                target=self._work, args=(run,), daemon=True, name=f"tracker {self._name}"
            )
            self._thread.start()
        if self._waiting.full():
            self._drop()
        self._waiting.put((step, dict(metrics)))

    def close(self, outcome: Outcome) -> None:
        """End the tracker; records that are still pending after `patience` are dropped."""
        if self._thread is None:
            return
        if self._waiting.full():
            self._drop()
        self._waiting.put(outcome)
        self._thread.join(self._patience)
        if self._thread.is_alive():
            _logger.warning(
                "tracker %s did not accept the last metrics within %.0f s; see metrics.jsonl",
                self._name,
                self._patience,
            )

    def _drop(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._waiting.get_nowait()
        if not self._overran:
            self._overran = True
            _logger.warning(
                "tracker %s is too slow and misses metrics; see metrics.jsonl", self._name
            )

    def _work(self, run: TrackedRun) -> None:
        try:
            tracker = self._make(run)
            self._remember(tracker)
            while True:
                item = self._waiting.get()
                if isinstance(item, str):
                    tracker.close(item)
                    return
                tracker.log(*item)
        except BaseException as error:  # includes SystemExit: a tracker must not end the run
            self._failed.set()
            _logger.warning(
                "tracker %s failed and gets no more metrics; see metrics.jsonl (%s: %s)",
                self._name,
                type(error).__name__,
                " ".join(str(error).split())[:300],
            )

    def _remember(self, tracker: RunTracker) -> None:
        if tracker.id is None:
            return
        try:
            self._ids.set(self._name, tracker.id)
        except OSError as error:
            _logger.warning(
                "could not save the run id of tracker %s (%s); a resumed run will start a new "
                "run in the tracker",
                self._name,
                error.strerror,
            )


class Callback:
    """Tracker that calls a user's callback in the training thread.

    If the callback raises an error, a warning is logged and it is not called again.

    Args:
      name: name of the callback, for messages and trackers.json.
      make: function that creates the callback.
      run: description of the run for the callback.
      ids: the run's ids in its trackers, from earlier starts of the run.
    """

    def __init__(self, name: str, make: MakeTracker, run: TrackedRun, *, ids: KnownIds):
        self._name = name
        self._callback: Any = None
        self._callback = self._call(make, dataclasses.replace(run, id=ids.get(name)))
        if self._callback is not None and (own := self._call(lambda: self._callback.id)):
            ids.set(name, own)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Pass the metrics of a step to the callback."""
        if self._callback is not None:
            self._call(self._callback.log, step, dict(metrics))

    def saved(self, step: int, directory: str) -> None:
        """Pass a complete checkpoint to the callback, if it has the method `saved`."""
        if hasattr(self._callback, "saved"):
            self._call(self._callback.saved, step, directory)

    def stop(self) -> str:
        """Return the callback's name and reason to end the run, or ""."""
        reason = self._call(lambda: getattr(self._callback, "stop", None))
        return f"{self._name}: {reason}" if reason else ""

    def close(self, outcome: Outcome) -> None:
        """Pass the outcome of the run to the callback."""
        if self._callback is not None:
            self._call(self._callback.close, outcome)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except (Exception, SystemExit) as error:
            self._callback = None
            _logger.warning(
                "callback %s failed and is not called again (%s: %s)",
                self._name,
                type(error).__name__,
                " ".join(str(error).split())[:300],
            )
            return None


_FLUSH_SECONDS = 30


class Events:
    """Writer of scalars to a TensorBoard event file.

    Args:
      directory: directory of the file, created if necessary.
      first_step: first step of the file; TensorBoard hides older files' records from this step on.

    Raises:
      ImportError: if tensorboardX is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str], *, first_step: int):
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2

        protos: Any = event_pb2  # its classes are made at run time
        self._event = protos.Event
        self._scalar = summary.scalar
        os.makedirs(directory, exist_ok=True)
        self._writer = event_file_writer.EventsWriter(os.path.join(directory, "events"))
        self._flushed = 0.0
        start = protos.SessionLog(status=protos.SessionLog.START)
        self._write(step=first_step, file_version="brain.Event:2")
        self._write(step=first_step, session_log=start)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Write the scalars of a step; the file is flushed every 30 seconds."""
        for name, value in values.items():
            self._write(step=step, summary=self._scalar(name, value))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        self._writer.close()

    def _write(self, **content: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), **content))


class TensorBoard:
    """Tracker for TensorBoard, with an event file in tensorboard/ of the work directory."""

    id: str | None = None

    def __init__(self, run: TrackedRun):
        directory = os.path.join(run.directory, "tensorboard")
        self._events = Events(directory, first_step=run.first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the finite metrics of a step."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._events.add(step, finite)

    def close(self, outcome: Outcome) -> None:
        del outcome
        self._events.close()


_BATCH = 100
"""Maximum number of parameters in a request to MLflow."""
_LONGEST = 500
"""Maximum length of a parameter's value in MLflow, in characters."""
_NOT_ALLOWED = re.compile(r"[^\w\-./ :]")
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow:
    """Tracker for MLflow."""

    def __init__(self, run: TrackedRun):
        import mlflow  # pyright: ignore[reportMissingImports]

        self._mlflow: Any = mlflow
        if run.project:
            mlflow.set_experiment(run.project)
        started: Any = mlflow.start_run(run_id=run.id, run_name=None if run.id else run.name)
        self.id: str | None = started.info.run_id
        if run.id is None:
            params = {name: str(value)[:_LONGEST] for name, value in flat(run.config).items()}
            names = list(params)
            for i in range(0, len(names), _BATCH):
                mlflow.log_params({name: params[name] for name in names[i : i + _BATCH]})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the finite metrics of a step, with names that MLflow allows."""
        finite = {
            _NOT_ALLOWED.sub("_", name): value
            for name, value in metrics.items()
            if math.isfinite(value)
        }
        if finite:
            self._mlflow.log_metrics(finite, step=step)

    def close(self, outcome: Outcome) -> None:
        self._mlflow.end_run(_STATUS[outcome])


class WandB:
    """Tracker for Weights & Biases."""

    def __init__(self, run: TrackedRun):
        import wandb  # pyright: ignore[reportMissingImports]

        self._run: Any = wandb.init(
            project=run.project or None,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=run.directory,
            config=dict(run.config),
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self.id: str | None = self._run.id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def close(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=1 if outcome == "failed" else 0)


CAUSES = ("start", "compile", "data", "evaluation", "checkpoint", "profile", "restart")
"""Causes of lost time. "start" is the time until the first batch. "data" counts only while devices
are idle. "checkpoint" is the delay by a save. "restart" is the time of repeated steps."""

_STEPS = "steps"
_PREFIX = "lost_to_"
_WHOLE = "run_seconds"
FIELDS = ("goodput", *(_PREFIX + cause for cause in CAUSES), _WHOLE)
"""Names of the metrics that `Goodput.shares` returns."""


class Goodput:
    """Timer that splits a run's time into training steps and causes of lost time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = dict.fromkeys((_STEPS, *CAUSES), 0.0)
        self._own = 0.0
        self._cause, self._since = "start", clock()

    @property
    def is_stepping(self) -> bool:
        """True if time is currently counted as time in training steps."""
        return self._cause == _STEPS

    def to(self, cause: str) -> None:
        """Count the time from now on as lost to a cause, or as time in "steps"."""
        now = self._clock()
        if cause == self._cause:
            return
        self._add(self._cause, now - self._since)
        self._cause, self._since = cause, now

    @contextlib.contextmanager
    def on(self, cause: str) -> Iterator[None]:
        """Count the time within the `with` block as lost to a cause."""
        before = self._cause
        self.to(cause)
        try:
            yield
        finally:
            self.to(before)

    def charge(self, cause: str, seconds: float) -> None:
        """Move some seconds from the current cause to another cause."""
        self._add(cause, seconds)
        self._add(self._cause, -seconds)

    def paused(self) -> float:
        """Return the seconds of this process, except for train steps and waits for data."""
        running = 0.0 if self._cause in (_STEPS, "data") else self._clock() - self._since
        return self._own + running

    def shares(self) -> dict[str, float]:
        """Return the fractions of time in steps ("goodput") and by cause, and the total seconds."""
        now = self._clock()
        self._add(self._cause, now - self._since)
        self._since = now
        whole = sum(self._seconds.values())
        if whole <= 0:
            return {}
        lost = {_PREFIX + cause: self._seconds[cause] / whole for cause in CAUSES}
        shares = {"goodput": self._seconds[_STEPS] / whole, **lost}
        rounded = {name: round(share, 6) for name, share in shares.items() if share > 0}
        return {"goodput": 0.0, **rounded, _WHOLE: round(whole, 2)}

    def go_on(self, record: Iterable[Mapping[str, Any]], *, step: int) -> None:
        """Add the times of the run's earlier processes; steps after `step` count as lost time."""
        last: Mapping[str, Any] | None = None
        saved: Mapping[str, Any] | None = None
        for line in record:
            if line.get(_WHOLE) is None:
                continue
            last = line
            if line["step"] <= step:
                saved = line
        if last is None:
            return
        for cause in CAUSES:
            self._seconds[cause] += last.get(_PREFIX + cause, 0.0) * last[_WHOLE]
        steps = last["goodput"] * last[_WHOLE]
        lost = 0.0
        if (ahead := last["step"] - step) > 0:
            # Without a line for this step, all steps are assumed to take equal time.
            since, at = (saved["goodput"] * saved[_WHOLE], saved["step"]) if saved else (0.0, 0)
            lost = max(0.0, steps - since) * ahead / (last["step"] - at)
        self._seconds[_STEPS] += steps - lost
        self._seconds["restart"] += lost

    def _add(self, cause: str, seconds: float) -> None:
        self._seconds[cause] += seconds
        if cause not in (_STEPS, "data"):
            self._own += seconds


_package_logger = logging.getLogger("t5x_lite")

_NOT_SHOWN = (
    *("steps_per_second", "gradient_norm", "num_parameters", "epoch"),
    *("slowest_host", "slowest_host_seconds", *FIELDS),
)
_SHOWN_LAST = ("learning_rate", "tokens_per_second", "mfu", "data_wait")
_BAR_WIDTH = 8
_ETA_WIDTH = len("ETA 0:00:00")
_LONG_WAIT = 0.1
"""Minimum fraction of time spent waiting for data at which the progress display shows it."""


class Lines:
    """Progress display with one plain line per log on standard error."""

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
    """Progress display with a bar at the bottom of the terminal; other text scrolls above it."""

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
    """Logging handler that shows the package's log messages in the progress display.

    If the application has configured logging, its handlers are kept; handlers for standard error
    print above the progress bar.
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
                # While a bar is shown, rich replaces sys.stderr with a stream that prints above it.
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
    """Return a progress bar on a terminal, or a display of plain lines elsewhere."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Bar(total_steps)
    return Lines(total_steps)


def line(
    step: int, total_steps: int, metrics: Mapping[str, float], seconds_left: float | None = None
) -> str:
    """Format the metrics of a step as one text line."""
    return "  ".join([f"step {step}/{total_steps}", *_parts(metrics, seconds_left)])


def evaluation(step: int, total_steps: int, metrics: Mapping[str, float]) -> str:
    """Format the metrics of an evaluation as a text line; for a mixture, add a line per task."""
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
    text = ""
    for part in parts:
        longer = f"{text}  {part}" if text else part
        if len(longer) > width:
            break
        text = longer
    return text


def _number(value: float) -> str:
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.2e}"


def _thousands(value: float) -> str:
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}"


_RESERVED = ("step", "time")


class Tracker:
    """Context manager that writes and displays a run's metrics.

    Attributes:
      has_callbacks: True if a tracker is a callback; equal on all processes.
    """

    has_callbacks = False

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        total_steps: int,
        enabled: bool = True,
        trackers: Mapping[str, MakeTracker] | None = None,
        run: TrackedRun | None = None,
        ids: KnownIds | None = None,
    ):
        """Open the metrics file, and continue the file of an earlier run in this work directory.

        A partial last line of metrics.jsonl from a killed run is removed.
        """
        self._enabled = enabled
        self._closed = False
        self._callbacks: list[Callback] = []
        trackers = find_trackers(Tracking()) if trackers is None else trackers
        self.has_callbacks = any(map(is_callback, trackers.values()))
        if not enabled:
            return
        self._directory = Path(workdir)
        self._total_steps = total_steps
        self._first: tuple[int, float] | None = None
        run = run or TrackedRun(
            directory=str(workdir), name=Path(workdir).name, total_steps=total_steps
        )
        ids = ids or KnownIds(Path(workdir))
        self._trackers: list[Background | Callback] = []
        for name, make in trackers.items():
            if is_callback(make):
                self._callbacks.append(Callback(name, make, run, ids=ids))
            else:
                self._trackers.append(Background(name, make, run, ids=ids))
        self._trackers += self._callbacks
        self._record = Record(workdir)
        self._display = open_display(total_steps)
        self._messages = Messages(self._display)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        interrupted = kind is not None and issubclass(kind, Interrupted | KeyboardInterrupt)
        self.close("finished" if kind is None else "interrupted" if interrupted else "failed")

    def log(self, step: int, metrics: Mapping[str, SupportsFloat]) -> None:
        """Write the metrics of a step to metrics.jsonl, the trackers and the display."""
        if not self._enabled:
            return
        if self._closed:
            raise ValueError(
                "Tracker.log was called after close; call it before the with block ends"
            )
        if reserved := [name for name in _RESERVED if name in metrics]:
            raise ValueError(f"the metric names 'step' and 'time' are reserved, but got {reserved}")
        values = {name: float(value) for name, value in metrics.items()}
        with naming(self._directory):
            self._record.add(step, time.time(), values)
        for tracker in self._trackers:
            tracker.log(step, values)
        training = {name: value for name, value in values.items() if "/" not in name}
        measured = {name: value for name, value in values.items() if "/" in name}
        if training:
            self._display.training(step, training, self._seconds_left(step, training))
        if measured:
            self._display.show(evaluation(step, self._total_steps, measured))

    def saved(self, step: int, directory: str) -> None:
        """Inform the callbacks that a checkpoint is complete."""
        for callback in self._callbacks:
            callback.saved(step, directory)

    def stop(self) -> str:
        """Return a callback's reason to end the run, equal on all processes, or ""."""
        if not self.has_callbacks:
            return ""
        from t5x_lite.core.sharding import first_told  # it imports JAX

        return first_told(next(filter(None, (one.stop() for one in self._callbacks)), ""))

    def message(self, text: str) -> None:
        """Log a message: at level INFO on the first process, at level DEBUG on others."""
        _logger.log(logging.INFO if self._enabled else logging.DEBUG, "%s", text)

    def close(self, outcome: Outcome = "finished") -> None:
        """Close all files and the progress bar; a second call does nothing."""
        if not self._enabled or self._closed:
            return
        self._closed = True
        try:
            with naming(self._directory):
                self._record.close()
            for tracker in self._trackers:
                tracker.close(outcome)
        finally:
            self._display.close()
            self._messages.close()

    def _seconds_left(self, step: int, training: Mapping[str, float]) -> float | None:
        """Return the estimated seconds until the last step; None if the speed is unknown."""
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
    """Counter of tokens and steps per second, and of the fraction of time spent waiting for data.

    The first `add` marks the end of compilation: it starts the clock and counts nothing. Dispatch
    is asynchronous, so wait for the first step's result before that `add`, and for the last step's
    result before `rates`.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._compiled = False
        self.start()

    def start(self) -> None:
        """Restart the measurement, for example after an evaluation."""
        self._tokens = 0.0
        self._steps = 0
        self._waited = 0.0
        self._since = self._clock()

    def wait(self, seconds: float) -> None:
        """Add seconds that the host waited for data."""
        self._waited += seconds

    def add(self, tokens: SupportsFloat) -> None:
        """Count a step with its number of tokens on all devices."""
        if not self._compiled:
            self._compiled = True
            self.start()
            return
        self._tokens += float(tokens)
        self._steps += 1

    def rates(self) -> dict[str, float]:
        """Return tokens and steps per second since the last start, and restart the measurement."""
        seconds = self._clock() - self._since
        tokens, steps, waited = self._tokens, self._steps, self._waited
        self.start()
        if not steps or seconds <= 0:
            return {}
        return {
            "tokens_per_second": tokens / seconds,
            "steps_per_second": steps / seconds,
            "data_wait": waited / seconds,
        }
