"""Every evaluator has the one method that training and the command line call."""

import inspect

import pytest

from t5x_lite.evaluate.base import Evaluator
from t5x_lite.evaluate.generate import TaskEvaluator
from t5x_lite.evaluate.loss import LossEvaluator


@pytest.mark.parametrize("evaluator", [LossEvaluator, TaskEvaluator])
def test_evaluators_run_on_parameters(evaluator):
    assert list(inspect.signature(evaluator.run).parameters) == ["self", "params"]
    assert issubclass(evaluator, Evaluator)


def test_something_else_is_no_evaluator():
    assert not isinstance(object(), Evaluator)
