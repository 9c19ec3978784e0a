"""synthesize: requests, answers, and the pairs that come of them."""

import json

import pytest

from t5x_lite.errors import InputError
from t5x_lite.retrieval.synthesis import Excerpts
from t5x_lite.run.synthesizing import collect, requests

ARTICLES = [
    {"id": f"{lang}{i}", "title": "T", "text": f"word {i}\n" * 10, "lang": lang}
    for lang in ("en", "de")
    for i in range(5)
] + [{"id": "short", "text": "word"}]
LONG = {"min_words": 20, "max_words": 6}


@pytest.fixture
def articles(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, ARTICLES)))
    return [str(path)]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_requests(articles, tmp_path):
    output = tmp_path / "r.jsonl"
    requests(articles, output=str(output), excerpts=Excerpts(**LONG))
    assert [one["id"] for one in read(output)] == [one["id"] for one in ARTICLES[:-1]]
    assert read(output)[0].keys() == {"id", "lang", "text", "prompt"}
    report = json.loads((tmp_path / "r.jsonl.report.json").read_text())
    assert report == {"articles": 11, "requests": 10, "dropped": {"too short": 1}}
    requests(articles, output=str(output), excerpts=Excerpts(**LONG, number=2))
    two = [one["id"] for one in read(output)]
    assert [name[:2] for name in two] == ["en", "en", "de", "de"]
    requests(articles, output=str(output), excerpts=Excerpts(**LONG, number=2, seed=1))
    assert [one["id"] for one in read(output)] != two


def test_a_template(articles, tmp_path):
    (tmp_path / "p.txt").write_text("Ask about {text}!")
    output, prompt = tmp_path / "r.jsonl", str(tmp_path / "p.txt")
    requests(articles, output=str(output), prompt=prompt, excerpts=Excerpts(**LONG))
    first = read(output)[0]
    assert first["prompt"] == f"Ask about {first['text']}!"
    (tmp_path / "p.txt").write_text("Ask!")
    with pytest.raises(InputError, match=r"p\.txt: must have \{text\}"):
        requests(articles, output=str(output), prompt=prompt)
    with pytest.raises(InputError, match="none of 11 articles has 1000 words"):
        requests(articles, output=str(output))


def test_collect(articles, tmp_path):
    answers, output = tmp_path / "q.jsonl", tmp_path / "o.jsonl"
    asked = [("en1", "What is  this about?"), ("en0", "Q: what is it?"), ("de4", "a\nb c d")]
    answers.write_text("\n".join(json.dumps({"id": i, "question": q}) for i, q in asked))
    collect(articles, answers=str(answers), output=str(output))
    whole = f"T\n{ARTICLES[1]['text']}"
    assert read(output) == [
        {"query": "What is this about?", "pos": [whole], "id": "en1", "lang": "en"}
    ]
    report = json.loads((tmp_path / "o.jsonl.report.json").read_text())
    assert report == {
        "answers": 3,
        "kept": 1,
        "dropped": {"a label before it": 1, "more than one line": 1},
    }
    answers.write_text(json.dumps({"id": "x", "question": "What is this about?"}))
    with pytest.raises(InputError, match="has an answer to 'x', which the articles do not have"):
        collect(articles, answers=str(answers), output=str(output))
