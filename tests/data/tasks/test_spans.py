"""Answers as spans of tokens: from characters to places in a row, and back to text."""

import json

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.tasks.labelled import SpanText, encode_spans, first_answer, token_span
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.layouts.labelled import NONE

CONTEXT = "The dogs run. (Una)"


def encoded(vocabulary, *spans, length=16):
    rows, labels = encode_spans(
        ["run dog"] * len(spans),
        [CONTEXT] * len(spans),
        np.array(spans),
        vocabulary=vocabulary,
        tokens=encoder_tokens(vocabulary),
        length=length,
    )
    pieces = vocabulary.pieces()
    return [" ".join(pieces[i] for i in row) for row in rows], labels


def test_a_span_of_tokens():
    offsets = [(0, 3), (4, 7), (7, 8), (9, 12)]
    assert token_span(offsets, 4, 8) == (1, 2)
    assert token_span(offsets, 5, 6) == (1, 1)
    assert token_span(offsets, 2, 10) == (0, 3)
    assert token_span(offsets, 9, 13) is None  # it goes on behind what is left
    assert token_span(offsets, 4, 4) is None


def test_rows_and_the_places_of_answers(vocabulary):
    rows, labels = encoded(vocabulary, (4, 12), (15, 18), (0, 0))
    assert rows[0] == "[CLS] run dog [SEP] the dog ##s run . ( una )"
    assert labels == [(6, 8), (11, 11), NONE]  # dog ##s run; una


def test_a_context_is_cut_and_an_answer_behind_the_cut_has_no_label(vocabulary):
    rows, labels = encoded(vocabulary, (4, 8), (15, 18), length=9)
    assert rows[0] == "[CLS] run dog [SEP] the dog ##s run"
    assert labels == [(6, 7), NONE]


def test_places_become_the_context_s_text(vocabulary):
    text = SpanText(vocabulary)
    example = {"context": CONTEXT, "answers": [b"dogs", "run"]}
    assert text("1 3", example=example) == "dogs run"
    assert text("6 6", example=example) == "Una"
    assert text("Una", example=example) == "Una"
    assert text("", example=example) == ""
    assert text("", example=example, is_target=True) == ["dogs", "run"]


def test_the_first_answer_counts_for_training():
    answers = {"text": ["dogs", "The dogs"], "answer_start": [4, 0]}
    assert first_answer({"answers": answers}) == (4, 8)
    assert first_answer({"answers": {"text": [], "answer_start": []}}) == NONE
    assert first_answer({"answers": {"text": ["x"], "answer_start": [-1]}}) == NONE


def test_a_vocabulary_without_characters_is_refused(tiny_vocabulary):
    with pytest.raises(InputError, match=r"a tokenizer\.json, a vocab\.txt or an spm\.model"):
        encoded(load_vocabulary(tiny_vocabulary), (0, 1))


@pytest.mark.slow
def test_squad_as_spans(vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading, reading

    answers = [{"text": "dogs", "answer_start": 4}, {"text": "The dogs", "answer_start": 0}]
    qas = [{"id": "q", "question": "run dog", "answers": answers}]
    content = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_text(json.dumps(content))
    data = Data(
        task="tasks.squad:squad",
        vocabulary="",
        directory=str(tmp_path),
        layout=layouts.Labelled(),
        batch_size=2,
        inputs_length=16,
        pack=False,
    )
    batch = next(data_batches.train_batches(data, vocabulary, seed=0))
    assert batch["labels"].tolist() == [[6, 7], [6, 7]]
    assert batch["encoder_token_types"][0].tolist() == [0] * 4 + [1] * 9 + [0] * 3
    (example,) = reading.eval_examples(data, vocabulary)
    assert example.target == ["dogs", "The dogs"]
    assert example.raw["context"] == CONTEXT
    postprocess, metrics = loading.task_metrics(loading.load_task(data, vocabulary))
    found = postprocess("0 2", example=example.raw, is_target=False)
    assert found == "The dogs"
    assert metrics[0]([example.target], [found]) == {"exact_match": 1.0, "f1": 1.0}
