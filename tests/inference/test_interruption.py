"""An evaluation ends between two batches, and only where it is asked to."""

import numpy as np
import pytest

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.evaluate.results import LossEvaluator
from t5x_lite.inference.generate import Stopped, batched, between_batches, stopping_on
from t5x_lite.objectives.base import Loss, Term


def test_outside_the_block_nothing_is_asked():
    between_batches()
    with pytest.raises(ZeroDivisionError), stopping_on(lambda: True):
        1 / 0  # noqa: B018
    between_batches()


def test_slices_end_where_it_is_asked():
    answers = iter([False, False, True])
    with stopping_on(lambda: next(answers)):
        slices = batched(range(5), 2)
        assert [next(slices), next(slices)] == [range(2), range(2, 4)]
        with pytest.raises(Stopped):
            next(slices)


def test_the_held_out_loss_ends_between_two_batches():
    read = []

    def batches():
        for number in range(4):
            read.append(number)
            yield {"x": np.ones((1, 1), np.float32)}

    def ones(params, batch):
        return Loss({"main": Term(batch["x"].sum(), batch["x"].sum())}, {})

    evaluator = LossEvaluator(ones, batches, mesh=make_mesh(MeshConfig()))
    answers = iter([False, True])
    with pytest.raises(Stopped), stopping_on(lambda: next(answers)):
        evaluator.run({})
    assert read == [0, 1]
    assert evaluator.run({}) == {"loss": 1.0}
