import hashlib

import pytest

from t5x_lite.c4.cleaning import load_counter
from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.dedup import line_key, line_keys, page_lines, remove_lines
from t5x_lite.c4.pages import Page, Tally


def remove(text, lost, **options):
    tally = Tally()
    page = Page("http://a.com", text, "", "", "")
    counter = load_counter(installed=False)
    found = remove_lines(page, lost, Cleaning(**options), counter, tally)
    rules = tally.rules.get("dedup", {})
    return (found.text if found else None), {
        rule: counts["pages"] + counts["lines"] for rule, counts in rules.items()
    }


def test_keys_do_not_see_case_or_outer_space():
    assert line_key(" A Line. ") == line_key("a line.") == hashlib.md5(b"a line.").digest()
    assert line_key("A  line.") != line_key("A line.")
    assert line_keys("a\nB\na") == [line_key("a"), line_key("b"), line_key("A")]
    assert len(line_key("\ud800")) == 16


def test_lines_are_divided_at_line_feeds_only():
    assert page_lines("a\rb\u2028c\n\nd") == ["a\rb\u2028c", "", "d"]


@pytest.mark.parametrize(
    ("text", "lost", "left", "rules"),
    [
        ("A.\nB.\nC.", set(), "A.\nB.\nC.", {}),
        ("A.\nB.\nC.\nD.", {1}, "A.\nC.\nD.", {"global_duplicate": 1}),
        ("A.\nB.\nC.\na. \nD.", set(), "A.\nB.\nC.\nD.", {"local_duplicate": 1}),
        # A line that another page keeps is gone here wherever it is repeated.
        ("A.\nB.\nC.\na. \nD.", {0}, "B.\nC.\nD.", {"global_duplicate": 2}),
        ("A.\nB.", {0, 1}, None, {"global_duplicate": 2, "empty": 1}),
        ("A.\nB.\nC.", {2}, None, {"global_duplicate": 1, "too_few_sentences": 1}),
        ("A b c etc.\nD e f etc.\nG h i.", set(), None, {"too_few_sentences": 1}),
        (" A. B. C.\nD.", {1}, " A. B. C.", {"global_duplicate": 1}),
    ],
)
def test_remove(text, lost, left, rules):
    # Initials are no sentences to punkt.
    words = {"A.": "Ants.", "B.": "Bees.", "C.": "Cats.", "D.": "Dogs.", "a.": "ants."}
    for short, word in words.items():
        text, left = text.replace(short, word), left and left.replace(short, word)
    assert remove(text, lost) == (left, rules)


def test_without_the_sentence_rule():
    assert remove("One.\nTwo", {0}, min_sentences_after_dedup=0) == ("Two", {"global_duplicate": 1})
    assert remove("One.", {0}, min_sentences_after_dedup=0)[0] is None
