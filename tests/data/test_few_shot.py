"""Few-shot prompts: which examples, in which order, in which words, and what fits."""

import dataclasses

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.few_shot import FewShot, Prompts, Trial


@dataclasses.dataclass(frozen=True)
class Pair:
    inputs: str
    targets: str


POOL = [Pair(f"q{i}", f"a{i}") for i in range(5)]


class Letters:
    """A vocabulary with one token for each character."""

    def encode_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


def prompts(pool=POOL, *, length=100, task="made", **config):
    return Prompts(
        FewShot(**config), pool, task=task, vocabulary=Letters(), length=length, ending=[1]
    )


def texts(made, questions):
    return {
        (trial.seed, trial.order): [prompt.text for prompt in made.of(trial, questions)]
        for trial in made.config.trials
    }


def test_two_examples_two_seeds_two_orders():
    made = prompts(examples=2, seeds=(0, 1), orders=2)
    assert texts(made, ["q9"]) == {
        (0, 0): ["q2\na2\n\nq4\na4\n\nq9"],
        (0, 1): ["q4\na4\n\nq2\na2\n\nq9"],
        (1, 0): ["q2\na2\n\nq0\na0\n\nq9"],
        (1, 1): ["q0\na0\n\nq2\na2\n\nq9"],
    }
    assert texts(prompts(examples=2, seeds=(0, 1), orders=2), ["q9"]) == texts(made, ["q9"])
    other = texts(prompts(examples=2, seeds=(0, 1), orders=2, task="other"), ["q9"])
    assert other != texts(made, ["q9"])


def test_a_question_is_never_shown_with_its_answer():
    made = prompts(examples=4, seeds=(3,))
    shown = texts(made, [pair.inputs for pair in POOL])[3, 0]
    for pair, text in zip(POOL, shown, strict=True):
        assert text.endswith(f"\n\n{pair.inputs}")
        assert pair.targets not in text
        assert text.count("\n\n") == 4
    everything = prompts(examples=5)
    everything.check(["q9"])
    with pytest.raises(
        InputError, match="examples is 5, but split 'train' of task made has only 4 different"
    ):
        everything.check(["q9", "q3"])
    message = "examples is 6, but split 'train' of task made has only 5 different examples other"
    with pytest.raises(InputError, match=message):
        prompts(examples=6).check(["q9"])


def test_all_orders_of_three_are_different():
    made = prompts(examples=3, orders=6)
    found = [one[0] for one in texts(made, ["q9"]).values()]
    assert len({*found}) == 6
    assert len({tuple(sorted(text.split("\n\n"))) for text in found}) == 1


def test_wordings_and_new_lines_from_a_shell():
    made = prompts(
        POOL[:1],
        examples=1,
        separator=" | ",
        templates=(r"Q: {inputs}\nA: {targets}.", "{inputs}={targets}"),
    )
    assert made.config.trials == (Trial(template=0), Trial(template=1))
    found = [made.of(trial, ["why {x}?"])[0].text for trial in made.config.trials]
    assert found == ["Q: q0\nA: a0. | Q: why {x}?\nA:", "q0=a0 | why {x}?="]


def test_a_wording_without_examples_is_measured_once():
    made = prompts([], seeds=(0, 1), orders=1, templates=("Q: {inputs} A: {targets}",))
    assert made.config.is_on
    assert [made.of(trial, ["q"])[0].text for trial in made.config.trials] == ["Q: q A:"]
    assert not FewShot(seeds=(0, 1)).is_on


def test_what_is_too_long_loses_its_first_examples_and_no_question():
    made = prompts(examples=2, length=15)
    (whole,) = prompts(examples=2).of(Trial(), ["q9"])
    assert (whole.text, whole.examples) == ("q2\na2\n\nq4\na4\n\nq9", 2)
    assert whole.tokens.tolist() == [*map(ord, whole.text), 1]
    one, alone, cut = made.of(Trial(), ["q9", "question", "a longer question"])
    assert (one.text, one.examples) == ("q4\na4\n\nq9", 1)
    assert (alone.text, alone.examples) == ("question", 0)
    assert alone.tokens.dtype == np.int32
    assert (cut.text, cut.examples) == ("a longer question", 0)
    assert cut.tokens.tolist() == [*map(ord, "a longer quest"), 1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"examples": -1}, r"evaluation\.few_shot\.examples must be at least 0: got -1"),
        ({"orders": 0}, r"few_shot\.orders must be at least 1: got 0"),
        ({"pool": 0}, r"few_shot\.pool must be at least 1: got 0"),
        ({"seeds": ()}, r"seeds must be one or more different numbers, but is none"),
        ({"seeds": (2, 2)}, r"seeds must be one or more different numbers, but is 2 2"),
        ({"seeds": (-2,)}, r"few_shot\.seeds must be at least 0: got"),
        ({"examples": 2, "orders": 3}, r"orders is 3, but 2 examples have only 2 orders"),
        ({"templates": ("{inputs} {targets}",) * 2}, "has the same template twice"),
        ({"templates": ("{inputs}",)}, "must have {inputs} and after it {targets}, each once"),
        ({"templates": ("{targets} {inputs}",)}, "must have {inputs} and after it {targets}"),
        ({"templates": ("{inputs}{inputs} {targets}",)}, "each once"),
        ({"templates": ("{inputs} {text} {targets}",)}, "each once"),
        ({"templates": ("{inputs} { {targets}",)}, "has a single brace {; write {{"),
    ],
)
def test_what_is_refused(config, message):
    with pytest.raises(InputError, match=message):
        FewShot(**config)
