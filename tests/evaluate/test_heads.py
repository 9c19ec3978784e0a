"""What heads answer: labels in their order, scores, spans of the second text."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.errors import InputError
from t5x_lite.evaluate.heads import (
    ChoiceAnswers,
    ClassAnswers,
    ScoreAnswers,
    SpanAnswers,
    TokenAnswers,
    best_span,
    check_head,
    head_answers,
    is_in_order,
)
from t5x_lite.heads.classifier import Classifier
from t5x_lite.heads.token import Token

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


def test_a_span_lies_in_the_second_text():
    def logits(tokens, segments, types_):
        first = jnp.where(tokens == 5, 9.0, tokens == 7)  # 5 is in the first text
        return first, jnp.where(tokens == 9, 2.0, 0.0)

    answers = SpanAnswers(bind_of(logits), longest_answer=3, **OPTIONS)
    found = answers.run({}, [row(CLS, 5, SEP, 6, 7, 8, 9, SEP), row(CLS, 5, SEP)])
    assert [answer[0].text for answer in found] == ["1 3", ""]


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
        InputError, match=r"it has the labels B, I, O: set --objective\.num-classes 3"
    ):
        check_head({"token": Token(num_classes=9)}, "token", labels, where="it")
    with pytest.raises(
        InputError, match=r"a tag for each word, .* gives a class or a score: use ob"
    ):
        check_head({"classifier": Classifier()}, "token", labels, where="it")
    with pytest.raises(
        InputError, match="must be Classify, Spans, Choose or TagTokens, or the che"
    ):
        check_head({}, "token", labels, where="it")


@pytest.mark.parametrize(
    ("first", "last", "longest", "expected"),
    [
        ([0.0, 3.0, 0.0], [0.0, 0.0, 2.0], 3, (1, 2, 5.0)),
        ([0.0, 3.0, 0.0], [4.0, 0.0, 2.0], 1, (0, 0, 4.0)),  # the end is not before the beginning
        ([0.0, 0.0, 3.0], [4.0, 0.0, 0.0], 3, (0, 0, 4.0)),
        ([1.0, 1.0], [0.0, 0.0], 2, (0, 0, 1.0)),
        ([], [], 2, (0, 0, -np.inf)),
    ],
)
def test_the_best_span(first, last, longest, expected):
    assert best_span(np.array(first), np.array(last), longest=longest) == expected
