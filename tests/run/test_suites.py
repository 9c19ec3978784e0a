"""A suite by a checkpoint, by BM25 and by runs of one's own; means over groups."""

import json

import pytest

from t5x_lite.errors import InputError
from t5x_lite.inference.queries import QueryEncoder
from t5x_lite.records.run_files import Ranking, ranked, read_run, write_run
from t5x_lite.run.suites import evaluate_suite
from tests.encoder_checkpoint import write_checkpoint

TEXTS = {"1": "a a b", "2": "c d", "3": "e f a"}


def write_set(folder):
    (folder / "qrels").mkdir(parents=True)
    for name, records in (("corpus", TEXTS), ("queries", {"2": "a b", "x": "c d"})):
        rows = [{"_id": key, "text": text} for key, text in records.items()]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n2\t1\t1\nx\t2\t1\n")


@pytest.fixture
def beir(tmp_path):
    for name in ("nq", "cqadupstack/a", "cqadupstack/b"):
        write_set(tmp_path / "beir" / name)
    return str(tmp_path / "beir")


def test_bm25_and_runs_of_ones_own(beir, tmp_path, capsys):
    result = evaluate_suite("beir", beir, output=str(tmp_path / "out"), analyzer="whitespace")
    assert json.loads(capsys.readouterr().out) == result
    assert list(result["sets"]) == ["nq", "cqadupstack/a", "cqadupstack/b"]
    assert result["mean"]["ndcg@10"] == 1.0
    assert len(result["missing"]) == 16
    assert "2" not in [d.document for d in next(iter(read_run(str(tmp_path / "out/nq.jsonl"))))[1]]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "command.json", "cqadupstack.a.jsonl", "cqadupstack.b.jsonl", "metrics.json", "nq.jsonl",
        "report.html",
    ]  # fmt: skip
    runs = tmp_path / "runs"
    runs.mkdir()
    for name in ("nq", "cqadupstack.a", "cqadupstack.b"):
        best = [("1", 1.0)] if name == "cqadupstack.b" else [("3", 1.0)]
        write_run(str(runs / f"{name}.trec"), [Ranking("2", ranked(best))])
    result = evaluate_suite("beir", beir, output=str(tmp_path / "own"), runs=str(runs))
    assert result["sets"]["cqadupstack/b"]["ndcg@10"] == 0.5
    assert result["mean"]["ndcg@10"] == 0.125  # (0 + (0 + 0.5) / 2) / 2
    (runs / "nq.trec").unlink()
    with pytest.raises(InputError, match="no run of the set 'nq'"):
        evaluate_suite("beir", beir, output=str(tmp_path / "own"), runs=str(runs))


@pytest.mark.slow
def test_a_checkpoint_and_what_is_there_already(beir, tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    encoder = QueryEncoder(checkpoint, pooling="mean", batch_size=2)
    options = {"output": str(tmp_path / "out"), "encoder": encoder}
    first = evaluate_suite("beir", beir, **options)
    runs = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
    (tmp_path / "out" / "nq.jsonl").unlink()
    assert evaluate_suite("beir", beir, **options) == first
    assert runs == {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
    assert first["sets"]["nq"] == first["sets"]["cqadupstack/a"]
    assert first["sets"]["nq"]["recall@100"] == 1.0


def test_an_output_has_the_runs_of_one_command(beir, tmp_path):
    options = {"output": str(tmp_path / "out"), "analyzer": "whitespace"}
    evaluate_suite("beir", beir, **options)
    with pytest.raises(InputError, match="holds the runs of another command"):
        evaluate_suite("beir", beir, depth=7, **options)


def test_one_way_to_find(beir, tmp_path):
    for options in ({}, {"analyzer": "english", "runs": "x"}):
        with pytest.raises(InputError, match="give one of"):
            evaluate_suite("beir", beir, output=str(tmp_path / "out"), **options)
