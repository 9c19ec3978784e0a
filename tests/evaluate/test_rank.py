"""Rank classification: every candidate after every input, and labels in place of decoding."""

import numpy as np
import pytest

from t5x_lite.evaluate.generate import Prediction, TaskEvaluator
from t5x_lite.evaluate.rank import LabelGenerator, Ranker
from t5x_lite.evaluate.score import Scorer


class Differences(Scorer):
    """Stands for a model: the score is minus the distance of the first tokens."""

    def __init__(self):
        self.pairs = []

    def run(self, params, inputs, targets):
        self.pairs += [(int(i[0]), int(t[0])) for i, t in zip(inputs, targets, strict=True)]
        return [-params["scale"] * abs(i - t) for i, t in self.pairs[-len(inputs) :]]


@pytest.fixture
def scorer():
    return Differences()


def rows(*numbers):
    return [np.array([number, 1], np.int32) for number in numbers]


def test_every_candidate_is_scored_after_every_input(scorer):
    found = Ranker(scorer).run({"scale": 0.5}, rows(3, 9), rows(2, 5, 9))
    assert found == [[-0.5, -1.0, -3.0], [-3.5, -2.0, 0.0]]
    assert scorer.pairs == [(3, 2), (3, 5), (3, 9), (9, 2), (9, 5), (9, 9)]


def test_no_inputs(scorer):
    assert Ranker(scorer).run({"scale": 1.0}, [], rows(2, 5)) == []


def test_labels_come_by_their_rank_and_of_equal_ones_the_first(scorer):
    labels = LabelGenerator(Ranker(scorer), ["two", "four", "nine"], rows(2, 4, 9))
    [[best, *rest], [tied, *_]] = labels.run({"scale": 1.0}, rows(5, 3), offset=7)
    assert best == Prediction(text="four", ids=(4, 1), score=-1.0)
    assert [one.text for one in rest] == ["two", "nine"]
    assert tied.text == "two"


class Example:
    def __init__(self, number, target):
        self.inputs_text, self.targets_text, self.target = str(number), target, target
        [self.inputs] = rows(number)


def test_a_task_is_measured_by_its_labels(scorer):
    labels = LabelGenerator(Ranker(scorer), ["two", "nine"], rows(2, 9))
    task = TaskEvaluator(
        labels,
        [Example(1, "two"), Example(8, "nine"), Example(7, "two")],
        postprocess=lambda text, **_: text,
        metrics=[lambda t, p: {"right": sum(a == b for a, b in zip(t, p, strict=True))}],
    )
    assert task.run({"scale": 1.0}) == {"right": 2.0}
    assert [sample.prediction for sample in task.samples] == ["two", "nine", "nine"]
