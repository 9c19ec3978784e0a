"""A checkpoint that is ready for use, and `--step best`.

`--step best`: the checkpoint that a run's own evaluations found best.

    find_step("work/run", step="best")      # work/run/checkpoints/300; the log says by what

The work directory's config.json says by which metric: checkpoints.best, where that names one, else
"<split>/score", else "<split>/loss". What was measured is in the checkpoints, and in metrics.jsonl.
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
"""The step of a work directory: its number, the best, or None for the newest."""


def find_step(checkpoint: AnyPath | str, *, step: Step = None) -> AnyPath:
    """Return the checkpoint directory for `--checkpoint DIR --step STEP`.

    Args:
      checkpoint: a work directory, its checkpoints/ or one checkpoint directory.
      step: step of a work directory.

    Raises:
      InputError: if the directory or step does not exist; or, for "best", if training measured
        nothing that determines it, or the best step was deleted (see checkpoints.best).
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
            f"checkpoint {checkpoint}: the best step is unknown, since training measured neither "
            "the metric of checkpoints.best, nor a score or a loss on a split other than test: "
            f"give one of the steps {saved}"
        )
    measured.check_mode(checkpoint)
    best, kept = measured.best(), measured.best(saved)
    if best != kept and (measured.is_configured or kept is None):
        there = f"the best saved step is {kept}" if kept else f"saved steps are {saved}"
        raise InputError(
            f"checkpoint {directory / str(best)} {_lack(directory, best)}: {measured.told(best)}; "
            f"restore the checkpoint from a copy, or pass another --step; {there}"
        )
    assert kept is not None
    if jax.process_index() == 0:
        if best != kept:
            _logger.warning("%s, but has no checkpoint: %s", measured.told(best), measured.remedy)
        _logger.info("checkpoint %s: %s", checkpoint, measured.told(kept))
    return directory / str(kept)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The values by which the steps of a run are compared.

    Attributes:
      metric: metric of the values.
      mode: "max" or "min", the better direction.
      is_configured: True if checkpoints.best names this metric, so that the best step stays.
      values: the value of each step up to the newest checkpoint; at least one is finite.
    """

    metric: str
    mode: Mode
    is_configured: bool
    values: Mapping[int, float]

    @classmethod
    def of(cls, directory: AnyPath) -> "Measured | None":
        """Read the evaluations of a run, or return None if they do not determine a best step.

        Args:
          directory: checkpoints/ of a work directory, with at least one checkpoint.

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
        """Reject the highest loss as the best: "max" was once the default of all metrics.

        Raises:
          InputError: the config says "max" of what is best where lowest by its name.
        """
        if self.mode == "max" and mode_of(self.metric) == "min":
            lowest = best_step(self.values, mode="min")
            raise InputError(
                f"checkpoint {checkpoint}: checkpoints.best_mode is 'max', and of {self.metric} "
                f"the lowest is best by its name: give the step's number, {self.best()} for the "
                f"highest or {lowest} for the lowest"
            )

    def best(self, steps: Sequence[int] | None = None) -> int | None:
        """Return the best step; of some of them, if any of those was measured."""
        chosen = self.values if steps is None else {s: self.values.get(s, math.nan) for s in steps}
        return best_step(chosen, mode=self.mode)

    def told(self, step: int | None) -> str:
        """Why a step was chosen, as a message says it."""
        value = math.nan if step is None else self.values[step]
        how = described([self.metric], self.mode)
        return f"step {step} has {how} ({value:.4f})"

    @property
    def remedy(self) -> str:
        """Option that keeps such a step."""
        return f"--checkpoints.best {self.metric} keeps such a step"


def saved_metrics(directory: AnyPath) -> dict[int, dict[str, float]]:
    """Return the metrics that a run's checkpoints hold, by step; skip unreadable checkpoints."""
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
    """Return a run's last log line about its best step, or None without evaluations."""
    saved = checkpointing.saved_steps(directory)
    measured = Measured.of(directory) if saved else None
    if measured is None:
        return None
    best, kept = measured.best(), measured.best(saved)
    if best == kept:
        return f"{measured.told(best)}; --step best takes it"
    less = f"; of those that stay {measured.told(kept)}" if kept is not None else ""
    return f"{measured.told(best)}, but its checkpoint did not stay: {measured.remedy}{less}"


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
    """Return the learner of a config; nothing is allocated.

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
    """Return the run with its base in float32, the dtype for using a checkpoint."""
    adapters = dataclasses.replace(experiment.adapters, base_dtype="float32")
    return dataclasses.replace(experiment, adapters=adapters)


def _as_used(experiment: Experiment) -> Experiment:
    """Return the model as devices run it: on CPU a scan would copy the layers at every token."""
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
    """Return the config of a step directory.

    Args:
      step_directory: for the messages.
      files: files, as `checkpoints.step_files` returns them.

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
    """A checkpoint that is ready for use; only its directory was needed."""

    directory: AnyPath
    experiment: Experiment
    learner: Learner
    params: Params
    vocabulary: Vocabulary

    def check_length(self, length: int | None, *, what: str) -> None:
        """Raise InputError if the model cannot read so many tokens.

        Args:
          length: length of a row; None is what the model was trained with.
          what: has them, such as "rows".
        """
        most = self.experiment.model.longest_document
        if length is not None and most is not None and length > most:
            raise InputError(
                f"checkpoint {self.directory}: the model reads at most {most} tokens, but "
                f"inputs_length asks for {what} of {length}"
            )

    def computing_in(self, dtype: ComputeDtype | None) -> "Loaded":
        """Return the same with activations of another dtype; None changes nothing."""
        if dtype is None:
            return self
        return dataclasses.replace(self, learner=dataclasses.replace(self.learner, dtype=dtype))

    @property
    def step(self) -> int:
        """The step's number; 0 where the directory was renamed."""
        return int(self.directory.name) if self.directory.name.isdigit() else 0

    @classmethod
    def from_checkpoint(cls, checkpoint: str, *, step: Step, mesh: Mesh | None = None) -> "Loaded":
        """Read config, vocabulary and parameters of a checkpoint directory.

        Args:
          checkpoint: a work directory or a checkpoint directory.
          step: step of a work directory: its number, "best", or None for the newest.
          mesh: mesh of the parameters; if None, the first device.

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
    """Return the bytes of the keys and values of one decoded position; 0 if they are not known."""
    layers = getattr(model, "num_decoder_layers", getattr(model, "num_layers", 0))
    heads = getattr(model, "num_heads", 0) * getattr(model, "d_kv", 0)
    return 2 * layers * heads * np.dtype(jnp.dtype(dtype)).itemsize


def _vocabulary_directory(step_directory: AnyPath) -> Path:
    """Return a local directory of the vocabulary, perhaps a temporary copy."""
    found = step_directory / "files" / checkpointing.VOCABULARY_DIRECTORY
    if isinstance(found, Path):
        return found
    directory = tempfile.TemporaryDirectory(prefix="t5x_lite-vocabulary-")
    atexit.register(directory.cleanup)
    copy = Path(directory.name)
    for name in remote.files_below(found):
        (copy / name).write_bytes((found / name).read_bytes())
    return copy
