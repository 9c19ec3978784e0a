"""pairs: of WET files, JSON lines and text, twice the same, and killed; synthesize."""

import gzip
import json

import pytest

from t5x_lite.cli import main
from t5x_lite.commands.pairs import pairs, synthesize_collect, synthesize_requests
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import OptionError
from t5x_lite.data.formats.pairs import checked
from t5x_lite.retrieval.pairs import Excerpts, Filters, Sieve

SHORT = Filters(min_query_words=1, min_passage_words=2)


def made(output, inputs, **options):
    pairs([str(path) for path in inputs], output=str(output), **options)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return lines, json.loads(output.with_name(f"{output.name}.report.json").read_text())


def record(url, text):
    body = text.encode()
    head = (
        f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: {url}\r\n"
        f"WARC-Date: 2019-04-24T09:23:58Z\r\nContent-Type: text/plain\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body + b"\r\n\r\n"


@pytest.fixture
def wet(tmp_path):
    path = tmp_path / "a.warc.wet.gz"
    pages = [
        record(f"http://x/{i}", f"Page number {i % 7}\nsome words of page {i % 5} here")
        for i in range(30)
    ]
    path.write_bytes(b"".join(map(gzip.compress, [*pages, b"WARC/1.0\r\nbroken"])))
    return path


def test_pages_twice_and_killed_are_bitwise_the_same(wet, tmp_path, monkeypatch):
    filters = Filters(min_passage_words=3, max_queries=4)
    lines, report = made(tmp_path / "one.jsonl", [wet], rule="title_body", filters=filters)
    assert lines[0] == {
        "query": "Page number 0",
        "pos": ["some words of page 0 here"],
        "source": "http://x/0",
    }
    for number, line in enumerate(lines, start=1):
        checked(line, f"f:{number}")
    assert report["pairs"] == report["documents"] == 30
    assert report["kept"] + sum(report["dropped"].values()) == report["pairs"]
    assert report["dropped"] == {"passage of too many queries": 10}
    assert (report["kept"], report["damaged"]) == (20, 1)
    monkeypatch.setattr("t5x_lite.commands.pairs._CHUNK", 4)
    made(tmp_path / "two.jsonl", [wet], rule="title_body", filters=filters)
    whole = (tmp_path / "one.jsonl").read_bytes()
    assert (tmp_path / "two.jsonl").read_bytes() == whole
    keep, calls = Sieve.keep, []

    def killed(self, raw):
        calls.append(raw)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return keep(self, raw)

    monkeypatch.setattr(Sieve, "keep", killed)
    output = tmp_path / "three.jsonl"
    with pytest.raises(KeyboardInterrupt):
        made(output, [wet], rule="title_body", filters=filters)
    assert not output.exists()
    assert (tmp_path / "three.jsonl.partial").read_text().count("\n") == 16
    monkeypatch.setattr(Sieve, "keep", keep)
    _, again = made(output, [wet], rule="title_body", filters=filters)
    assert output.read_bytes() == whole
    assert again == report


def test_text_files_and_json_lines(tmp_path):
    (tmp_path / "a.txt").write_text("Emma\nby Jane Austen\n\n\nalone\n\nPersuasion\nby\nthe same\n")
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"title": "T", "text": "a b", "lang": "de", "url": "u"})
    )
    inputs = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    lines, report = made(
        tmp_path / "o.jsonl", inputs, rule="title_body", filters=SHORT, languages=["en"]
    )
    assert lines == [
        {"query": "Emma", "pos": ["by Jane Austen"], "source": f"{inputs[0]}:1", "lang": "en"},
        {"query": "Persuasion", "pos": ["by\nthe same"], "source": f"{inputs[0]}:7", "lang": "en"},
        {"query": "T", "pos": ["a b"], "source": "u", "lang": "de"},
    ]
    assert (report["documents"], report["documents_without_pair"]) == (4, 1)


def test_aligned_files(tmp_path):
    for name, text in (("a.en", "one two\nthree four\n"), ("a.de", "eins zwei\ndrei vier\n")):
        (tmp_path / name).write_text(text)
    inputs = [tmp_path / "a.en", tmp_path / "a.de"]
    options = {"rule": "parallel", "languages": ["en", "de"], "filters": SHORT}
    lines, _ = made(tmp_path / "o.jsonl", inputs, **options)
    assert [(one["query"], *one["pos"], one["lang"]) for one in lines] == [
        ("one two", "eins zwei", "en-de"),
        ("eins zwei", "one two", "de-en"),
        ("three four", "drei vier", "en-de"),
        ("drei vier", "three four", "de-en"),
    ]
    (tmp_path / "a.de").write_text("eins zwei\n")
    with pytest.raises(InputError, match=r"a.de ends before line 2, but the two files"):
        made(tmp_path / "p.jsonl", inputs, **options)


def test_lines_with_scores(tmp_path):
    rows = '1.2\tein "x\tone two\n1.01\tzwei drei\tthree four\n\n1.06\tvier fünf\tfive six'
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    options = {"rule": "parallel", "languages": ["de", "en"], "filters": SHORT}
    lines, report = made(tmp_path / "o.jsonl", [tmp_path / "a.tsv.gz"], min_score=1.06, **options)
    assert [(one["query"], *one["pos"], one["lang"]) for one in lines] == [
        ('ein "x', "one two", "de-en"),
        ("one two", 'ein "x', "en-de"),
        ("vier fünf", "five six", "de-en"),
        ("five six", "vier fünf", "en-de"),
    ]
    assert (report["documents"], report["min_score"]) == (2, 1.06)
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(rows.encode())[:-12])
    with pytest.raises(InputError, match=r"b\.tsv\.gz: the file is truncated"):
        made(tmp_path / "p.jsonl", [tmp_path / "b.tsv.gz"], **options)
    assert not (tmp_path / "p.jsonl").exists()


