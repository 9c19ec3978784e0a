"""Loading of a checkpoint, `--step best`, and modules of another run (`adapters.load`).

Loading of a checkpoint for inference, and choice of a run's best checkpoint (`--step best`).

`--step best` selects the checkpoint with the best evaluation result in training:

    find_step("work/run", step="best")      # work/run/checkpoints/300; logs metric and value

The metric is checkpoints.best in the work directory's config.json, if it matches a metric, else
"<split>/score", else "<split>/loss". The values of the metric come from the checkpoints and from
metrics.jsonl.

Adapters that come from another run or checkpoint (`adapters.load` NAME=DIR).

An adapter is found by its name in the config of a checkpoint, or is the only adapter in it; its
arrays are at adapters/NAME. It can only be used with the base model that it was trained with.
"""

import atexit
import dataclasses
import json
import logging
import math
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.composition import (
    Block,
    MultiTask,
    Stack,
    check_answers,
    names_of,
    trained_of,
    walk,
)
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.grammar import parse_trees, write_module, write_trees
from t5x_lite.checkpoints import items, reading
from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import Base, digests
from t5x_lite.config import Experiment
from t5x_lite.config.file import from_json
from t5x_lite.core import remote, sharding, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.tracking import evaluated_steps
from t5x_lite.core.trees import ComputeDtype, Params
from t5x_lite.data.config import adapter_numbers
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
from t5x_lite.models.vector_heads import TOWERS
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.learner import Learner

__all__ = [
    "check_children",
    "check_init",
    "with_loaded",
    "with_loaded_params",
]

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
            f"--step best: {measured.told(best)}, but checkpoint {directory / str(best)} "
            f"{_lack(directory, best)}; restore this checkpoint from a copy, or give another "
            f"--step ({there})"
        )
    assert kept is not None
    if jax.process_index() == 0:
        if best != kept:
            _logger.warning(
                "the checkpoint with the best metric was deleted: %s; %s",
                measured.told(best),
                measured.remedy,
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
    def of(cls, directory: AnyPath, *, metric: str | None = None) -> "Measured | None":
        """Read the evaluation results of a run; return None if they do not determine a best step.

        Args:
          directory: directory checkpoints/ of a work directory, with at least one checkpoint.
          metric: name of the metric to read; None reads the main metric of the run.

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
        metric, is_configured = _metric(config, list(names), named=metric)
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
        """Raise InputError if checkpoints.best_mode selects the highest value of a loss."""
        if self.mode == "max" and mode_of(self.metric) == "min":
            lowest = best_step(self.values, mode="min")
            raise InputError(
                f"checkpoint {checkpoint}: checkpoints.best_mode is 'max', but lower values of "
                f"the metric {self.metric} are better; give --step {lowest} for the lowest value "
                f"or --step {self.best()} for the highest"
            )

    def best(self, steps: Sequence[int] | None = None) -> int | None:
        """Return the step of `steps` with the best value of the metric, or None if unknown."""
        chosen = self.values if steps is None else {s: self.values.get(s, math.nan) for s in steps}
        return best_step(chosen, mode=self.mode)

    def told(self, step: int | None) -> str:
        """Return a phrase that explains the choice of a step by its metric value."""
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
    """Return a log line that names the best step of a run, or None without evaluations."""
    saved = checkpointing.saved_steps(directory)
    measured = Measured.of(directory) if saved else None
    if measured is None:
        return None
    best, kept = measured.best(), measured.best(saved)
    if best == kept:
        return f"{measured.told(best)}; load it by --step best"
    less = f"; of the kept checkpoints, {measured.told(kept)}" if kept is not None else ""
    return (
        f"the checkpoint with the best metric was deleted: {measured.told(best)}; "
        f"{measured.remedy}{less}"
    )


def _metric(
    config: Mapping[str, Any], names: Sequence[str], *, named: str | None = None
) -> tuple[str | None, bool]:
    best = _section(config, "checkpoints").get("best")
    pattern = best if isinstance(best, str) else ""
    if named is not None:
        return named if named in names else None, bool(matching(pattern, [named]))
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
    """Return a model's config without a scan over layers on CPU, where the scan is slow."""
    if jax.default_backend() != "cpu":
        return experiment
    model = experiment.model.on_cpu()
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
                f"checkpoint {self.directory}: the maximum length of the model is {most} tokens, "
                f"but inputs_length sets the length of {what} to {length} tokens"
            )

    def computing_in(self, dtype: ComputeDtype | None) -> "Loaded":
        """Return this checkpoint with activations of another data type; None changes nothing."""
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


