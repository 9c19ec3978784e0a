"""`t5x-lite train`: makes what a config names and hands it to `train.loop.fit`."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from t5x_lite import checkpoints as checkpointing
from t5x_lite import config as configs
from t5x_lite import sharding, trees
from t5x_lite.config import Experiment
from t5x_lite.data.vocabulary import SentencePiece, load_vocabulary
from t5x_lite.run.measuring import Measurement
from t5x_lite.run.parts import Parts
from t5x_lite.serialization import to_json
from t5x_lite.train.loop import Periods, fit
from t5x_lite.train.state import TrainState, abstract_state, init_state, state_shardings
from t5x_lite.train.step import make_train_step
from t5x_lite.train.track import Tracker
from t5x_lite.types import InputError, Params


def train(experiment: Experiment) -> None:
    """Trains what a config says, going on from the newest checkpoint of its work directory.

    Raises:
      InputError: the config, the data, the vocabulary, the weights or the work directory are wrong.
      Interrupted: a signal came; the state is saved.
    """
    from t5x_lite.data import pipeline

    if not experiment.workdir:
        raise InputError("where should the run go? give --workdir DIR")
    workdir = Path(experiment.workdir)
    _check_workdir(workdir, experiment)
    vocabulary = _vocabulary(experiment)
    mesh = sharding.make_mesh(experiment.mesh)
    _check_batch(experiment, mesh)
    parts = Parts.of(experiment)
    sharding.check_divisible(mesh, parts.axes, parts.shapes)
    optimizer = experiment.optimizer.build(parts.axes)
    layout = state_shardings(
        mesh, parts.axes, experiment.optimizer.state_axes(parts.axes, parts.shapes)
    )
    batches = pipeline.train_batches(
        experiment.data,
        vocabulary,
        seed=experiment.seed,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )
    start = abstract_state(parts.shapes, optimizer, layout)
    initial = _initial_params(experiment, vocabulary, start) if experiment.init else None

    workdir.mkdir(parents=True, exist_ok=True)
    with (
        checkpointing.Checkpoints(
            workdir,
            keep=experiment.checkpoints.keep,
            best=experiment.checkpoints.best,
            best_mode=experiment.checkpoints.best_mode,
        ) as checkpoints,
        Tracker(workdir, total_steps=experiment.steps, enabled=jax.process_index() == 0) as tracker,
    ):
        latest = checkpoints.latest()
        if latest is not None:
            state = _restored(checkpoints, latest, start, batches)
            tracker.message(f"going on from step {latest} of {workdir}")
        else:
            state = init_state(parts.init, optimizer, layout, seed=experiment.seed)
            if initial is not None:
                state = dataclasses.replace(state, params=initial)
        configs.save(experiment, workdir / checkpointing.CONFIG_FILE)
        vocabulary.save(workdir / Path(checkpointing.VOCABULARY_FILE).parent)
        if int(state.step) >= experiment.steps:
            tracker.message(f"{workdir} is at step {int(state.step)} of {experiment.steps}: done")
            return
        tracker.message(
            f"{trees.count_parameters(parts.shapes):,} parameters on {mesh.size} "
            f"{mesh.devices.flat[0].device_kind} device(s), {experiment.compute_dtype}"
        )
        fit(
            state,
            batches,
            make_train_step(
                parts.loss,
                optimizer,
                experiment.optimizer.schedule.build(),
                mesh=mesh,
                layout=layout,
                seed=experiment.seed,
            ),
            mesh=mesh,
            periods=Periods(
                total=experiment.steps,
                log=experiment.log_period,
                evaluation=experiment.evaluation.period,
                checkpoint=experiment.checkpoints.period,
            ),
            evaluate=Measurement(parts, vocabulary, mesh=mesh, workdir=workdir),
            save=_saver(checkpoints, experiment, vocabulary),
            tracker=tracker,
        )


def _check_workdir(workdir: Path, experiment: Experiment) -> None:
    """A work directory is new, or holds the same experiment."""
    saved = workdir / checkpointing.CONFIG_FILE
    if saved.exists():
        configs.check_same_experiment(configs.load(saved), experiment, workdir)
    elif workdir.exists() and (not workdir.is_dir() or any(workdir.iterdir())):
        raise InputError(
            f"workdir {workdir} holds other files and no {saved.name}; use an empty directory"
        )


def _vocabulary(experiment: Experiment) -> SentencePiece:
    """The vocabulary of a config, which must fit its model."""
    vocabulary = load_vocabulary(experiment.data.vocabulary, extra_ids=experiment.data.extra_ids)
    if vocabulary.size > experiment.model.vocab_size:
        raise InputError(
            f"model.vocab_size {experiment.model.vocab_size} is smaller than the vocabulary "
            f"{experiment.data.vocabulary}, which has {vocabulary.size} tokens with "
            f"{experiment.data.extra_ids} extra ids; set --model.vocab-size"
        )
    return vocabulary


def _check_batch(experiment: Experiment, mesh: Mesh) -> None:
    parts, size = sharding.data_parallelism(mesh), experiment.data.batch_size
    if size % parts:
        raise InputError(
            f"data.batch_size {size} is not divisible by the {parts} devices that share a batch "
            f"(mesh {dict(mesh.shape)}); change --data.batch-size or --mesh.*"
        )


def _initial_params(experiment: Experiment, vocabulary: SentencePiece, start: TrainState) -> Params:
    """The weights that `init` names, for a new run."""
    step = checkpointing.find_step(experiment.init)
    saved = checkpointing.step_files(step).get(checkpointing.VOCABULARY_FILE)
    if saved is not None and saved != vocabulary.model_bytes:
        raise InputError(
            f"the vocabulary {experiment.data.vocabulary} is not that of the checkpoint {step}; "
            f"use --data.vocabulary {step / 'files' / checkpointing.VOCABULARY_FILE}"
        )
    return checkpointing.restore_params(step, start.params)


def _restored(
    checkpoints: checkpointing.Checkpoints, step: int, start: TrainState, batches: Any
) -> TrainState:
    """The state of a step; the batches are moved to the position that belongs to it."""
    params, optimizer = checkpoints.restore(
        step, params=start.params, optimizer={"step": start.step, "state": start.optimizer}
    )
    batches.restore(checkpoints.files(step)[_position_file()])
    return TrainState(optimizer["step"], params, optimizer["state"])


def _position_file() -> str:
    return f"data/process_{jax.process_index()}"


def _saver(
    checkpoints: checkpointing.Checkpoints, experiment: Experiment, vocabulary: SentencePiece
) -> Callable[..., None]:
    """What `fit` saves by."""
    constant = {
        checkpointing.CONFIG_FILE: to_json(experiment).encode(),
        checkpointing.VOCABULARY_FILE: vocabulary.model_bytes,
    }

    def save(state: TrainState, position: bytes, metrics: Mapping[str, float] | None) -> None:
        checkpoints.save(
            int(state.step),
            params=state.params,
            optimizer={"step": state.step, "state": state.optimizer},
            files={**constant, _position_file(): position},
            metrics=metrics,
        )

    return save
