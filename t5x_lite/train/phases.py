"""Training in phases, for adapters that first train to select the weights that they change.

    work/sft/phases/full_1/      every array trains; an ordinary work directory
    work/sft/checkpoints/        the K entries that changed most, trained again from the start

| adapter | phases before the last phase, which uses the work directory itself |
|---|---|
| `sparse(select="lottery", rounds=2)` | full_1, sparse_1, full_2 |
| `sparse(select="magnitude", full_steps=100)` | full_1 |
| `sparse(select="fisher")`, `random` | none, because the entries of the base model are scored |
| `diff()` | relaxed |
| `prune(rounds=3, rewind_step=50)` | rewind, train_1, train_2, train_3 |

Each phase is a run with its own optimizer, schedule and newly initialized heads. Two exceptions:
the last phase of `diff` keeps the heads of its previous phase, and `prune` also rewinds heads to
`rewind_step`. Other adapters in use are active in all phases. A phase depends only on the last
checkpoint of the previous phase, so a killed run resumes bit for bit.

Scores of the base model need no training:

    params, learner, vocabulary = initial(experiment)
    scores_of_base(experiment, SparseTuning(select="fisher"), sizes)["encoder/.../kernel"]()
"""

import dataclasses
import functools
import itertools
import logging
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.delta import Lazy
from t5x_lite.adapters.grammar import write_module, write_trees
from t5x_lite.adapters.masks import Movement, Prune
from t5x_lite.adapters.sparse import (
    INDICES,
    VALUES,
    Diff,
    SparseTuning,
    choose,
    kept,
    numbers_of,
    share,
)
from t5x_lite.adapters.whole_arrays import ArrayAdapter, Copy
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.config.evaluation import EarlyStopping
from t5x_lite.config.file import from_json
from t5x_lite.core import remote, sharding, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.trees import LazyArray, Params
from t5x_lite.data import batches as data_batches
from t5x_lite.data.config import Fixed
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.evaluate.results import classes_of, fisher_diagonal
from t5x_lite.inference import loading
from t5x_lite.inference.loading import learner_of
from t5x_lite.train import restoring
from t5x_lite.train.restoring import PHASES
from t5x_lite.train.step import TrainState

_logger = logging.getLogger(__name__)

_MODEL = "model/"


def scores_of_base(experiment: Experiment, adapter: SparseTuning, sizes: Mapping[str, int]) -> Lazy:
    """Return path -> function that scores the entries of an array, to select entries to train."""
    if adapter.select == "random":
        shapes = trees.flatten(learner_of(experiment).shapes["model"])
        seed = experiment.seed
        return {path: functools.partial(_drawn, path, shapes[path].shape, seed) for path in sizes}
    params, learner, vocabulary = initial(experiment)
    if adapter.select == "magnitude":
        flat = trees.flatten(learner.changed(params)["model"])
        return {p: lambda p=p: np.abs(np.asarray(flat[p], np.float32)) for p in sizes}
    data = dataclasses.replace(experiment.data, batch_size=1, pack=False, batches=Fixed())
    rows = data_batches.train_batches(data, vocabulary, seed=experiment.seed)
    classes = classes_of(learner) if adapter.labels == "expected" else None
    diagonal = fisher_diagonal(
        learner.loss, params, itertools.islice(rows, adapter.examples), classes=classes
    )
    return {path: lambda path=path: diagonal[_MODEL + path] for path in sizes}


def _drawn(path: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng([seed, zlib.crc32(path.encode())]).random(shape, np.float32)


def initial(experiment: Experiment) -> tuple[Params, Any, Any]:
    """Return the initial parameters, learner and vocabulary of a run."""
    vocabulary = load_vocabulary(experiment.data.vocabulary, extra_ids=experiment.data.extra_ids)
    learner = learner_of(experiment)
    mesh = sharding.make_mesh(experiment.mesh)
    layout = sharding.shardings(mesh, learner.axes)
    key = jax.random.fold_in(jax.random.key(experiment.seed), 0)
    params = jax.jit(learner.init, out_shardings=layout)(key)
    if experiment.init.checkpoint:
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            params,
        )
        state, _ = restoring.with_initial(
            TrainState(0, params, {}), experiment, learner, vocabulary, abstract
        )
        params = state.params
    return params, learner, vocabulary


_Phased = SparseTuning | Diff | Prune

Start = Callable[[], dict[str, np.ndarray]]
"""Function that returns path -> initial array of a phase."""
Run = Callable[[Experiment, "Start | None"], Any]
"""Function that trains one phase to its end, or resumes it."""


