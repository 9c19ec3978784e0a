"""TensorBoard's event file of a run, written in the thread that logs.

    events = Events("work/run/tensorboard", first_step=1)
    events.add(1, {"loss": 5.4})
    events.close()

tensorboardX's own SummaryWriter writes from a thread. Where the disk is full that thread ends, and
whoever logs afterwards waits for it without end; here the error is raised by `add`.
"""

import math
import os
import time
from collections.abc import Mapping
from typing import Any

from t5x_lite.train.tracking import Outcome, TrackedRun

_FLUSH_SECONDS = 30


class Events:
    """Scalars in one file of a directory.

    Args:
      directory: made if it is missing.
      first_step: TensorBoard drops what an earlier, killed run wrote from this step on.

    Raises:
      ImportError: tensorboardX is not installed.
      OSError: the file cannot be written.
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
        """Writes scalars; the file is flushed every 30 seconds.

        Raises:
          OSError: the disk is full, for example.
        """
        for name, value in values.items():
            self._write(step=step, summary=self._scalar(name, value))
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._writer.close()

    def _write(self, **content: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), **content))


class TensorBoard:
    """TensorBoard as a tracker: an event file in tensorboard/ of the work directory.

    Args:
      run: that is tracked.

    Raises:
      ImportError: tensorboardX is not installed.
      OSError: the file cannot be written.
    """

    id: str | None = None

    def __init__(self, run: TrackedRun):
        directory = os.path.join(run.directory, "tensorboard")
        self._events = Events(directory, first_step=run.first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the finite numbers of a step."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._events.add(step, finite)

    def close(self, outcome: Outcome) -> None:
        """Closes the file."""
        del outcome
        self._events.close()
