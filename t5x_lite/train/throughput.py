"""Training metrics between two logs, and the speed of training.

The metrics of a step stay on the device until they are read, so that the host can run ahead:

    window = Window(peak=devices * chip(kind).peak)
    for step in range(1, 101):
        batch = window.next(batches)
        state, metrics = train_step(state, batch)
        window.add(step, metrics, tokens=512, flops=10**12)
    window.flush()      # {"loss", ..., "tokens_per_second", "steps_per_second", "data_wait", "mfu"}
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from t5x_lite.core.trees import Array, Batch
from t5x_lite.train.track import Goodput, Throughput

_AHEAD = 2
"""Maximum number of dispatched, unfinished steps, which keep a device busy."""


@runtime_checkable
class SupportsNext(Protocol):
    """Iterator over batches."""

    def __next__(self) -> Batch: ...


class NonFiniteLoss(RuntimeError):
    """Error of a train step with a NaN or infinite loss or gradient; the message names the step."""


class Window:
    """Collector of the metrics of all steps since the last log.

    Attributes:
      waited: seconds that the host waited for devices, except for steps that compile.
    """

    def __init__(
        self,
        *,
        peak: float | None = None,
        spent: Goodput | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.waited = 0.0
        self._spent = spent
        self._pending: list[tuple[int, Mapping[str, Array]]] = []
        self._checked: list[dict[str, float]] = []
        self._clock = clock
        self._throughput = Throughput(clock=clock)
        self._compiles = True
        self._shapes: set[Any] = set()
        self._peak = peak
        self._flops: list[int | None] = []

    def next(self, batches: SupportsNext) -> Batch:
        """Return the next batch, and measure the time spent waiting for data."""
        since = self._clock()
        batch = next(batches)
        waited = self._clock() - since
        self._throughput.wait(waited)
        if self._spent is not None and self._spent.is_stepping and not self._is_busy():
            self._spent.charge("data", waited)
        shapes = frozenset((name, np.shape(value)) for name, value in batch.items())
        self._compiles |= shapes not in self._shapes
        self._shapes.add(shapes)
        return batch

    @property
    def compiles(self) -> bool:
        """True if the next step compiles, because its batch has a new shape."""
        return self._compiles

    def _is_busy(self) -> bool:
        return bool(self._pending) and not all(
            value.is_ready() for value in jax.tree.leaves(self._pending[-1][1])
        )

    def add(
        self,
        step: int,
        metrics: Mapping[str, Array],
        *,
        tokens: int,
        flops: int | None = None,
    ) -> None:
        """Add the metrics of a step, and wait until earlier steps have finished."""
        self._pending.append((step, metrics))
        if self._compiles:
            jax.block_until_ready(metrics)
        elif len(self._pending) > _AHEAD:
            self._wait(self._pending[-1 - _AHEAD][1])
        self._throughput.add(tokens)
        self._flops.append(flops)
        if self._compiles:
            self._compiles = False
            self.restart()

    def restart(self) -> None:
        """Restart the measurement of speed, for example after an evaluation."""
        self._throughput.start()
        self._flops.clear()

    def check(self) -> None:
        """Wait for all steps; raise NonFiniteLoss if a loss or gradient is NaN or infinite."""
        self._wait([metrics for _, metrics in self._pending])
        for step, metrics in self._pending:
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            # A non-finite gradient corrupts the parameters one step before the loss shows it.
            for name in ("loss", "gradient_norm"):
                if not math.isfinite(values[name]):
                    raise NonFiniteLoss(
                        f"the {name.replace('_', ' ')} is {values[name]} at step {step}; "
                        "the last checkpoint is kept; try a lower learning rate, "
                        "--optimizer.clip-norm 1, or float32"
                    )
            self._checked.append(values)
        self._pending.clear()

    def _wait(self, results: Any) -> None:
        since = self._clock()
        jax.block_until_ready(results)
        self.waited += self._clock() - since

    def flush(self) -> dict[str, float]:
        """Return the last step's metrics, and the steps and tokens per second since the last log.

        The loss is not averaged, so that a resumed run logs the same values as an uninterrupted
        run.
        """
        self.check()
        rates = self._throughput.rates()
        flops = [each for each in self._flops if each]
        if rates and self._peak and len(flops) == len(self._flops):
            rates["mfu"] = sum(flops) / len(flops) / self._peak * rates["steps_per_second"]
        self._flops.clear()
        values = self._checked[-1] | rates
        self._checked.clear()
        return values
