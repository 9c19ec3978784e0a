"""Stopping by a signal: after the same step on all processes.

    with StopSignals() as stop:
        for step in ...:
            ...
            if stop.requested(mesh) is not None:    # equal on all processes
                save, and leave

A signal may reach one process alone. So in a run of several, each process puts what it has received
into an array over all devices at every step, the devices take its maximum, and the processes look
at the outcome two steps later, when it has long been there: nobody waits for it.
"""

import collections
import signal
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_lite.sharding import replicated
from t5x_lite.types import Array

_DELAY = 2
"""Calls between a question and the answer that is looked at; as many steps as `fit` runs ahead."""


class StopSignals:
    """Remembers SIGINT and SIGTERM while it is entered; the second SIGINT interrupts at once.

    Attributes:
      received: the signal that this process received, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        self._agreement: _Agreement | None = None

    def requested(self, mesh: Mesh, *, wait: bool = False) -> int | None:
        """The signal that all processes stop by, or None; the same on every one of them.

        All processes call it equally often, with equal arguments.

        Args:
          mesh: of all devices.
          wait: whether the answer includes what has come until now, on any process; otherwise what
            had come two calls ago, in a run of several processes.
        """
        if jax.process_count() == 1:
            return self.received
        if self._agreement is None:
            self._agreement = _Agreement(mesh)
        self._agreement.ask(self.received or 0)
        return self._agreement.answer(delay=0 if wait else _DELAY) or None

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: Any) -> None:
        del frame
        if self.received is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signum


class _Agreement:
    """The maximum of a number over all processes, a few questions at a time."""

    def __init__(self, mesh: Mesh):
        self._devices = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._local = len(self._devices.addressable_devices)
        self._maximum = jax.jit(jnp.max, out_shardings=replicated(mesh))
        self._asked: collections.deque[Array] = collections.deque()

    def ask(self, number: int) -> None:
        """Sends this process's number on its way."""
        mine = np.full(self._local, number, np.int32)
        numbers = jax.make_array_from_process_local_data(self._devices, mine)
        self._asked.append(self._maximum(numbers))

    def answer(self, *, delay: int) -> int:
        """The maximum as of `delay` questions ago; 0 where there were fewer."""
        while len(self._asked) > delay + 1:
            self._asked.popleft()
        return int(self._asked[0]) if len(self._asked) > delay else 0
