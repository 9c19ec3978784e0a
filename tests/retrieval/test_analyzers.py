import pytest

from t5x_lite.errors import InputError
from t5x_lite.retrieval.analyzers import STOP_WORDS, analyzer


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
    [("englsh", "english"), ("x", "one of whitespace"), ("vocabulary:/no", "no")],
)
def test_an_analyzer_that_is_none(name, message):
    with pytest.raises(InputError, match=message):
        analyzer(name)
