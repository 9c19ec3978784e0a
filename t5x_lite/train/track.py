"""The record of a run: metrics.jsonl, its trackers, and what a person sees meanwhile.

Every number that a run reports goes through one `Tracker`, on process 0. `metrics.jsonl` is
always written, one object a line, flushed at once, so that a killed run keeps all but perhaps
its last line; not a number and infinity become null. A step that is repeated after a restart
is logged again, and readers let the later line win. TensorBoard, Weights & Biases, MLflow or a
tracker of one's own gets the same numbers (`train.tracking`), and cannot stop the run. On a
terminal a progress bar is shown, otherwise one plain line a record:

    step 200/1000  loss 5.4321  lr 0.0100  12.3k tokens/s  mfu 0.41  ETA 0:03:20
    step 200/1000  validation/loss 5.2176  validation/accuracy 0.2113

The tasks of a mixture follow in a table, one line a task.

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

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import SupportsFloat

from t5x_lite.errors import Interrupted
from t5x_lite.files import naming
from t5x_lite.train.background import Background
from t5x_lite.train.display import Messages, evaluation, open_display
from t5x_lite.train.record import Record
from t5x_lite.train.tracking import (
    KnownIds,
    MakeTracker,
    Outcome,
    TrackedRun,
    Tracking,
    find_trackers,
)

_logger = logging.getLogger(__name__)

_RESERVED = ("step", "time")


class Tracker:
    """Writes a run's metrics to its work directory and shows them; a context manager."""

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
        """Opens the record, going on where an earlier run of this work directory ended.

        A partial last line of metrics.jsonl, which a killed run may leave, is cut.

        Args:
          workdir: the run's directory; made if it is missing.
          total_steps: the step at which the run ends, for the bar and the time left.
          enabled: False on every process but the first: nothing is written or shown.
          trackers: the other places by name, as `find_trackers` gives them; None is TensorBoard.
          run: what they are told about it; None is the directory's name.
          ids: what they were called by at an earlier start; None is in the directory.

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
        trackers = find_trackers(Tracking()) if trackers is None else trackers
        run = run or TrackedRun(
            directory=str(workdir), name=Path(workdir).name, total_steps=total_steps
        )
        ids = ids or KnownIds(Path(workdir))
        self._trackers = [Background(n, make, run, ids=ids) for n, make in trackers.items()]
        self._record = Record(workdir)
        self._display = open_display(total_steps)
        self._messages = Messages(self._display)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        interrupted = kind is not None and issubclass(kind, Interrupted | KeyboardInterrupt)
        self.close("finished" if kind is None else "interrupted" if interrupted else "failed")

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

    def message(self, text: str) -> None:
        """Tells the reader something that is not a number, through logging at level INFO.

        The text appears above the progress bar. Processes other than the first log at DEBUG.
        """
        _logger.log(logging.INFO if self._enabled else logging.DEBUG, "%s", text)

    def close(self, outcome: Outcome = "finished") -> None:
        """Closes the files and takes the progress bar down; a second call does nothing.

        Args:
          outcome: how the run ended, for its trackers.
        """
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
    """Tokens and steps a second between logs, and the share of the time waited for data.

    All without the first step, which compiles; where batches have several shapes, `Window` starts
    anew behind the first step of each.

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
        self._waited = 0.0
        self._since = self._clock()

    def wait(self, seconds: float) -> None:
        """Counts seconds that the host waited for data; devices may have been busy meanwhile."""
        self._waited += seconds

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
          {"tokens_per_second", "steps_per_second", "data_wait"} of the window; "data_wait" is
          between 0 and 1. Empty if the window holds no step (only the first one was taken), so that
          it can be merged into the metrics as it is.
        """
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