def test_filters_are_options(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"title": "T", "text": "a b"}))
    line = f"pairs --input {tmp_path}/a.jsonl --output {tmp_path}/o.jsonl --rule title_body"
    assert main([*line.split(), "--min-query-words", "1", "--min-passage-words", "2"]) == 0
    report = json.loads((tmp_path / "o.jsonl.report.json").read_text())
    assert report["kept"] == 1
    assert report["filters"] == {
        "min_query_words": 1,
        "max_query_words": 64,
        "min_passage_words": 2,
        "max_queries": 20,
        "bad_words": "",
        "languages_by": "",
    }


def test_inverse_cloze_by_seed(tmp_path):
    text = " ".join(f"The word {i} is in this sentence." for i in range(60))
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 1, "text": text}))
    one, report = made(tmp_path / "one.jsonl", [tmp_path / "a.jsonl"], rule="ict", seed=1)
    again, _ = made(tmp_path / "two.jsonl", [tmp_path / "a.jsonl"], rule="ict", seed=1)
    other, _ = made(tmp_path / "three.jsonl", [tmp_path / "a.jsonl"], rule="ict", seed=2)
    assert one == again != other
    assert report["seed"] == 1


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["a.txt"], {"rule": "parallel"}, "line by line, got 1 files"),
        (["a.txt", "a.txt"], {"rule": "parallel"}, "--languages must be the two"),
        (["a.txt"], {"rule": "title_body", "languages": ["a", "b"]}, "got a b"),
        (["a.tsv"], {"rule": "parallel"}, "--languages must be the two"),
        (["a.tsv", "a.txt"], {"rule": "parallel"}, r"\*\.tsv with two texts per line"),
        (
            ["a.tsv"],
            {"rule": "parallel", "languages": ["a", "b"]},
            r"a\.tsv:1: a line must be source TAB",
        ),
        (["a.txt"], {"rule": "title_body", "min_score": 1.0}, "--min-score is supported only"),
        (
            ["a.tsv"],
            {"rule": "parallel", "languages": ["a", "b"], "min_score": float("nan")},
            "--min-score must be a finite number",
        ),
        (["b.txt"], {"rule": "title_body"}, "b.txt: cannot be read"),
        (
            ["a.txt"],
            {"rule": "title_body"},
            "pair in 1 documents; the first document has the fields text; ",
        ),
        (
            ["a.jsonl"],
            {"rule": "sentences"},
            "2 documents; the first document has the fields page; set --text",
        ),
        (["a.jsonl"], {"rule": "ict", "text": "body"}, r'a\.jsonl:1: must have "body".*--text'),
    ],
)
def test_what_is_wrong(tmp_path, names, options, message):
    (tmp_path / "a.txt").write_text("alone")
    (tmp_path / "a.tsv").write_text("alone")
    (tmp_path / "a.jsonl").write_text('{"page": "One. Two."}\n' * 2)
    with pytest.raises(InputError, match=message):
        made(tmp_path / "o.jsonl", [tmp_path / name for name in names], **options)
    assert not (tmp_path / "o.jsonl").exists()


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
    synthesize_requests(articles, output=str(output), excerpts=Excerpts(**LONG))
    assert [one["id"] for one in read(output)] == [one["id"] for one in ARTICLES[:-1]]
    assert read(output)[0].keys() == {"id", "lang", "text", "prompt"}
    report = json.loads((tmp_path / "r.jsonl.report.json").read_text())
    assert report == {"articles": 11, "requests": 10, "dropped": {"too short": 1}}
    synthesize_requests(articles, output=str(output), excerpts=Excerpts(**LONG, number=2))
    two = [one["id"] for one in read(output)]
    assert [name[:2] for name in two] == ["en", "en", "de", "de"]
    synthesize_requests(articles, output=str(output), excerpts=Excerpts(**LONG, number=2, seed=1))
    assert [one["id"] for one in read(output)] != two


def test_a_template(articles, tmp_path):
    (tmp_path / "p.txt").write_text("Ask about {text}!")
    output, prompt = tmp_path / "r.jsonl", str(tmp_path / "p.txt")
    synthesize_requests(articles, output=str(output), prompt=prompt, excerpts=Excerpts(**LONG))
    first = read(output)[0]
    assert first["prompt"] == f"Ask about {first['text']}!"
    (tmp_path / "p.txt").write_text("Ask!")
    with pytest.raises(InputError, match=r"p\.txt must contain \{text\}"):
        synthesize_requests(articles, output=str(output), prompt=prompt)
    with pytest.raises(InputError, match="none of 11 articles has 1000 words"):
        synthesize_requests(articles, output=str(output))


def test_collect(articles, tmp_path):
    answers, output = tmp_path / "q.jsonl", tmp_path / "o.jsonl"
    asked = [("en1", "What is  this about?"), ("en0", "Q: what is it?"), ("de4", "a\nb c d")]
    answers.write_text("\n".join(json.dumps({"id": i, "question": q}) for i, q in asked))
    synthesize_collect(articles, answers=str(answers), output=str(output))
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
    with pytest.raises(InputError, match="an answer has the id 'x', but no article has this id"):
        synthesize_collect(articles, answers=str(answers), output=str(output))


def test_no_file(tmp_path):
    output = str(tmp_path / "o.jsonl")
    with pytest.raises(OptionError, match="--input needs at least one file"):
        pairs([], output=output, rule="sentences")
    with pytest.raises(OptionError, match="--articles needs at least one file"):
        synthesize_requests([], output=output)
    with pytest.raises(OptionError, match="--articles needs at least one file"):
        synthesize_collect([], answers="a.jsonl", output=output)