def prepared(experiment: Experiment, run: Run) -> tuple[Experiment, Start | None]:
    """Run an adapter's early phases; return the config and initial arrays of its last phase."""
    experiment = with_steps(experiment)
    phased = [each for each in experiment.adapters.added.values() if _is_open(each)]
    if not phased or not experiment.workdir:
        return experiment, None
    if len(phased) > 1:
        names = ", ".join(each.name for each in phased)
        raise InputError(
            f"the adapters {names} all train in phases, but a run supports one such adapter"
        )
    [adapter] = phased
    if experiment.objective.more_towers():
        raise InputError(
            f"adapter {adapter.name!r} trains in phases, which support only one encoder; set "
            "--objective.towers one, or use an adapter without phases, such as lora"
        )
    assert isinstance(adapter, _Phased)
    workdir = remote.open_path(experiment.workdir)
    if not isinstance(workdir, Path) or jax.process_count() > 1:
        raise InputError(
            f"adapter {adapter.name} trains in phases, which need one process and a local work "
            "directory"
        )
    earlier = _earlier(workdir)
    if earlier is not None:
        experiment = _as_before(experiment, adapter, earlier)
        if checkpointing.saved_steps(workdir / checkpointing.DIRECTORY):
            return experiment, functools.partial(_refuse, workdir)
    phases = _Phases(experiment, adapter, run)
    match adapter:
        case SparseTuning():
            chosen, start = _sparse(phases, adapter)
        case Diff():
            chosen, start = _diff(phases, adapter)
        case Prune():
            chosen, start = None, _prune(phases, adapter)
    _logger.info("starting the last phase of adapter %s in %s", adapter.name, workdir)
    return experiment if chosen is None else _with_module(experiment, chosen), start


def _is_open(adapter: Adapter) -> bool:
    """Return True if an adapter has not yet selected the array entries that it trains."""
    return isinstance(adapter, Prune) or (
        isinstance(adapter, SparseTuning | Diff) and not adapter.entries
    )


def with_steps(experiment: Experiment) -> Experiment:
    """Set the steps of adapters with movement pruning to the run's, unless they are already set."""
    for adapter in experiment.adapters.added.values():
        if isinstance(adapter, Movement) and not adapter.steps:
            adapter = dataclasses.replace(adapter, steps=experiment.steps)
            experiment = _with_module(experiment, adapter)
    return experiment


def _with_module(experiment: Experiment, adapter: Adapter) -> Experiment:
    added = {**experiment.adapters.added, adapter.name: adapter}
    adapters: Adapters = dataclasses.replace(
        experiment.adapters, add=tuple(map(write_module, added.values()))
    )
    return dataclasses.replace(experiment, adapters=adapters)


def _earlier(workdir: AnyPath) -> Experiment | None:
    saved = workdir / checkpointing.CONFIG_FILE
    return (
        from_json(saved.read_text(encoding="utf-8"), source=str(saved)) if saved.exists() else None
    )


def _as_before(experiment: Experiment, adapter: _Phased, earlier: Experiment) -> Experiment:
    theirs = earlier.adapters.added.get(adapter.name)
    has_places = isinstance(theirs, SparseTuning | Diff)
    if has_places and dataclasses.replace(theirs, entries=()) == adapter:
        return _with_module(experiment, theirs)
    return experiment


def _refuse(workdir: Path) -> dict[str, np.ndarray]:
    raise InputError(
        f"workdir {workdir} has no readable checkpoint; to repeat the last phase, remove "
        f"{workdir / checkpointing.DIRECTORY} and {workdir / checkpointing.CONFIG_FILE}"
    )


