"""Adapters that come from another run or checkpoint (`adapters.load` NAME=DIR).

An adapter is found by its name in the config of a checkpoint, or is the only adapter in it; its
arrays are at adapters/NAME. It can only be used with the base model that it was trained with.
"""

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
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
from t5x_lite.checkpoints import manifest, reading
from t5x_lite.checkpoints.base import Base, digests
from t5x_lite.config import Experiment
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.trees import Params
from t5x_lite.data.config import adapter_numbers
from t5x_lite.inference.loading import Loaded, Step, find_step, learner_of, read_experiment
from t5x_lite.models.towers import TOWERS
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.learner import Learner

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainedModule:
    """Trained adapter that is stored in another checkpoint directory.

    Attributes:
      adapter: config of the adapter, with its name in this run.
      theirs: name of the adapter in that checkpoint.
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
        """Find the adapter of a checkpoint with a given name, or the checkpoint's only adapter.

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
        """Raise InputError unless the adapter has parameters for each encoder of an objective."""
        wanted = objective.more_towers()
        if self.towers == wanted:
            return
        where = f"adapter {self.theirs} of {self.directory}"
        if wanted:
            raise InputError(
                f"{where} is for one encoder, but the objective also has the encoder "
                f"{', '.join(wanted)}; start both encoders from it by --init {self.directory}, "
                "or set --objective.towers one"
            )
        raise InputError(
            f"{where} has parameters for two encoders, but the objective has one encoder; set "
            "--objective.towers two, or import the directory of one encoder as written by "
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
        where = f"adapter {self.theirs} of {self.directory}"
        if own and self.base is not None:
            raise InputError(
                f"{where} was trained together with the array {next(iter(own))} of its base "
                "model, so it cannot be loaded into another base model; start from it by "
                f"--init {self.directory}"
            )
        arrays = {} if self.base is None else self.base.arrays
        wanted = {path: leaf.digest for path, leaf in arrays.items() if _of_model(path)}
        missing = next((path for path in (*own, *wanted) if path not in flat), None)
        if missing is not None:
            raise InputError(
                f"{where} needs a base model with the array {missing}, which this base model "
                "does not have"
            )
        if self.base is None:
            wanted = self._own_digests(own, flat)
            flat = {path: flat[path].astype(leaf.dtype) for path, leaf in own.items()}
        found = digests({path: flat[path] for path in wanted})
        other = next((path for path, digest in wanted.items() if found[path] != digest), None)
        if other is not None:
            name = "the base of its checkpoint" if self.base is None else self.base.checkpoint
            raise InputError(
                f"{where} was trained with another base model, {name}: the digest of {other} is "
                f"{wanted[other]} there, but {found[other]} here"
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
        """Read the adapter's arrays, by their paths in this run.

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
    """Checkpoint with the adapters that its model can use: its own, and adapters of other runs.

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
                "adapter %s: checkpoint %s also trained the head %s; this head is not loaded, and "
                "the heads of the base checkpoint predict",
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
          use: the trees.
          by_row: True to allow a MultiTask, for callers that give each row its adapter id.

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
        """Raise InputError to use other adapters if the base was trained with its own adapters."""
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
                "be used with it"
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
    """Return the block that gives a row the adapters of `use` (id 0) or one of `names` (1, 2, ...).

    Raises:
      InputError: if `use` already gives rows different adapters.
    """
    check_answers(use)
    default = use[0] if len(use) == 1 else Stack(tuple(use)) if use else None
    return MultiTask((default, *names))


def load_using(
    checkpoint: str, *, step: Step = None, use: str | None = None, mesh: Mesh | None = None
) -> Loaded:
    """Load a checkpoint with the adapters of `--adapters.use` in its model; see `load_both`."""
    return load_both(checkpoint, step=step, use=use, mesh=mesh)[0]


def load_both(
    checkpoint: str, *, step: Step = None, use: str | None = None, mesh: Mesh | None = None
) -> tuple[Loaded, ModulesOf]:
    """Load a checkpoint with the adapters of `--adapters.use`, and the loader of its adapters.

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
    """Return the experiment of a checkpoint, changed to use only the given adapters.

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


__all__ = [
    "check_children",
    "check_init",
    "in_dtypes_of",
    "in_float32",
    "with_loaded",
    "with_loaded_params",
]


def with_loaded(experiment: Experiment, *, earlier: Experiment | None) -> Experiment:
    """Return an experiment with the adapters of adapters.load as entries of adapters.add.

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
            "adapters.load needs the base model of the loaded adapters; give it by --init DIR"
        )
    for directory in experiment.adapters.loaded.values():
        manifest.verify(find_step(directory, step=None), "params", "files")


def check_children(experiment: Experiment) -> None:
    """Raise InputError if data.adapter_of does not fit the objective and the MultiTask blocks."""
    use = experiment.adapters.composition
    blocks = [node for tree in use for node, _ in walk(tree) if isinstance(node, MultiTask)]
    numbers = adapter_numbers(experiment.data)
    num_tasks = experiment.objective.num_tasks
    if num_tasks and not numbers:
        raise InputError(
            f"the objective {type(experiment.objective).__name__} needs the task number of each "
            "example; use one data cache per task, and give --data.adapter-of CACHE=NUMBER for "
            "each cache"
        )
    wrong = next((name for name, k in numbers.items() if num_tasks and k >= num_tasks), None)
    if wrong is not None:
        raise InputError(
            f"data.adapter_of: the objective has the tasks 0 to {num_tasks - 1}, but {wrong} "
            f"has the number {numbers[wrong]}"
        )
    if blocks and not numbers:
        raise InputError(
            f"{blocks[0]} needs the adapter number of each example; use one data cache per "
            "adapter, and give --data.adapter-of CACHE=NUMBER for each cache"
        )
    if numbers and not blocks and not num_tasks:
        raise InputError(
            "data.adapter_of needs a MultiTask block in adapters.use or the objective TaskHeads; "
            "this config has neither"
        )
    for block in blocks:
        wrong = next((n for n, k in numbers.items() if k >= len(block.children)), None)
        if wrong is not None:
            raise InputError(
                f"data.adapter_of: {block} has the children 0 to {len(block.children) - 1}, but "
                f"{wrong} has the number {numbers[wrong]}"
            )
    settings = experiment.evaluation
    if blocks and (settings.task_metrics or settings.retrieval.directory):
        raise InputError(
            f"{blocks[0]} uses a different adapter for each example, but task metrics need a "
            "single adapter; set --evaluation.task-metrics False, and evaluate each adapter by "
            "--adapters.use"
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


def in_float32(shapes: Any) -> Any:
    """Return the shapes and shardings of arrays with float32 as their data type."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, "float32", sharding=leaf.sharding), shapes
    )


def in_dtypes_of(params: Params, shapes: Any) -> Params:
    """Return a parameter tree cast to the data types of the given shapes."""
    return jax.tree.map(
        lambda array, leaf: array if array.dtype == leaf.dtype else array.astype(leaf.dtype),
        params,
        shapes,
    )
