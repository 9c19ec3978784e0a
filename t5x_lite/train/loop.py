"""The training loop, and prefetching of the next batch.

`fit` is the loop; train/training.py creates its arguments. `Ahead` copies the next batch to the
devices while a step runs:

    ahead = Ahead(batches, mesh)
    for step in ...:
        rows, batch = ahead.take()
        state, metrics = train_step(state, batch)
        if not save_after(step):
            ahead.draw()        # the devices can continue at once, whatever the host waits for

A checkpoint stores the position in the data after the last batch read. So before a checkpoint is
saved, the next batch is not prefetched.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh

from t5x_lite.config.evaluation import Capture, EarlyStopping, Patience, Profile
from t5x_lite.core import trees
from t5x_lite.core.accelerators import chip
from t5x_lite.core.errors import Interrupted
from t5x_lite.core.sharding import Ended, batch_part, put_batch
from t5x_lite.core.trees import Batch, Params
from t5x_lite.train.step import Metrics, TrainState
from t5x_lite.train.stopping import SaveClock, StopSignals, Watchdog
from t5x_lite.train.throughput import Window
from t5x_lite.train.track import Goodput, Tracker


@runtime_checkable
class Batches(Protocol):
    """Iterator over training batches, with a position that can be saved.

    An optional attribute `epoch`, the number of passes over the data so far, is logged.
    """

    def __next__(self) -> Mapping[str, np.ndarray]: ...

    def state(self) -> bytes:
        """Return the position in the data after the last returned batch."""
        ...


class Ahead:
    """Iterator over training batches that prefetches one batch to the devices."""

    def __init__(
        self,
        batches: Batches,
        mesh: Mesh,
        *,
        draw: Callable[[Batches], Mapping[str, np.ndarray]] = next,
    ) -> None:
        """Set up prefetching; no batch is read yet.

        Args:
          batches: training batches.
          mesh: device mesh that receives the batches.
          draw: function that reads the next batch.
        """
        self._batches = batches
        self._mesh = mesh
        self._draw = draw
        self._drawn: tuple[Mapping[str, np.ndarray], Batch] | None = None
        self._epoch: float | None = None

    def draw(self) -> None:
        """Read the next batch and start to copy it to the devices, unless it is already read."""
        if self._drawn is None:
            self._epoch = self._read_epoch()
            rows = self._draw(self._batches)
            self._drawn = rows, put_batch(rows, self._mesh)

    def take(self) -> tuple[Mapping[str, np.ndarray], Batch]:
        """Return the next batch in two forms: this process's rows, and all rows on devices."""
        self.draw()
        assert self._drawn is not None
        drawn, self._drawn = self._drawn, None
        return drawn

    @property
    def epoch(self) -> float | None:
        """Number of passes over the data up to the last taken batch, or None if unknown."""
        return self._read_epoch() if self._drawn is None else self._epoch

    def state(self) -> bytes:
        """Return the position in the data after the last taken batch.

        Raises:
          RuntimeError: if the next batch is already prefetched.
        """
        if self._drawn is not None:
            raise RuntimeError(
                "the data position of the last batch is not available, because the next batch is "
                "already prefetched; call state() before the next batch is prefetched"
            )
        return self._batches.state()

    def _read_epoch(self) -> float | None:
        epoch = getattr(self._batches, "epoch", None)
        return None if epoch is None else float(epoch)


Evaluate = Callable[[int, Params], dict[str, float] | None]
"""Function (step, params) -> metrics "<split>/<name>", or None if a signal interrupted it."""

Flops = Callable[[Mapping[str, np.ndarray]], int | None]
"""Function from this process's rows of a batch to the FLOPs of the train step, or None."""

SaveMetrics = Callable[[int, Mapping[str, float]], None]
"""Function (step, metrics) that adds metrics to the checkpoint of a step."""


