"""Directories for the tests of deltas: bases and runs of tiny models, with random parameters."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.init import BASE_FILE, Base, Init
from t5x_lite.config import Experiment
from t5x_lite.config.file import to_json
from t5x_lite.core import trees
from t5x_lite.core.trees import LazyArray
from t5x_lite.data.config import Data
from t5x_lite.inference.loading import learner_of
from t5x_lite.optim.config import Adafactor, Constant
from tests.adapters.hosts import HOSTS, random


def experiment(host, *modules, **changes):
    """The config of a run that trains modules, or a whole model."""
    model, objective, _ = HOSTS[host]
    options = {"adapters": Adapters(add=modules), **changes}
    layout = objective.layouts[0]()
    data = Data(task="tasks.x:y", vocabulary="bytes", layout=layout, pack=layout.packs)
    optimizer = Adafactor(schedule=Constant(value=1e-3))
    return Experiment(
        model=model, objective=objective, data=data, optimizer=optimizer, steps=5, **options
    )


def params_of(config, *, seed=0):
    """Random parameters of a config, by path; those of the model depend on the seed 0 alone."""
    flat = trees.flatten(random(learner_of(config).shapes, seed=seed))
    fixed = trees.flatten(random({"model": learner_of(config).shapes["model"]}, seed=0))
    return {path: np.asarray(x) for path, x in {**flat, **fixed}.items()}


def write_step(directory, config, arrays, *, base=None):
    """A step directory; what `base`, a directory and its arrays, has is left to it."""
    directory.mkdir(parents=True)
    files = {"config.json": to_json(config).encode(), "vocabulary/bytes.json": b"{}"}
    if base is not None:
        where, theirs = base
        left = {
            p: p
            for p in theirs
            if p in arrays and np.array_equal(arrays[p], theirs[p].astype(np.float32))
        }
        made = Base.of(trees.unflatten(arrays), left, base=where, steps=directory.parent)
        files[BASE_FILE] = made.content()
        arrays = {path: x for path, x in arrays.items() if path not in left}
    for name, content in files.items():
        path = directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    lazy = {p: LazyArray(x.shape, x.dtype, lambda x=x: x) for p, x in arrays.items()}
    items.write_params(directory / "params", lazy)
    items.write(directory)
    return directory


def write_base(directory, host, *, dtype=np.float32):
    """A checkpoint of the model, and its arrays."""
    config = experiment(host)
    arrays = {path: x.astype(dtype) for path, x in params_of(config).items()}
    return write_step(Path(directory), config, arrays), arrays


def write_run(directory, host, base, *modules, seed=1, **changes):
    """A run that trained modules, and all its arrays; `changes` of them by path."""
    config = experiment(host, *modules, init=Init(checkpoint=str(base[0])))
    frozen = {path: x.astype(np.float32) for path, x in base[1].items() if path[:6] == "model/"}
    arrays = {**params_of(config, seed=seed), **frozen, **changes}
    return write_step(Path(directory), config, arrays, base=base), arrays


def nested(arrays):
    """Arrays by path as a tree on the device."""
    return trees.unflatten({path: jnp.asarray(x) for path, x in arrays.items()})
