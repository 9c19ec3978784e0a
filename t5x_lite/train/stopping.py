"""When training stops or saves: signals, notices of the cloud, the clock, steps that hang.

Stopping by a signal: after the same step on all processes.

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

Saving by the clock: after the same step on all processes, by that of the first.

    clock = SaveClock(30.0)             # minutes
    for step in ...:
        if clock.due(step, mesh):       # equal on all processes
            save
            clock.restart()

A process by itself looks at its clock. Of several, the first puts its answer into an array over all
devices at every eighth step, the devices take the maximum, and all look at it eight steps later,
when it has long been there: nobody waits for it. So a save is up to sixteen steps late.

Ends a run whose steps have stopped: a chip that hangs, a collective that waits for ever.

    with Watchdog(spent, seconds=600, directory=workdir) as watchdog:
        for step in ...:
            state, metrics = train_step(state, batch)
            watchdog.finished(step)

The stacks of all threads go to standard error and to stacks/process_0.txt of the directory, and the
process ends at once with code 1, so that what started it can start it again: it goes on from its
last checkpoint. Unwinding would wait for what hangs.

The cloud's notices that it takes this machine away, or stops it: training saves on them.

    with StopSignals() as stop, stopping.watched(stop):
        ...     # stop.received is SIGTERM some 30 seconds before the machine goes

SLURM, Kubernetes and a shutdown of the machine send SIGTERM by themselves. A VM of Google Cloud, a
host of a TPU slice among them, learns it earlier from its metadata server:

    instance/preempted           FALSE, then TRUE: a Spot VM goes in 30 seconds (Compute Engine
                                 documentation, "Create and use preemptible VMs")
    instance/maintenance-event   NONE, then TERMINATE_ON_HOST_MAINTENANCE: a VM that cannot migrate,
                                 with TPUs or GPUs, is stopped, and with it the whole slice; with
                                 GPUs in an hour, others in 60 seconds (the same, "Handle GPU host
                                 maintenance events"; GKE, "Manage disruption to GPUs and TPUs")

The first acts as SIGTERM. On the second the run saves once and goes on (docs/adr/0021): the machine
may be there for an hour yet, and a run that ended would be started on the same one again, to the
same notice. It ends by the SIGTERM of the shutdown.

A request with wait_for_change is answered when that happens, so nothing is asked again and again.
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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_lite.core.sharding import ending, replicated
from t5x_lite.core.signals import SIGNALS, ended_by, leave_terminal
from t5x_lite.core.trees import Array
from t5x_lite.train.hosts import Metadata, on_google_cloud
from t5x_lite.train.track import Goodput

_logger = logging.getLogger(__name__)

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
        """
        if jax.process_count() == 1:
            return self._alone()
        self._call()
        self._work = None
        self._ask(mesh, wait=wait or self._answer.slow)
        return self._look()

    def after_step(self, mesh: Mesh, results: Any, *, waited: float = 0.0) -> int | None:
        """As `requested`, after a train step; several processes ask every few steps."""
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
        """Which process worked longest for a step since the last call, and for how many seconds."""
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
        self._sent: deque[tuple[int, Array]] = deque()

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


class SaveClock:
    """Says that so many minutes have passed since the last save."""

    def __init__(self, minutes: float | None, *, clock: Callable[[], float] = time.monotonic):
        """Starts the clock."""
        self._seconds = None if minutes is None else minutes * 60
        self._clock = clock
        self._since = clock()
        self._maximum: Callable[[Array], Array] | None = None
        self._asked: Array | None = None

    def restart(self) -> None:
        """A save begins now: what was asked before it does not count."""
        self._since = self._clock()
        self._asked = None

    def due(self, step: int, mesh: Mesh) -> bool:
        """Whether it is time for a save; the same on all processes, which all ask at every step."""
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
        """What the first process says, on its way to all."""
        if self._maximum is None:
            self._maximum = jax.jit(jnp.max, out_shardings=replicated(mesh))
        devices = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        over = jax.process_index() == 0 and self._over()
        mine = np.full(len(devices.addressable_devices), over, np.int32)
        return self._maximum(jax.make_array_from_process_local_data(devices, mine))


_TIMES = 20
"""Of the usual step, that it may take."""
_WINDOW = 101
"""Steps that the usual one is the median of."""
_LATER = 60.0
"""Seconds after which a process ends, too, in which no thread of Python's can run any more."""


class Watchdog:
    """Looks at the steps from a thread of its own; a context manager."""

    def __init__(
        self,
        spent: Goodput,
        *,
        seconds: float,
        directory: str | os.PathLike,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watches nothing yet."""
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
        """A step was dispatched, and those that it does not wait for have ended."""
        now = self._clock()
        self._took.append(now - self._finished)  # the first with its compilation
        self._step, self._finished = step, now

    @property
    def limit(self) -> float:
        """Seconds that a step may take."""
        took = tuple(self._took)  # at once: the steps go on meanwhile
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
            # Where this thread cannot run, a thread of C ends the process, a little later.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                faulthandler.dump_traceback_later(self.limit + _LATER, exit=True, file=_stderr())
            if now - since > self.limit:
                self._end(now - since)

    def _end(self, seconds: float) -> None:
        """Says what hangs, and leaves."""
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
                f"for {seconds:.0f} s, after step {self._step} (--hosts.watchdog): see the stacks "
                f"of its threads above and in {path}; the same command resumes from the last "
                "checkpoint",
                file=sys.stderr,
                flush=True,
            )
        os._exit(1)


def _stderr() -> Any:
    """A standard error that is a file, whatever has been put in its place."""
    return sys.__stderr__


_WAIT_SECONDS = 60
"""How long the server keeps a request that it has nothing to say to."""
_AGAIN_SECONDS = 10.0
"""After an error, until the server is asked again."""


@contextlib.contextmanager
def watched(stop: StopSignals) -> Iterator[None]:
    """While it is entered, notices are told to `stop`; elsewhere than there nothing is done."""
    if not on_google_cloud():
        yield
        return
    left = threading.Event()

    def preempted(value: bytes) -> None:
        if value == b"TRUE":
            _logger.warning("this machine is being preempted: saving")
            stop.received = signal.SIGTERM

    def maintained(value: bytes) -> None:
        if value == b"TERMINATE_ON_HOST_MAINTENANCE":
            _logger.warning("this machine is about to be stopped for maintenance: saving")
            stop.notices += 1

    for path, tell in (("preempted", preempted), ("maintenance-event", maintained)):
        arguments = (f"instance/{path}", tell, left)
        threading.Thread(target=_watch, args=arguments, daemon=True, name=path).start()
    try:
        yield
    finally:
        left.set()


def _watch(path: str, tell: Callable[[bytes], None], left: threading.Event) -> None:
    """Tells each value of a path that differs from the one before, until `left` is set."""
    metadata = Metadata()
    wait, before = "", b""  # the first answer is what is so already
    while not left.is_set():
        try:
            answer = metadata.get(path + wait, seconds=2.0 * _WAIT_SECONDS)
        except (OSError, http.client.HTTPException) as error:  # urllib's are OSErrors
            _logger.debug("the metadata server does not answer: %s", error)
            left.wait(_AGAIN_SECONDS)
            continue
        if answer.value != before and not left.is_set():
            tell(answer.value)
        before = answer.value
        wait = f"?wait_for_change=true&timeout_sec={_WAIT_SECONDS}"
        if answer.etag:  # else what changes between two requests is seen a minute later
            wait += f"&last_etag={answer.etag}"
