import pytest

from t5x_lite.c4.cleaning import keep_length, keep_paragraphs
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Page, Tally


@pytest.mark.parametrize(
    ("limit", "length", "stays"), [(10, 10, True), (10, 11, False), (0, 500_000, True)]
)
def test_length(limit, length, stays):
    page, tally = Page("u", "é" * length, "", "", ""), Tally()
    assert keep_length(page, Cleaning(max_chars=limit), tally) == (page if stays else None)
    assert tally.stages["length"]["pages_in"] == 1
    assert tally.stages["length"]["pages_out"] == stays
    assert tally.rules == (
        {} if stays else {"length": {"too_long": {"pages": 1, "page_bytes": 22}}}
    )


@pytest.mark.parametrize(
    ("text", "wanted", "stays"),
    [
        ("aaa\nbbb\nccc", 3, True),
        ("aaa\nbbb\ncc", 3, False),
        ("aaa\nbbb", 3, False),
        ("aaa\nb\nbbb\nb\nccc", 3, True),
        ("aaa\nb", 1, True),
        ("", 0, True),
    ],
)
def test_paragraphs(text, wanted, stays):
    page, tally = Page("u", text, "", "", ""), Tally()
    cleaning = Cleaning(min_paragraphs=wanted, min_paragraph_chars=3)
    assert keep_paragraphs(page, cleaning, tally) == (page if stays else None)
    assert len(tally.rules) == (not stays)