@runtime_checkable
class Save(Protocol):
    """Function that saves a checkpoint with a train state and a data position."""

    def __call__(
        self,
        state: TrainState,
        position: bytes,
        metrics: Mapping[str, float] | None,
        *,
        hurried: bool = False,
    ) -> None:
        """Start to save a checkpoint; `hurried` is True if a signal ends the run."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Periods:
    """Intervals of the training loop, in steps.

    Attributes:
      total: last step of training.
      log: steps between two logs of training metrics.
      evaluation: steps between two evaluations.
      checkpoint: steps between two checkpoints.
      save_measured: True to also save a checkpoint after each evaluation, to keep the best one.
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
    stop: StopSignals | None = None,
    save_clock: SaveClock | None = None,
    flops: Flops | None = None,
    patience: Patience | None = None,
    capture: Capture | None = None,
    owed: SaveMetrics | None = None,
    spent: Goodput | None = None,
    watchdog: Watchdog | None = None,
) -> TrainState:
    """Train from the state's step to step `periods.total`, with evaluations, checkpoints and logs.

    Args:
      state: initial train state; its buffers are donated.
      batches: training batches, starting at the state's position in the data.
      step_function: train step from `make_train_step`.
      mesh: device mesh.
      periods: intervals of logs, evaluations and checkpoints. The first and the last step are
        always logged, and the last step is always evaluated and saved.
      evaluate: function that returns the metrics of a step.
      save: function that saves a checkpoint.
      tracker: writer of metrics; its callbacks may end training early.
      stop: signal watcher that is already started; None starts a new one.
      save_clock: timer for checkpoints by time; None saves only by steps.
      flops: function that returns the floating-point operations of a step, for "mfu".
      patience: early stopping, with the evaluations of earlier steps.
      capture: profiler of chosen steps.
      owed: function that saves the metrics of an interrupted evaluation after `fit` repeats it;
        None if no evaluation was interrupted.
      spent: timer of time lost outside of steps; None logs no times.
      watchdog: watchdog that ends a run with hanging steps; None disables it.

    Returns:
      The state after the last step.

    Raises:
      NonFiniteLoss: if the loss or its gradient is NaN or infinite.
      Interrupted: if a signal was received. The current step is finished and saved; an interrupted
        evaluation runs first after the next start.
    """
    peak = chip(mesh.devices.flat[0].device_kind).peak
    shares = dict if spent is None else spent.shares
    spent = Goodput() if spent is None else spent
    window = Window(peak=None if peak is None else peak * mesh.size, spent=spent)
    ahead = Ahead(batches, mesh, draw=window.next)
    patience = Patience(EarlyStopping()) if patience is None else patience
    capture = Capture(Profile(), "") if capture is None else capture
    save_clock = SaveClock(None) if save_clock is None else save_clock
    watched = StopSignals() if stop is None else contextlib.nullcontext(stop)
    watchdog = Watchdog(spent, seconds=0.0, directory="") if watchdog is None else watchdog
    start = int(state.step)
    num_parameters = trees.count_parameters(state.params)
    with watched as stop, capture, jax.set_mesh(mesh), watchdog:
        if (stopping := stop.requested(mesh, wait=True)) is not None:
            raise Interrupted(stopping, start)
        if owed is not None:
            with spent.on("evaluation"):
                measured = evaluate(start, state.params)
            if measured is None:
                raise Interrupted(_signal(stop, mesh), start)
            owed(start, measured)  # before the log: a run killed in between evaluates again
            tracker.log(start, measured)
            patience.add(measured)
            window.restart()
        if ended := patience.reason or tracker.stop():
            tracker.message(f"stopped early at step {start}: {ended}")
            return state
        for step in range(start + 1, periods.total + 1):
            try:
                rows, batch = ahead.take()
            except Ended:  # reading waits only at a step that is saved (`data.refresh`)
                raise Interrupted(_signal(stop, mesh), step - 1) from None
            with spent.on("profile"):
                capture.before(step)
            spent.to("compile" if window.compiles else "steps")
            state, metrics = step_function(state, batch)
            _, parts = batch_part(mesh)
            own = flops(rows) if flops is not None else None
            window.add(
                step,
                metrics,
                tokens=count_tokens(rows) * parts,
                flops=None if own is None else own * parts,
            )
            spent.to("steps")
            watchdog.finished(step)
            with spent.on("profile"):
                if capture.after(step, metrics):
                    tracker.message(f"traced the steps up to {step}: {capture.directory}")
            # Checked once per step: a later signal is handled at the end of the next step.
            stopping = stop.after_step(mesh, metrics, waited=window.waited + spent.paused())
            last = step == periods.total or stopping is not None
            evaluates = step % periods.evaluation == 0 or step == periods.total
            noticed, timed = stop.save_asked(), save_clock.due(step, mesh)
            saves = noticed or timed or step % periods.checkpoint == 0 or last
            logs = step == start + 1 or step % periods.log == 0 or last
            if not (evaluates or saves or (logs and tracker.has_callbacks)):
                ahead.draw()  # before the host waits for this step; no save before the next step
            if step == start + 1:
                tracker.log(step, {**window.flush(), **shares(), "num_parameters": num_parameters})
            elif logs:
                tracker.log(
                    step, {**window.flush(), **_epoch(ahead), **shares(), **stop.slowest_host()}
                )

            measured, unmeasured = None, False
            if evaluates:
                window.check()
                with spent.on("evaluation"):
                    measured = evaluate(step, state.params)
                if measured is None:
                    stopping, unmeasured = _signal(stop, mesh), True
                else:
                    tracker.log(step, measured)
                    patience.add(measured)
                window.restart()

            best_of = measured is not None and periods.save_measured
            ended = (patience.reason or tracker.stop()) if logs or evaluates else ""
            if saves or unmeasured or ended or best_of:
                window.check()
                with spent.on("checkpoint"):
                    save(state, ahead.state(), measured, hurried=stopping is not None)
                save_clock.restart()
            if stopping is not None and (unmeasured or step < periods.total):
                raise Interrupted(stopping, step)
            if ended and step < periods.total:
                tracker.message(f"stopped early at step {step}: {ended}")
                break
    return state


def _signal(stop: StopSignals, mesh: Mesh) -> int:
    signum = stop.requested(mesh, wait=True)
    assert signum is not None
    return signum


_SHIFTED = "decoder_input_tokens"
"""Feature that is a shifted copy of the targets, so its tokens are not counted."""


def count_tokens(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of non-padding input and target tokens in this process's rows."""
    counted = [name for name in batch if name.endswith("_tokens")]
    return sum(int(np.count_nonzero(batch[name])) for name in counted if name != _SHIFTED)


def _epoch(ahead: Ahead) -> dict[str, float]:
    return {} if ahead.epoch is None else {"epoch": ahead.epoch}
