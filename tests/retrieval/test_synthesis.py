"""Questions about long articles: excerpts and checks."""

import pytest

from t5x_lite.retrieval.pairs import Article, Excerpts, check, excerpt, request_of

TEXT = "\n".join(f"p{i} two three four" for i in range(6))  # 24 words


def test_an_excerpt_is_a_run_of_whole_paragraphs():
    excerpts = Excerpts(min_words=24, max_words=9)
    starts = set()
    for number in range(40):
        found = excerpt(Article(str(number), "", TEXT), excerpts).split("\n")
        first = int(found[0][1])
        starts.add(first)
        assert found == TEXT.split("\n")[first : first + 2]
    assert starts == {0, 1, 2, 3, 4, 5}
    assert excerpt(Article("7", "", TEXT), Excerpts(min_words=25)) == ""
    assert len(excerpt(Article("7", "", TEXT), Excerpts(min_words=1, max_words=3)).split()) == 3


def test_a_request():
    article = Article("a", "en", TEXT)
    request = request_of(article, Excerpts(min_words=24, max_words=4), "Ask: {text} {x}")
    assert request == {
        "id": "a",
        "lang": "en",
        "text": request["text"],
        "prompt": f"Ask: {request['text']} {{x}}",
    }
    assert request_of(article, Excerpts(), "{text}") is None


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("What drives the plot?", ""),
        ("What\nis it about?", "more than one line"),
        ("Question: What drives the plot?", "a label before it"),
        ("Q2: What drives the plot?", "a label before it"),
        ("Why so?", "too short"),
        ("why " * 65, "too long"),
        ("P3 two three", "words of the text"),
    ],
)
def test_checks(question, why):
    assert check(question, TEXT) == why


def test_a_question_in_another_language():
    assert check("one two three", "", language="en", guess=lambda _: ("de", 1.0, "")) != ""
    assert check("one two three", "", language="de-AT", guess=lambda _: ("de", 1.0, "")) == ""
