"""What heads answer: labels in their order, scores, spans of the second text."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.evaluate.heads import ClassAnswers, ScoreAnswers, SpanAnswers, best_span

PAD, CLS, SEP = 0, 1, 2
OPTIONS = {"batch_size": 2, "longest": 12, "pad_id": PAD, "sep_id": SEP}


def bind_of(logits):
    """A learner whose objective says what a function of the batch gives."""
    objective = types.SimpleNamespace(logits=lambda model, batch: logits(batch))
    return lambda params: types.SimpleNamespace(model=None, objective=objective)


def row(*tokens):
    return np.array(tokens, np.int32)


def test_classes_best_first_and_in_the_order_of_the_inputs():
    def logits(batch):
        first = batch["encoder_input_tokens"][:, 1].astype(jnp.float32)
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

    def logits(batch):
        seen.append({name: value.shape for name, value in batch.items()})
        types_ = batch["encoder_token_types"]
        return jnp.stack([jnp.sum(types_, 1), jnp.sum(batch["encoder_segment_ids"], 1)], 1)

    answers = ScoreAnswers(bind_of(logits), **OPTIONS)
    found = answers.run({}, [row(CLS, 5, SEP, 6, 7, SEP), row(CLS, 5, SEP)])
    assert [answer[0].text for answer in found] == ["3", "0"]
    assert seen[0]["encoder_input_tokens"] == (2, 12)


def test_a_span_lies_in_the_second_text():
    def logits(batch):
        tokens = batch["encoder_input_tokens"].astype(jnp.float32)
        first = jnp.where(tokens == 5, 9.0, tokens == 7)  # 5 is in the first text
        return jnp.stack([first, jnp.where(tokens == 9, 2.0, 0.0)], axis=1)

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
