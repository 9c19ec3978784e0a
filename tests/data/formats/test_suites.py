"""Suites on disk: names, order, and what is asked, read and judged."""

import gzip
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.released_files import TYDI_LANGUAGES
from t5x_lite.data.formats.suites import (
    MIRACL,
    MKQA,
    MLDR,
    MTEB_METRICS,
    mteb_results,
    sets_of,
)
from tests.data.formats.test_released_files import write_tydi


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


def results(suite, values):
    """The test sets in MTEB's files, as (task, split): (subset, language, main score)."""
    sets = {name: dict.fromkeys(MTEB_METRICS, value) for name, value in values.items()}
    return {
        (task, split): [(x["hf_subset"], *x["languages"], x["main_score"]) for x in scores]
        for task, content in mteb_results(suite, sets).items()
        for split, scores in content["scores"].items()
    }


def test_names_in_mteb():
    default = ("default", "eng-Latn")
    assert results("miracl", {"ar": 0.5, "ko": 0.25}) == {
        ("MIRACLRetrieval", "dev"): [("ar", "ara-Arab", 0.5), ("ko", "kor-Kore", 0.25)]
    }
    assert results("mldr", {"ko": 0.5, "zh": 0.25}) == {
        ("MultiLongDocRetrieval", "test"): [("ko", "kor-Hang", 0.5), ("zh", "cmn-Hans", 0.25)]
    }
    assert results("mrtydi", {"telugu": 0.5}) == {
        ("MrTidyRetrieval", "test"): [("telugu", "tel-Telu", 0.5)]
    }
    assert results("narrativeqa", {"narrativeqa": 0.5}) == {
        ("NarrativeQARetrieval", "test"): [(*default, 0.5)]
    }
    assert results("beir", {"msmarco": 0.5, "bioasq": 1.0, "cqadupstack/tex": 0.25}) == {
        ("MSMARCO", "dev"): [(*default, 0.5)],
        ("CQADupstackTexRetrieval", "test"): [(*default, 0.25)],
    }
    forums = ["android", "english", "gaming", "gis", "mathematica", "physics", "programmers"]
    forums += ["stats", "tex", "unix", "webmasters", "wordpress"]
    all_forums = results("beir", {f"cqadupstack/{x}": i / 12 for i, x in enumerate(forums)})
    assert len(all_forums) == 13
    ((*names, mean),) = all_forums["CQADupstackRetrieval", "test"]
    assert names == [*default]
    assert mean == pytest.approx(5.5 / 12)
    for suite, names in (("miracl", MIRACL), ("mldr", MLDR), ("mrtydi", TYDI_LANGUAGES)):
        ((found, *_),) = [results(suite, dict.fromkeys(names, 0.5)).values()]
        assert len(found) == len(names)


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


def test_mr_tydi_as_released_and_of_the_hub(tmp_path):
    write_tydi(tmp_path, ["what", "other"])
    folder = tmp_path / "mrtydi-v1.1-thai"
    row = {"query_id": "q", "query": "was", "positive_passages": [{"docid": "d1", "text": "x"}]}
    lines(folder / "test.jsonl.gz", [row])
    lines(folder / "corpus.jsonl.gz", [{"docid": "d1", "title": "T", "text": "x"}])
    released, hub = sets_of("mrtydi", str(tmp_path))
    assert (released.name, released.queries()) == ("swahili", {"0": "what", "1": "other"})
    assert released.judgements() == {"0": {"0#0": 1}, "1": {"1#0": 1}}
    assert [one[1:] for one in released.passages()] == [("0#0", "T", "what"), ("1#0", "T", "other")]
    assert (hub.name, hub.queries(), hub.judgements()) == ("thai", {"q": "was"}, {"q": {"d1": 1}})
    with pytest.raises(InputError, match="has no test set of the suite mrtydi, such as 'arabic'"):
        sets_of("mrtydi", str(folder))
    (tmp_path / "scifact").mkdir()
    (tmp_path / "scifact" / "corpus.jsonl").touch()
    with pytest.raises(InputError, match=r"scifact is itself a data set, so pass the directory"):
        sets_of("beir", str(tmp_path / "scifact"))


QAPS = """document_id,set,question,answer1,answer2,question_tokenized
b,train,Not asked?,x,y,z
a,test,"Who, ""then""?",x,y,z
b2,test,Who\u2028else?,x,y,z
a,test,Why?,x,y,z
"""


def write_narrative(root):
    """NarrativeQA of two stories, as released."""
    root.mkdir(exist_ok=True)
    (root / "tmp").mkdir()
    (root / "qaps.csv").write_text(QAPS)
    rows = ["document_id,set,kind", "a,test,movie", "b,train,movie", "b2,test,gutenberg"]
    (root / "documents.csv").write_text("\n".join(rows))
    (root / "tmp" / "a.content").write_text("\ufeffA story\nof then.")
    (root / "tmp" / "b2.content").write_bytes("Café else.".encode("latin-1"))


def test_narrative_qa_as_released(tmp_path):
    write_narrative(tmp_path)
    (one,) = sets_of("narrativeqa", str(tmp_path))
    assert one.queries() == {"0": 'Who, "then"?', "1": "Who\u2028else?", "2": "Why?"}
    assert one.judgements() == {"0": {"a": 1}, "1": {"b2": 1}, "2": {"a": 1}}
    assert [(each.id, each.whole) for each in one.passages()] == [
        ("a", "A story\nof then."),
        ("b2", "Café else."),
    ]
    assert not one.drops_same_ids
    (tmp_path / "tmp" / "b2.content").unlink()
    with pytest.raises(
        InputError, match=r"1 of the 2 stories of the NarrativeQA test split are missing, .*b2"
    ):
        list(one.passages())
    (tmp_path / "qaps.csv").write_text("document_id,question\na,Why?\n")
    with pytest.raises(InputError, match="the header lacks set"):
        one.queries()


def test_narrative_qa_of_the_hub(tmp_path):
    stories = [("a", "A story."), ("b", "Another."), ("a", "A story.")]
    rows = [
        {"document": {"id": n, "text": t}, "question": {"text": f"Q{i}?", "tokens": ["Q"]}}
        for i, (n, t) in enumerate(stories)
    ]
    lines(tmp_path / "test-00000-of-00001.jsonl.gz", rows)
    (one,) = sets_of("narrativeqa", str(tmp_path))
    assert one.queries() == {"0": "Q0?", "1": "Q1?", "2": "Q2?"}
    assert one.judgements() == {"0": {"a": 1}, "1": {"b": 1}, "2": {"a": 1}}
    assert [each.id for each in one.passages()] == ["a", "b"]
    lines(tmp_path / "test-00000-of-00001.jsonl.gz", [{"document": "a", "question": "Q?"}])
    with pytest.raises(InputError, match='must have the objects "document" and "question"'):
        one.queries()


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
        with pytest.raises(InputError, match=f"no test set of the suite {suite}"):
            sets_of(suite, str(tmp_path / "no"))
    beir(tmp_path / "nq")
    lines(tmp_path / "nq" / "queries.jsonl", [{"_id": "r", "text": "other"}])
    with pytest.raises(
        InputError, match="has judgments of query 'q', but the query file has no text"
    ):
        sets_of("beir", str(tmp_path))[0].queries()
