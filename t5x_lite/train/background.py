"""A tracker in a thread of its own, so that neither its errors nor its waits reach training.

sink = Background("wandb", make, run, ids=KnownIds(workdir))
sink.log(10, {"loss": 5.4})     # returns at once
sink.close("finished")          # waits for what is still to be sent, a minute at most
"""

import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Mapping

from t5x_lite.train.tracking import KnownIds, MakeTracker, Outcome, RunTracker, TrackedRun

_logger = logging.getLogger(__name__)

_WAITING = 10_000
"""Records that may wait for a tracker; with more, the oldest is dropped."""
_CLOSE_SECONDS = 60.0


class Background:
    """Makes a tracker at the first record and gives it all records, in a thread.

    Args:
      name: of the tracker, for messages and trackers.json.
      make: gives the tracker.
      run: that it tracks; its id and first step are filled in.
      ids: of earlier starts.
      patience: seconds that `close` waits.
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
        """Hands on the metrics of a step; the first one makes the tracker."""
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
        """Ends the tracker; what it has not taken within a minute is left."""
        if self._thread is None:
            return
        if self._waiting.full():
            self._drop()
        self._waiting.put(outcome)
        self._thread.join(self._patience)
        if self._thread.is_alive():
            _logger.warning(
                "tracker %s did not take its last metrics within %.0f s; metrics.jsonl has them",
                self._name,
                self._patience,
            )

    def _drop(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._waiting.get_nowait()
        if not self._overran:
            self._overran = True
            _logger.warning(
                "tracker %s is too slow and misses metrics; metrics.jsonl has them", self._name
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
        except BaseException as error:  # SystemExit too: a tracker ends itself alone
            self._failed.set()
            _logger.warning(
                "tracker %s failed and gets no more metrics; metrics.jsonl has them (%s: %s)",
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
                "the id of tracker %s was not kept (%s): a resumed run begins another one there",
                self._name,
                error.strerror,
            )
