"""Stopping and saving on signals, cloud notices and time; the watchdog for hanging steps.

Signals stop all processes after the same step:

    with StopSignals() as stop:
        for step in ...:
            state, metrics = train_step(state, batch)
            if stop.after_step(mesh, metrics) is not None:    # equal on all processes
                save, and leave

A signal may reach only one process. So every few steps, the processes gather their signals in an
array over all devices. They read the result two steps later, when it is ready, so no process waits.
If steps take a second or more, each query first waits for the last step, so a signal takes effect
at the end of the current step. Queries are at most five seconds or one step apart; a cloud gives 30
seconds between its notice and the end of the machine.

The same query exchanges the duration of steps, which sets the time of the next query, and each
host's working time per step.

Saving by time happens after the same step on all processes, by the clock of the first process:

    clock = SaveClock(30.0)             # minutes
    for step in ...:
        if clock.due(step, mesh):       # equal on all processes
            save
            clock.restart()

With several processes, the clock is read and gathered at every eighth step, and the result is read
eight steps later. So a save is up to sixteen steps late.

The watchdog ends a run with hanging steps, for example by a broken chip or an endless collective:

    with Watchdog(spent, seconds=600, directory=workdir) as watchdog:
        for step in ...:
            state, metrics = train_step(state, batch)
            watchdog.finished(step)

It writes the stacks of all threads to standard error and to stacks/process_0.txt of the directory.
Then the process exits at once with code 1, so that a supervisor can restart it.

Training also saves when the cloud is about to preempt or stop the machine:

    with StopSignals() as stop, stopping.watched(stop):
        ...     # stop.received is SIGTERM about 30 seconds before the machine is stopped

SLURM, Kubernetes and a shutdown of the machine send SIGTERM themselves. A VM of Google Cloud, or a
host of a TPU slice, gets an earlier notice from its metadata server:

    instance/preempted           FALSE, then TRUE: a Spot VM is stopped in 30 seconds (Compute
                                 Engine documentation, "Create and use preemptible VMs")
    instance/maintenance-event   NONE, then TERMINATE_ON_HOST_MAINTENANCE: a VM that cannot migrate,
                                 with TPUs or GPUs, is stopped, and with it the whole slice; with
                                 GPUs in an hour, others in 60 seconds (the same, "Handle GPU host
                                 maintenance events"; GKE, "Manage disruption to GPUs and TPUs")

The first notice acts as SIGTERM. On the second notice, the run saves once and continues until
SIGTERM (docs/adr/0021), because the machine may run for another hour. Requests set wait_for_change,
so the server responds when a value changes.
"""

import contextlib
import dataclasses
import faulthandler
import http.client
import logging
import os
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_lite.core.sharding import ending, first_told, replicated
from t5x_lite.core.signals import SIGNALS, ended_by, interruption, leave_terminal
from t5x_lite.core.trees import Array
from t5x_lite.train.hosts import Metadata, on_google_cloud
from t5x_lite.train.track import Goodput

_logger = logging.getLogger(__name__)

_PREPARING = 15.0
"""Seconds from a signal to the end of a process that has not run a step."""
_DELAY = 2
"""Number of steps between a query and reading its result, as many as `fit` runs ahead."""
_EVERY = 8
"""Maximum number of steps between two queries."""
_EVERY_SECONDS = 5.0
"""Maximum seconds between two queries."""
_SLOW_SECONDS = 1.0
"""Duration of a step in seconds from which a query waits for the last step."""


