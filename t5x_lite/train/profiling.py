"""A trace of chosen steps by JAX's profiler, for TensorBoard, XProf or Perfetto.

    with Capture(Profile(start=100, steps=3), "work/run/profile") as capture:
        for step in range(1, 1001):
            capture.before(step)
            state, metrics = train_step(state, batch)
            capture.after(step, metrics)

Every process writes the trace of its own devices.
"""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax

from t5x_lite.errors import InputError
from t5x_lite.remote import is_remote, open_path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Which steps of a run are traced.

    Attributes:
      start: the first step, counted as in the log; None traces nothing.
      steps: number of steps; a trace of more than a few is large.
    """

    start: int | None = None
    steps: int = 3

    def __post_init__(self) -> None:
        for name in ("start", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"profile.{name} must be at least 1, got {value}")


class Capture:
    """Traces the steps that a `Profile` names; a context manager that ends a trace left open."""

    def __init__(self, profile: Profile, directory: str | os.PathLike) -> None:
        """Traces nothing yet.

        Args:
          profile: which steps.
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
        """Starts the trace before the first of its steps, or of those that a resumed run takes."""
        if step in self._steps and self._local is None:
            remote = is_remote(self.directory)
            self._local = tempfile.mkdtemp() if remote else self.directory
            jax.profiler.start_trace(self._local)

    def after(self, step: int, results: Any) -> bool:
        """Ends the trace after the last of its steps.

        Args:
          step: the step just dispatched.
          results: arrays of that step; they are waited for.

        Returns:
          Whether a trace was written now.
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