@dataclasses.dataclass(frozen=True)
class _Phases:
    """Training phases of an adapter that trains in several phases.

    Attributes:
      experiment: config of the last phase.
      adapter: adapter to train.
      run: function that trains one phase.
    """

    experiment: Experiment
    adapter: _Phased
    run: Run

    def trained(
        self, name: str, adapter: Adapter, steps: int, start: Start | None = None
    ) -> "_Trained":
        """Train a phase, and return its last checkpoint."""
        own = self.experiment
        workdir = Path(own.workdir) / PHASES / name
        phase = dataclasses.replace(
            _with_module(own, adapter),
            workdir=str(workdir),
            steps=steps or own.steps,
            stop_early=EarlyStopping(),
            checkpoints=dataclasses.replace(own.checkpoints, keep=1, best=None, best_mode=None),
        )
        _logger.info("starting phase %s of adapter %s in %s", name, self.adapter.name, workdir)
        self.run(phase, start)
        step = workdir / checkpointing.DIRECTORY / str(phase.steps)
        return _Trained(phase, checkpointing.lazy_params(step), f"{ADAPTERS}{adapter.name}/")

    @property
    def sizes(self) -> dict[str, int]:
        """Path -> number of entries, for each array of the model that the adapter may change."""
        shapes = trees.flatten(learner_of(self.bare).shapes["model"])
        found: dict[str, int] = {}
        for pattern in self.adapter.targets:
            own = {p: x.size for p, x in shapes.items() if trees.covers(pattern, _MODEL + p)}
            if not own:
                raise InputError(
                    f"adapter {self.adapter.name!r}: the pattern {pattern!r} matches no parameter "
                    "of the model"
                )
            found |= own
        return {path: found[path] for path in shapes if path in found}

    @property
    def bare(self) -> Experiment:
        return dataclasses.replace(self.experiment, adapters=Adapters(), train=())

    @property
    def beside(self) -> Experiment:
        own, name = self.experiment.adapters, self.adapter.name
        use = tuple(tree for tree in own.composition if tree != name)
        if not use:
            return self.bare
        add = tuple(write_module(each) for each in own.added.values() if each.name != name)
        adapters = dataclasses.replace(own, add=add, use=write_trees(use), train=())
        beside = dataclasses.replace(self.experiment, adapters=adapters, train=())
        return loading.with_loaded(beside, earlier=None)

    @functools.cached_property
    def others(self) -> Mapping[str, np.ndarray]:
        beside = self.beside
        if not any(isinstance(each, ArrayAdapter) for each in beside.adapters.modules):
            return {}
        params, learner, _ = initial(beside)
        base = trees.flatten(params["model"])
        changed = trees.flatten(learner.changed(params)["model"])
        paths = [path for path in self.sizes if changed[path] is not base[path]]
        return {path: np.asarray(changed[path]) - np.asarray(base[path]) for path in paths}

    def copy(self, *, l1: float = 0.0) -> Copy:
        return Copy(name=self.adapter.name, of=self.adapter.targets, l1=l1)

    def chosen(self, places: Mapping[str, np.ndarray]) -> Any:
        assert isinstance(self.adapter, SparseTuning | Diff)
        return dataclasses.replace(
            self.adapter, entries=tuple((path, places[path].size) for path in sorted(places))
        )


@dataclasses.dataclass(frozen=True)
class _Trained:
    """Last checkpoint of one training phase of an adapter.

    Attributes:
      experiment: config of the phase.
      arrays: path -> array of the checkpoint or of its base.
      prefix: path prefix of the adapter's arrays.
    """

    experiment: Experiment
    arrays: Mapping[str, LazyArray]
    prefix: str

    def base(self, path: str) -> np.ndarray:
        return self.arrays[_MODEL + path].read().astype(np.float32)

    def rest(self) -> dict[str, np.ndarray]:
        """Return all arrays outside of the model and the adapter, such as heads, by path."""
        return {
            path: array.read()
            for path, array in self.arrays.items()
            if not path.startswith((_MODEL, self.prefix))
        }

    def own(self, path: str) -> np.ndarray:
        return self.arrays[self.prefix + path].read().astype(np.float32)


def _start_of(
    name: str, places: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]
) -> Start:
    def start() -> dict[str, np.ndarray]:
        arrays = {}
        for path, indices in places.items():
            stem = f"{ADAPTERS}{name}/{path}/"
            zeros = np.zeros(indices.size, np.float32)
            arrays[stem + INDICES] = indices.astype(np.int32)
            arrays[stem + VALUES] = values.get(path, zeros)
        return arrays

    return start


def _sparse(phases: _Phases, adapter: SparseTuning) -> tuple[SparseTuning, Start]:
    """Select the array entries that a `sparse` adapter trains, in one or several rounds."""
    numbers = numbers_of(phases.sizes, adapter.density, scope=adapter.scope)
    has_full = adapter.select in ("lottery", "change") or adapter.full_steps
    if not has_full:
        places = choose(scores_of_base(phases.beside, adapter, phases.sizes), numbers)
        return phases.chosen(places), _start_of(adapter.name, places, {})
    places: dict[str, np.ndarray] = {}
    values: dict[str, np.ndarray] = {}
    chosen, start = adapter, None
    for number in range(1, adapter.rounds + 1):
        if start is not None:
            ended = phases.trained(f"sparse_{number - 1}", chosen, adapter.sparse_steps, start)
            values = {path: ended.own(f"{path}/{VALUES}") for path in places}
        copy = phases.copy(l1=adapter.l1)
        begins = functools.partial(_dense_start, phases, copy, places, values)
        full = phases.trained(
            f"full_{number}", copy, adapter.full_steps, begins if values else None
        )
        scores = {
            path: functools.partial(
                *(_score, full, path, adapter, places.get(path), values.get(path)),
                other=phases.others.get(path) if adapter.select == "magnitude" else None,
            )
            for path in phases.sizes
        }
        before = places
        places = choose(scores, share(numbers, number, adapter.rounds), taken=before)
        values = {
            path: _moved(places[path], before[path], values[path])
            for path in before
            if path in values
        }
        chosen = phases.chosen(places)
        start = _start_of(adapter.name, places, values)
    assert start is not None
    return chosen, start


