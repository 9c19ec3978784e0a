"""Connections to TensorBoard, MLflow and Weights & Biases, each in its own thread.

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
"""

import contextlib
import dataclasses
import logging
import math
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from t5x_lite.core.tracking import KnownIds, MakeTracker, Outcome, RunTracker, TrackedRun, flat

_logger = logging.getLogger(__name__)

_WAITING = 10_000
"""Maximum number of pending records of a tracker; then the oldest record is dropped."""
_CLOSE_SECONDS = 60.0


class Background:
    """Thread that creates a tracker at the first record and sends it all records.

    Args:
      name: name of the tracker, for messages and trackers.json.
      make: function that creates the tracker.
      run: description of the run for the tracker.
      ids: ids of the run in its trackers, from earlier starts.
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
        """Queue the metrics of a step; the first call starts the thread."""
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
    """Wrapper of a callback, which is called in the thread of training.

    If the callback raises an error, a warning is logged and it is not called again.

    Args:
      name: name of the callback, for messages and trackers.json.
      make: function that creates the callback.
      run: description of the run for the callback.
      ids: ids of the run in its trackers, from earlier starts.
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
      first_step: first step; TensorBoard drops older records from this step on.

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
