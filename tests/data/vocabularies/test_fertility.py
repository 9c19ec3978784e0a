"""Pieces a word."""

from t5x_lite.data.vocabularies.encoder_tokens import Fertility, fertility
from t5x_lite.data.vocabularies.loading import Bytes


def test_bytes_of_words():
    """A piece for each byte, the space between two words too."""
    found = fertility(["", "ab cd", "  ", "xyz"], Bytes())
    assert found == Fertility(words=3, characters=7, pieces=8, unknown=0)
    assert str(found) == (
        "2.67 pieces per word, 0.9 characters per piece, 0.00 % unknown pieces (3 words)"
    )
    assert fertility(["a", "b"], Bytes(), most=1).words == 1


def test_what_has_no_piece(tiny_vocabulary):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    found = fertility(["the \u4e2d\u6587 and"], load_vocabulary(tiny_vocabulary))
    assert found.words == 3
    assert found.unknown >= 1
    assert found.pieces_per_word >= 1.0


def test_nothing():
    assert fertility([], Bytes()).pieces_per_word == 0.0
