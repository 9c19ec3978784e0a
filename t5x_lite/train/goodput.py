"""Where the time of a run went: the share that steps had, and what the rest was lost to.

    spent = Goodput()                       # "start" begins
    with spent.on("compile"):
        state, metrics = train_step(...)
    spent.to("steps")
    spent.shares()      # {"goodput": 0.9, "lost_to_start": 0.04, "lost_to_compile": 0.06, ...}

Every second belongs to one cause. A run that is resumed goes on from the sums of its record, and
steps that were taken and not saved become lost; the time between two processes does not count.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

CAUSES = ("start", "compile", "data", "evaluation", "checkpoint", "profile", "restart")
"""What time is lost to. "start" ends with the first batch; "data" is waited for by idle devices
alone; "checkpoint" is what a save keeps the steps from; "restart" is of steps taken twice."""

_STEPS = "steps"
_PREFIX = "lost_to_"
_WHOLE = "run_seconds"
FIELDS = ("goodput", *(_PREFIX + cause for cause in CAUSES), _WHOLE)
"""The names of `shares`."""


class Goodput:
    """The seconds of a run by cause, of this process and of those before it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins with "start"; `clock` gives seconds."""
        self._clock = clock
        self._seconds: dict[str, float] = dict.fromkeys((_STEPS, *CAUSES), 0.0)
        self._own = 0.0
        self._cause, self._since = "start", clock()

    @property
    def is_stepping(self) -> bool:
        """Whether steps are what the time goes into."""
        return self._cause == _STEPS

    def to(self, cause: str) -> None:
        """From now on the time goes into a cause, or into "steps"."""
        now = self._clock()
        if cause == self._cause:
            return
        self._add(self._cause, now - self._since)
        self._cause, self._since = cause, now

    @contextlib.contextmanager
    def on(self, cause: str) -> Iterator[None]:
        """The time within the block goes into a cause."""
        before = self._cause
        self.to(cause)
        try:
            yield
        finally:
            self.to(before)

    def charge(self, cause: str, seconds: float) -> None:
        """Moves seconds that have just passed to a cause."""
        self._add(cause, seconds)
        self._add(self._cause, -seconds)

    def paused(self) -> float:
        """Seconds of this process in which no step was taken and no data were waited for."""
        running = 0.0 if self._cause in (_STEPS, "data") else self._clock() - self._since
        return self._own + running

    def shares(self) -> dict[str, float]:
        """The share of each cause that there was, "goodput" of the steps, and the seconds in all.

        Returns:
          {"goodput", "lost_to_<cause>", "run_seconds"}; the shares sum to 1.
        """
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
        """Adds the time of the processes before this one.

        Args:
          record: the lines of metrics.jsonl, as they were written.
          step: from which the run goes on; what was taken after it is lost.
        """
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
            # Where no line is of the step itself, its steps are taken to be of one length.
            since, at = (saved["goodput"] * saved[_WHOLE], saved["step"]) if saved else (0.0, 0)
            lost = max(0.0, steps - since) * ahead / (last["step"] - at)
        self._seconds[_STEPS] += steps - lost
        self._seconds["restart"] += lost

    def _add(self, cause: str, seconds: float) -> None:
        self._seconds[cause] += seconds
        if cause not in (_STEPS, "data"):
            self._own += seconds
