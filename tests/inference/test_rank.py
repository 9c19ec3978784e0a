"""Rank classification: every candidate after every input, and labels in place of decoding."""

import numpy as np
import pytest

from t5x_lite.inference.generate import (
    LabelGenerator,
    Prediction,
    Ranker,
    Scorer,
    TaskEvaluator,
    untied,
)
from t5x_lite.metrics.classification import accuracy, f1


class Differences(Scorer):
    """Stands for a model: the score is minus the distance of the first tokens."""

    def __init__(self):
        self.pairs = []

    def run(self, params, inputs, targets, *, adapter_ids=None):
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


class Constant(Scorer):
    """Stands for a dead model: all candidates have one score."""

    def __init__(self):
        pass

    def run(self, params, inputs, targets, *, adapter_ids=None):
        return [-1.0] * len(inputs)


def task_of(generator, targets, metrics):
    return TaskEvaluator(
        generator,
        [Example(number, target) for number, target in enumerate(targets)],
        postprocess=lambda text, **_: text,
        metrics=metrics,
    )


@pytest.mark.parametrize("labels", [("a", "b"), ("a", "b", "c"), ("a", "b", "c", "d", "e")])
def test_tied_labels_count_one_over_their_number(labels):
    generator = LabelGenerator(Ranker(Constant()), labels, rows(*range(len(labels))))
    # Most targets are the first label, which is the one that a prediction takes.
    task = task_of(generator, ["a", "a", "a", "b"], [accuracy])
    assert task.run({})["accuracy"] == pytest.approx(1 / len(labels), abs=1e-12)
    assert [sample.prediction for sample in task.samples] == ["a"] * 4
    assert [answer for _, answer in task.answers()] == ["a"] * 4
    low, high = task.intervals(samples=5)["accuracy"]
    assert low <= 1 / len(labels) <= high
    assert task.names() == ["accuracy"]


def test_metrics_that_are_no_means_average_over_ties_too():
    generator = LabelGenerator(Ranker(Constant()), ["1", "0"], rows(1, 0))
    task = task_of(generator, ["1", "0"] * 50, [lambda t, p: f1([*map(int, t)], [*map(int, p)])])
    assert task.run({})["f1"] == pytest.approx(0.5, abs=0.1)  # "1" for all has 2/3


def test_only_the_best_scores_tie(scorer):
    # After 3 "two" and "four" tie, after 2 "two" alone is best.
    labels = LabelGenerator(Ranker(scorer), ["two", "four", "nine"], rows(2, 4, 9))
    task = task_of(labels, ["nine"] * 4, [])
    task.examples = [Example(3, "two"), Example(3, "nine"), Example(2, "two"), Example(2, "four")]
    task._metrics = [accuracy]
    assert task.run({"scale": 1.0}) == {"accuracy": (0.5 + 0 + 1 + 0) / 4}


def test_ties_of_many_sizes_are_bounded_and_nearly_exact():
    choices = [list("abcdefghijklm"[:size]) for size in range(1, 14)] * 100
    found = list(untied(choices))
    assert len(found) == 769  # 1,000,000 over 1,300 examples
    share = np.mean([[one == "a" for one in row] for row in found], axis=0)
    np.testing.assert_allclose(share, [1 / len(own) for own in choices], atol=1 / 769)
    assert list(untied([["x"], ["y"]])) == [["x", "y"]]
    assert len(list(untied(choices, rounds=12))) == 12
