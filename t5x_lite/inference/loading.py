"""A config's learner, and a checkpoint that is ready for use."""

import atexit
import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5x_lite import remote, sharding
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.config.json import from_json
from t5x_lite.errors import InputError
from t5x_lite.inference.best_step import Step, find_step
from t5x_lite.learner import Learner
from t5x_lite.models.base import ModelConfig
from t5x_lite.remote import AnyPath
from t5x_lite.types import Params
from t5x_lite.vocabulary.loading import Vocabulary, load_vocabulary


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


def _as_used(experiment: Experiment) -> Experiment:
    """The same model as the devices run it: on CPU a scan would copy the layers at every token."""
    if jax.default_backend() != "cpu":
        return experiment
    model = experiment.model.on_cpu(dtype=experiment.compute_dtype)
    return dataclasses.replace(experiment, model=model)


def _on_mesh(learner: Learner, mesh: Mesh) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        learner.shapes,
        sharding.shardings(mesh, learner.axes),
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
        experiment = _as_used(with_float32_base(experiment))
        learner = learner_of(experiment)
        if mesh is not None:
            learner.check_mesh(mesh)
        abstract = learner.shapes if mesh is None else _on_mesh(learner, mesh)
        params = checkpointing.restore_params(directory, abstract)
        vocabulary = load_vocabulary(
            _vocabulary_directory(directory), extra_ids=experiment.data.extra_ids
        )
        return cls(directory, experiment, learner, params, vocabulary)


def position_bytes(model: ModelConfig, *, dtype: str) -> int:
    """Return the bytes of the keys and values of one decoded position; 0 if they are not known."""
    layers = getattr(model, "num_decoder_layers", getattr(model, "num_layers", 0))
    heads = getattr(model, "num_heads", 0) * getattr(model, "d_kv", 0)
    return 2 * layers * heads * np.dtype(jnp.dtype(dtype)).itemsize


def _vocabulary_directory(step_directory: AnyPath) -> Path:
    """The vocabulary of a step on this machine: where it is, or a copy until the process ends."""
    found = step_directory / "files" / checkpointing.VOCABULARY_DIRECTORY
    if isinstance(found, Path):
        return found
    directory = tempfile.TemporaryDirectory(prefix="t5x_lite-vocabulary-")
    atexit.register(directory.cleanup)
    copy = Path(directory.name)
    for name in remote.files_below(found):
        (copy / name).write_bytes((found / name).read_bytes())
    return copy