@dataclasses.dataclass(frozen=True)
class TrainedModule:
    """Trained adapter that is stored in another checkpoint directory.

    Attributes:
      adapter: config of the adapter, with its name in this run.
      theirs: name of the adapter in its checkpoint.
      directory: checkpoint directory.
      base: record of the base model; None if the checkpoint includes the base model.
      towers: names of further encoders of the checkpoint that have parameters of the adapter.
    """

    adapter: Adapter
    theirs: str
    directory: AnyPath
    base: Base | None
    towers: tuple[str, ...] = ()

    @classmethod
    def find(cls, name: str, directory: str) -> "TrainedModule":
        """Find a checkpoint's adapter with a given name, or else its only adapter.

        Args:
          name: name of the adapter in this run.
          directory: work directory (its newest checkpoint is used) or checkpoint directory.

        Raises:
          InputError: if the checkpoint does not exist or has no such adapter.
        """
        step = find_step(directory, step=None)
        files = reading.step_files(step)
        experiment = read_experiment(step, files)
        modules = {each.name: each for each in experiment.adapters.modules}
        if name in modules:
            theirs = name
        elif len(modules) == 1:
            [theirs] = modules
        else:
            has = f"its adapters are {', '.join(modules)}" if modules else "it has no adapters"
            raise InputError(
                f"checkpoint {step} has no adapter {name}{did_you_mean(name, modules)}; {has}"
            )
        adapter = dataclasses.replace(modules[theirs], name=name)
        towers = experiment.objective.more_towers()
        return cls(adapter, theirs, step, Base.read(files, where=step), towers)

    def heads(self) -> list[str]:
        """Return the names of the heads that were trained together with the adapter."""
        if self.base is None:
            return []
        paths = (path.split("/") for path in reading.saved_arrays(self.directory))
        return sorted({name for part, name, *_ in paths if part == "heads"})

    def check_towers(self, objective: Objective) -> None:
        """Raise InputError if the adapter lacks parameters for an encoder of an objective."""
        wanted = objective.more_towers()
        if self.towers == wanted:
            return
        where = f"{self.theirs} of {self.directory}"
        if wanted:
            raise InputError(
                f"adapter {where} has parameters for one encoder, but the objective also has the "
                f"encoder {', '.join(wanted)}; start both encoders from this adapter by --init "
                f"{self.directory}, or set --objective.towers one"
            )
        raise InputError(
            f"adapter {where} has parameters for two encoders, but the objective has one encoder; "
            "set --objective.towers two, or import the directory of one encoder as written by "
            "`t5x-lite export adapter`"
        )

    def check_base(self, params: Params) -> None:
        """Raise InputError unless a model is the base model that the adapter was trained with.

        Args:
          params: nested parameter tree with the model, in float32.

        Raises:
          InputError: if an array differs, or the base model was trained together with the adapter
            and so exists in no other run.
        """
        flat = {path: leaf for path, leaf in trees.flatten(params).items() if _of_model(path)}
        saved = reading.saved_arrays(self.directory)
        own = {path: leaf for path, leaf in saved.items() if _of_model(path)}
        where = f"{self.theirs} of {self.directory}"
        if own and self.base is not None:
            raise InputError(
                f"adapter {where} was trained together with the array {next(iter(own))} of its "
                "base model, so this adapter cannot be loaded into another base model; start "
                f"from its checkpoint by --init {self.directory}"
            )
        arrays = {} if self.base is None else self.base.arrays
        wanted = {path: leaf.digest for path, leaf in arrays.items() if _of_model(path)}
        missing = next((path for path in (*own, *wanted) if path not in flat), None)
        if missing is not None:
            raise InputError(
                f"adapter {where} requires a base model with the array {missing}, but the given "
                "base model does not have this array"
            )
        if self.base is None:
            wanted = self._own_digests(own, flat)
            flat = {path: flat[path].astype(leaf.dtype) for path, leaf in own.items()}
        found = digests({path: flat[path] for path in wanted})
        other = next((path for path, digest in wanted.items() if found[path] != digest), None)
        if other is not None:
            name = "the base of its checkpoint" if self.base is None else self.base.checkpoint
            raise InputError(
                f"adapter {where} was trained with another base model, {name}: the digest of the "
                f"array {other} is {wanted[other]} in that model, but {found[other]} in the given "
                "base model"
            )

    def _own_digests(self, saved: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, str]:
        """Return the digests of the model arrays that the adapter's checkpoint stores, by path."""
        shapes = {
            path: jax.ShapeDtypeStruct(
                tuple(leaf.shape),
                "float32",
                sharding=flat[path].sharding if flat[path].shape == tuple(leaf.shape) else None,
            )
            for path, leaf in saved.items()
        }
        return digests(reading.restore_arrays(self.directory, shapes))

    def read(self, shapes: Mapping[str, Any]) -> dict[str, Any]:
        """Read the adapter's arrays; return them by their paths in this run.

        Raises:
          InputError: if the arrays are damaged or have other shapes.
        """
        ours, theirs = f"{ADAPTERS}{self.adapter.name}/", f"{ADAPTERS}{self.theirs}/"
        wanted = {path: leaf for path, leaf in shapes.items() if path.startswith(ours)}
        if not wanted:
            return {}
        sources = {path: theirs + path.removeprefix(ours) for path in wanted}
        found = reading.restore_arrays(
            self.directory, {sources[path]: leaf for path, leaf in wanted.items()}
        )
        return {path: found[source] for path, source in sources.items()}


