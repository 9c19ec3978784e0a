"""evaluate-suite by a checkpoint, by BM25 and by runs; evaluate-sts by hand-made pairs."""

import json

import numpy as np
import pytest

from t5x_lite.commands.suites import Pair, Triplet, evaluate_sts, evaluate_suite, read_pairs
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import OptionError
from t5x_lite.data.formats.rankings import Ranking, ranked, read_run, write_run
from t5x_lite.data.formats.suites import METRICS
from t5x_lite.inference.checkpoint import Checkpoint
from tests.encoder_checkpoint import write_checkpoint

TEXTS = {"1": "a a b", "2": "c d", "3": "e f a"}
HEAD = "index\tsentence1\tsentence2\tscore\n"


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
    result = evaluate_suite("beir", beir, output=str(tmp_path / "out"), bm25="whitespace")
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
    with pytest.raises(InputError, match="has no run file for the data set 'nq'"):
        evaluate_suite("beir", beir, output=str(tmp_path / "own"), runs=str(runs))


def test_result_files_of_mteb(beir, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    for name in ("nq", "cqadupstack.a", "cqadupstack.b"):
        rankings = [Ranking("2", ranked([("3", 2.0), ("1", 1.0)])), Ranking("x", ranked([]))]
        write_run(str(runs / f"{name}.jsonl"), rankings)
    options = {"output": str(tmp_path / "out"), "runs": str(runs), "depth": 20}
    result = evaluate_suite("beir", beir, mteb="org/model@r1", **options)
    assert list(result["sets"]["nq"]) == list(METRICS["beir"])
    folder = tmp_path / "out" / "mteb" / "results" / "org__model" / "r1"
    assert sorted(path.name for path in folder.iterdir()) == ["NQ.json", "model_meta.json"]
    meta = json.loads((folder / "model_meta.json").read_text())
    assert meta == {"name": "org/model", "revision": "r1"}
    ndcg = pytest.approx(1 / np.log2(3) / 2)
    assert json.loads((folder / "NQ.json").read_text()) == {
        "dataset_revision": "release",
        "task_name": "NQ",
        "mteb_version": None,
        "scores": {
            "test": [
                {
                    "ndcg_at_1": 0.0,
                    "map_at_1": 0.0,
                    "recall_at_1": 0.0,
                    "mrr_at_1": 0.0,
                    **{f"ndcg_at_{k}": ndcg for k in (3, 5, 10, 20)},
                    **{f"map_at_{k}": 0.25 for k in (3, 5, 10, 20)},
                    **{f"recall_at_{k}": 0.5 for k in (3, 5, 10, 20)},
                    **{f"mrr_at_{k}": 0.25 for k in (3, 5, 10, 20)},
                    **{f"precision_at_{k}": pytest.approx(0.5 / k) for k in (3, 5, 10, 20)},
                    "precision_at_1": 0.0,
                    "main_score": ndcg,
                    "hf_subset": "default",
                    "languages": ["eng-Latn"],
                }
            ]
        },
        "evaluation_time": None,
        "kg_co2_emissions": None,
    }
    for changed, message in (
        ({"mteb": "model"}, "--mteb must be ORGANIZATION/MODEL"),
        ({"mteb": "org/model@../x"}, "--mteb must be ORGANIZATION/MODEL"),
        ({"mteb": "org/model", "depth": 5}, "--mteb needs --depth 10 or more for nDCG@10, got 5"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate_suite("beir", beir, **{**options, **changed})
    with pytest.raises(InputError, match="--mteb does not support the suite mkqa"):
        evaluate_suite("mkqa", beir, mteb="org/model", **options)


@pytest.mark.slow
def test_a_checkpoint_and_what_is_there_already(beir, tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    options = {"checkpoint": checkpoint, "pooling": "mean", "batch_size": 2, "query_length": 8}
    options |= {"query_prefix": "a ", "document_prefix": "b ", "document_length": 12}
    options["output"] = str(tmp_path / "out")
    first = evaluate_suite("beir", beir, **options)
    runs = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
    (tmp_path / "out" / "nq.jsonl").unlink()
    assert evaluate_suite("beir", beir, **options) == first
    assert runs == {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.jsonl")}
    assert first["sets"]["nq"] == first["sets"]["cqadupstack/a"]
    assert first["sets"]["nq"]["recall@100"] == 1.0
    how = json.loads((tmp_path / "out" / "command.json").read_text())
    assert how["document"] == ["b ", 12]
    expected = {"pooling": "mean", "prefix": "a ", "batch_size": 2, "inputs_length": 8}
    assert {name: how["encoder"][name] for name in expected} == expected


def test_an_output_has_the_runs_of_one_command(beir, tmp_path):
    options = {"output": str(tmp_path / "out"), "bm25": "whitespace"}
    evaluate_suite("beir", beir, **options)
    with pytest.raises(InputError, match="contains the runs of another command"):
        evaluate_suite("beir", beir, depth=7, **options)


def test_one_way_to_find(beir, tmp_path):
    for options in ({}, {"bm25": "english", "runs": "x"}):
        with pytest.raises(InputError, match="requires exactly one of"):
            evaluate_suite("beir", beir, output=str(tmp_path / "out"), **options)


def written(path, text):
    path.write_text(text)
    return str(path)


def test_pairs_of_both_forms(tmp_path):
    expected = [Pair("a b", "c", 2.5), Pair("d", "d", 5.0)]
    table = written(tmp_path / "dev.tsv", HEAD + "0\ta b\tc\t2.500\n1\td\td\t5\n")
    rows = [{"sentence1": a, "sentence2": b, "score": s} for a, b, s in expected]
    objects = written(tmp_path / "dev.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_pairs(table) == read_pairs(objects) == expected


def test_triplets_of_both_forms(tmp_path):
    expected = [Triplet("a, b", "c", 'the "d"'), Triplet("e", "f", "g")]
    head = "Sentence1,Sentence2,Sentence3,Title1\n"
    table = written(tmp_path / "test.csv", head + '"a, b",c,"the ""d""",t\ne,f,g,t\n')
    objects = written(
        tmp_path / "test.jsonl", "\n".join(json.dumps(one._asdict()) for one in expected)
    )
    assert read_pairs(table) == read_pairs(objects) == expected


@pytest.mark.slow
def test_accuracy_of_triplets(tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    # A sentence is nearest to itself: two of the three are right.
    rows = [("a b c", "a b c", "n o"), ("d e", "d e", "f"), ("g", "h i j", "g")]
    head = "Sentence1,Sentence2,Sentence3\n"
    path = written(tmp_path / "test.csv", head + "\n".join(map(",".join, rows)))
    result = evaluate_sts([path], checkpoint=checkpoint, pooling="mean", batch_size=2)
    assert result[path] == {"triplets": 3, "accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "Sentence1,Sentence2\na,b\n", "Sentence3"),
        ("a.csv", "Sentence1,Sentence2,Sentence3\n", "no sentence pair"),
        ("a.csv", "Sentence1,Sentence2,Sentence3\na,,b\n", "Sentence2 must be a sentence, got"),
        ("a.jsonl", '{"anchor": "a", "positive": "b"}', r'a\.jsonl:1: must have "negative"'),
    ],
)
def test_triplets_that_are_wrong(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_pairs(written(tmp_path / name, text))


@pytest.mark.slow
def test_coefficients(tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    pairs = [("a b c", "a b c"), ("a b", "n o"), ("d e", "d f"), ("g", "h i j")]
    loaded = Checkpoint.load([checkpoint]).encoder(pooling="mean", normalize=True)
    rows = loaded.rows([text for pair in pairs for text in pair]).rows
    vectors = loaded.embedder(batch_size=2).run(loaded.params, rows)
    cosines = np.sum(vectors[::2] * vectors[1::2], axis=1)
    lines = [f"0\t{a}\t{b}\t{c * 3 + 1}" for (a, b), c in zip(pairs, cosines, strict=True)]
    path = written(tmp_path / "dev.tsv", HEAD + "\n".join(lines))
    options = {"pooling": "mean", "batch_size": 2, "output": str(tmp_path / "out.json")}
    result = evaluate_sts([path], checkpoint=checkpoint, **options)
    assert result[path] == {
        "pairs": 4,
        "spearman": pytest.approx(1.0),
        "pearson": pytest.approx(1.0, abs=1e-4),
    }
    assert json.loads((tmp_path / "out.json").read_text()) == result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sentence1\tsentence2\n",
            r"dev.tsv:1: the header must have the columns .*, but score is missing",
        ),
        (HEAD, "no sentence pair"),
        (HEAD + "0\ta\tb\n", r"dev.tsv:2: this line has 3 columns, but the header has 4"),
        (HEAD + "0\ta\tb\tx\n", r"dev.tsv:2: the score must be a number, got 'x'"),
        (HEAD + "0\ta\tb\tnan\n", r"dev.tsv:2: the score must be a number"),
    ],
)
def test_pairs_that_are_wrong(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_pairs(written(tmp_path / "dev.tsv", text))


def test_sts_needs_a_file():
    with pytest.raises(OptionError, match="--input needs at least one file"):
        evaluate_sts([], checkpoint="w")
