"""What every command needs: a config's learner taken apart, and a checkpoint ready for use."""

import atexit
import dataclasses
import functools
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from t5x_lite import remote, sharding, trees
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.config.json import from_json
from t5x_lite.errors import InputError
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.models.t5 import StackConfig
from t5x_lite.nn.bind import GraphDef, bind, cast, init, shapes
from t5x_lite.objectives.base import Learner, Phase
from t5x_lite.remote import AnyPath
from t5x_lite.run.best_step import Step, find_step
from t5x_lite.train.step import check_microbatches
from t5x_lite.train.updates import Update, check_updates
from t5x_lite.types import Axes, Batch, Key, Params
from t5x_lite.vocabulary.loading import Vocabulary, load_vocabulary


@dataclasses.dataclass(frozen=True)
class Parts:
    """A learner taken apart, and functions that put it together in the compute dtype."""

    experiment: Experiment
    graphdef: GraphDef
    shapes: Any
    axes: Axes

    @classmethod
    def of(cls, experiment: Experiment) -> "Parts":
        """Traces the learner; nothing is allocated."""
        return cls(experiment, *shapes(functools.partial(_learner, experiment)))

    def init(self, key: Key) -> Params:
        """Initial parameters."""
        return init(functools.partial(_learner, self.experiment), key)

    def loss(
        self, params: Params, batch: Batch, key: Key | None = None, *, phase: str | None = None
    ) -> Any:
        """The objective's sums over a batch, or those of one of its phases."""
        return self.bind(params)(batch, key=key, phase=phase)

    def updates(self) -> tuple[Update, ...]:
        """What a train step does: one update, or one for each phase of the objective."""
        phases, main = self.experiment.objective.phases(), self.experiment.optimizer
        below = self.experiment.model.below
        if not phases:
            return (Update(self.loss, main.build(self.axes, below=below), main.schedule.build()),)
        made = []
        for phase in phases:
            optimizer = phase.optimizer or main
            update = Update(
                functools.partial(self.loss, phase=phase.name),
                optimizer.build(_trained(phase, self.axes), below=below),
                optimizer.schedule.build(),
                name=phase.name,
                trains=functools.partial(_matches, phase.trains),
            )
            made.append(update)
        check_updates(made, list(trees.flatten(self.shapes)))
        return tuple(made)

    def optimizer_axes(self) -> Axes:
        """Logical axes of the optimizer's state, in the structure of the state."""
        phases, main = self.experiment.objective.phases(), self.experiment.optimizer
        if not phases:
            return main.state_axes(self.axes, self.shapes)
        return {
            phase.name: (phase.optimizer or main).state_axes(
                _trained(phase, self.axes), _trained(phase, self.shapes)
            )
            for phase in phases
        }

    def bind(self, params: Params) -> Any:
        """The learner, in the compute dtype."""
        return bind(self.graphdef, cast(params, jnp.dtype(self.experiment.compute_dtype)))

    @property
    def model_type(self) -> type:
        """The class of the model."""
        return type(bind(self.graphdef, self.shapes).model)

    def bind_model(self, params: Params) -> Any:
        """The model alone, in the compute dtype, from the learner's parameters.

        Its parameters are what the objective exports, which may be more than training changed.
        """
        exported = self.experiment.objective.export(params)
        return self.bind({**params, "model": exported}).model


def _matches(pattern: str, path: str) -> bool:
    return re.fullmatch(pattern, path) is not None


def _trained(phase: Phase, tree: Any) -> dict[str, Any]:
    """What a phase trains, of a tree that has the parameters' paths."""
    return trees.partition(tree, lambda path, _: _matches(phase.trains, path))[0]


def _learner(experiment: Experiment, rngs: Any) -> Learner:
    return Learner(experiment.model, experiment.objective, rngs=rngs)


def _unrolled(experiment: Experiment) -> Experiment:
    """The same model, on CPU as straight-line code: a scan copies the layers at every token."""
    model = experiment.model
    if jax.default_backend() != "cpu" or not isinstance(model, StackConfig | EncoderConfig):
        return experiment
    return dataclasses.replace(experiment, model=model.replace(unroll=True))


def _on_mesh(parts: Parts, mesh: Mesh) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        parts.shapes,
        sharding.shardings(mesh, parts.axes),
    )


def check_batch(experiment: Experiment, mesh: Mesh) -> None:
    """Refuses a batch that cannot be divided among the devices, or has rows too long for the model.

    Raises:
      InputError: with the sizes.
    """
    check_lengths(experiment)
    parts, size = sharding.data_parallelism(mesh), experiment.data.batch_size
    if size % parts:
        raise InputError(
            f"data.batch_size {size} is not divisible by the {parts} devices that share a batch "
            f"(mesh {dict(mesh.shape)}); change --data.batch-size or --mesh.*"
        )
    check_microbatches(size, experiment.microbatches, mesh)


def check_lengths(experiment: Experiment) -> None:
    """Refuses documents of more tokens than a table of positions has rows.

    Raises:
      InputError: with both.
    """
    data = experiment.data
    lengths = {"inputs_length": data.inputs_length}
    if data.layout == "pairs":
        lengths["targets_length"] = data.targets_length
    generator = getattr(experiment.objective, "generator", None)
    models = {"model": experiment.model, "objective.generator": generator}
    for model, config in models.items():
        most = getattr(config, "longest_document", None)
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
    parts: Parts
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
        parts = Parts.of(_unrolled(experiment))
        if mesh is not None:
            heads = getattr(experiment.model, "num_heads", None)
            sharding.check_divisible(mesh, parts.axes, parts.shapes, num_heads=heads)
        abstract = parts.shapes if mesh is None else _on_mesh(parts, mesh)
        params = checkpointing.restore_params(directory, abstract)
        vocabulary = load_vocabulary(
            _vocabulary_directory(directory), extra_ids=experiment.data.extra_ids
        )
        return cls(directory, parts, params, vocabulary)


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