def _of_model(path: str) -> bool:
    return path.startswith(("model/", TOWERS))


@dataclasses.dataclass(frozen=True)
class ModulesOf:
    """Loaded checkpoint with the adapters that its model can use, including added adapters.

    Attributes:
      loaded: the loaded checkpoint with its own adapters.
      adapters: name -> config of each adapter.
      arrays: name -> nested parameter tree of each adapter.
    """

    loaded: Loaded
    adapters: Mapping[str, Adapter]
    arrays: Mapping[str, Params]

    @classmethod
    def of(cls, loaded: Loaded) -> "ModulesOf":
        adapters = {each.name: each for each in loaded.learner.adapters}
        return cls(loaded, adapters, loaded.params.get("adapters", {}))

    def adding(self, name: str, directory: str) -> "ModulesOf":
        """Return the checkpoint with one more adapter, which was trained with the same base model.

        Raises:
          InputError: if the name is in use, the checkpoint has no such adapter, or the adapter was
            trained with another base model.
        """
        if name in self.adapters:
            raise InputError(f"two adapters have the name {name}; give one of them another name")
        module = TrainedModule.find(name, directory)
        module.check_towers(self.loaded.experiment.objective)
        module.check_base(self.loaded.params)
        one = ModulesOf(self.loaded, {name: module.adapter}, {})
        if heads := module.heads():
            _logger.warning(
                "adapter %s: checkpoint %s also trained the head %s; this head is not loaded, "
                "and predictions use the heads of the base checkpoint",
                *(name, module.directory, " and ".join(heads)),
            )
        flat = module.read(trees.flatten(one.learner((name,)).shapes))
        arrays = trees.unflatten(flat).get("adapters", {})
        return ModulesOf(
            self.loaded, {**self.adapters, name: module.adapter}, {**self.arrays, **arrays}
        )

    def learner(self, use: Sequence[str | Block]) -> Learner:
        """Return the learner (model and heads) with the given adapters; allocates no arrays.

        Raises:
          InputError: if an adapter does not exist, or two adapters change the same layer.
        """
        return learner_of(self._experiment(use))

    def using(self, use: Sequence[str | Block], *, by_row: bool = False) -> Loaded:
        """Return the checkpoint with the given adapters in its model; arrays are not copied.

        Args:
          use: adapters, and compositions of adapters.
          by_row: True to allow different adapters for the rows of a batch, selected by ids.

        Raises:
          InputError: if an adapter, fusion or router does not exist, two adapters change the same
            layer, the base was trained together with other adapters, or a composition uses
            different adapters for different rows of a batch.
        """
        if not by_row:
            check_answers(use)
        experiment, names = self._experiment(use), names_of(use)
        self._check_own_base(names)
        params = {part: tree for part, tree in self.loaded.params.items() if part != "adapters"}
        arrays = {name: self.arrays[name] for name in names if name in self.arrays}
        for part, blocks in trained_of(use).items():
            titles = {title: self._of_block(part, title) for title in blocks}
            if self.loaded.experiment.objective.more_towers():
                towers = self.arrays[part]["towers"]
                own = {name: {title: x[title] for title in blocks} for name, x in towers.items()}
                titles["towers"] = own
            arrays[part] = titles
        if arrays:
            params["adapters"] = arrays
        return dataclasses.replace(
            self.loaded,
            experiment=experiment,
            learner=learner_of(experiment),
            params=params,
        )

    def _of_block(self, part: str, title: str) -> Params:
        known = self.arrays.get(part, {})
        if title not in known:
            names = [each for each in known if each != "towers"]
            has = f"the checkpoint has {', '.join(names)}" if names else "the checkpoint has none"
            raise InputError(
                f"checkpoint {self.loaded.directory} has no trained {part} named "
                f"{title}{did_you_mean(title, known)}; {has}; train it by --adapters.use"
            )
        return known[title]

    def _check_own_base(self, names: Sequence[str]) -> None:
        learner = self.loaded.learner
        own = [each.name for each in learner.adapters]
        if not own or set(names) == set(own):
            return
        paths = trees.flatten(learner.shapes)
        moved = next((path for path in paths if _of_model(path) and learner.trains(path)), None)
        if moved is not None:
            raise InputError(
                f"checkpoint {self.loaded.directory}: the array {moved} of the base model was "
                f"trained together with the adapters {', '.join(own)}, so other adapters cannot "
                "be used with this base model"
            )

    def _experiment(self, use: Sequence[str | Block]) -> Experiment:
        names = names_of(use)
        for name in names:
            _check_there(name, self.adapters)
        lines = tuple(write_module(self.adapters[name]) for name in names)
        adapters = Adapters(add=lines, use=write_trees(use))
        own = self.loaded.experiment
        pack = own.data.pack and not adapters.unpackable  # who answers packs nothing
        data = dataclasses.replace(own.data, pack=pack)
        return dataclasses.replace(own, adapters=adapters, data=data, train=())


