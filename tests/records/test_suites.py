"""Suites on disk: names, order, and what is asked, read and judged."""

import gzip
import json

import pytest

from t5x_lite.errors import InputError
from t5x_lite.records.suites import MIRACL, MKQA, MLDR, sets_of


def lines(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)


def beir(folder, split="test"):
    lines(folder / "corpus.jsonl", [{"_id": "d", "title": "T", "text": "x"}])
    lines(folder / "queries.jsonl", [{"_id": "q", "text": "what"}, {"_id": "r", "text": "other"}])
    (folder / "qrels").mkdir()
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")


def test_numbers_of_languages():
    assert (len(MIRACL), len(MLDR), len(MKQA)) == (18, 13, 25)


def test_beir(tmp_path):
    for name in ("zebra", "scifact", "nq", "cqadupstack/unix", "cqadupstack/gaming"):
        beir(tmp_path / name)
    beir(tmp_path / "msmarco", "dev")
    found = sets_of("beir", str(tmp_path))
    assert [one.name for one in found] == [
        "nq", "cqadupstack/gaming", "cqadupstack/unix", "scifact", "msmarco", "zebra",
    ]  # fmt: skip
    assert found[1].group == "cqadupstack"
    assert found[0].queries() == {"q": "what"}
    assert found[0].judgements() == {"q": {"d": 1}}
    assert [passage.whole for passage in found[0].passages()] == ["T x"]
    assert found[0].drops_same_ids


def test_miracl(tmp_path):
    folder = tmp_path / "miracl-v1.0-sw"
    for kind in ("topics", "qrels"):
        (folder / kind).mkdir(parents=True)
    (folder / "topics" / "topics.miracl-v1.0-sw-dev.tsv").write_text("0\tnini\n1\tlini\n")
    (folder / "qrels" / "qrels.miracl-v1.0-sw-dev.tsv").write_text("0\tQ0\t5#1\t1\n0\tQ0\t2#0\t0\n")
    for number in (10, 2):
        passages = [{"docid": f"{number}#0", "title": "T", "text": "x"}]
        lines(tmp_path / "miracl-corpus-v1.0-sw" / f"docs-{number}.jsonl.gz", passages)
    (one,) = sets_of("miracl", str(tmp_path))
    assert (one.name, one.queries()) == ("sw", {"0": "nini"})
    assert one.judgements() == {"0": {"5#1": 1, "2#0": 0}}
    assert [passage.id for passage in one.passages()] == ["2#0", "10#0"]
    assert not one.drops_same_ids


def test_mldr(tmp_path):
    folder = tmp_path / "mldr-v1.0-de"
    positive = [{"docid": "d1", "text": "lang"}]
    lines(
        folder / "test.jsonl.gz",
        [{"query_id": "q", "query": "was", "positive_passages": positive}],
    )
    lines(folder / "corpus.jsonl.gz", [{"docid": "d1", "text": "lang"}])
    (one,) = sets_of("mldr", str(tmp_path))
    assert (one.name, one.queries(), one.judgements()) == ("de", {"q": "was"}, {"q": {"d1": 1}})
    lines(folder / "test.jsonl.gz", [{"query_id": "q", "query": "was"}])
    with pytest.raises(InputError, match=r"test.jsonl.gz:1: must have .positive_passages."):
        one.judgements()


def test_mkqa(tmp_path):
    beir(tmp_path / "nq")
    answers = {language: [{"type": "entity", "text": "x"}] for language in ("en", *MKQA)}
    queries = dict.fromkeys(("en", *MKQA), "q")
    lines(tmp_path / "mkqa.jsonl", [{"example_id": 7, "queries": queries, "answers": answers}])
    found = sets_of("mkqa", str(tmp_path))
    assert [one.name for one in found] == list(MKQA)
    assert found[3].answers() == {"7": ["x"]}
    assert found[3].judgements is None


def test_nothing_there_and_queries_that_are_missing(tmp_path):
    for suite in ("beir", "miracl", "mldr", "mkqa"):
        with pytest.raises(InputError, match=f"no set of {suite}"):
            sets_of(suite, str(tmp_path / "no"))
    beir(tmp_path / "nq")
    lines(tmp_path / "nq" / "queries.jsonl", [{"_id": "r", "text": "other"}])
    with pytest.raises(InputError, match="names the query 'q', which has no text"):
        sets_of("beir", str(tmp_path))[0].queries()
