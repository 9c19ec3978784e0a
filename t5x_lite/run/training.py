"""`t5x-lite train`: makes what a config names and hands it to `train.loop.fit`."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax

from t5x_lite import checkpoints as checkpointing
from t5x_lite import sharding, trees
from t5x_lite.checkpoint_saving import Checkpoints
from t5x_lite.config import Experiment, Hosts
from t5x_lite.data.encoder_tokens import encoder_tokens
from t5x_lite.data.sources import batch_source
from t5x_lite.data.vocabulary import Vocabulary, load_vocabulary
from t5x_lite.metrics.selection import matching, refuse_test
from t5x_lite.run import hosts, preemption, restoring
from t5x_lite.run.allocator import within_memory
from t5x_lite.run.best import best_of_run
from t5x_lite.run.measuring import Measurement
from t5x_lite.run.parts import Parts, check_batch
from t5x_lite.run.step_sizes import step_flops
from t5x_lite.run.workdir import WorkDirectory
from t5x_lite.train.compilation import use_compilation_cache
from t5x_lite.train.early_stopping import Patience
from t5x_lite.train.loop import Periods, fit
from t5x_lite.train.profiling import Capture
from t5x_lite.train.record import evaluations
from t5x_lite.train.state import abstract_state, init_state, state_shardings
from t5x_lite.train.step import make_train_step
from t5x_lite.train.stop import StopSignals
from t5x_lite.train.track import Tracker
from t5x_lite.train.updates import joint_optimizer
from t5x_lite.train.window import NonFiniteLoss
from t5x_lite.types import InputError


def train(experiment: Experiment) -> None:
    """Trains what a config says, going on from the newest checkpoint of its work directory.

    Signals are watched from here on, not only in the loop: preparing takes its time.

    Raises:
      InputError: the config, the data, the vocabulary, the weights or the work directory are wrong.
      Interrupted: a signal came; the state is saved, if a step was taken.
    """
    hosts.join(experiment.hosts)
    use_compilation_cache(experiment.compilation_cache)
    # What is saved is the same on all processes, whoever this one is.
    experiment = dataclasses.replace(experiment, hosts=Hosts())
    with (
        StopSignals() as stop,
        preemption.watched(stop),
        WorkDirectory.open(experiment.workdir) as workdir,
        hosts.ending_together(NonFiniteLoss),
    ):
        _train(experiment, workdir, stop)


def _train(experiment: Experiment, workdir: WorkDirectory, stop: StopSignals) -> None:
    """Makes the parts that the config names, the cheap checks first, and trains."""
    workdir.check(experiment)
    vocabulary = _vocabulary(experiment)
    workdir.check_vocabulary(vocabulary)
    resumed = bool(checkpointing.saved_steps(workdir.path / checkpointing.DIRECTORY))
    if experiment.init and not resumed:
        restoring.check_init(experiment, vocabulary)
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    parts = Parts.of(experiment)
    sharding.check_divisible(
        mesh, parts.axes, parts.shapes, num_heads=getattr(experiment.model, "num_heads", None)
    )
    updates = parts.updates()
    optimizer = joint_optimizer(updates)
    layout = state_shardings(mesh, parts.axes, parts.optimizer_axes())
    batches = _batches(experiment, vocabulary, part=sharding.batch_part(mesh))
    measurement = Measurement(parts, vocabulary, mesh=mesh, workdir=workdir.local)
    _check_metrics(experiment, measurement.names(parts.shapes))
    start = abstract_state(parts.shapes, optimizer, layout)

    with _open_checkpoints(workdir, experiment) as checkpoints:
        state = restoring.resume(checkpoints, experiment, start, batches)
        going_on = (
            "" if state is None else f"going on from step {int(state.step)} of {workdir.path}"
        )
        if state is None:
            state = init_state(parts.init, optimizer, layout, seed=experiment.seed)
            if experiment.init:
                state = restoring.with_initial(state, experiment, vocabulary, start.params)
        # Not before: what cannot be resumed keeps the settings that it was made with.
        workdir.write(experiment, vocabulary)
        with Tracker(
            workdir.local, total_steps=experiment.steps, enabled=jax.process_index() == 0
        ) as tracker:
            if going_on:
                tracker.message(going_on)
            if int(state.step) >= experiment.steps:
                done = f"{workdir.path} is at step {int(state.step)} of {experiment.steps}: done"
                tracker.message(done)
                return
            tracker.message(
                f"{trees.count_parameters(parts.shapes):,} parameters on {mesh.size} "
                f"{mesh.devices.flat[0].device_kind} device(s), {experiment.compute_dtype}"
            )
            train_step = make_train_step(
                updates,
                mesh=mesh,
                layout=layout,
                seed=experiment.seed,
                microbatches=experiment.microbatches,
            )
            history = evaluations(workdir.local, until=int(state.step))
            # Here too: leaving the checkpoints waits for all processes.
            with hosts.ending_together(NonFiniteLoss):
                fit(
                    state,
                    batches,
                    within_memory(train_step),
                    mesh=mesh,
                    periods=_periods(experiment),
                    evaluate=measurement,
                    save=restoring.saver(checkpoints, experiment, vocabulary, workdir),
                    tracker=tracker,
                    stop=stop,
                    flops=step_flops(experiment),
                    patience=Patience(experiment.stop_early, history),
                    capture=Capture(experiment.profile, os.fspath(workdir.path / "profile")),
                )
            _tell_best(tracker, workdir, experiment)


def _tell_best(tracker: Tracker, workdir: WorkDirectory, experiment: Experiment) -> None:
    """Shows each task of a mixture at its best checkpoint, on the first process."""
    if jax.process_index():
        return
    split = experiment.evaluation.split
    shown = best_of_run(workdir.local, until=experiment.steps, split=split)
    if shown is not None:
        tracker.message(f"each task at the checkpoint that is best at it:\n{shown}")


def _batches(experiment: Experiment, vocabulary: Vocabulary, *, part: tuple[int, int]) -> Any:
    """Training batches, from a cache or from the task's files.

    Args:
      experiment: says which.
      vocabulary: of the data.
      part: which part of each batch this process feeds, and of how many.
    """
    return batch_source(experiment.data).train_batches(
        experiment.data,
        vocabulary,
        seed=experiment.seed,
        process_index=part[0],
        process_count=part[1],
    )


def _vocabulary(experiment: Experiment) -> Vocabulary:
    """The vocabulary of a config, which must fit its model."""
    vocabulary = load_vocabulary(experiment.data.vocabulary, extra_ids=experiment.data.extra_ids)
    if vocabulary.size > experiment.model.vocab_size:
        raise InputError(
            f"model.vocab_size {experiment.model.vocab_size} is smaller than the vocabulary "
            f"{experiment.data.vocabulary}, which has {vocabulary.size} tokens with "
            f"{experiment.data.extra_ids} extra ids; set --model.vocab-size"
        )
    masked = getattr(experiment.objective, "mask_id", None)
    if masked is not None and masked != (found := encoder_tokens(vocabulary).mask_id):
        raise InputError(
            f"objective.mask_id {masked} is not the [MASK] of the vocabulary "
            f"{experiment.data.vocabulary}: set --objective.mask-id {found}"
        )
    return vocabulary


def _open_checkpoints(workdir: WorkDirectory, experiment: Experiment) -> Checkpoints:
    settings = experiment.checkpoints
    return Checkpoints(
        workdir.path, keep=settings.keep, best=settings.best, best_mode=settings.best_mode
    )


def _periods(experiment: Experiment) -> Periods:
    return Periods(
        total=experiment.steps,
        log=experiment.log_period,
        evaluation=experiment.evaluation.period,
        checkpoint=experiment.checkpoints.period,
        save_measured=experiment.checkpoints.best is not None,
    )


def _check_metrics(experiment: Experiment, names: Sequence[str]) -> None:
    """Refuses, before any training, metrics that the evaluation does not give."""
    wanted = {
        "checkpoints.best": experiment.checkpoints.best,
        "stop_early.metric": experiment.stop_early.metric,
    }
    for field, name in wanted.items():
        if name is None:
            continue
        matched = matching(name, names) if field == "checkpoints.best" else [name]
        for metric in matched:
            refuse_test(field, metric)
        if not set(matched) & set(names):
            raise InputError(
                f"{field} {name!r} is not a metric of the evaluation: it gives "
                f"{', '.join(names) or 'none'}"
            )