def multi_task(use: Sequence[str | Block], names: Sequence[str | None]) -> MultiTask:
    """Return a composition of adapters in which each row of a batch selects one by its id.

    Raises:
      InputError: if `use` already gives rows different adapters.
    """
    check_answers(use)
    default = use[0] if len(use) == 1 else Stack(tuple(use)) if use else None
    return MultiTask((default, *names))


def load_using(
    checkpoint: str, *, step: Step = None, use: str | None = None, mesh: Mesh | None = None
) -> Loaded:
    """Load a checkpoint, and use the given adapters in its model."""
    return load_both(checkpoint, step=step, use=use, mesh=mesh)[0]


def load_both(
    checkpoint: str, *, step: Step = None, use: str | None = None, mesh: Mesh | None = None
) -> tuple[Loaded, ModulesOf]:
    """Load a checkpoint with the given adapters; also return all adapters that it can use.

    Args:
      checkpoint: work directory or checkpoint directory.
      step: step number in a work directory, "best", or None for the newest checkpoint.
      use: names of adapters separated by commas, or compositions of adapters; "" uses only the base
        model, None the adapters that the run used.
      mesh: device mesh of the parameters; None uses the first device.

    Raises:
      InputError: if the checkpoint or an adapter does not exist, or the adapters conflict.
    """
    if use is None:
        loaded = Loaded.from_checkpoint(checkpoint, step=step, mesh=mesh)
        check_answers(loaded.experiment.adapters.composition)
        return loaded, ModulesOf.of(loaded)
    directory = find_step(checkpoint, step=step)
    experiment = read_experiment(directory, reading.step_files(directory))
    chosen = _chosen(experiment, use, where=directory)
    modules = ModulesOf.of(Loaded.from_checkpoint(str(directory), step=None, mesh=mesh))
    return modules.using(chosen), modules


def using(experiment: Experiment, use: str, *, where: object) -> Experiment:
    """Return a checkpoint's experiment, changed to use only the given adapters.

    Args:
      experiment: experiment of the checkpoint.
      use: names of adapters separated by commas, or compositions of adapters.
      where: path of the checkpoint, for messages.

    Raises:
      InputError: if an adapter does not exist.
    """
    chosen, added = _chosen(experiment, use, where=where), experiment.adapters.added
    lines = tuple(write_module(added[name]) for name in names_of(chosen))
    adapters = Adapters(add=lines, use=write_trees(chosen))
    return dataclasses.replace(experiment, adapters=adapters, train=())


def _chosen(experiment: Experiment, use: str, *, where: object) -> tuple[str | Block, ...]:
    try:
        chosen = parse_trees(use)
        for name in names_of(chosen):
            _check_there(name, experiment.adapters.used)
    except InputError as error:
        raise InputError(f"adapters.use: checkpoint {where}: {error}") from error
    return chosen


