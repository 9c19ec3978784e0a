"""Loading of a checkpoint for inference, and choice of a run's best checkpoint (`--step best`).

`--step best` selects the checkpoint with the best evaluation result in training:

    find_step("work/run", step="best")      # work/run/checkpoints/300; logs metric and value

The metric is checkpoints.best in the work directory's config.json, if it matches a metric, else
"<split>/score", else "<split>/loss". The values of the metric come from the checkpoints and from
metrics.jsonl.
"""

import atexit
import dataclasses
import json
import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5x_lite.checkpoints import manifest as checkpoint_manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.config.file import from_json
from t5x_lite.core import remote, sharding
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.run_history import evaluated_steps
from t5x_lite.core.trees import ComputeDtype, Params
from t5x_lite.data.vocabularies.loading import Vocabulary, load_vocabulary
from t5x_lite.metrics.benchmarks import (
    SCORE,
    Mode,
    best_step,
    described,
    is_test,
    matching,
    mode_of,
)
from t5x_lite.models.base import ModelConfig
from t5x_lite.objectives.learner import Learner

_logger = logging.getLogger(__name__)

Step: TypeAlias = int | Literal["best"] | None
"""Checkpoint of a work directory: a step number, "best", or None for the newest."""


def find_step(checkpoint: AnyPath | str, *, step: Step = None) -> AnyPath:
    """Return the checkpoint directory that `--checkpoint DIR --step STEP` selects.

    Args:
      checkpoint: work directory, its directory checkpoints/, or a single checkpoint directory.
      step: checkpoint of a work directory: a step number, "best", or None for the newest.

    Raises:
      InputError: if the directory or step does not exist; or, for "best", if no evaluation result
        determines the best step, or its checkpoint was deleted.
    """
    if step != "best":
        return checkpointing.find_step(checkpoint, step=step)
    newest = checkpointing.find_step(checkpoint)
    if newest == remote.open_path(checkpoint):
        raise InputError(
            f"checkpoint {checkpoint} is a single checkpoint directory, but --step best "
            "needs a work directory; pass the work directory instead"
        )
    directory = newest.parent
    measured = Measured.of(directory)
    saved = checkpointing.saved_steps(directory)
    if measured is None:
        raise InputError(
            f"checkpoint {checkpoint}: the best step is unknown, because training evaluated "
            "neither the metric of checkpoints.best, nor a score or a loss on a split other "
            f"than test; give one of the steps {saved}"
        )
    measured.check_mode(checkpoint)
    best, kept = measured.best(), measured.best(saved)
    if best != kept and (measured.is_configured or kept is None):
        there = f"the best saved step is {kept}" if kept else f"saved steps are {saved}"
        raise InputError(
            f"checkpoint {directory / str(best)} {_lack(directory, best)}, although "
            f"{measured.told(best)}; restore the checkpoint from a copy, or give another --step "
            f"({there})"
        )
    assert kept is not None
    if jax.process_index() == 0:
        if best != kept:
            _logger.warning(
                "%s, but its checkpoint was deleted; %s", measured.told(best), measured.remedy
            )
        _logger.info("using the best checkpoint of %s: %s", checkpoint, measured.told(kept))
    return directory / str(kept)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Values of one metric at the steps of a run, to select the run's best checkpoint.

    Attributes:
      metric: name of the metric.
      mode: "max" if higher values are better, "min" if lower values are better.
      is_configured: True if checkpoints.best is this metric, so the best checkpoint is kept.
      values: value of the metric at each step up to the newest checkpoint; at least one is finite.
    """

    metric: str
    mode: Mode
    is_configured: bool
    values: Mapping[int, float]

    @classmethod
    def of(cls, directory: AnyPath) -> "Measured | None":
        """Read the evaluation results of a run; return None if they do not determine a best step.

        Args:
          directory: directory checkpoints/ of a work directory, with at least one checkpoint.

        Raises:
          InputError: if metrics.jsonl is damaged.
        """
        saved = checkpointing.saved_steps(directory)
        evaluations: dict[int, Mapping[str, float]] = {}
        if directory.name == checkpointing.DIRECTORY:
            evaluations |= evaluated_steps(directory.parent, until=saved[-1])
        evaluations |= saved_metrics(directory)
        names = dict.fromkeys(
            name for one in evaluations.values() for name in one if math.isfinite(one[name])
        )
        config = _config(directory, saved[-1])
        metric, is_configured = _metric(config, list(names))
        if metric is None:
            return None
        mode = _section(config, "checkpoints").get("best_mode") if is_configured else None
        return cls(
            metric=metric,
            mode=mode_of(metric, mode if mode in ("max", "min") else None),
            is_configured=is_configured,
            values={step: one.get(metric, math.nan) for step, one in evaluations.items()},
        )

    def check_mode(self, checkpoint: object) -> None:
        """Raise InputError if checkpoints.best_mode would select the step with the highest loss."""
        if self.mode == "max" and mode_of(self.metric) == "min":
            lowest = best_step(self.values, mode="min")
            raise InputError(
                f"checkpoint {checkpoint}: checkpoints.best_mode is 'max', but {self.metric} is a "
                f"metric with lower values as the better ones; give --step {lowest} for the "
                f"lowest value or --step {self.best()} for the highest"
            )

    def best(self, steps: Sequence[int] | None = None) -> int | None:
        """Return the best of the given steps or of all evaluated steps; None if unknown."""
        chosen = self.values if steps is None else {s: self.values.get(s, math.nan) for s in steps}
        return best_step(chosen, mode=self.mode)

    def told(self, step: int | None) -> str:
        """Return a phrase that explains why a step was chosen, with its metric and value."""
        value = math.nan if step is None else self.values[step]
        how = described([self.metric], self.mode)
        return f"step {step} has {how} ({value:.4f})"

    @property
    def remedy(self) -> str:
        """Phrase that recommends the option to keep the checkpoint of the best step."""
        return f"--checkpoints.best {self.metric} keeps the best checkpoint"


def saved_metrics(directory: AnyPath) -> dict[int, dict[str, float]]:
    """Return the metrics stored in a run's checkpoints, by step; skip unreadable checkpoints."""
    measured = {}
    for step in checkpointing.saved_steps(directory):
        path = directory / str(step) / "files" / checkpointing.METRICS_FILE
        try:
            values = json.loads(path.read_bytes())
            measured[step] = {name: float(value) for name, value in values.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            continue  # not measured, or damaged, which is found when the step is loaded
    return measured


def told_at_end(directory: AnyPath) -> str | None:
    """Return a run's last log line, which names its best step, or None without evaluations."""
    saved = checkpointing.saved_steps(directory)
    measured = Measured.of(directory) if saved else None
    if measured is None:
        return None
    best, kept = measured.best(), measured.best(saved)
    if best == kept:
        return f"{measured.told(best)}; load it by --step best"
    less = f"; of the kept checkpoints, {measured.told(kept)}" if kept is not None else ""
    return f"{measured.told(best)}, but its checkpoint was deleted; {measured.remedy}{less}"


def _metric(config: Mapping[str, Any], names: Sequence[str]) -> tuple[str | None, bool]:
    best = _section(config, "checkpoints").get("best")
    pattern = best if isinstance(best, str) else ""
    found = [name for name in matching(pattern, names) if not is_test(name.partition("/")[0])]
    if len(found) == 1:
        return found[0], True
    split = str(_section(config, "evaluation").get("split", "validation"))
    for name in (f"{split}/{SCORE}", f"{split}/loss"):
        if name in names and not is_test(split):
            return name, False
    return None, False


def _config(directory: AnyPath, newest: int) -> Mapping[str, Any]:
    step = directory / str(newest) / "files"
    places = [directory.parent] if directory.name == checkpointing.DIRECTORY else []
    for place in (*places, step):
        try:
            config = json.loads((place / checkpointing.CONFIG_FILE).read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(config, dict):
            return config
    return {}


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _lack(directory: AnyPath, step: int | None) -> str:
    there = step in checkpointing.step_directories(directory)
    return f"has no {checkpoint_manifest.MANIFEST_FILE}" if there else "does not exist"


def learner_of(experiment: Experiment) -> Learner:
    """Return the learner (model, objective, heads and adapters) of a config; allocates no arrays.

    Raises:
      InputError: if the objective cannot train the model.
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
    """Return a run's config with the base model in float32, the data type for inference."""
    adapters = dataclasses.replace(experiment.adapters, base_dtype="float32")
    return dataclasses.replace(experiment, adapters=adapters)


def _as_used(experiment: Experiment) -> Experiment:
    """Return the config without a layer scan on CPU, where it copies the layers at each token."""
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
    """Return the experiment in the config.json of a checkpoint directory.

    Args:
      step_directory: checkpoint directory, for messages.
      files: files of the checkpoint, as returned by `checkpoints.step_files`.

    Raises:
      InputError: if config.json is not UTF-8 or JSON, or is not the config of an experiment.
    """
    source = str(step_directory / "files" / checkpointing.CONFIG_FILE)
    try:
        text = files[checkpointing.CONFIG_FILE].decode()
    except UnicodeDecodeError as error:
        raise InputError(f"config {source} is not valid UTF-8 (byte {error.start})") from error
    experiment = from_json(text, source=source)
    if not isinstance(experiment, Experiment):
        raise InputError(
            f"config {source} must be an Experiment, but is a {type(experiment).__name__}"
        )
    return experiment


@dataclasses.dataclass(frozen=True)
class Loaded:
    """Checkpoint loaded for inference: config, learner, parameters and vocabulary."""

    directory: AnyPath
    experiment: Experiment
    learner: Learner
    params: Params
    vocabulary: Vocabulary

    def check_length(self, length: int | None, *, what: str) -> None:
        """Raise InputError if a length exceeds the maximum length of the model.

        Args:
          length: number of tokens of a row; None is always accepted.
          what: plural noun for the message, such as "rows".
        """
        most = self.experiment.model.longest_document
        if length is not None and most is not None and length > most:
            raise InputError(
                f"checkpoint {self.directory}: the model's maximum length is {most} tokens, but "
                f"inputs_length sets {what} of {length} tokens"
            )

    def computing_in(self, dtype: ComputeDtype | None) -> "Loaded":
        """Return this checkpoint with activations of another data type; for None, unchanged."""
        if dtype is None:
            return self
        return dataclasses.replace(self, learner=dataclasses.replace(self.learner, dtype=dtype))

    @property
    def step(self) -> int:
        """Step number of the checkpoint, or 0 if its directory was renamed."""
        return int(self.directory.name) if self.directory.name.isdigit() else 0

    @classmethod
    def from_checkpoint(cls, checkpoint: str, *, step: Step, mesh: Mesh | None = None) -> "Loaded":
        """Load config, vocabulary and parameters of a checkpoint.

        Args:
          checkpoint: work directory or checkpoint directory.
          step: step number in a work directory, "best", or None for the newest checkpoint.
          mesh: device mesh of the parameters; None uses the first device.

        Raises:
          InputError: if the checkpoint does not exist or is damaged.
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
    """Return the size in bytes of a position in the key-value cache of decoding; 0 if unknown."""
    layers = getattr(model, "num_decoder_layers", getattr(model, "num_layers", 0))
    heads = getattr(model, "num_heads", 0) * getattr(model, "d_kv", 0)
    return 2 * layers * heads * np.dtype(jnp.dtype(dtype)).itemsize


def _vocabulary_directory(step_directory: AnyPath) -> Path:
    """Return a local directory of the vocabulary; for a remote checkpoint, a temporary copy."""
    found = step_directory / "files" / checkpointing.VOCABULARY_DIRECTORY
    if isinstance(found, Path):
        return found
    directory = tempfile.TemporaryDirectory(prefix="t5x_lite-vocabulary-")
    atexit.register(directory.cleanup)
    copy = Path(directory.name)
    for name in remote.files_below(found):
        (copy / name).write_bytes((found / name).read_bytes())
    return copy
