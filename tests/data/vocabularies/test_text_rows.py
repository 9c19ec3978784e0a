"""Texts as rows: what begins and ends them, and where they are cut."""

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.encoder_tokens import text_rows
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files


def listed(cut):
    assert all(row.dtype == np.int32 for row in cut.rows)
    return [row.tolist() for row in cut.rows], cut.longer


def test_rows_of_an_encoder_begin_with_cls_and_end_with_sep(tmp_path):
    vocabulary = load_vocabulary(tokenizer_files.write_wordpiece(tmp_path))
    rows = text_rows(vocabulary, begins=True)
    assert (rows.pad_id, rows.shortest) == (0, 2)
    # the 5, dog 6, ##s 7; a text that is too long keeps its [SEP].
    found = listed(rows(["the dogs", "", "the the the", "the dog the dog"], length=5))
    assert found == ([[2, 5, 6, 7, 3], [2, 3], [2, 5, 5, 5, 3], [2, 5, 6, 5, 3]], [3])


def test_padding_of_roberta_is_not_0(tmp_path):
    rows = text_rows(load_vocabulary(tokenizer_files.write_byte_level(tmp_path)), begins=True)
    assert (rows.before, rows.after, rows.pad_id) == ((0,), (2,), 1)


def test_rows_of_a_t5_end_with_eos(tiny_vocabulary):
    vocabulary = load_vocabulary(tiny_vocabulary)
    ids = vocabulary.encode("a list")
    rows = text_rows(vocabulary, begins=False)
    assert listed(rows(["a list", ""], length=9)) == ([[*ids, 1], [1]], [])
    with_cls = text_rows(vocabulary, begins=True)
    assert listed(with_cls([""], length=3))[0] == [[vocabulary.sentinel(1), 1]]


def test_rows_without_room_are_refused(tmp_path):
    rows = text_rows(load_vocabulary(tokenizer_files.write_wordpiece(tmp_path)), begins=True)
    with pytest.raises(
        InputError,
        match="length of 2 tokens leaves no space for text, because 2 special tokens are",
    ):
        rows(["the"], length=2)
