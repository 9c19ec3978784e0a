"""Early stopping and profiling of a run.

Early stopping: training ends when a metric has not improved for several evaluations.

    patience = Patience(EarlyStopping(metric="validation/loss", patience=2))
    for loss in (3.0, 2.0, 2.5, 2.25):
        patience.add({"validation/loss": loss})
    patience.exhausted          # True: two evaluations without improvement

Checkpoints store no state of early stopping. A resumed run replays the evaluations in
metrics.jsonl, so it ends at the same step as an uninterrupted run.

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
      metric: metric of the evaluation to watch, such as "validation/loss"; None never ends early.
        Metrics of a test split are rejected.
      mode: better direction: max or min; if None, min for losses, cross entropies, perplexities and
        errors, else max.
      patience: number of consecutive evaluations without improvement that end training.
      min_delta: minimum improvement; smaller or equal changes do not count.
    """

    metric: str | None = None
    mode: Mode | None = None
    patience: Count = 3
    min_delta: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self, prefix="stop_early.")
        refuse_test("stop_early.metric", self.metric)


class Patience:
    """Counter of consecutive evaluations without improvement, for early stopping."""

    def __init__(self, config: EarlyStopping, history: Iterable[Mapping[str, float]] = ()) -> None:
        """Replay the metrics of earlier evaluations of the run, oldest first.

        Evaluations without the watched metric are skipped.
        """
        self._config = config
        self._sign = 1 if mode_of(config.metric or "", config.mode) == "min" else -1
        self._best = math.inf
        self._waited = 0
        for metrics in history:
            if config.metric in metrics:
                self.add(metrics)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Count the metrics of an evaluation; a value that is not finite is not an improvement.

        Raises:
          InputError: if the watched metric is missing.
        """
        name = self._config.metric
        if name is None:
            return
        if name not in metrics:
            raise InputError(
                f"stop_early.metric is {name!r}, but the evaluation has the metrics "
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
        """True if training should end because the metric no longer improves."""
        return self._waited >= self._config.patience

    @property
    def reason(self) -> str:
        """Message about the reason to end training, or "" if training should continue."""
        return str(self) if self.exhausted else ""

    def __str__(self) -> str:
        name, best = self._config.metric, self._sign * self._best
        return f"{name} has not improved for {self._waited} evaluations (best {best:.4f})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Steps of a run to trace with JAX's profiler.

    Attributes:
      start: first traced step, counted as in the log; None disables tracing.
      steps: number of traced steps; traces of more than a few steps are large.
    """

    start: OptionalCount = None
    steps: Count = 3

    def __post_init__(self) -> None:
        check_bounds(self, prefix="profile.")


class Capture:
    """Context manager that traces the steps of a `Profile`, and ends an open trace on exit."""

    def __init__(self, profile: Profile, directory: str | os.PathLike) -> None:
        """Prepare the trace without starting it.

        Args:
          profile: steps to trace.
          directory: output directory of plugins/profile/DATE/HOST.xplane.pb; created if missing. It
            may be in a bucket (gs://); the trace is then copied there.
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
        """Start the trace before a step if it is the first traced step."""
        if step in self._steps and self._local is None:
            remote = is_remote(self.directory)
            self._local = tempfile.mkdtemp() if remote else self.directory
            jax.profiler.start_trace(self._local)

    def after(self, step: int, results: Any) -> bool:
        """End the trace after a step if it is the last traced step.

        Args:
          step: number of the step that was just dispatched to the devices.
          results: arrays of the step; the call waits for them.

        Returns:
          True if a trace was written.
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