class StopSignals:
    """Context manager that records SIGINT, SIGTERM and SIGHUP; a second SIGINT interrupts at once.

    Attributes:
      received: signal that this process received, or None.
      notices: number of maintenance notices of Google Cloud that this process received.
      latest: signal that the newest StopSignals received, or None.
    """

    latest: ClassVar[int | None] = None

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
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
        """Return the signal that stops the run, or None; the result is equal on all processes.

        All processes must call this method equally often.
        """
        if jax.process_count() == 1:
            return self._alone()
        self._call()
        self._work = None
        self._ask(mesh, wait=wait or self._answer.slow)
        return self._look()

    def after_step(self, mesh: Mesh, results: Any, *, waited: float = 0.0) -> int | None:
        """Return the signal that stops the run after a train step, or None to continue."""
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
        """Return True if any process received a new maintenance notice since the last call."""
        noticed, self._noticed = self._noticed, self._answer.notices
        return self._noticed > noticed

    def slowest_host(self) -> dict[str, float]:
        """Return metrics that name the host with the longest working time per step."""
        if not self._hosts:
            return {}
        seconds = {host: np.mean([each[host] for each in self._hosts]) for host in self._hosts[0]}
        self._hosts.clear()
        slowest = max(seconds, key=seconds.__getitem__)
        return {"slowest_host": float(slowest), "slowest_host_seconds": float(seconds[slowest])}

    def _alone(self) -> int | None:
        self._answer = _Answer(signal=self.received or 0, notices=self.notices)
        return self.received

    def _call(self) -> None:
        now = self._clock()
        if self._called is not None:
            self._longest = max(self._longest, now - self._called)
        self._calls, self._called = self._calls + 1, now

    def _ask(self, mesh: Mesh, *, wait: bool, work: float = 0.0) -> None:
        if self._gathered is None:
            self._gathered = _Gathered(mesh)
        due = self._calls if wait else self._calls + _DELAY
        mine = np.array([self.received or 0, self.notices, self._longest, work], np.float32)
        self._gathered.send(mine, due=due)
        self._longest = 0.0

    def _look(self) -> int | None:
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
        StopSignals.latest = None
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
                    continue  # nohup
                self._before[signum] = signal.signal(signum, self._handle)
        # Before the first step there is nothing to save, and JAX may allocate or compile for a long
        # time.
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
        self.received = StopSignals.latest = signum
        if jax.process_count() == 1:  # several processes first agree on the last step
            ending.set()

    @classmethod
    def end_after_run(cls) -> None:
        """Raise the exception of a signal that was received during a run's last step."""
        if signum := first_told(str(cls.latest or "")):
            raise interruption(int(signum))


@dataclasses.dataclass(frozen=True)
class _Answer:
    """Combination of the signals, notices and timings of all processes.

    Attributes:
      signal: highest signal that any process received; 0 for none.
      notices: total number of maintenance notices of Google Cloud that the processes received.
      seconds: maximum time between two steps on any process; 0 if unknown.
    """

    signal: int = 0
    notices: int = 0
    seconds: float = 0.0

    @property
    def slow(self) -> bool:
        return self.seconds >= _SLOW_SECONDS

    @property
    def every(self) -> int:
        if not self.seconds:
            return 1
        return min(_EVERY, max(1, int(_EVERY_SECONDS / self.seconds)))


@dataclasses.dataclass
class _Work:
    """Timing of this host's steps since all processes last exchanged their timings.

    Attributes:
      since: time of this exchange, in seconds.
      waited: total seconds that the host had waited for devices at that time.
      steps: number of steps since the exchange.
    """

    since: float
    waited: float
    steps: int = 0

    def seconds_a_step(self, now: float, waited: float) -> float:
        """Return this host's working time per step, without waits; 0 without steps."""
        if not self.steps:
            return 0.0
        return max(0.0, now - self.since - (waited - self.waited)) / self.steps


class _Gathered:
    """Exchange of numbers between all processes; sending does not wait for the results."""

    def __init__(self, mesh: Mesh):
        self._devices = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._local = len(self._devices.addressable_devices)
        self._processes = [device.process_index for device in mesh.devices.flat]
        self._gather = jax.jit(lambda numbers: numbers, out_shardings=replicated(mesh))
        self._sent: deque[tuple[int, Array]] = deque()

    def send(self, numbers: np.ndarray, *, due: int) -> None:
        mine = np.tile(numbers, (self._local, 1))
        shape = (len(self._processes), len(numbers))
        rows = jax.make_array_from_process_local_data(self._devices, mine, shape)
        self._sent.append((due, self._gather(rows)))

    def due(self, call: int) -> Iterator[dict[int, list[float]]]:
        while any(due <= call for due, _ in self._sent):
            _, gathered = self._sent.popleft()
            rows = np.asarray(gathered).tolist()
            yield dict(zip(self._processes, rows, strict=True))


class SaveClock:
    """Timer that decides when to save a checkpoint."""

    def __init__(self, minutes: float | None, *, clock: Callable[[], float] = time.monotonic):
        self._seconds = None if minutes is None else minutes * 60
        self._clock = clock
        self._since = clock()
        self._maximum: Callable[[Array], Array] | None = None
        self._asked: Array | None = None

    def restart(self) -> None:
        """Restart the timer after a save."""
        self._since = self._clock()
        self._asked = None

    def due(self, step: int, mesh: Mesh) -> bool:
        """Return True if it is time to save; every process must call it after every step."""
        if self._seconds is None:
            return False
        if jax.process_count() == 1:
            return self._over()
        if step % _EVERY:
            return False
        before, self._asked = self._asked, self._ask(mesh)
        return before is not None and bool(before)

    def _over(self) -> bool:
        assert self._seconds is not None
        return self._clock() - self._since >= self._seconds

    def _ask(self, mesh: Mesh) -> Array:
        if self._maximum is None:
            self._maximum = jax.jit(jnp.max, out_shardings=replicated(mesh))
        devices = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        over = jax.process_index() == 0 and self._over()
        mine = np.full(len(devices.addressable_devices), over, np.int32)
        return self._maximum(jax.make_array_from_process_local_data(devices, mine))


