"""Parts of an experiment: early stopping and profiling.

Early stopping: training ends when a metric has not improved for several evaluations.

    patience = Patience(EarlyStopping(metric="validation/loss", patience=2))
    for loss in (3.0, 2.0, 2.5, 2.25):
        patience.add({"validation/loss": loss})
    patience.exhausted          # True: two evaluations without improvement

Nothing of it is in a checkpoint: the evaluations so far are in the run's record, metrics.jsonl, and
a run that is resumed goes through them again. So it ends where an uninterrupted one does.

JAX's profiler traces chosen steps, for TensorBoard, XProf or Perfetto:

    with Capture(Profile(start=100, steps=3), "work/run/profile") as capture:
        for step in range(1, 1001):
            capture.before(step)
            state, metrics = train_step(state, batch)
            capture.after(step, metrics)

Every process writes the trace of its devices.
"""

import dataclasses
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import jax

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, OptionalCount, check_bounds
from t5x_lite.core.remote import is_remote, open_path
from t5x_lite.metrics.benchmarks import Mode, mode_of, refuse_test


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Criterion for ending training before its last step.

    Attributes:
      metric: a metric of the evaluation, such as "validation/loss"; None never ends early, and one
        of a test split is rejected.
      mode: better direction: max or min; if None, min for losses, cross entropies, perplexities and
        errors, else max.
      patience: evaluations in a row without improvement that end training.
      min_delta: smallest change that counts as an improvement; it must be exceeded.
    """

    metric: str | None = None
    mode: Mode | None = None
    patience: Count = 3
    min_delta: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self, prefix="stop_early.")
        refuse_test("stop_early.metric", self.metric)


class Patience:
    """Counts evaluations in a row that brought no improvement."""

    def __init__(self, config: EarlyStopping, history: Iterable[Mapping[str, float]] = ()) -> None:
        """Start from the evaluations that the run has behind it, in their order.

        Those without the metric are skipped: the run may have measured something else then.
        """
        self._config = config
        self._sign = 1 if mode_of(config.metric or "", config.mode) == "min" else -1
        self._best = math.inf
        self._waited = 0
        for metrics in history:
            if config.metric in metrics:
                self.add(metrics)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take the metrics of an evaluation; a value that is not finite is not an improvement.

        Raises:
          InputError: the metric is not among them.
        """
        name = self._config.metric
        if name is None:
            return
        if name not in metrics:
            raise InputError(
                f"stop_early.metric {name!r} is not a metric of the evaluation: it gives "
                f"{', '.join(metrics) or 'none'}"
            )
        value = self._sign * metrics[name]
        if math.isfinite(value) and value < self._best - self._config.min_delta:
            self._best = value
            self._waited = 0
        else:
            self._waited += 1

    @property
    def exhausted(self) -> bool:
        """True if training should end."""
        return self._waited >= self._config.patience

    @property
    def reason(self) -> str:
        """The reason to end training, or "" if it is to continue."""
        return str(self) if self.exhausted else ""

    def __str__(self) -> str:
        """Why training ends, as a message says it."""
        name, best = self._config.metric, self._sign * self._best
        return f"{name} has not improved for {self._waited} evaluations (best {best:.4f})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Steps of a run that are traced.

    Attributes:
      start: the first step, counted as in the log; None traces nothing.
      steps: number of steps; a trace of more than a few is large.
    """

    start: OptionalCount = None
    steps: Count = 3

    def __post_init__(self) -> None:
        check_bounds(self, prefix="profile.")


class Capture:
    """Traces the steps that a `Profile` names; a context manager that ends a trace left open."""

    def __init__(self, profile: Profile, directory: str | os.PathLike) -> None:
        """Trace nothing yet.

        Args:
          profile: steps to trace.
          directory: receives plugins/profile/DATE/HOST.xplane.pb; made if it is missing. It may
            be in a bucket (gs://): the trace is then copied there.
        """
        first = profile.start if profile.start is not None else 0
        self._steps = range(first, first + profile.steps if first else 0)
        self.directory = os.fspath(directory)
        self._local: str | None = None

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._local is not None:
            self._stop()

    def before(self, step: int) -> None:
        """Start the trace before the first of its steps that this run takes."""
        if step in self._steps and self._local is None:
            remote = is_remote(self.directory)
            self._local = tempfile.mkdtemp() if remote else self.directory
            jax.profiler.start_trace(self._local)

    def after(self, step: int, results: Any) -> bool:
        """End the trace after the last of its steps.

        Args:
          step: the step just dispatched.
          results: arrays of that step; they are waited for.

        Returns:
          True if a trace was written now.
        """
        if self._local is None or step + 1 in self._steps:
            return False
        jax.block_until_ready(results)
        self._stop()
        return True

    def _stop(self) -> None:
        local, self._local = str(self._local), None
        jax.profiler.stop_trace()
        if local != self.directory:
            _copy(Path(local), self.directory)
            shutil.rmtree(local, ignore_errors=True)


def _copy(local: Path, directory: str) -> None:
    for path in sorted(local.rglob("*")):
        if path.is_file():
            target = open_path(directory) / path.relative_to(local).as_posix()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
