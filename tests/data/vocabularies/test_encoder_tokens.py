"""Special ids, and where words begin, of every kind of vocabulary."""

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, tokens_for
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files


def words(vocabulary, text):
    """The text's pieces by words, as decoded, and all special tokens around it of none."""
    tokens = encoder_tokens(vocabulary)
    ids = vocabulary.encode(text)
    row = np.array([tokens.cls_id, *ids, tokens.mask_id, tokens.sep_id, tokens.pad_id])
    found = tokens.word_ids(row)
    assert found.dtype == np.int32
    assert found[[0, -3, -2, -1]].tolist() == [0, 0, 0, 0]
    numbers = found[1:-3]
    assert sorted({*numbers.tolist()}) == list(range(1, numbers.max(initial=0) + 1))
    assert (np.diff(numbers) >= 0).all()
    return [
        vocabulary.decode([i for i, of in zip(ids, numbers, strict=True) if of == number])
        for number in range(1, numbers.max(initial=0) + 1)
    ]


def test_wordpiece(tmp_path):
    vocabulary = load_vocabulary(tokenizer_files.write_wordpiece(tmp_path))
    assert words(vocabulary, "The dogs' unaffable cat, no?") == [
        *("the", "dogs", "'", "unaffable", "cat", ",", "no", "?")
    ]
    assert words(vocabulary, "☃ dog") == ["", "dog"]  # an unknown piece is a word
    tokens = encoder_tokens(vocabulary)
    assert (tokens.cls_id, tokens.sep_id, tokens.mask_id) == (2, 3, 4)
    assert (tokens.pad_id, tokens.unk_id) == (0, 1)


def test_byte_level(tmp_path):
    vocabulary = load_vocabulary(tokenizer_files.write_byte_level(tmp_path))
    found = words(vocabulary, "dog running (élan) to 3.")
    assert found == ["dog", " running", " ", "(", "élan", ")", " to", " 3", "."]
    assert encoder_tokens(vocabulary).cls_id == 0
    assert encoder_tokens(vocabulary).pad_id == 1


def test_unigram(tmp_path):
    vocabulary = load_vocabulary(tokenizer_files.write_unigram(tmp_path))
    assert words(vocabulary, "the dogs (a) 犬犬") == [
        "the",
        "dogs",
        "",
        "(",
        "a",
        "",
        "",
        "犬",
        "犬",
    ]


def test_sentencepiece(tiny_vocabulary):
    vocabulary = load_vocabulary(tiny_vocabulary)
    found = [word for word in words(vocabulary, "The statement (which is) executed.") if word]
    assert found == ["The", "statement", "(", "which", "is", ")", "executed", "."]
    tokens = encoder_tokens(vocabulary)
    assert (tokens.mask_id, tokens.cls_id, tokens.sep_id) == (399, 398, 1)


def test_bytes():
    assert words(Bytes(), "Élan vital, no") == ["Élan", " vital", ",", " no"]
    tokens = encoder_tokens(Bytes(layout="hf"))
    assert (tokens.mask_id, tokens.cls_id, tokens.sep_id, tokens.pad_id) == (259, 260, 1, 0)


def test_words_are_numbered_within_each_row():
    tokens = encoder_tokens(Bytes())
    a, space = ord("a") + 3, ord(" ") + 3
    rows = np.array([[257, a, a, 1], [a, space, a, 0]])
    assert tokens.word_ids(rows).tolist() == [[0, 1, 1, 0], [1, 2, 2, 0]]
    assert tokens.word_ids(np.zeros((2, 0), np.int32)).shape == (2, 0)


def test_a_word_that_was_cut_begins_anew_behind_a_special_token():
    tokens = encoder_tokens(Bytes())
    a = ord("a") + 3
    assert tokens.word_ids(np.array([257, a, 1, 257, a, 1])).tolist() == [0, 1, 0, 0, 2, 0]


def test_what_has_no_place_for_special_tokens_is_refused():
    with pytest.raises(InputError, match="uses two sentinels of the vocabulary"):
        encoder_tokens(Bytes(extra_ids=1))


def test_a_tokenizer_of_which_words_are_not_known_is_refused(tmp_path):
    from tokenizers import Tokenizer, models

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        InputError, match="boundaries of words can be found only for WordPiece, byte-level BPE"
    ):
        encoder_tokens(load_vocabulary(tmp_path))


def test_other_layouts_need_none():
    vocabulary = Bytes()
    assert tokens_for(layouts.Seq2Seq(), vocabulary) is None
    assert tokens_for(layouts.Encoder(), vocabulary) is encoder_tokens(vocabulary)
