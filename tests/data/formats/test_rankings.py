"""Runs and qrels in all forms, there and back, and what is refused, by file and line."""

import gzip
import itertools

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import retrieval_sets
from t5x_lite.data.formats.rankings import (
    Ranked,
    Ranking,
    format_of,
    ranked,
    read_qrels,
    read_run,
    write_qrels,
    write_run,
)

RANKINGS = [
    Ranking("007", [Ranked("NA", 2.5, 1), Ranked("1e5", 0.1 + 0.2, 2)]),
    Ranking("a", [Ranked("NA", -1.0, 1)]),
]


def written(tmp_path, text, name="run.trec"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_a_trec_run_there_and_back(tmp_path):
    path = str(tmp_path / "run.trec")
    write_run(path, RANKINGS, tag="mine")
    with open(path) as file:
        assert file.read() == (
            "007 Q0 NA 1 2.5 mine\n007 Q0 1e5 2 0.30000000000000004 mine\na Q0 NA 1 -1.0 mine\n"
        )
    assert list(read_run(path)) == RANKINGS


def test_a_marco_run_has_no_scores(tmp_path):
    path = str(tmp_path / "run.tsv")
    write_run(path, RANKINGS)
    with open(path) as file:
        assert file.read() == "007\tNA\t1\n007\t1e5\t2\na\tNA\t1\n"
    assert [[one.document for one in ranking.documents] for ranking in read_run(path)] == [
        ["NA", "1e5"],
        ["NA"],
    ]
    assert next(iter(read_run(path))).documents[0] == Ranked("NA", None, 1)


def test_json_holds_ids_with_spaces_and_empty_rankings(tmp_path):
    path = str(tmp_path / "run.jsonl")
    rankings = [Ranking("q 1", [Ranked("d 1", 1.5, 1)]), Ranking("q 2", [])]
    write_run(path, rankings)
    assert list(read_run(path)) == rankings


def test_the_rank_column_orders_and_gaps_are_allowed(tmp_path):
    path = written(tmp_path, "q Q0 b 7 9.0 x\nq Q0 a 2 1.0 x\n\nr Q0 c 1 1 x\n")
    first, second = read_run(path)
    assert first.documents == [Ranked("a", 1.0, 2), Ranked("b", 9.0, 7)]
    assert second == Ranking("r", [Ranked("c", 1.0, 1)])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Ranks that are all 0, as BEIR writes them, and unsorted lines.
        (["q Q0 a 0 1.0 x", "q Q0 b 0 2.0 x"], {"q": "ba"}),
        (["q Q0 a 0 1.0 x", "q Q0 b 1 2.0 x"], {"q": "ba"}),
        (["q Q0 a -1 1.0 x", "q Q0 b 5 2.0 x"], {"q": "ba"}),
        (["q Q0 a 3 1.0 x", "q Q0 b 3 2.0 x", "q Q0 c 1 0.0 x"], {"q": "bac"}),
        # Ties: the greater id, compared by bytes, and scores as float32.
        (["q Q0 a 0 1.0 x", "q Q0 c 0 1.0 x", "q Q0 B 0 1.00000001 x"], {"q": "caB"}),
        (["q Q0 a 0 1e300 x", "q Q0 b 0 2e300 x", "q Q0 c 0 -1e300 x"], {"q": "bac"}),
        # The lines of a query that do not stand together.
        (["q Q0 a 2 1.0 x", "r Q0 a 1 2.0 x", "q Q0 b 1 0.5 x"], {"q": "ba", "r": "a"}),
        (["q Q0 a 0 1.0 x", "r Q0 a 1 2.0 x", "q Q0 b 0 3.0 x"], {"q": "ba", "r": "a"}),
        (["q a 2", "r a 1", "q b 1"], {"q": "ba", "r": "a"}),
        # MS MARCO's form from 0.
        (["q a 1", "q b 0"], {"q": "ba"}),
    ],
)
def test_runs_whose_ranks_are_no_order(tmp_path, lines, expected, caplog, monkeypatch):
    path = written(tmp_path, "\n".join(lines) + "\n")
    rankings = list(read_run(path))
    found = {one.query: "".join(d.document for d in one.documents) for one in rankings}
    assert found == expected
    is_scored = any(" 0 " in line or " -1 " in line or " 3 " in line for line in lines)
    assert ("ordered by score" in caplog.text) == is_scored
    if "Q0 a 2" not in lines[0]:
        ranks = [[one.rank for one in ranking.documents] for ranking in rankings]
        assert ranks == [[*range(1, len(row) + 1)] for row in ranks]
    with open(path) as file:
        monkeypatch.setattr("sys.stdin", file)
        assert list(read_run("-")) == rankings


