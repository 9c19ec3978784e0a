"""Scores of a base that need no training; test_phases.py trains what they choose."""

import dataclasses

import numpy as np
import pytest

from t5x_lite.adapters.sparse import SparseTuning
from t5x_lite.checkpoints.init import Init
from t5x_lite.core import trees
from t5x_lite.train.phases import initial, scores_of_base


@pytest.mark.slow
def test_sizes_draws_and_squared_gradients(tiny_run, tiny_experiment):
    experiment = dataclasses.replace(tiny_experiment, init=Init(checkpoint=str(tiny_run)))
    params, _, _ = initial(experiment)
    flat = trees.flatten(params["model"])
    path = next(path for path in flat if path.endswith("query/kernel"))
    sizes = {path: flat[path].size}

    def scores(select):
        return scores_of_base(experiment, SparseTuning(select=select, examples=2), sizes)[path]()

    np.testing.assert_array_equal(scores("magnitude"), np.abs(flat[path]))
    drawn = scores("random")
    np.testing.assert_array_equal(drawn, scores("random"))
    assert drawn.shape == flat[path].shape
    assert np.unique(drawn).size > drawn.size / 2
    fisher = scores("fisher")
    assert fisher.shape == flat[path].shape
    assert fisher.min() >= 0
    assert fisher.max() > 0
