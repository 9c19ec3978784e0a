"""fuse and evaluate-run: numbers, comparisons, answers, and the page."""

import json
import logging
import sys

import pytest

from t5x_lite.commands.search import METRICS, evaluate_run, fuse, run_names
from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.rankings import Ranking, ranked, read_run, write_run
from t5x_lite.metrics.runs import DEFAULT

FIRST = [Ranking("q", ranked([("a", 3.0), ("b", 2.0)])), Ranking("r", ranked([("x", 1.0)]))]
SECOND = [Ranking("q", ranked([("b", 3.0), ("c", 2.0)])), Ranking("z", ranked([("a", 1.0)]))]
QRELS = "q 0 a 1\nq 0 c 0\nr 0 x 2\nr 0 y 1\ns 0 a 1\n"


@pytest.fixture
def files(tmp_path):
    write_run(str(tmp_path / "one.trec"), FIRST)
    write_run(str(tmp_path / "two.tsv"), SECOND)
    (tmp_path / "qrels").write_text(QRELS)
    return [str(tmp_path / name) for name in ("one.trec", "two.tsv")], str(tmp_path / "qrels")


def test_means_and_comparisons(files, tmp_path, capsys, caplog):
    runs, qrels = files
    result = evaluate_run(
        runs, qrels=qrels, metrics=["mrr@10", "hole@10"], output=str(tmp_path / "out")
    )
    assert json.loads(capsys.readouterr().out) == result
    assert result["queries"] == 3
    assert result["runs"]["one"] == {
        "mrr@10": pytest.approx(2 / 3),
        "hole@10": pytest.approx(0.5 / 3),
    }
    assert result["runs"]["two"]["mrr@10"] == 0.0
    assert result["p_values"]["two"]["mrr@10"] == 0.5
    assert "has no ranking for 1 of the 3 queries with relevance judgments" in caplog.text
    lines = (tmp_path / "out" / "two.queries.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"query": "q", "mrr@10": 0.0, "hole@10": 0.5}
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == result
    page = (tmp_path / "out" / "report.html").read_text()
    assert "nDCG@k" in page
    assert "two against one" in page


def test_a_terminal_has_a_table_and_the_name_of_the_page(
    files, tmp_path, capsys, caplog, monkeypatch
):
    runs, qrels = files
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    evaluate_run(runs, qrels=qrels, metrics=["mrr@10"], output=str(tmp_path / "out"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["run", "queries", "mrr@10"],
        ["one", "3", "0.6667"],
        ["two", "3", "0.0000"],
        ["p-value", "against", "one", "0.5000"],
    ]
    assert f"{tmp_path}/out/report.html" in caplog.text
    fuse(runs, output=str(tmp_path / "fused.trec"))
    assert f"wrote {tmp_path}/fused.trec: 3 queries from 2 runs" in caplog.text


def test_queries_that_fail_or_change(files, tmp_path):
    runs, qrels = files
    texts = {"q": "a <b>", "r": "x y", "s": "none", "z": "unused"}
    lines = [json.dumps({"_id": name, "text": text}) for name, text in texts.items()]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    (tmp_path / "corpus.tsv").write_text("a\tOslo\nb\tParis\nx\tRome\n")
    options = {"qrels": qrels, "metrics": ["mrr@10", "ndcg@10"], "output": str(tmp_path / "out")}
    options |= {
        "queries": str(tmp_path / "queries.jsonl"),
        "corpus": [str(tmp_path / "corpus.tsv")],
    }
    evaluate_run(runs[::-1], **options)
    found = [json.loads(x) for x in (tmp_path / "out/examples.jsonl").read_text().splitlines()]
    a, b, x, nothing = (
        {"document": "a", "text": "Oslo"},
        {"document": "b", "text": "Paris"},
        {"document": "x", "text": "Rome"},
        {"document": None},
    )
    none, better = {"two": 0.0, "one": 0.0}, {"two": 0.0, "one": 1.0}
    assert found == [
        {
            "list": "failed",
            "query": "s",
            "text": "none",
            "metric": "mrr@10",
            "values": none,
            "relevant": [{**a, "score": 1, "ranks": {"two": None, "one": None}}],
            "first": {"two": nothing, "one": nothing},
        },
        {
            "list": "better",
            "run": "one",
            "query": "q",
            "text": "a <b>",
            "metric": "mrr@10",
            "values": better,
            "relevant": [{**a, "score": 1, "ranks": {"two": None, "one": 1}}],
            "first": {"two": b, "one": a},
        },
        {
            "list": "better",
            "run": "one",
            "query": "r",
            "text": "x y",
            "metric": "mrr@10",
            "values": better,
            "relevant": [
                {**x, "score": 2, "ranks": {"two": None, "one": 1}},
                {"document": "y", "score": 1, "ranks": {"two": None, "one": None}},
            ],
            "first": {"two": nothing, "one": x},
        },
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    for shown in (
        "<h2>Queries that fail</h2>",
        "<h2>Improved queries, one against two</h2>",
        '<tr><th scope="row">r: x y</th><td>x (Rome): -, 1 | y: -, -</td>'
        "<td>0.000: -</td><td>1.000: x (Rome)</td></tr>",
        "q: a &lt;b&gt;",
    ):
        assert shown in page
    evaluate_run(runs, **{**options, "corpus": []}, examples=1)
    found = [json.loads(x) for x in (tmp_path / "out/examples.jsonl").read_text().splitlines()]
    assert [(one["list"], one.get("run"), one["query"]) for one in found] == [
        ("failed", None, "s"),
        ("worse", "two", "q"),
    ]
    assert found[1]["first"] == {"one": {"document": "a"}, "two": {"document": "b"}}


def test_examples_that_cannot_be(files, tmp_path):
    runs, qrels = files
    (tmp_path / "queries.tsv").write_text("q\ta b\n")
    options = {"queries": str(tmp_path / "queries.tsv"), "output": str(tmp_path / "out")}
    with pytest.raises(
        InputError, match="must contain all queries of --qrels, but 2 are missing, such as 'r'"
    ):
        evaluate_run(runs, qrels=qrels, **options)
    for without in ({"qrels": qrels, "output": None}, {"answers": "x"}):
        with pytest.raises(InputError, match="--queries requires --qrels and --output"):
            evaluate_run(runs, **{**options, **without})
    assert not (tmp_path / "out").exists()


def test_answers_in_place_of_judgements(files, tmp_path):
    runs, _ = files
    (tmp_path / "answers.jsonl").write_text(
        '{"_id": "q", "answers": ["Paris"]}\n{"_id": "r", "answers": ["no"]}\n'
    )
    texts = {"a": "Oslo", "b": "in Paris", "c": "Rome", "x": "none"}
    lines = [{"_id": name, "title": "T", "text": text} for name, text in texts.items()]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = {"answers": str(tmp_path / "answers.jsonl"), "cuts": [1, 2]}
    result = evaluate_run(runs, corpus=[str(tmp_path / "corpus.jsonl")], **options)
    assert result["runs"] == {
        "one": {"top@1": 0.0, "top@2": 0.5},
        "two": {"top@1": 0.5, "top@2": 0.5},
    }
    (tmp_path / "corpus.jsonl").write_text(json.dumps(lines[0]))
    with pytest.raises(
        InputError,
        match=r"--corpus must contain all passages of the runs, but 3 are missing, such as 'b'",
    ):
        evaluate_run(runs, corpus=[str(tmp_path / "corpus.jsonl")], **options)


def test_a_fused_run(files, tmp_path):
    runs, _ = files
    fuse(runs, output=str(tmp_path / "fused.trec"), k=2)
    found = {q: [d.document for d in ds] for q, ds in read_run(str(tmp_path / "fused.trec"))}
    assert found == {"q": ["b", "a"], "r": ["x"], "z": ["a"]}
    with pytest.raises(InputError, match="has no scores"):
        fuse(runs, output=str(tmp_path / "sum.trec"), method="sum")
    assert not (tmp_path / "sum.trec").exists()


def test_names_of_runs():
    assert run_names(["a/x.trec", "b/y.trec.gz"]) == {"x": "a/x.trec", "y": "b/y.trec.gz"}
    assert run_names(["a/x.trec", "b/x.trec"]) == {p: p for p in ("a/x.trec", "b/x.trec")}
    with pytest.raises(InputError, match="twice"):
        run_names(["a", "a"])


def test_what_cannot_be_measured(files):
    runs, qrels = files
    for options in ({}, {"qrels": qrels, "answers": "x"}):
        with pytest.raises(InputError, match="requires either --qrels, or both --answers"):
            evaluate_run(runs, **options)
    with pytest.raises(InputError, match="unknown metric 'x'"):
        evaluate_run(runs, qrels=qrels, metrics=["x"])
    with open(qrels, "w") as file:
        file.write("other 0 a 1\n")
    with pytest.raises(InputError, match="has none of the queries in --qrels"):
        evaluate_run(runs, qrels=qrels)


def test_the_command_and_the_metrics_have_the_same_default():
    assert METRICS == DEFAULT
