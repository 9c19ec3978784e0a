"""What heads answer: labels in their order, scores, spans of the second text."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.evaluate.heads import (
    CandidateAnswers,
    ChoiceAnswers,
    ClassAnswers,
    ScoreAnswers,
    SpanAnswers,
    best_span,
)

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
