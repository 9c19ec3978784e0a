import hypothesis
import pytest
from hypothesis import strategies as st

from t5x_lite.data.tasks.encoder import fill, split_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Mr. Fox ran. "Why?" she said.', ["Mr. Fox ran.", '"Why?" she said.']),
        ("A line\n\n  Another. One ", ["A line", "Another.", "One"]),
        (
            "It cost 3.50 dollars, e.g. in Rome! Then 4.",
            ["It cost 3.50 dollars, e.g. in Rome!", "Then 4."],
        ),
        ("J. S. Bach wrote. So did I. He too.", ["J. S. Bach wrote.", "So did I.", "He too."]),
        ("“Go.” (It went.) Élan… Été", ["“Go.”", "(It went.)", "Élan…", "Été"]),
        ("犬がいる。猫も。", ["犬がいる。", "猫も。"]),
        ("no end", ["no end"]),
        (" \n ", []),
    ],
)
def test_sentences(text, expected):
    assert split_sentences(text) == expected


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ([[1, 2], [3, 4], [5]], [[1, 2, 3, 4], [5]]),
        ([[1, 2], [3, 4, 5], [6]], [[1, 2], [3, 4, 5, 6]]),
        ([[1, 2, 3, 4, 5, 6, 7, 8, 9]], [[1, 2, 3, 4], [5, 6, 7, 8], [9]]),
        ([[1], [2, 3, 4, 5, 6], [7, 8]], [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ([[1, 2, 3, 4], [5, 6, 7, 8], []], [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ([[], []], []),
        ([], []),
    ],
)
def test_pieces_are_filled_with_whole_sentences(sentences, expected):
    assert fill(sentences, 4) == expected


@hypothesis.given(
    st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=12), st.integers(1, 8)
)
def test_nothing_is_lost_and_only_long_sentences_are_cut(sentences, length):
    pieces = fill(sentences, length)
    assert [t for piece in pieces for t in piece] == [t for s in sentences for t in s]
    assert all(0 < len(piece) <= length for piece in pieces)
    ends, total = set(), 0
    for piece in pieces:
        total += len(piece)
        ends.add(total)
    start = 0
    for sentence in sentences:
        cut = any(start < end < start + len(sentence) for end in ends)
        assert not cut or len(sentence) > length
        start += len(sentence)
