"""A config's learner, and a checkpoint that is ready for use."""

import atexit
import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from t5x_lite import remote, sharding
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.config.json import from_json
from t5x_lite.data.config import Data, rows_named, shapes_of, text_lengths
from t5x_lite.errors import InputError
from t5x_lite.learner import Learner
from t5x_lite.remote import AnyPath
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.run.step_sizes import empty_row
from t5x_lite.train.microbatches import check_microbatches
from t5x_lite.types import Params
from t5x_lite.vocabulary.loading import Vocabulary, load_vocabulary

LONGEST = 1 << 24
"""Maximum tokens of a row: longer ones have no attention that any device can hold."""


def learner_of(experiment: Experiment) -> Learner:
    """The learner of a config; nothing is allocated.

    Raises:
      InputError: the objective cannot train the model.
    """
    return Learner.of(
        experiment.model,
        experiment.objective,
        heads=experiment.heads,
        adapters=experiment.adapters.modules,
        use=experiment.adapters.composition if experiment.adapters.modules else (),
        train=experiment.trained,
        optimizer=experiment.optimizer,
        dtype=experiment.compute_dtype,
        base_dtype=experiment.adapters.base_dtype,
    )


def with_float32_base(experiment: Experiment) -> Experiment:
    """The same run, whose base is read as it is: what a checkpoint is used by."""
    adapters = dataclasses.replace(experiment.adapters, base_dtype="float32")
    return dataclasses.replace(experiment, adapters=adapters)


def _unrolled(experiment: Experiment) -> Experiment:
    """The same model, on CPU as straight-line code: a scan copies the layers at every token."""
    if jax.default_backend() != "cpu":
        return experiment
    return dataclasses.replace(experiment, model=experiment.model.unrolled())


def _on_mesh(learner: Learner, mesh: Mesh) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        learner.shapes,
        sharding.shardings(mesh, learner.axes),
    )


def check_batch(experiment: Experiment, mesh: Mesh) -> None:
    """Refuses batches that do not divide among the devices, or have rows too long for the model.

    Raises:
      InputError: with the sizes.
    """
    check_lengths(experiment)
    data, parts = experiment.data, sharding.data_parallelism(mesh)
    grouped = bool(data.batches.buckets())
    for shape in shapes_of(data):
        size, named = shape.batch_size, rows_named(data, shape)
        if size % parts:
            option = "--data.batches.shapes" if grouped else "--data.batch-size"
            raise InputError(
                f"{named} is not divisible by the {parts} devices that share a batch "
                f"(mesh {dict(mesh.shape)}); change {option} or --mesh.*"
            )
        check_microbatches(size, experiment.microbatches, mesh, named=named if grouped else None)
        if experiment.tokens_per_part is not None:
            _ = num_parts(experiment, shape, mesh)
        # Of one shape the first step says it; that of another would say it in the middle of a run.
        columns = [value.shape[1] for value in empty_row(shape).values() if value.ndim > 1]
        if grouped and any(column % mesh.shape["sequence"] for column in columns):
            raise InputError(
                f"{named} is not divisible by the {mesh.shape['sequence']} devices that share a "
                f"row (mesh {dict(mesh.shape)}); change --data.batches.shapes or --mesh.sequence"
            )


def num_parts(experiment: Experiment, shape: Data, mesh: Mesh) -> int:
    """Microbatches of a batch of one static shape.

    Args:
      experiment: says how a batch is divided.
      shape: one of `shapes_of(experiment.data)`.
      mesh: the devices.

    Raises:
      InputError: see `train.microbatches.Parts.of`.
    """
    whole = {
        name: jax.ShapeDtypeStruct((shape.batch_size, *value.shape[1:]), value.dtype)
        for name, value in empty_row(shape, num_tasks=experiment.objective.num_tasks).items()
    }
    return experiment.parts.of(whole, mesh)