def test_runs_of_random_ranks_are_measured_as_trec_eval_measures_them(tmp_path):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(0)
    qrels = {f"q{q}": {f"d{d}": int(d == q or rng.integers(2)) for d in range(9)} for q in range(5)}
    lines = [
        (f"q{q}", f"d{d}", float(rng.integers(4)) + rng.choice([0.0, 1e-9]))
        for q in range(5)
        for d in rng.permutation(9)
    ]
    rng.shuffle(lines)
    text = "".join(f"{query} Q0 {name} 0 {float(score)!r} x\n" for query, name, score in lines)
    run: dict[str, dict[str, float]] = {}
    for query, name, score in lines:
        run.setdefault(query, {})[name] = float(score)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank", "map"}).evaluate(run)
    for query, documents in read_run(written(tmp_path, text)):
        right = [qrels[query][one.document] for one in documents]
        assert theirs[query]["recip_rank"] == pytest.approx(1 / (1 + right.index(1)))
        hits = np.cumsum(right) * right / np.arange(1, 10)
        assert theirs[query]["map"] == pytest.approx(hits.sum() / sum(right))


def test_a_compressed_run_is_read_lazily(tmp_path):
    path = tmp_path / "run.trec.gz"
    lines = (f"{q} Q0 d{i} {i} 1.0 x\n" for q in range(3) for i in range(1, 4))
    path.write_bytes(gzip.compress("".join([*lines, "broken\n"]).encode()))
    read = read_run(str(path))
    assert [one.query for one in itertools.islice(read, 2)] == ["0", "1"]
    with pytest.raises(InputError, match=r"run.trec.gz:10: a line must be query, Q0"):
        list(read)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "q Q0 a 1 1 x\nq Q0 a 2 1 x\n",
            r"run.trec:2: document 'a' occurs twice in the ranking of query 'q'",
        ),
        ("q a 1\nq a 2\n", r"run.trec:2: document 'a' occurs twice in the ranking"),
        ("q a 1\nq b 1\n", r"run.trec:2: query 'q' has rank 1 twice"),
        ("q a 0.5\n", r"run.trec:1: a rank must be a whole number, got '0.5'"),
        ("q a 0\nq b 0\n", r"run.trec:2: query 'q' has rank 0 twice"),
        ("q Q0 a x 1 x\n", r"run.trec:1: a rank"),
        ("q Q0 a 1 nan x\n", r"run.trec:1: a score must be a finite number, got 'nan'"),
        (
            "q a 1\nr a 1\nq a 2\n",
            r"run.trec:3: document 'a' occurs twice in the ranking of query 'q'",
        ),
        ("q a 1\nq Q0 b 2 1 x\n", r"run.trec:2: a line must be query"),
        ("q a\n", r"run.trec:1: a line must be query"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        list(read_run(written(tmp_path, text)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"query": "q"}\n', "documents"),
        ('{"query": "q", "documents": [1]}\n', "documents"),
        ('{"query": "q", "documents": ["a"], "scores": []}\n', "scores"),
        ('{"query": "q", "documents": ["a", "a"]}\n', "twice"),
        ('{"query": "q", "documents": []}\n{"query": "q", "documents": []}\n', "occurs twice"),
    ],
)
def test_what_is_no_json_run_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        list(read_run(written(tmp_path, text, "run.jsonl")))


@pytest.mark.parametrize("name", ["a b", "", " "])
def test_ids_that_a_line_cannot_hold_are_not_written(tmp_path, name):
    with pytest.raises(InputError, match="white space"):
        write_run(str(tmp_path / "run.trec"), [Ranking("q", ranked([(name, 1.0)]))])
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_scores_is_no_trec_run(tmp_path):
    with pytest.raises(ValueError, match="has no score"):
        write_run(str(tmp_path / "run"), [Ranking("q", [Ranked("a", None, 1)])])