_TIMES = 20
"""Maximum duration of a step, as a multiple of the median duration."""
_WINDOW = 101
"""Number of recent steps in the median duration."""
_LATER = 60.0
"""Additional seconds until a process that no longer runs Python threads is ended."""


class Watchdog:
    """Context manager that ends the process if a train step hangs."""

    def __init__(
        self,
        spent: Goodput,
        *,
        seconds: float,
        directory: str | os.PathLike,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spent = spent
        self._seconds = seconds
        self._directory = Path(directory)
        self._clock = clock
        self._took: deque[float] = deque(maxlen=_WINDOW)
        self._step = 0
        self._finished = 0.0
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> "Watchdog":
        self._finished = self._clock()
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._left.set()
        if self._seconds:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def finished(self, step: int) -> None:
        """Record that earlier steps have finished, because step `step` was dispatched."""
        now = self._clock()
        self._took.append(now - self._finished)  # the first step includes compilation
        self._step, self._finished = step, now

    @property
    def limit(self) -> float:
        """Maximum duration of a step, in seconds."""
        took = tuple(self._took)  # a copy, because steps continue meanwhile
        usual = statistics.median(took) if took else 0.0
        return max(self._seconds, _TIMES * usual)

    def _watch(self) -> None:
        since = self._clock()
        while not self._left.wait(min(1.0, self._seconds / 10)):
            now = self._clock()
            if not self._spent.is_stepping:
                faulthandler.cancel_dump_traceback_later()
                since = now
                continue
            since = max(since, self._finished)
            # If this Python thread cannot run, a C thread ends the process a little later.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                faulthandler.dump_traceback_later(self.limit + _LATER, exit=True, file=_stderr())
            if now - since > self.limit:
                self._end(now - since)

    def _end(self, seconds: float) -> None:
        path = self._directory / "stacks" / f"process_{jax.process_index()}.txt"
        with contextlib.suppress(OSError, ValueError, AttributeError):
            faulthandler.dump_traceback(file=_stderr())
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                faulthandler.dump_traceback(file=file)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            print(
                f"error: process {jax.process_index()} of {jax.process_count()}: no step has ended "
                f"for {seconds:.0f} s, after step {self._step} (--hosts.watchdog); see the stacks "
                f"of its threads above and in {path}; the same command resumes from the last "
                "checkpoint",
                file=sys.stderr,
                flush=True,
            )
        os._exit(1)


def _stderr() -> Any:
    return sys.__stderr__


_WAIT_SECONDS = 60
"""Maximum time in seconds that the metadata server waits for a change."""
_AGAIN_SECONDS = 10.0
"""Delay in seconds before the next request after an error."""


@contextlib.contextmanager
def watched(stop: StopSignals) -> Iterator[None]:
    """Forward Google Cloud's maintenance notices to `stop` within the `with` block."""
    if not on_google_cloud():
        yield
        return
    left = threading.Event()

    def preempted(value: bytes) -> None:
        if value == b"TRUE":
            _logger.warning("this machine is being preempted; saving a checkpoint")
            stop.received = signal.SIGTERM

    def maintained(value: bytes) -> None:
        if value == b"TERMINATE_ON_HOST_MAINTENANCE":
            _logger.warning("this machine is about to stop for maintenance; saving a checkpoint")
            stop.notices += 1

    for path, tell in (("preempted", preempted), ("maintenance-event", maintained)):
        arguments = (f"instance/{path}", tell, left)
        threading.Thread(target=_watch, args=arguments, daemon=True, name=path).start()
    try:
        yield
    finally:
        left.set()


def _watch(path: str, tell: Callable[[bytes], None], left: threading.Event) -> None:
    metadata = Metadata()
    wait, before = "", b""  # the first answer is the current value
    while not left.is_set():
        try:
            answer = metadata.get(path + wait, seconds=2.0 * _WAIT_SECONDS)
        except (OSError, http.client.HTTPException) as error:  # urllib's are OSErrors
            _logger.debug("the metadata server does not respond: %s", error)
            left.wait(_AGAIN_SECONDS)
            continue
        if answer.value != before and not left.is_set():
            tell(answer.value)
        before = answer.value
        wait = f"?wait_for_change=true&timeout_sec={_WAIT_SECONDS}"
        if answer.etag:  # otherwise a change between two requests is noticed a minute later
            wait += f"&last_etag={answer.etag}"
