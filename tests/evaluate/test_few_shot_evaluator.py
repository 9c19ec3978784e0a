"""A task's metrics over prompts, with a model that answers with the last answer shown."""

import dataclasses

import numpy as np
import pytest

from t5x_lite.data.few_shot import FewShot, Prompts, Trial
from t5x_lite.evaluate.few_shot_trials import FewShotEvaluator, FewShotSample
from t5x_lite.inference.generate import Generator, Prediction
from t5x_lite.metrics.classification import accuracy


@dataclasses.dataclass(frozen=True)
class Pair:
    inputs: str
    targets: str


@dataclasses.dataclass(frozen=True)
class Question:
    inputs_text: str
    targets_text: str
    inputs: np.ndarray
    target: int
    raw: dict


class Letters:
    def encode_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


class LastAnswer(Generator):
    """Says the last answer of the examples, and "none" where there are none."""

    def __init__(self):
        self.runs = 0

    def run(self, params, inputs, **options):
        self.runs += 1
        shown = ["".join(map(chr, row[:-1])).split("\n\n")[:-1] for row in inputs]
        said = [parts[-1].partition("\n")[2] if parts else "none" for parts in shown]
        return [[Prediction(text=text, ids=(), score=0.0)] for text in said]


def number(text, *, example=None, is_target=False):
    return int(text) if text.isdigit() else -1


@pytest.fixture
def made():
    def make(*, length=100, **config):
        questions = [
            Question(f"{i}?", str(i % 2), np.zeros(1, np.int32), i % 2, {"idx": i})
            for i in range(4)
        ]
        pool = [Pair("a", "0"), Pair("b", "1")]
        return FewShotEvaluator(
            LastAnswer(),
            questions,
            postprocess=number,
            metrics=[accuracy],
            prompts=Prompts(
                FewShot(**config),
                pool,
                task="made",
                vocabulary=Letters(),
                length=length,
                ending=[1],
            ),
        )

    return make


def test_each_trial_is_measured_and_the_mean_is_the_metric(made):
    evaluator = made(examples=2, orders=2)
    assert evaluator.names() == ["accuracy"]
    assert evaluator.run({}) == {"accuracy": 0.5}
    assert len(evaluator.samples) == 8
    assert evaluator.samples[0] == FewShotSample(
        inputs="b\n1\n\na\n0\n\n0?",
        targets="0",
        prediction="0",
        seed=0,
        order=0,
        template=0,
        examples=2,
    )
    assert evaluator.samples[4].prediction == "1"
    assert evaluator.trials() == {
        Trial(order=0): {"accuracy": 0.5, "score": 0.5},
        Trial(order=1): {"accuracy": 0.5, "score": 0.5},
    }
    assert [answer for _, answer in evaluator.answers()] == [0, 0, 0, 0]
    low, high = evaluator.intervals(samples=20)["accuracy"]
    assert (low, high) == (0.5, 0.5)  # the two trials are right on different halves
    assert evaluator.cut() == (0, 8)
    evaluator.run({})
    assert len(evaluator.samples) == 8


def test_prompts_that_are_too_long_are_counted(made):
    evaluator = made(
        examples=2, length=9, templates=("{inputs}\n{targets}", "In: {inputs} Out: {targets}")
    )
    evaluator.run({})
    assert evaluator.cut() == (8, 8)
    details = evaluator.details()
    trials = details.pop("trials")
    assert [(one["prompts_cut"], one["examples_left_out"]) for one in trials] == [(4, 4), (4, 8)]
    assert [sample.examples for sample in evaluator.samples] == [1] * 4 + [0] * 4
    assert trials[1] == {
        "seed": 0, "order": 0, "template": 1, "metrics": {"accuracy": 0.0, "score": 0.0},
        "prompts_cut": 4, "examples_left_out": 8,
    }  # fmt: skip
    assert details.pop("spread")["accuracy"]["wordings"]["max"] == 0.5
    assert details == {
        "examples": 2,
        "split": "train",
        "separator": "\n\n",
        "templates": ["{inputs}\n{targets}", "In: {inputs} Out: {targets}"],
    }


def test_tied_labels_of_a_trial_count_one_over_their_number(made, monkeypatch):
    def tied(self, params, inputs, **options):
        return [[Prediction(text=text, ids=(), score=-1.0) for text in "01"] for _ in inputs]

    monkeypatch.setattr(LastAnswer, "run", tied)
    evaluator = made(examples=2, orders=2)
    evaluator.examples = evaluator.examples[::2]  # all targets are 0
    assert evaluator.run({}) == {"accuracy": 1.0}  # outputs of a search are no closed set
    monkeypatch.setattr(LastAnswer, "ranks", True)
    assert evaluator.run({}) == {"accuracy": 0.5}
    assert evaluator.intervals(samples=5)["accuracy"] == (0.5, 0.5)
    assert [answer for _, answer in evaluator.answers()] == [0, 0]
