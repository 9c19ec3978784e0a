"""`t5x-lite train`: makes what a config names and hands it to `train.loop.fit`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5x_lite import checkpoints as checkpointing
from t5x_lite import config as configs
from t5x_lite import sharding, trees
from t5x_lite.config import Experiment
from t5x_lite.data.vocabulary import Vocabulary, load_vocabulary
from t5x_lite.data.vocabulary_files import BYTES_NAME, MODEL_NAME
from t5x_lite.run.measuring import Measurement
from t5x_lite.run.parts import Parts, check_batch
from t5x_lite.serialization import from_json, to_json
from t5x_lite.train.loop import Periods, StopSignals, fit
from t5x_lite.train.state import TrainState, abstract_state, init_state, state_shardings
from t5x_lite.train.step import make_train_step
from t5x_lite.train.track import Tracker
from t5x_lite.types import InputError


def train(experiment: Experiment) -> None:
    """Trains what a config says, going on from the newest checkpoint of its work directory.

    Signals are watched from here on, not only in the loop: preparing takes its time.

    Raises:
      InputError: the config, the data, the vocabulary, the weights or the work directory are wrong.
      Interrupted: a signal came; the state is saved, if a step was taken.
    """
    with StopSignals() as stop:
        _train(experiment, stop)


def _train(experiment: Experiment, stop: StopSignals) -> None:
    """Makes the parts that the config names, the cheap checks first, and trains."""
    if jax.process_count() > 1:
        raise InputError(
            f"train runs in one process, and there are {jax.process_count()}; several hosts are "
            "not supported yet"
        )
    if not experiment.workdir:
        raise InputError("where should the run go? give --workdir DIR")
    workdir = Path(experiment.workdir)
    _check_workdir(workdir, experiment)
    vocabulary = _vocabulary(experiment)
    _check_same_vocabulary(workdir, vocabulary)
    resumed = bool(checkpointing.saved_steps(workdir / checkpointing.DIRECTORY))
    fresh = bool(experiment.init) and not resumed
    if fresh:
        _check_init(experiment, vocabulary)
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    parts = Parts.of(experiment)
    sharding.check_divisible(mesh, parts.axes, parts.shapes)
    optimizer = experiment.optimizer.build(parts.axes)
    layout = state_shardings(
        mesh, parts.axes, experiment.optimizer.state_axes(parts.axes, parts.shapes)
    )
    from t5x_lite.data import pipeline  # now, because TensorFlow takes seconds

    batches = pipeline.train_batches(
        experiment.data,
        vocabulary,
        seed=experiment.seed,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )
    measurement = Measurement(parts, vocabulary, mesh=mesh, workdir=workdir)
    _check_best(experiment, measurement.names(parts.shapes))
    start = abstract_state(parts.shapes, optimizer, layout)
    initial = None
    if fresh:
        initial = checkpointing.restore_params(_check_init(experiment, vocabulary), start.params)

    _write_workdir(workdir, experiment, vocabulary)
    with (
        _open_checkpoints(workdir, experiment) as checkpoints,
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
            periods=_periods(experiment),
            evaluate=measurement,
            save=_saver(checkpoints, experiment, vocabulary),
            tracker=tracker,
            stop=stop,
        )


def _check_workdir(workdir: Path, experiment: Experiment) -> None:
    """A work directory is new, or holds the same experiment."""
    saved = workdir / checkpointing.CONFIG_FILE
    if saved.exists():
        # Decoded, not loaded: the project around a work directory must not become importable.
        earlier: Experiment = from_json(saved.read_text(encoding="utf-8"), source=str(saved))
        configs.check_same_experiment(earlier, experiment, workdir)
    elif workdir.exists() and not workdir.is_dir():
        raise InputError(f"workdir {workdir} is not a directory")
    # A run that was killed while it wrote its first file leaves that file's hidden beginning.
    elif workdir.exists() and any(not path.name.startswith(".") for path in workdir.iterdir()):
        raise InputError(
            f"workdir {workdir} holds other files and no {saved.name}; use an empty directory"
        )


def _check_same_vocabulary(workdir: Path, vocabulary: Vocabulary) -> None:
    """The file that data.vocabulary names must not have changed since the run began."""
    saved = workdir / checkpointing.VOCABULARY_DIRECTORY
    if _holds_another(saved, vocabulary):
        raise InputError(
            f"workdir {workdir} was made with another vocabulary than {vocabulary.model_path} is "
            f"now; put the old one back ({saved} is a copy) or use another --workdir"
        )


def _holds_another(directory: Path, vocabulary: Vocabulary) -> bool:
    """Whether a directory holds the files of a vocabulary, and not of this one."""
    paths = [directory / name for name in (MODEL_NAME, BYTES_NAME)]
    there = {path.name: path.read_bytes() for path in paths if path.is_file()}
    return bool(there) and there != vocabulary.files()


def _write_workdir(workdir: Path, experiment: Experiment, vocabulary: Vocabulary) -> None:
    """Makes the work directory, its config before all else: it says whose the rest is."""
    try:
        configs.save(experiment, workdir / checkpointing.CONFIG_FILE)
    except OSError as error:
        raise InputError(f"workdir {workdir} cannot be written ({error.strerror})") from error
    vocabulary.save(workdir / checkpointing.VOCABULARY_DIRECTORY)


def _vocabulary(experiment: Experiment) -> Vocabulary:
    """The vocabulary of a config, which must fit its model."""
    vocabulary = load_vocabulary(experiment.data.vocabulary, extra_ids=experiment.data.extra_ids)
    if vocabulary.size > experiment.model.vocab_size:
        raise InputError(
            f"model.vocab_size {experiment.model.vocab_size} is smaller than the vocabulary "
            f"{experiment.data.vocabulary}, which has {vocabulary.size} tokens with "
            f"{experiment.data.extra_ids} extra ids; set --model.vocab-size"
        )
    return vocabulary


def _open_checkpoints(workdir: Path, experiment: Experiment) -> checkpointing.Checkpoints:
    settings = experiment.checkpoints
    return checkpointing.Checkpoints(
        workdir, keep=settings.keep, best=settings.best, best_mode=settings.best_mode
    )


def _periods(experiment: Experiment) -> Periods:
    return Periods(
        total=experiment.steps,
        log=experiment.log_period,
        evaluation=experiment.evaluation.period,
        checkpoint=experiment.checkpoints.period,
        save_measured=experiment.checkpoints.best is not None,
    )


def _check_best(experiment: Experiment, names: Sequence[str]) -> None:
    best = experiment.checkpoints.best
    if best is not None and best not in names:
        raise InputError(
            f"checkpoints.best {best!r} is not a metric of the evaluation: it gives "
            f"{', '.join(names) or 'none'}"
        )


def _check_init(experiment: Experiment, vocabulary: Vocabulary) -> Path:
    """The step directory that `init` names, whose vocabulary must be that of the data."""
    step = checkpointing.find_step(experiment.init)
    files = checkpointing.step_files(step)
    saved = step / "files" / checkpointing.VOCABULARY_DIRECTORY
    if _holds_another(saved, vocabulary):
        raise InputError(
            f"the vocabulary {experiment.data.vocabulary} is not that of the checkpoint {step}; "
            f"use --data.vocabulary {saved}"
        )
    source = str(step / "files" / checkpointing.CONFIG_FILE)
    extra_ids = from_json(files[checkpointing.CONFIG_FILE].decode(), source=source).data.extra_ids
    if extra_ids != vocabulary.extra_ids:
        raise InputError(
            f"data.extra_ids {vocabulary.extra_ids} is not that of the checkpoint {step}: "
            f"use --data.extra-ids {extra_ids}"
        )
    return step


def _restored(
    checkpoints: checkpointing.Checkpoints, step: int, start: TrainState, batches: Any
) -> TrainState:
    """The state of a step; the batches are moved to the position that belongs to it."""
    params, optimizer = checkpoints.restore(
        step, params=start.params, optimizer={"step": start.step, "state": start.optimizer}
    )
    position = checkpoints.files(step).get(_position_file())
    if position is None:
        raise checkpoints.damaged(step, f"files/{_position_file()} is missing")
    batches.restore(position)
    return TrainState(optimizer["step"], params, optimizer["state"])


def _position_file() -> str:
    return f"data/process_{jax.process_index()}"


def _saver(
    checkpoints: checkpointing.Checkpoints, experiment: Experiment, vocabulary: Vocabulary
) -> Callable[..., None]:
    """What `fit` saves by."""
    constant = {
        checkpointing.CONFIG_FILE: to_json(experiment).encode(),
        **{
            f"{checkpointing.VOCABULARY_DIRECTORY}/{name}": content
            for name, content in vocabulary.files().items()
        },
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