def check_devices(experiment: Experiment, mesh: Mesh) -> None:
    """Refuses devices on which a model would not be trained as its config says.

    Raises:
      InputError: with what to set.
    """
    kind = mesh.devices.flat[0].device_kind
    for model in (experiment.model, *experiment.objective.models().values()):
        model.check_devices(kind, dtype=experiment.compute_dtype)


def check_lengths(experiment: Experiment) -> None:
    """Refuses rows of another kind, and documents longer than a table of positions.

    Raises:
      InputError: with both.
    """
    data = experiment.data
    for name in ("inputs_length", "targets_length"):
        columns = getattr(data, name)
        if columns > LONGEST:
            raise InputError(
                f"data.{name} must be at most {LONGEST:,} tokens, got {columns:,}: no row of "
                "training is as long"
            )
    data.layout.check_model(begins_with_cls=experiment.model.begins_with_cls)
    lengths = {"inputs_length": data.inputs_length}
    if "document" in text_lengths(data):
        lengths["targets_length"] = data.targets_length
    own = {f"objective.{name}": model for name, model in experiment.objective.models().items()}
    for model, config in {"model": experiment.model, **own}.items():
        most = config.longest_document
        for name, length in lengths.items():
            if most is not None and length > most:
                raise InputError(
                    f"data.{name} {length} is above the {most} positions of {model}: shorten it, "
                    f"or make the table longer by --{model}.max-positions"
                )


def read_experiment(step_directory: AnyPath, files: Mapping[str, bytes]) -> Experiment:
    """The config of a step directory.

    Args:
      step_directory: for the messages.
      files: what `checkpoints.step_files` gives.

    Raises:
      InputError: it is not UTF-8, no JSON, or describes something else.
    """
    source = str(step_directory / "files" / checkpointing.CONFIG_FILE)
    try:
        text = files[checkpointing.CONFIG_FILE].decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8 (byte {error.start})") from error
    experiment = from_json(text, source=source)
    if not isinstance(experiment, Experiment):
        raise InputError(f"{source}: describes a {type(experiment).__name__}, not an Experiment")
    return experiment


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A checkpoint that is ready for use: nothing but the step directory was needed."""

    directory: AnyPath
    experiment: Experiment
    learner: Learner
    params: Params
    vocabulary: Vocabulary

    @property
    def step(self) -> int:
        """The step's number; 0 where the directory was renamed."""
        return int(self.directory.name) if self.directory.name.isdigit() else 0

    @classmethod
    def from_checkpoint(cls, checkpoint: str, *, step: Step, mesh: Mesh | None = None) -> "Loaded":
        """Reads config, vocabulary and parameters of a step directory.

        Args:
          checkpoint: a work directory or a step directory.
          step: of a work directory: its number, "best", or None for the newest.
          mesh: where the parameters go; None is the first device.

        Raises:
          InputError: there is no such checkpoint, or it is damaged.
        """
        directory = find_step(checkpoint, step=step)
        experiment = read_experiment(directory, checkpointing.step_files(directory))
        experiment = _unrolled(with_float32_base(experiment))
        learner = learner_of(experiment)
        if mesh is not None:
            learner.check_mesh(mesh)
        abstract = learner.shapes if mesh is None else _on_mesh(learner, mesh)
        params = checkpointing.restore_params(directory, abstract)
        vocabulary = load_vocabulary(
            _vocabulary_directory(directory), extra_ids=experiment.data.extra_ids
        )
        return cls(directory, experiment, learner, params, vocabulary)


def _vocabulary_directory(step_directory: AnyPath) -> Path:
    """The vocabulary of a step on this machine: where it is, or a copy until the process ends."""
    found = step_directory / "files" / checkpointing.VOCABULARY_DIRECTORY
    if isinstance(found, Path):
        return found
    copy = Path(tempfile.mkdtemp(prefix="t5x_lite-vocabulary-"))
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    for name in remote.files_below(found):
        (copy / name).write_bytes((found / name).read_bytes())
    return copy
