"""Modules of another run or model: `adapters.load` NAME=DIR.

A module is found in the config of a step by its name, or is the only one there; its arrays are at
adapters/NAME in that step. It fits the base that it was trained with, and no other one.
"""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class TrainedModule:
    """An adapter in a checkpoint directory.

    Attributes:
      adapter: config of the adapter, with the name that it has in this run.
      theirs: name of the adapter in the checkpoint.
      directory: checkpoint directory.
      base: the checkpoint's record of its base model; None if the checkpoint includes the base.
      towers: names of further encoders, next to the model, for which the adapter has parameters.
    """

    adapter: Adapter
    theirs: str
    directory: AnyPath
    base: Base | None
    towers: tuple[str, ...] = ()

    @classmethod
    def find(cls, name: str, directory: str) -> "TrainedModule":
        """Return the adapter in a checkpoint: the one with that name, or the only one.

        Args:
          name: name of the adapter in this run.
          directory: a work directory (its newest checkpoint) or a checkpoint directory.

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
            has = f"it has {', '.join(modules)}" if modules else "it has none"
            raise InputError(
                f"checkpoint {step} has no module {name}{did_you_mean(name, modules)}; {has}"
            )
        adapter = dataclasses.replace(modules[theirs], name=name)
        towers = experiment.objective.more_towers()
        return cls(adapter, theirs, step, Base.read(files, where=step), towers)

    def check_towers(self, objective: Objective) -> None:
        """Raise InputError unless the module has parameters for each encoder of an objective."""
        wanted = objective.more_towers()
        if self.towers == wanted:
            return
        where = f"adapter {self.theirs} of {self.directory}"
        if wanted:
            raise InputError(
                f"{where} is for one encoder, and the objective has the tower {', '.join(wanted)} "
                f"too; begin both towers with it by --init {self.directory}, or set "
                "--objective.towers one"
            )
        raise InputError(
            f"{where} has parameters for two towers, and the objective has one encoder; set "
            "--objective.towers two, or import the directory of one tower that `t5x-lite export "
            "adapter` writes"
        )

    def check_base(self, params: Params) -> None:
        """Raise InputError for a model that is not the one that the module was trained with.

        Args:
          params: nested; its model, in float32.

        Raises:
          InputError: with both digests; or a part of its base trained with it, so that no other
            run has that base.
        """
        flat = {path: leaf for path, leaf in trees.flatten(params).items() if _of_model(path)}
        saved = reading.saved_arrays(self.directory)
        own = {path: leaf for path, leaf in saved.items() if _of_model(path)}
        where = f"module {self.theirs} of {self.directory}"
        if own and self.base is not None:
            raise InputError(
                f"{where} was trained together with {next(iter(own))} of its base, which no other "
                f"run can load: begin with it by --init {self.directory}"
            )
        arrays = {} if self.base is None else self.base.arrays
        wanted = {path: leaf.digest for path, leaf in arrays.items() if _of_model(path)}
        missing = next((path for path in (*own, *wanted) if path not in flat), None)
        if missing is not None:
            raise InputError(f"{where} needs {missing} of a base")
        if self.base is None:
            wanted = self._own_digests(own, flat)
            flat = {path: flat[path].astype(leaf.dtype) for path, leaf in own.items()}
        found = digests({path: flat[path] for path in wanted})
        other = next((path for path, digest in wanted.items() if found[path] != digest), None)
        if other is not None:
            name = "that of its checkpoint" if self.base is None else self.base.checkpoint
            raise InputError(
                f"{where} was trained with another base, {name}: {other} is {wanted[other]} there "
                f"and {found[other]} here"
            )

    def _own_digests(self, saved: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, str]:
        """Digests of the model that the step itself holds; arrays go where ours are."""
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
        """Return the module's arrays by their paths here.

        Raises:
          InputError: they are damaged, or of other shapes.
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
    """A checkpoint, and modules that its model may use: its own, and others of the same base.

    Attributes:
      loaded: the checkpoint as it was read, with the modules that it has.
      adapters: the modules' configs by name.
      arrays: their arrays by name, nested from below adapters/NAME.
    """

    loaded: Loaded
    adapters: Mapping[str, Adapter]
    arrays: Mapping[str, Params]

    @classmethod
    def of(cls, loaded: Loaded) -> "ModulesOf":
        """Return the adapters of a checkpoint."""
        adapters = {each.name: each for each in loaded.learner.adapters}
        return cls(loaded, adapters, loaded.params.get("adapters", {}))

    def adding(self, name: str, directory: str) -> "ModulesOf":
        """With one more module, which was trained with the same base.

        Raises:
          InputError: there is one of that name, or the checkpoint has no such module, or was
            trained with another base.
        """
        if name in self.adapters:
            raise InputError(f"two adapters are called {name}: give one another name")
        module = TrainedModule.find(name, directory)
        module.check_towers(self.loaded.experiment.objective)
        module.check_base(self.loaded.params)
        one = ModulesOf(self.loaded, {name: module.adapter}, {})
        flat = module.read(trees.flatten(one.learner((name,)).shapes))
        arrays = trees.unflatten(flat).get("adapters", {})
        return ModulesOf(
            self.loaded, {**self.adapters, name: module.adapter}, {**self.arrays, **arrays}
        )

    def learner(self, use: Sequence[str | Block]) -> Learner:
        """Return the learner with some adapters in the model's slots; nothing is allocated.

        Raises:
          InputError: if one does not exist, or two have the same site.
        """
        return learner_of(self._experiment(use))

    def using(self, use: Sequence[str | Block], *, by_row: bool = False) -> Loaded:
        """Return the checkpoint as if it had these modules; arrays are shared, and none is copied.

        Args:
          use: the trees.
          by_row: True to allow a MultiTask, for callers that give each row its adapter id.

        Raises:
          InputError: as for `learner`; or the base trained with the checkpoint's own modules, and
            others are asked for; or it has no such fusion or router; or rows of a batch would have
            different modules.
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
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise InputError(
                f"checkpoint {self.loaded.directory} has no {part} called {title}"
                f"{did_you_mean(title, known)}; {has}: train one by --adapters.use"
            )
        return known[title]

    def _check_own_base(self, names: Sequence[str]) -> None:
        """Reject other modules than the checkpoint's own where its base trained with these."""
        learner = self.loaded.learner
        own = [each.name for each in learner.adapters]
        if not own or set(names) == set(own):
            return
        paths = trees.flatten(learner.shapes)
        moved = next((path for path in paths if _of_model(path) and learner.trains(path)), None)
        if moved is not None:
            raise InputError(
                f"checkpoint {self.loaded.directory}: {moved} of the base was trained together "
                f"with {', '.join(own)}, so nothing else can be used with it"
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
    """Return a checkpoint with the adapters of `--adapters.use` in its model; see `load_both`."""
    return load_both(checkpoint, step=step, use=use, mesh=mesh)[0]


def load_both(
    checkpoint: str, *, step: Step = None, use: str | None = None, mesh: Mesh | None = None
) -> tuple[Loaded, ModulesOf]:
    """Return a checkpoint with the adapters of `--adapters.use` in its model, and all it has.

    Args:
      checkpoint: a work directory or a checkpoint directory.
      step: step of a work directory: its number, "best", or None for the newest.
      use: comma-separated names of adapters, or blocks of them; "" uses only the base, None the
        adapters that the run itself used.
      mesh: mesh of the parameters; if None, the first device.

    Raises:
      InputError: if the checkpoint or adapter does not exist; or as for `ModulesOf.using`.
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
    """Return the experiment of a checkpoint with some of its adapters.

    Args:
      experiment: experiment of the checkpoint.
      use: comma-separated names of adapters, or blocks of them.
      where: the checkpoint, for messages.

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
        has = f"there are {', '.join(names)}" if names else "there is none"
        raise InputError(f"no module is called {name!r}{did_you_mean(name, names)}; {has}")


__all__ = [
    "check_children",
    "check_init",
    "in_dtypes_of",
    "in_float32",
    "with_loaded",
    "with_loaded_params",
]


def with_loaded(experiment: Experiment, *, earlier: Experiment | None) -> Experiment:
    """Return an experiment that states the methods of the modules that it loads.

    Args:
      experiment: experiment of the config.
      earlier: the config of the work directory, where the run continues: it states them already.

    Raises:
      InputError: a checkpoint has no such module, or `add` has another one of that name.
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
                f"two adapters are called {name}, one of adapters.add and one of adapters.load: "
                "give one another name"
            )
    if not lines:
        return experiment
    adapters = dataclasses.replace(adapters, add=(*adapters.add, *lines))
    return dataclasses.replace(experiment, adapters=adapters)


def check_init(experiment: Experiment) -> None:
    """Raise InputError for damaged adapters, or for loading into one that is reinitialized."""
    if experiment.adapters.loaded and not experiment.init.checkpoint:
        raise InputError("adapters.load needs the base that its modules are of: --init DIR")
    for directory in experiment.adapters.loaded.values():
        manifest.verify(find_step(directory, step=None), "params", "files")


def check_children(experiment: Experiment) -> None:
    """Raise InputError for rows without the name of their MultiTask adapter."""
    use = experiment.adapters.composition
    blocks = [node for tree in use for node, _ in walk(tree) if isinstance(node, MultiTask)]
    numbers = adapter_numbers(experiment.data)
    num_tasks = experiment.objective.num_tasks
    if num_tasks and not numbers:
        raise InputError(
            f"objective {type(experiment.objective).__name__} needs the number of each row's task: "
            "read caches, one for each of them, and give --data.adapter-of CACHE=NUMBER for each"
        )
    wrong = next((name for name, k in numbers.items() if num_tasks and k >= num_tasks), None)
    if wrong is not None:
        raise InputError(
            f"data.adapter_of: the objective has tasks 0 to {num_tasks - 1}, and {wrong} has "
            f"number {numbers[wrong]}"
        )
    if blocks and not numbers:
        raise InputError(
            f"{blocks[0]} needs the number of each row's module: read caches, one for each of "
            "them, and give --data.adapter-of CACHE=NUMBER for each"
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
                f"data.adapter_of: {block} has children 0 to {len(block.children) - 1}, and "
                f"{wrong} has number {numbers[wrong]}"
            )
    settings = experiment.evaluation
    if blocks and (settings.task_metrics or settings.retrieval.directory):
        raise InputError(
            f"{blocks[0]} trains rows with several adapters, but task metrics need a single one; "
            "set --evaluation.task-metrics False, and evaluate each one with --adapters.use"
        )


def with_loaded_params(params: Params, experiment: Experiment, shapes: Any) -> Params:
    """Return parameters with the adapters that an experiment loads and uses.

    Args:
      params: parameters of the base, in float32.
      experiment: experiment from `with_loaded`.
      shapes: shapes of the parameters, with shardings.

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
    """Return shapes and shardings of arrays in float32, to read a base as its digests are of it."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, "float32", sharding=leaf.sharding), shapes
    )


def in_dtypes_of(params: Params, shapes: Any) -> Params:
    """Return arrays in the dtypes of shapes; the same arrays where they have them."""
    return jax.tree.map(
        lambda array, leaf: array if array.dtype == leaf.dtype else array.astype(leaf.dtype),
        params,
        shapes,
    )
