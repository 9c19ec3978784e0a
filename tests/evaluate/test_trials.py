"""What is said of trials; of real runs: tests/evaluate/test_few_shot_trials.py."""

from t5x_lite.data.few_shot import FewShot, Trial
from t5x_lite.evaluate.few_shot_trials import FewShotEvaluator, Trials


class Ran(FewShotEvaluator):
    """One that has run, with an accuracy for each seed, and half of its prompts cut."""

    def __init__(self, *accuracies):
        self._accuracies = accuracies
        self.prompts = self
        self.length = 12

    def trials(self):
        return {
            Trial(seed=seed): {"accuracy": value, "score": value}
            for seed, value in enumerate(self._accuracies)
        }

    def cut(self):
        return 3, 6

    def details(self):
        return {"examples": 4}


CONFIG = FewShot(examples=4, seeds=(0, 1))


def test_nothing_is_said_of_nothing():
    trials = Trials(CONFIG, {}, is_mixture=True)
    assert trials.lines() == []
    assert trials.details() == {}


def test_one_task():
    trials = Trials(CONFIG, {"rte": Ran(0.5, 0.5)}, is_mixture=False)
    assert trials.details() == {"few_shot": {"examples": 4}}
    cut, shown = trials.lines()
    assert cut == (
        "rte: removed examples from 3 of 6 prompts, because the prompts were longer than 12 tokens"
    )
    assert shown.splitlines()[0] == "few-shot, 4 examples of split train, 2 trials:"


def test_a_mixture_has_the_spread_of_its_score():
    tasks = {"rte": Ran(0.5, 0.75), "cola": Ran(0.25, 0.5), "wnli": Ran(0.0, 0.0)}
    trials = Trials(CONFIG, tasks, is_mixture=True, aside=["wnli"])
    found = trials.details()["few_shot"]
    assert found["tasks"] == {name: {"examples": 4} for name in tasks}
    assert found["spread"]["score"]["mean"] == 0.5
    assert (found["spread"]["score"]["min"], found["spread"]["score"]["max"]) == (0.375, 0.625)
    assert trials.lines()[-1].splitlines()[-1].split()[:5] == [
        "all",
        "score",
        "50.00",
        "37.50",
        "62.50",
    ]