def test_the_name_says_the_format():
    assert [format_of(name) for name in ("a", "a.tsv.gz", "a.jsonl", "a.run")] == [
        "trec",
        "marco",
        "jsonl",
        "trec",
    ]
    assert format_of("a.tsv", "trec") == "trec"
    with pytest.raises(InputError, match="one word"):
        write_run("a", [], tag="a b")


QRELS = {"1": {"a": 2, "b": 0}, "NA": {"a": 1}}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["1\ta\t2", "1\tb\t0", "NA\ta\t1"], QRELS),
        (["query-id\tcorpus-id\tscore", "1\ta\t2", "1\tb\t0", "NA\ta\t1"], QRELS),
        (["\ufeffquery_id doc_id rel", "1 a 2", "1 b 0", "NA a 1"], QRELS),
        (["1 0 a 2", "1 0 b 0", "NA 0 a 1"], QRELS),
        (["topic iteration docno judgment", "1 0 a 2", "1 0 b 0", "NA 0 a 1"], QRELS),
        (["1\ta", "NA\ta"], {"1": {"a": 1}, "NA": {"a": 1}}),
        (["query-id\tcorpus-id", "1\ta", "NA\ta"], {"1": {"a": 1}, "NA": {"a": 1}}),
        (["", "q 1\td 2\t-1"], {"q 1": {"d 2": -1}}),
    ],
)
def test_a_header_is_seen_and_not_counted(tmp_path, lines, expected):
    path = tmp_path / "qrels.tsv"
    path.write_text("\n".join(lines) + "\n")
    assert read_qrels(str(path)) == retrieval_sets.read_judgements(path) == expected


def test_qrels_in_three_forms(tmp_path):
    expected = {"1": {"a": 2, "b": 0}, "NA": {"a": 1}}
    trec = written(tmp_path, "1 0 a 2\n1\t0\tb\t0\nNA 0 a 1\n", "qrels")
    beir = written(tmp_path, "query-id\tcorpus-id\tscore\n1\ta\t2\n1\tb\t0\nNA\ta\t1\n", "b.tsv")
    assert read_qrels(trec) == read_qrels(beir) == expected
    assert read_qrels(written(tmp_path, "1\ta\n1\ta\n2\tb\n", "c")) == {
        "1": {"a": 1},
        "2": {"b": 1},
    }
    write_qrels(str(tmp_path / "out"), expected)
    assert read_qrels(str(tmp_path / "out")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 a x\n", r"qrels:1: a score must be a whole number, got 'x'"),
        ("1 a 1\nquery-id corpus-id score\n", r"qrels:2: a score must be a whole number"),
        ("1 0 a 1\n1 a\n", r"qrels:2: a line must be query, 0, document, score"),
        ("1 0 a x\n", r"qrels:1: a score must be a whole number, got 'x'"),
        ("1 0 a 1\n1 0 a 2\n", r"qrels:2: document 'a' of query"),
        ("\n", "no relevance judgment"),
    ],
)
def test_what_are_no_qrels_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_qrels(written(tmp_path, text, "qrels"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "qid\tpid\trank\n1\td\t1\n"),
        ("a.tsv", "query_id\tpassage_id\trank\n1\td\t1\n"),
        ("a.trec", "qid Q0 docid rank score tag\n1 Q0 d 1 2.0 t\n"),
        ("a.trec", "query iter docno rank sim run\n1 Q0 d 1 2.0 t\n"),
    ],
)
def test_a_first_line_of_names_in_a_run_is_a_header(tmp_path, name, text):
    (ranking,) = read_run(written(tmp_path, text, name))
    assert (ranking.query, [one.document for one in ranking.documents]) == ("1", ["d"])


def test_a_later_line_of_names_in_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a\.tsv:2: a rank must be a whole number, got 'rank'"):
        list(read_run(written(tmp_path, "1\td\t1\nqid\tpid\trank\n", "a.tsv")))
