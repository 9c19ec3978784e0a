import pytest

from t5x_lite.metrics.text import first_answer, has_answer, tokens, top_k


@pytest.mark.parametrize(
    ("answers", "text", "expected"),
    [
        (["Paris"], "in PARIS, France", True),
        (["Pari"], "in Paris", False),
        (["new york"], "New  York\ncity", True),
        (["new york"], "York, New", False),
        (["new york"], "new, york", False),
        (["café"], "le cafe\u0301", True),
        (["cafe"], "café", False),
        (["日本"], "日本", True),
        (["日本"], "日本人", False),
        (["東京、日本"], "(東京、日本)", True),
        (["हिन्दी"], "हिन्दी भाषा", True),
        (["3.5"], "about 3.5 km", True),
        (["O\u2019Brien"], "Mr O'Brien", True),
        (["1914\u20131918"], "1914-1918", True),
        (["a/b"], "a\u2044b", True),
        (["wait..."], "wait\u2026", True),
        (["cooperate"], "co\u00adoperate", True),
        ([""], "anything", False),
        (["", " \u200b"], "anything", False),
        ([], "anything", False),
        (["x"], "", False),
        (["no", "yes"], "yes", True),
    ],
)
def test_has_answer(answers, text, expected):
    assert has_answer(answers, text) is expected
    assert first_answer(answers, [text]) == expected


def test_tokens():
    assert tokens("A\u00a0b, 1e5!\t") == ["a", "b", ",", "1e5", "!"]


def test_shares_of_questions():
    answers = {"q": ["Paris"], "r": ["Rome"], "s": ["Oslo"]}
    passages = {"q": ["London", "Paris"], "r": ["Rome"]}
    assert top_k(answers, passages, [1, 2, 9]) == {
        "top@1": pytest.approx(1 / 3),
        "top@2": pytest.approx(2 / 3),
        "top@9": pytest.approx(2 / 3),
    }
