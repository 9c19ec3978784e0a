"""The training loop. `fit` is the story; what it is told with is made in run.py."""

import contextlib
import dataclasses
import math
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh

from t5x_lite import trees
from t5x_lite.sharding import put_batch
from t5x_lite.train.state import TrainState
from t5x_lite.train.step import Metrics
from t5x_lite.train.track import Throughput, Tracker
from t5x_lite.types import Batch, Interrupted, Params

Evaluate = Callable[[int, Params], dict[str, float]]
"""(step, params) -> metrics named "<split>/<name>"."""


_AHEAD = 2
"""Steps dispatched and not yet done: enough to keep a device busy, few for a signal to wait for."""


class NonFiniteLoss(RuntimeError):
    """The loss or its gradient is not a finite number; the message names the step."""


@runtime_checkable
class Batches(Protocol):
    """Training batches whose position can be saved."""

    def __next__(self) -> Mapping[str, np.ndarray]: ...

    def state(self) -> bytes:
        """The position after the last batch handed out."""
        ...


@runtime_checkable
class Save(Protocol):
    """Writes a checkpoint of a state and the data position that belongs to it."""

    def __call__(
        self, state: TrainState, position: bytes, metrics: Mapping[str, float] | None
    ) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Periods:
    """Numbers of steps.

    Attributes:
      total: the step at which training ends.
      log: between two lines of training metrics.
      evaluation: between two evaluations.
      checkpoint: between two checkpoints.
      save_measured: whether each evaluated step is saved too, so that the best of them can stay.
    """

    total: int
    log: int
    evaluation: int
    checkpoint: int
    save_measured: bool = False


def fit(
    state: TrainState,
    batches: Batches,
    step_function: Callable[[TrainState, Batch], tuple[TrainState, Metrics]],
    *,
    mesh: Mesh,
    periods: Periods,
    evaluate: Evaluate,
    save: Save,
    tracker: Tracker,
    stop: "StopSignals | None" = None,
) -> TrainState:
    """Trains from the state's step to `periods.total`, saving, measuring and logging on the way.

    Args:
      state: the state to start from; it is donated.
      batches: at the position that belongs to the state.
      step_function: from `make_train_step`.
      mesh: where batches go.
      periods: when things happen; the first step and the last are always logged (the first with
        "num_parameters"), the last is always measured and saved.
      evaluate: gives the metrics of a step.
      save: writes a checkpoint.
      tracker: the record.
      stop: already entered, where signals are watched since before; None watches them here.

    Returns:
      The state after the last step.

    Raises:
      NonFiniteLoss: a loss or its gradient is not finite; no checkpoint is written from it on.
      Interrupted: SIGINT or SIGTERM came; the step in progress was finished and saved.
    """
    window = _Window()
    start = int(state.step)
    num_parameters = trees.count_parameters(state.params)
    watched = StopSignals() if stop is None else contextlib.nullcontext(stop)
    with watched as stop, jax.set_mesh(mesh):
        if stop.received is not None:
            raise Interrupted(stop.received, start)
        for step in range(start + 1, periods.total + 1):
            batch = next(batches)
            state, metrics = step_function(state, put_batch(batch, mesh))
            window.add(step, metrics, tokens=count_tokens(batch))
            # Looked at once a step: a signal that comes later waits for the end of the next step.
            stopping = stop.received
            last = step == periods.total or stopping is not None
            if step == start + 1:
                tracker.log(step, {**window.flush(), "num_parameters": num_parameters})
            elif step % periods.log == 0 or last:
                tracker.log(step, window.flush())

            measured = None
            if step % periods.evaluation == 0 or step == periods.total:
                window.check()
                measured = evaluate(step, state.params)
                tracker.log(step, measured)
                window.restart()

            best_of = measured is not None and periods.save_measured
            if step % periods.checkpoint == 0 or last or best_of:
                window.check()
                save(state, batches.state(), measured)
            if stopping is not None and step < periods.total:
                raise Interrupted(stopping, step)
    return state


def count_tokens(batch: Mapping[str, np.ndarray]) -> int:
    """Tokens of this process's rows that are not padding, inputs and targets."""
    return sum(
        int(np.count_nonzero(batch[name]))
        for name in ("encoder_input_tokens", "decoder_target_tokens")
        if name in batch
    )


class _Window:
    """Metrics of the steps since the last log, left on the device until they are asked for."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Metrics]] = []
        self._checked: list[tuple[int, dict[str, float]]] = []
        self._throughput = Throughput()
        self._first = True

    def add(self, step: int, metrics: Metrics, *, tokens: int) -> None:
        """Takes the metrics of a step; waits for the first (it compiles) and for older ones."""
        self._pending.append((step, metrics))
        if len(self._pending) > _AHEAD:
            jax.block_until_ready(self._pending[-1 - _AHEAD][1])
        if self._first:
            jax.block_until_ready(metrics)
            self._first = False
        self._throughput.add(tokens * jax.process_count())

    def restart(self) -> None:
        """Leaves out the time that an evaluation took."""
        self._throughput.start()

    def check(self) -> None:
        """Waits for the steps so far.

        Raises:
          NonFiniteLoss: naming the first step whose loss or gradient is not finite.
        """
        for step, metrics in self._pending:
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            # A gradient that is not finite spoils the parameters one step before the loss.
            for name in ("loss", "gradient_norm"):
                if not math.isfinite(values[name]):
                    raise NonFiniteLoss(
                        f"the {name.replace('_', ' ')} is {values[name]} at step {step}; the last "
                        "checkpoint before it is kept. Try a lower learning rate, "
                        "--optimizer.clip-norm 1, or float32"
                    )
            self._checked.append((step, values))
        self._pending.clear()

    def flush(self) -> dict[str, float]:
        """The metrics of the last step, with throughput over the window.

        The loss is the last step's, not a mean: a resumed run logs what an uninterrupted one does.
        """
        self.check()
        values = self._checked[-1][1] | self._throughput.rates()
        self._checked.clear()
        return values


class StopSignals:
    """Remembers SIGINT and SIGTERM while it is entered; the second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

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