def _moved(places: np.ndarray, before: np.ndarray, values: np.ndarray) -> np.ndarray:
    wider = np.zeros(places.size, np.float32)
    wider[np.searchsorted(places, before)] = values
    return wider


def _dense_start(
    phases: _Phases,
    copy: Copy,
    places: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    shapes = trees.flatten(learner_of(phases.bare).shapes["model"])
    arrays = {}
    for path, indices in places.items():
        whole = np.zeros(shapes[path].size, np.float32)
        whole[indices] = values[path]
        arrays[f"{ADAPTERS}{copy.name}/{path}"] = whole.reshape(shapes[path].shape)
    return arrays


def _score(
    full: _Trained,
    path: str,
    adapter: SparseTuning,
    places: np.ndarray | None,
    values: np.ndarray | None,
    *,
    other: np.ndarray | None,
) -> np.ndarray:
    """Return a score for each entry of a trained array: the magnitude of its value or change."""
    difference = full.own(path)
    if adapter.select == "magnitude":
        whole = full.base(path) + difference
        return np.abs(whole if other is None else whole + other)
    if places is not None and values is not None:
        difference.reshape(-1)[places] -= values
    return np.abs(difference)


def _diff(phases: _Phases, adapter: Diff) -> tuple[Diff, Start]:
    """Select the array entries that a `diff` adapter trains, and their initial values."""
    numbers = numbers_of(phases.sizes, adapter.density, scope=adapter.scope)
    relaxed = phases.trained("relaxed", adapter, adapter.relaxed_steps)
    own = {p: x.read() for p, x in relaxed.arrays.items() if p.startswith(relaxed.prefix)}
    named = {path.removeprefix(ADAPTERS): array for path, array in own.items()}
    alone = dataclasses.replace(phases.bare, adapters=Adapters(add=(write_module(adapter),)))
    parts, _ = learner_of(alone).delta_form(trees.unflatten(named))
    products = {path: parts[_MODEL + path].dense for path in phases.sizes}
    magnitudes = {path: lambda dense=dense: np.abs(dense()) for path, dense in products.items()}
    places = choose(magnitudes, numbers)
    values = {path: products[path]().reshape(-1)[places[path]] for path in places}
    chosen = _start_of(adapter.name, places, values)
    return phases.chosen(places), lambda: {**relaxed.rest(), **chosen()}


def _prune(phases: _Phases, adapter: Prune) -> Start:
    """Compute the masks of a `prune` adapter; return a function that returns its initial arrays."""
    copy = phases.copy()
    rewound: _Trained | None = None
    if adapter.rewind_step:
        rewound = phases.trained("rewind", copy, adapter.rewind_step)

    def start(masks: Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
        arrays = {} if rewound is None else rewound.rest()
        for path in phases.sizes:
            difference = None if rewound is None else rewound.own(path)
            if masks is None:
                if difference is not None:
                    arrays[f"{ADAPTERS}{copy.name}/{path}"] = difference
                continue
            mask, stem = masks[path], f"{ADAPTERS}{adapter.name}/{path}/"
            none = np.zeros(mask.shape, np.float32)
            arrays[f"{stem}bits"] = np.packbits(mask)
            arrays[f"{stem}difference"] = none if difference is None else difference * mask
        return arrays

    masks: dict[str, np.ndarray] | None = None
    for number, density in enumerate(adapter.densities, start=1):
        module = copy if masks is None else adapter
        trained = phases.trained(
            f"train_{number}", module, adapter.train_steps, functools.partial(start, masks)
        )
        masks = kept(
            {
                path: functools.partial(
                    *(_left, trained, path, adapter, phases.others.get(path)),
                    is_first=module is copy,
                )
                for path in phases.sizes
            },
            density,
            scope=adapter.scope,
            before=masks,
            structure=adapter.structure,
        )
    return functools.partial(start, masks)


def _left(
    trained: _Trained, path: str, adapter: Prune, other: np.ndarray | None, *, is_first: bool
) -> np.ndarray:
    difference = trained.own(path if is_first else f"{path}/difference")
    if adapter.criterion == "change":
        return np.abs(difference)
    whole = trained.base(path) + difference
    return np.abs(whole if other is None else whole + other)