def _check_there(name: str, names: Collection[str]) -> None:
    if name not in names:
        has = f"the adapters are {', '.join(names)}" if names else "there are no adapters"
        raise InputError(f"no adapter has the name {name!r}{did_you_mean(name, names)}; {has}")


def with_loaded(experiment: Experiment, *, earlier: Experiment | None) -> Experiment:
    """Return an experiment that lists the adapters of adapters.load also in adapters.add.

    Args:
      experiment: experiment of the config.
      earlier: experiment of the work directory if the run resumes; None for a new run.

    Raises:
      InputError: if an adapter does not exist, or two different adapters have the same name.
    """
    adapters = experiment.adapters
    added, lines = adapters.added, []
    known = {}
    if earlier is not None and earlier.adapters.load == adapters.load:
        known = earlier.adapters.added
    for name, directory in adapters.loaded.items():
        if (adapter := known.get(name)) is None:
            module = TrainedModule.find(name, directory)
            module.check_towers(experiment.objective)
            adapter = module.adapter
        if name not in added:
            lines.append(write_module(adapter))
        elif name not in known and added[name] != adapter:
            raise InputError(
                f"adapters.add and adapters.load define different adapters of the name {name}; "
                "give one of them another name"
            )
    if not lines:
        return experiment
    adapters = dataclasses.replace(adapters, add=(*adapters.add, *lines))
    return dataclasses.replace(experiment, adapters=adapters)


def check_init(experiment: Experiment) -> None:
    """Raise InputError if adapters are loaded without --init, or a loaded checkpoint is damaged."""
    if experiment.adapters.loaded and not experiment.init.checkpoint:
        raise InputError(
            "adapters.load requires the base model of the loaded adapters; give the base model "
            "by --init DIR"
        )
    for directory in experiment.adapters.loaded.values():
        items.verify(find_step(directory, step=None), "params", "files")


def check_children(experiment: Experiment) -> None:
    """Raise InputError if data.adapter_of does not fit an experiment's objective or adapters."""
    use = experiment.adapters.composition
    blocks = [node for tree in use for node, _ in walk(tree) if isinstance(node, MultiTask)]
    numbers = adapter_numbers(experiment.data)
    num_tasks = experiment.objective.num_tasks
    if num_tasks and not numbers:
        raise InputError(
            f"the objective {type(experiment.objective).__name__} requires the task number of "
            "each example; use one data cache per task, and give --data.adapter-of CACHE=NUMBER "
            "for each cache"
        )
    wrong = next((name for name, k in numbers.items() if num_tasks and k >= num_tasks), None)
    if wrong is not None:
        raise InputError(
            f"data.adapter_of: the objective has the tasks 0 to {num_tasks - 1}, but the cache "
            f"{wrong} has the number {numbers[wrong]}"
        )
    if blocks and not numbers:
        raise InputError(
            f"the block {blocks[0]} of adapters.use requires the adapter number of each example; "
            "use one data cache per adapter, and give --data.adapter-of CACHE=NUMBER for each "
            "cache"
        )
    if numbers and not blocks and not num_tasks:
        raise InputError(
            "data.adapter_of requires a MultiTask block in adapters.use, or the objective "
            "TaskHeads, but the config has neither"
        )
    for block in blocks:
        wrong = next((n for n, k in numbers.items() if k >= len(block.children)), None)
        if wrong is not None:
            raise InputError(
                f"data.adapter_of: the block {block} has the children 0 to "
                f"{len(block.children) - 1}, but the cache {wrong} has the number {numbers[wrong]}"
            )
    settings = experiment.evaluation
    if blocks and (settings.task_metrics or settings.retrieval.directory):
        raise InputError(
            f"the block {blocks[0]} of adapters.use selects an adapter for each example, but task "
            "metrics require a single adapter; set --evaluation.task-metrics False, and evaluate "
            "each adapter by --adapters.use"
        )


def with_loaded_params(params: Params, experiment: Experiment, shapes: Any) -> Params:
    """Return a parameter tree with the arrays of the adapters that an experiment loads and uses.

    Args:
      params: parameter tree of the base model, in float32.
      experiment: experiment that `with_loaded` returned.
      shapes: shapes and shardings of the parameters.

    Raises:
      InputError: if an adapter is damaged, or was trained with another base.
    """
    flat: dict[str, Any] = {}
    for name, directory in experiment.adapters.loaded.items():
        if name in experiment.adapters.used:
            module = TrainedModule.find(name, directory)
            module.check_base(params)
            flat |= module.read(trees.flatten(shapes))
    return trees.overlaid(params, trees.unflatten(flat)) if flat else params
