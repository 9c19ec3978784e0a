"""Modules that a run loads: `adapters.load` NAME=DIR; see `t5x_lite.inference.modules`."""

import dataclasses
from typing import Any

import jax

from t5x_lite import trees
from t5x_lite.adapters.composition import MultiTask, walk
from t5x_lite.adapters.grammar import write_module
from t5x_lite.checkpoints import manifest
from t5x_lite.config import Experiment
from t5x_lite.data.config import adapter_numbers
from t5x_lite.errors import InputError
from t5x_lite.inference.best_step import find_step
from t5x_lite.inference.modules import TrainedModule
from t5x_lite.types import Params

__all__ = [
    "check_children",
    "check_init",
    "in_dtypes_of",
    "in_float32",
    "with_loaded",
    "with_loaded_params",
]


def with_loaded(experiment: Experiment, *, earlier: Experiment | None) -> Experiment:
    """An experiment that states the methods of the modules that it loads.

    Args:
      experiment: of the config.
      earlier: the config of the work directory, where the run goes on: it states them already.

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
    """Refuses, by an InputError, modules that are damaged, or loaded into one that begins anew."""
    if experiment.adapters.loaded and not experiment.init.checkpoint:
        raise InputError("adapters.load needs the base that its modules are of: --init DIR")
    for directory in experiment.adapters.loaded.values():
        manifest.verify(find_step(directory, step=None), "params", "files")


def check_children(experiment: Experiment) -> None:
    """Refuses, by an InputError, rows that do not say which module of a MultiTask is theirs."""
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
            "data.adapter_of is for MultiTask in adapters.use and for objective TaskHeads, and "
            "neither is there"
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
            f"{blocks[0]} trains rows of several modules, and who answers has one: set "
            "--evaluation.task-metrics False, and evaluate each by --adapters.use NAME afterwards"
        )


def with_loaded_params(params: Params, experiment: Experiment, shapes: Any) -> Params:
    """Parameters with those of the modules that an experiment loads and uses.

    Args:
      params: whose model is the base, in float32.
      experiment: that `with_loaded` gave.
      shapes: of the parameters, with shardings.

    Raises:
      InputError: a module is damaged, or was trained with another base.
    """
    flat: dict[str, Any] = {}
    for name, directory in experiment.adapters.loaded.items():
        if name in experiment.adapters.used:
            module = TrainedModule.find(name, directory)
            module.check_base(params)
            flat |= module.read(trees.flatten(shapes))
    return trees.overlaid(params, trees.unflatten(flat)) if flat else params


def in_float32(shapes: Any) -> Any:
    """Shapes and shardings of arrays in float32, to read a base as its digests are of it."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, "float32", sharding=leaf.sharding), shapes
    )


def in_dtypes_of(params: Params, shapes: Any) -> Params:
    """Arrays in the dtypes of shapes; the same arrays where they have them."""
    return jax.tree.map(
        lambda array, leaf: array if array.dtype == leaf.dtype else array.astype(leaf.dtype),
        params,
        shapes,
    )
