"""What heads answer: labels in their order, scores, spans of the second text."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.inference.generate import TaskEvaluator
from t5x_lite.inference.head_answers import (
    CandidateAnswers,
    ChoiceAnswers,
    ClassAnswers,
    ScoreAnswers,
    SpanAnswers,
    TokenAnswers,
    check_head,
    head_answers,
    is_in_order,
)
from t5x_lite.metrics.classification import accuracy, tag_accuracy
from t5x_lite.models.heads import Classifier, Token

PAD, CLS, SEP = 0, 1, 2
OPTIONS = {"batch_size": 2, "longest": 12, "pad_id": PAD, "sep_id": SEP, "head": "it"}


def bind_of(logits):
    """A learner whose head says what a function of tokens, segments and token types gives."""

    def model(tokens, *, segment_ids, token_types):
        return jnp.stack([tokens, segment_ids, token_types], axis=-1).astype(jnp.float32)

    heads = {"it": lambda hidden: logits(*jnp.moveaxis(hidden, -1, 0))}
    return lambda params: types.SimpleNamespace(model=model, heads=heads)


def row(*tokens):
    return np.array(tokens, np.int32)


def test_classes_best_first_and_in_the_order_of_the_inputs():
    def logits(tokens, segments, types_):
        first = tokens[:, 1]
        return jnp.stack([first, 8.0 - first, jnp.zeros_like(first)], axis=1)

    answers = ClassAnswers(bind_of(logits), ("no", "yes", "never"), **OPTIONS)
    found = answers.run({}, [row(CLS, 3, 4, 5, SEP), row(CLS, 7, SEP), row(CLS, 3, SEP)])
    assert [[one.text for one in answer] for answer in found] == [
        ["yes", "no", "never"],
        ["no", "yes", "never"],
        ["yes", "no", "never"],
    ]
    assert np.sum(np.exp([one.score for one in found[0]])) == pytest.approx(1.0)
    assert answers.run({}, []) == []


def test_a_batch_has_segments_and_token_types_and_is_no_longer_than_the_rows():
    seen = []

    def logits(tokens, segments, types_):
        seen.append(tokens.shape)
        return jnp.stack([jnp.sum(types_, 1), jnp.sum(segments, 1)], 1)

    answers = ScoreAnswers(bind_of(logits), **OPTIONS)
    found = answers.run({}, [row(CLS, 5, SEP, 6, 7, SEP), row(CLS, 5, SEP)])
    assert [answer[0].text for answer in found] == ["3", "0"]
    assert seen[0] == (2, 12)


def test_the_likeliest_text_of_an_input_is_chosen():
    def logits(tokens, segments, types_):
        return tokens[:, 3:4]

    answers = ChoiceAnswers(bind_of(logits), ("0", "1", "2"), **OPTIONS)
    texts = [row(CLS, 5, SEP, number, SEP) for number in (4, 9, 7, 8, 3)]
    found = answers.run({}, [np.concatenate(texts[:3]), np.concatenate(texts[3:])])
    assert [[one.text for one in answer] for answer in found] == [["1", "2", "0"], ["0", "1"]]
    assert np.sum(np.exp([one.score for one in found[0]])) == pytest.approx(1.0)


def test_the_candidate_that_is_likeliest_to_be_right_is_the_answer():
    def logits(tokens, segments, types_):  # of class 0, which is "yes" here: token 3 less 6
        return jnp.stack([tokens[:, 3] - 6.0, jnp.zeros_like(tokens[:, 3])], axis=1)

    answers = CandidateAnswers(bind_of(logits), ("yes", "no"), yes="yes", **OPTIONS)
    texts = [row(CLS, 5, SEP, number, SEP) for number in (4, 9, 6, 4, 4)]
    inputs = [np.concatenate(texts[:3]), np.concatenate(texts[3:]), texts[1]]
    found = answers.run({}, inputs)
    # Of equal ones the first; "yes" need not be likelier than "no".
    assert [[one.text for one in each] for each in found] == [["1", "2", "0"], ["0", "1"], ["0"]]
    probabilities = [np.exp(one.score) for one in found[0]]
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp([-3.0, 0.0, 2.0])), rtol=1e-6)


def test_a_span_lies_in_the_second_text():
    def logits(tokens, segments, types_):
        first = jnp.where(tokens == 5, 9.0, tokens == 7)  # 5 is in the first text
        return first, jnp.where(tokens == 9, 2.0, 0.0)

    answers = SpanAnswers(bind_of(logits), longest_answer=3, **OPTIONS)
    found = answers.run({}, [row(CLS, 5, SEP, 6, 7, 8, 9, SEP), row(CLS, 5, SEP)])
    assert [answer[0].text for answer in found] == ["1 3", ""]
    assert [answer[0].null_odds for answer in found] == [None, None]


def by_token(tokens, segments, types_):
    """The class of a token is its number modulo 3."""
    return jnp.stack([(tokens % 3 == number) * 1.0 for number in range(3)], axis=-1)


def test_a_label_for_each_token_of_a_row():
    answers = TokenAnswers(bind_of(by_token), ("O", "B", "I"), **OPTIONS)
    found = answers.run({}, [row(CLS, 3, 4, 5, SEP), row(CLS, 7, SEP), row(CLS, *range(9), SEP)])
    assert [[one.text for one in answer] for answer in found] == [
        ["B O B I I"],
        ["B B I"],
        ["B O B I O B I O B I I"],
    ]
    assert answers.run({}, []) == []


def test_a_token_head_with_its_classes_in_another_order(caplog):
    task = ("B", "I", "O")
    named = Token(name="it", num_classes=3, labels=("o", "b", "i"))
    options = {name: value for name, value in OPTIONS.items() if name != "head"}
    options["layout"] = layouts.Tokens()
    answers = head_answers(bind_of(by_token), named, task, where="data.task", **options)
    assert answers.run({}, [row(CLS, 3, 5, SEP)])[0][0].text == "B O I I"
    assert not is_in_order(named, task)
    assert is_in_order(Token(num_classes=3), task)
    assert caplog.messages == []


def test_a_head_that_fits_a_task():
    labels = ("B", "I", "O")
    heads = {"token": Token(num_classes=3), "classifier": Classifier(num_classes=2)}
    assert check_head(heads, "token", labels, where="it") == "token"
    with pytest.raises(
        InputError, match=r"it has the labels B, I, O; set --objective\.num-classes 3"
    ):
        check_head({"token": Token(num_classes=9)}, "token", labels, where="it")
    with pytest.raises(
        InputError, match=r"a tag for each word, .* predicts a class or a score; use the ob"
    ):
        check_head({"classifier": Classifier()}, "token", labels, where="it")
    with pytest.raises(
        InputError, match="use the objective Classify, Spans, Choose or TagTokens, or a che"
    ):
        check_head({}, "token", labels, where="it")


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (None, ["2 2", "0 0"]),
        (0.0, ["2 2", ""]),
        (0.5, ["2 2", "0 0"]),  # the odds must be above it
        (-3.0, ["", ""]),
    ],
)
def test_windows_of_a_context_have_one_answer_or_none(threshold, expected):
    """Logits are those of tokens in tenths, both ends alike; [CLS] has those of the second one."""

    def logits(tokens, segments, types_):
        values = jnp.where(tokens == CLS, tokens[:, 1:2], tokens) / 10.0
        return values, values

    options = {"longest_answer": 1, "doc_stride": 2, "null_threshold": threshold}
    answers = SpanAnswers(bind_of(logits), **options, **OPTIONS)
    # A context 4 5 20 6 whose token 20 counts in the second window; and one that is less likely
    # than its [CLS]. 30 stands in a question.
    first = [row(CLS, 7, SEP, 4, 5, 20, SEP), row(CLS, 7, SEP, 20, 6, SEP)]
    second = [row(CLS, 30, SEP, 27, 3, SEP), row(CLS, 29, SEP, 3, SEP)]
    found = answers.run({}, [np.concatenate(one) for one in (first, second)])
    assert [one.text for (one,) in found] == expected
    assert [one.score for (one,) in found] == pytest.approx([4.0, 5.4])
    if threshold is not None:  # 2 * 0.7 - 4.0; and of the least [CLS], 2 * 2.9 - 5.4
        assert [one.null_odds for (one,) in found] == pytest.approx([-2.6, 0.4])


LABELS = ("0", "1", "2")
PAIR = np.concatenate([row(CLS, 5, SEP, number, SEP) for number in (4, 9, 7)])
DEAD = {
    # What answers, by logits that are 0, and the inputs of an example.
    "classes": (lambda bind: ClassAnswers(bind, LABELS, **OPTIONS), row(CLS, 5, SEP), 3),
    "choices": (lambda bind: ChoiceAnswers(bind, LABELS, **OPTIONS), PAIR, 1),
    "candidates": (lambda bind: CandidateAnswers(bind, LABELS, yes="2", **OPTIONS), PAIR, 3),
}


class Asked:
    def __init__(self, inputs, target):
        self.inputs, self.target = inputs, target
        self.inputs_text = self.targets_text = target


@pytest.mark.parametrize("head", DEAD)
def test_a_dead_head_has_the_accuracy_of_a_random_choice(head):
    make, inputs, size = DEAD[head]
    answers = make(bind_of(lambda tokens, *_: jnp.zeros((tokens.shape[0], size))))
    task = TaskEvaluator(
        answers,
        [Asked(inputs, target) for target in ("0", "0", "0", "1")],
        postprocess=lambda text, **_: text,
        metrics=[accuracy],
    )
    assert task.run({})["accuracy"] == pytest.approx(1 / 3, abs=1e-12)
    assert [one.prediction for one in task.samples] == ["0"] * 4


def test_a_dead_tagger_has_the_accuracy_of_a_random_choice():
    # Tokens of even number have 3 tied tags, others have B.
    def logits(tokens, segments, types_):
        return jnp.where((tokens % 2 == 1)[..., None], jnp.eye(3)[1], 0.0)

    answers = TokenAnswers(bind_of(logits), ("O", "B", "I"), **OPTIONS)
    [tied, alone] = answers.run({}, [row(4, 5, 4), row(5, 7)])
    assert [one.text for one in tied] == ["O B O", "B B B", "I B I"]
    assert [one.text for one in alone] == ["B B"]  # padding does not tie
    task = TaskEvaluator(
        answers,
        [Asked(row(4, 5, 4), "O B O"), Asked(row(4, 4), "O O")],
        postprocess=lambda text, **_: text,
        metrics=[tag_accuracy],
    )
    assert task.run({})["accuracy"] == pytest.approx((1 + 4 / 3) / 5, abs=1e-12)
