"""Stopping by a signal: after the same step on all processes.

    with StopSignals() as stop:
        for step in ...:
            state, metrics = train_step(state, batch)
            if stop.after_step(mesh, metrics) is not None:    # equal on all processes
                save, and leave

A signal may reach one process alone. So in a run of several, each process puts what it has received
into an array over all devices every few steps, the devices gather it, and the processes look at the
outcome two steps later, when it has long been there: nobody waits for it. Where steps take a second
or more, the last one is waited for before the question: what came during it is then known at its
end. There are at most five seconds, or one step, between two questions, of the 30 that a cloud
gives before it takes a machine.

The processes tell each other on that occasion how long their steps take, from which follows when
they ask next, and how long each of them works for a step.
"""

import collections
import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_lite.processes import ending
from t5x_lite.sharding import replicated
from t5x_lite.signals import SIGNALS, ended_by, leave_terminal
from t5x_lite.types import Array

_PREPARING = 15.0
"""Seconds from a signal to the end of a process that has not taken a step."""
_DELAY = 2
"""Calls between a question and the answer that is looked at; as many steps as `fit` runs ahead."""
_EVERY = 8
"""Steps between two questions, at most."""
_EVERY_SECONDS = 5.0
"""The same in seconds."""
_SLOW_SECONDS = 1.0
"""Steps that take so long are waited for."""


class StopSignals:
    """Remembers SIGINT, SIGTERM and SIGHUP while entered; the second SIGINT interrupts at once.

    Attributes:
      received: the signal that this process received, or None.
      notices: how often this process was told to save and to go on.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is received yet; `clock` gives seconds."""
        self.received: int | None = None
        self.notices = 0
        self._before: dict[int, Any] = {}
        self._clock = clock
        self._gathered: _Gathered | None = None
        self._answer = _Answer()
        self._noticed = 0
        self._calls = self._next = 0
        self._called: float | None = None
        self._longest = 0.0
        self._work: _Work | None = None
        self._hosts: list[dict[int, float]] = []
        self._watching = contextlib.ExitStack()
        self._stepped = False

    def requested(self, mesh: Mesh, *, wait: bool = False) -> int | None:
        """The signal that all processes stop by, or None; the same on every one of them.

        All processes call it equally often, with equal arguments. Each call asks.

        Args:
          mesh: of all devices.
          wait: whether the answer includes what has come until now, on any process; otherwise what
            had come two calls ago, in a run of several processes, or until now where calls are a
            second or more apart.
        """
        if jax.process_count() == 1:
            return self._alone()
        self._call()
        self._work = None
        self._ask(mesh, wait=wait or self._answer.slow)
        return self._look()

    def after_step(self, mesh: Mesh, results: Any, *, waited: float = 0.0) -> int | None:
        """As `requested`, after a train step; several processes ask every few steps.

        Args:
          mesh: of all devices.
          results: arrays of the step.
          waited: seconds that this process has waited for devices in its steps so far.
        """
        self._stepped = True
        if jax.process_count() == 1:
            return self._alone()
        self._call()
        if self._work is None:
            self._work = _Work(self._clock(), waited)
        else:
            self._work.steps += 1
        if self._calls < self._next:
            return self._look()
        work = self._work.seconds_a_step(self._clock(), waited)
        if slow := self._answer.slow:
            jax.block_until_ready(results)
        self._ask(mesh, wait=slow, work=work)
        self._next = self._calls + self._answer.every
        found = self._look()
        self._work = _Work(self._clock(), waited)
        return found

    def save_asked(self) -> bool:
        """Whether a notice has come to any process, by the last answer; once for each notice."""
        noticed, self._noticed = self._noticed, self._answer.notices
        return self._noticed > noticed

    def slowest_host(self) -> dict[str, float]:
        """Which process worked longest for a step since the last call, and for how many seconds.

        Returns:
          {"slowest_host", "slowest_host_seconds"}; {} where nothing was told.
        """
        if not self._hosts:
            return {}
        seconds = {host: np.mean([each[host] for each in self._hosts]) for host in self._hosts[0]}
        self._hosts.clear()
        slowest = max(seconds, key=seconds.__getitem__)
        return {"slowest_host": float(slowest), "slowest_host_seconds": float(seconds[slowest])}

    def _alone(self) -> int | None:
        """What one process knows."""
        self._answer = _Answer(signal=self.received or 0, notices=self.notices)
        return self.received

    def _call(self) -> None:
        """Counts a call, and the seconds since the one before it."""
        now = self._clock()
        if self._called is not None:
            self._longest = max(self._longest, now - self._called)
        self._calls, self._called = self._calls + 1, now

    def _ask(self, mesh: Mesh, *, wait: bool, work: float = 0.0) -> None:
        """Sends what this process knows on its way."""
        if self._gathered is None:
            self._gathered = _Gathered(mesh)
        due = self._calls if wait else self._calls + _DELAY
        mine = np.array([self.received or 0, self.notices, self._longest, work], np.float32)
        self._gathered.send(mine, due=due)
        self._longest = 0.0

    def _look(self) -> int | None:
        """The signal of the newest answer that is due."""
        assert self._gathered is not None
        for numbers in self._gathered.due(self._calls):
            self._answer = _Answer(
                signal=int(max(each[0] for each in numbers.values())),
                notices=int(sum(each[1] for each in numbers.values())),
                seconds=max(each[2] for each in numbers.values()),
            )
            work = {host: each[3] for host, each in numbers.items()}
            if any(work.values()):
                self._hosts.append(work)
        return self._answer.signal or None

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                    continue  # nohup
                self._before[signum] = signal.signal(signum, self._handle)
        # Before the first step there is nothing to save, and JAX may allocate or compile for long.
        watched = ended_by(self._before, seconds=_PREPARING, may_end=self._may_end)
        self._watching.enter_context(watched)
        return self

    def _may_end(self) -> bool:
        return not self._stepped and not jax.distributed.is_initialized()

    def __exit__(self, *exception: object) -> None:
        ending.clear()
        self._watching.close()
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: Any) -> None:
        del frame
        if self.received is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        leave_terminal(signum)
        self.received = signum
        if jax.process_count() == 1:  # several agree on the step to stop after
            ending.set()


