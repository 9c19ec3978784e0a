import sys
import types

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.retrieval.analyzers import SNOWBALL, STOP_WORDS, analyzer


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("whitespace", "The  flies' Wings\n", ["the", "flies'", "wings"]),
        ("standard", "The flies' Wings, 3.5!", ["the", "flies", "wings", "3.5"]),
        ("english", "The flies' Wings are not Emma's", ["fli", "wing", "emma"]),
        ("english", "O\u2019Brien\u2019s THE running", ["o\u2019brien", "run"]),
        ("cjk", "日本語 and ABC テスト", ["日本", "本語", "abc", "テス", "スト"]),
        ("cjk", "ＡＢＣ 日 ｶﾞｷﾞ", ["abc", "日", "ガギ"]),
        ("cjk", "한국어,中", ["한국", "국어", "中"]),
        ("cjk", "", []),
    ],
)
def test_terms(name, text, expected):
    assert analyzer(name)(text) == expected


def test_pieces_of_a_vocabulary():
    assert analyzer("vocabulary:bytes")("ab") == ["100", "101"]


def test_stop_words_are_lucenes():
    assert len(STOP_WORDS) == 33


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("englsh", "english"),
        ("xyzzy", "one of whitespace"),
        ("germn", "german"),
        ("vocabulary:/no", "no"),
    ],
)
def test_an_analyzer_that_is_none(name, message):
    with pytest.raises(InputError, match=message):
        analyzer(name)


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        (
            "german",
            "Die Häuser, das HAUS und Ha\u0308user",
            ["die", "haus", "das", "haus", "und", "haus"],
        ),
        ("french", "L\u2019avion qu'il", ["avion", "il"]),
        ("russian", "Книгами и книга", ["книг", "и", "книг"]),
        ("turkish", "IŞIK İzmir", ["\u0131ş\u0131k", "izmir"]),
        ("spanish", "", []),
    ],
)
def test_stems_of_a_language(language, text, expected):
    pytest.importorskip("Stemmer")
    assert analyzer(language)(text) == expected


def test_every_language_of_the_list():
    stemmers = pytest.importorskip("Stemmer")
    assert {*SNOWBALL} == {*stemmers.algorithms()} - {"english", "porter"}
    for language in SNOWBALL:
        assert len(analyzer(language)("Abc 123")) == 2, language


def test_a_stemmer_that_is_missing_or_old(monkeypatch):
    old = types.SimpleNamespace(algorithms=lambda: ["german"], version=lambda: "1.0")
    monkeypatch.setitem(sys.modules, "Stemmer", old)
    with pytest.raises(
        InputError, match=r"the installed PyStemmer 1\.0.* has no stemmer for 'czech'.*stemmers"
    ):
        analyzer("czech")
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(
        InputError, match=r"needs the package PyStemmer, .*pip install.*\[stemmers\]"
    ):
        analyzer("german")
