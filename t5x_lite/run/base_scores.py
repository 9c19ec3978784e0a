"""What a run begins with, and how much each entry of it matters: scores without a training.

params, learner, vocabulary = initial(experiment)
scores_of_base(experiment, SparseTuning(select="fisher"), sizes)["encoder/.../kernel"]()
"""

import dataclasses
import functools
import itertools
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t5x_lite import sharding, trees
from t5x_lite.adapters.sparse import SparseTuning
from t5x_lite.config import Experiment
from t5x_lite.data.shapes import Fixed
from t5x_lite.data.sources import batch_source
from t5x_lite.deltas.selection import Lazy
from t5x_lite.evaluate.fisher import classes_of, fisher_diagonal
from t5x_lite.inference.loading import learner_of
from t5x_lite.run import restoring
from t5x_lite.train.state import TrainState
from t5x_lite.types import Params
from t5x_lite.vocabulary.loading import load_vocabulary

_MODEL = "model/"


def scores_of_base(experiment: Experiment, adapter: SparseTuning, sizes: Mapping[str, int]) -> Lazy:
    """Scores of a model's arrays as they are, which need no training.

    Args:
      experiment: without the module, and with others that are in use.
      adapter: says which scores.
      sizes: the arrays, by path in the model.

    Returns:
      path in the model -> what makes its scores.
    """
    if adapter.select == "random":
        shapes = trees.flatten(learner_of(experiment).shapes["model"])
        seed = experiment.seed
        return {path: functools.partial(_drawn, path, shapes[path].shape, seed) for path in sizes}
    params, learner, vocabulary = initial(experiment)
    if adapter.select == "magnitude":
        flat = trees.flatten(learner.changed(params)["model"])
        return {p: lambda p=p: np.abs(np.asarray(flat[p], np.float32)) for p in sizes}
    data = dataclasses.replace(experiment.data, batch_size=1, pack=False, batches=Fixed())
    rows = batch_source(data).train_batches(data, vocabulary, seed=experiment.seed)
    classes = classes_of(learner) if adapter.labels == "expected" else None
    diagonal = fisher_diagonal(
        learner.loss, params, itertools.islice(rows, adapter.examples), classes=classes
    )
    return {path: lambda path=path: diagonal[_MODEL + path] for path in sizes}


def _drawn(path: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random scores of an array, by its path."""
    return np.random.default_rng([seed, zlib.crc32(path.encode())]).random(shape, np.float32)


def initial(experiment: Experiment) -> tuple[Params, Any, Any]:
    """The parameters with which a run begins, its learner and vocabulary."""
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