@dataclasses.dataclass(frozen=True)
class _Answer:
    """What all processes know, the same on every one of them.

    Attributes:
      signal: the highest that any process received; 0 is none.
      notices: of all processes.
      seconds: between two calls, the longest on any process; 0 where nothing is known yet.
    """

    signal: int = 0
    notices: int = 0
    seconds: float = 0.0

    @property
    def slow(self) -> bool:
        """Whether the next question waits for the step before it."""
        return self.seconds >= _SLOW_SECONDS

    @property
    def every(self) -> int:
        """Steps until the next question."""
        if not self.seconds:
            return 1
        return min(_EVERY, max(1, int(_EVERY_SECONDS / self.seconds)))


@dataclasses.dataclass
class _Work:
    """The steps since a question.

    Attributes:
      since: when they began.
      waited: seconds that had been waited for devices by then.
      steps: how many.
    """

    since: float
    waited: float
    steps: int = 0

    def seconds_a_step(self, now: float, waited: float) -> float:
        """How long this host has worked for each, and not waited; 0 where there was none."""
        if not self.steps:
            return 0.0
        return max(0.0, now - self.since - (waited - self.waited)) / self.steps


class _Gathered:
    """Numbers of all processes, a few questions at a time."""

    def __init__(self, mesh: Mesh):
        self._devices = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._local = len(self._devices.addressable_devices)
        self._processes = [device.process_index for device in mesh.devices.flat]
        self._gather = jax.jit(lambda numbers: numbers, out_shardings=replicated(mesh))
        self._sent: collections.deque[tuple[int, Array]] = collections.deque()

    def send(self, numbers: np.ndarray, *, due: int) -> None:
        """Sends this process's numbers on their way; the answer is looked at from a call on."""
        mine = np.tile(numbers, (self._local, 1))
        shape = (len(self._processes), len(numbers))
        rows = jax.make_array_from_process_local_data(self._devices, mine, shape)
        self._sent.append((due, self._gather(rows)))

    def due(self, call: int) -> Iterator[dict[int, list[float]]]:
        """The answers to look at by a call, oldest first: process -> its numbers."""
        while any(due <= call for due, _ in self._sent):
            _, gathered = self._sent.popleft()
            rows = np.asarray(gathered).tolist()
            yield dict(zip(self._processes, rows, strict=True))
