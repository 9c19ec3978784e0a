"""Filters: which one drops a pair, and counts that add up."""

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.retrieval.pairs import Filters, Raw, Sieve, plain

TEN = "one two three four five six seven eight nine ten"


@pytest.mark.parametrize(
    ("query", "passage", "why"),
    [
        ("two words", TEN, None),
        ("one", TEN, "query too short"),
        (" ".join("a" * 65), TEN, "query too long"),
        (" ".join("a" * 64), TEN, None),
        ("two words", "one two three", "passage too short"),
        ("two words", f"Two Words\n{TEN}", None),
        ("two words", "two words\none two three", "passage too short"),
        (TEN, TEN.upper(), "passage too short"),  # its first line is the query
        ("very rude indeed", TEN, "bad word"),
        ("两个词", "一二三四五六七八九十", None),
    ],
)
def test_filters(tmp_path, query, passage, why):
    (tmp_path / "bad.txt").write_text("rude\n")
    sieve = Sieve(Filters(bad_words=str(tmp_path / "bad.txt")))
    kept = sieve.keep(Raw(query, passage))
    assert (kept is None) == (why is not None)
    assert dict(sieve.dropped) == ({} if why is None else {why: 1})
    assert sieve.seen == sieve.kept + sieve.dropped.total() == 1


def test_the_first_line_is_cut_and_characters_are_plain():
    kept = Sieve(Filters()).keep(Raw("Cafe\u0301 noir\x00", f"Café Noir\r\n{TEN}  \n"))
    assert kept == Raw("Café noir", TEN)
    assert plain("a\x07b \r\nc\ufeff") == "ab\nc"


def test_repetitions():
    sieve = Sieve(Filters(max_queries=2))
    queries = ["query one", "query two", "query one", "query three"]
    assert [sieve.keep(Raw(query, TEN)) is not None for query in queries] == [
        True,
        True,
        False,
        False,
    ]
    assert dict(sieve.dropped) == {"duplicate": 1, "passage of too many queries": 1}
    assert sieve.samples["duplicate"] == [["query one", TEN]]


def test_a_language_that_is_another_one():
    pytest.importorskip("langdetect")
    sieve = Sieve(Filters(languages_by="langdetect"))
    text = "Der Hund schläft den ganzen Tag auf dem Sofa, weil er gestern lange spazieren war."
    assert sieve.keep(Raw("der Hund", text, ("de", "de"))) is not None
    assert sieve.keep(Raw("ein Hund", text, ("en", "en"))) is None
    assert dict(sieve.dropped) == {"other language": 1}


def test_wrong_filters(tmp_path):
    with pytest.raises(InputError, match="got 5 and 4"):
        Filters(min_query_words=5, max_query_words=4)
