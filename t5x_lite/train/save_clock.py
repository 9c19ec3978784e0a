"""Saving by the clock: after the same step on all processes, by that of the first.

    clock = SaveClock(30.0)             # minutes
    for step in ...:
        if clock.due(step, mesh):       # equal on all processes
            save
            clock.restart()

A process by itself looks at its clock. Of several, the first puts its answer into an array over all
devices at every eighth step, the devices take the maximum, and all look at it eight steps later,
when it has long been there: nobody waits for it. So a save is up to sixteen steps late.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_lite.sharding import replicated
from t5x_lite.types import Array

_EVERY = 8
"""Steps between two questions; more than `fit` runs ahead."""


class SaveClock:
    """Says that so many minutes have passed since the last save."""

    def __init__(self, minutes: float | None, *, clock: Callable[[], float] = time.monotonic):
        """Starts the clock.

        Args:
          minutes: since the last save, or since now; None is never due.
          clock: gives seconds.
        """
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
        """Whether it is time for a save; the same on all processes, which all ask at every step.

        Args:
          step: its number.
          mesh: of all devices.
        """
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
