"""The training loop, and the next batch on the devices.

The training loop. `fit` is the story; what it is told with is made in train/training.py.

The next batch on the devices while a step is in progress.

    ahead = Ahead(batches, mesh)
    for step in ...:
        rows, batch = ahead.take()
        state, metrics = train_step(state, batch)
        if not save_after(step):
            ahead.draw()        # the devices go on to it at once, whatever the host waits for

A position in the data is that after the last batch that was drawn. To keep it at each step would
cost what a shuffle buffer holds, so that nothing is drawn before a step that is saved has been.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh

from t5x_lite.config.run_options import Capture, EarlyStopping, Patience, Profile
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
    """Training batches whose position can be saved.

    They may have the attribute `epoch`, which is logged where it is not None: how often the data
    were read, up to the last batch that was handed out; a fraction, or whole epochs.
    """

    def __next__(self) -> Mapping[str, np.ndarray]: ...

    def state(self) -> bytes:
        """The position after the last batch handed out."""
        ...


class Ahead:
    """Batches, at most one more of them than was taken."""

    def __init__(
        self,
        batches: Batches,
        mesh: Mesh,
        *,
        draw: Callable[[Batches], Mapping[str, np.ndarray]] = next,
    ) -> None:
        """Draws nothing yet.

        Args:
          batches: are drawn from.
          mesh: where they go.
          draw: gives the next of them.
        """
        self._batches = batches
        self._mesh = mesh
        self._draw = draw
        self._drawn: tuple[Mapping[str, np.ndarray], Batch] | None = None
        self._epoch: float | None = None

    def draw(self) -> None:
        """Draws the batch of the next `take`, if that was not done, and begins to copy it."""
        if self._drawn is None:
            self._epoch = self._read_epoch()
            rows = self._draw(self._batches)
            self._drawn = rows, put_batch(rows, self._mesh)

    def take(self) -> tuple[Mapping[str, np.ndarray], Batch]:
        """The next batch: this process's rows of it, and the whole on the devices."""
        self.draw()
        assert self._drawn is not None
        drawn, self._drawn = self._drawn, None
        return drawn

    @property
    def epoch(self) -> float | None:
        """That of the batches, up to the last one taken; None where they do not tell it."""
        return self._read_epoch() if self._drawn is None else self._epoch

    def state(self) -> bytes:
        """The position after the last batch taken.

        Raises:
          RuntimeError: a batch more was drawn.
        """
        if self._drawn is not None:
            raise RuntimeError("the position of a batch that was drawn ahead is not that of a step")
        return self._batches.state()

    def _read_epoch(self) -> float | None:
        epoch = getattr(self._batches, "epoch", None)
        return None if epoch is None else float(epoch)


Evaluate = Callable[[int, Params], dict[str, float] | None]
"""(step, params) -> metrics named "<split>/<name>"; None where a signal ended it before its end."""

Flops = Callable[[Mapping[str, np.ndarray]], int | None]
"""(rows of this process) -> FLOPs of a train step on them; None where they are not counted."""

SaveMetrics = Callable[[int, Mapping[str, float]], None]
"""(step, metrics): adds them to the checkpoint of that step."""


@runtime_checkable
class Save(Protocol):
    """Writes a checkpoint of a state and the data position that belongs to it."""

    def __call__(
        self,
        state: TrainState,
        position: bytes,
        metrics: Mapping[str, float] | None,
        *,
        hurried: bool = False,
    ) -> None:
        """Starts to save; `hurried` says that a signal ends the run here."""
        ...


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
    stop: StopSignals | None = None,
    save_clock: SaveClock | None = None,
    flops: Flops | None = None,
    patience: Patience | None = None,
    capture: Capture | None = None,
    owed: SaveMetrics | None = None,
    spent: Goodput | None = None,
    watchdog: Watchdog | None = None,
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
      tracker: the record; its callbacks may end training early.
      stop: already entered, where signals are watched since before; None watches them here.
      save_clock: says when time alone is a reason to save; None looks at no clock.
      flops: gives the floating-point operations of a step, for "mfu".
      patience: ends training early; it has seen the evaluations before the state.
      capture: traces chosen steps.
      owed: given where a signal ended the evaluation of the state's step: it is made first, and its
        metrics go where this says.
      spent: counts where the time goes, and is logged; None logs nothing of it.
      watchdog: ends a run whose steps hang; None waits for them.

    Returns:
      The state after the last step.

    Raises:
      NonFiniteLoss: a loss or its gradient is not finite; no checkpoint is written from it on.
      Interrupted: SIGINT or SIGTERM came; the step in progress was finished and saved. An
        evaluation in progress was not finished: the next run begins with it.
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
            owed(start, measured)  # first: a run that is killed here measures once more
            tracker.log(start, measured)
            patience.add(measured)
            window.restart()
        if ended := patience.reason or tracker.stop():
            tracker.message(f"stopped early at step {start}: {ended}")
            return state
        for step in range(start + 1, periods.total + 1):
            try:
                rows, batch = ahead.take()
            except Ended:  # it waits at a step that is saved (`data.refresh`)
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
            # Looked at once a step: a signal that comes later waits for the end of the next step.
            stopping = stop.after_step(mesh, metrics, waited=window.waited + spent.paused())
            last = step == periods.total or stopping is not None
            evaluates = step % periods.evaluation == 0 or step == periods.total
            noticed, timed = stop.save_asked(), save_clock.due(step, mesh)
            saves = noticed or timed or step % periods.checkpoint == 0 or last
            logs = step == start + 1 or step % periods.log == 0 or last
            if not (evaluates or saves or (logs and tracker.has_callbacks)):
                ahead.draw()  # before the host waits for this step, and no later save needs it
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
    """The signal that ended an evaluation, on whichever process it came."""
    signum = stop.requested(mesh, wait=True)
    assert signum is not None
    return signum


_SHIFTED = "decoder_input_tokens"
"""The targets once more."""


def count_tokens(batch: Mapping[str, np.ndarray]) -> int:
    """Tokens of this process's rows that are not padding, inputs and targets."""
    counted = [name for name in batch if name.endswith("_tokens")]
    return sum(int(np.count_nonzero(batch[name])) for name in counted if name != _SHIFTED)


def _epoch(ahead: Ahead) -> dict[str, float]:
    """{"epoch"} of the batches taken, where they tell it."""
    return {} if ahead.epoch is None else {"epoch": ahead.epoch}
