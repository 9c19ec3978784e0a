"""search, bm25, fuse, evaluate-run: the options that reach `run`."""

import pytest

from t5x_lite.cli import main
from t5x_lite.commands.retrieval import METRICS
from t5x_lite.metrics.runs import DEFAULT
from t5x_lite.records.shares import Share
from t5x_lite.run.searching import QueryEncoder


def test_search(check_call):
    usual = {"ids": (), "query_ids": (), "encoder": None, "depth": 1000, "same_ids": "keep",
             "format": None, "tag": "t5x_lite", "part": None}  # fmt: skip
    check_call(
        "search --vectors a.npy b.npy --queries q.npy --output r",
        "searching.search",
        (("a.npy", "b.npy"),),
        {"queries": "q.npy", "output": "r", **usual},
    )


def test_search_with_a_checkpoint(check_call):
    encoder = QueryEncoder("w", step=3, use="", prefix="q:", batch_size=8, inputs_length=16)
    check_call(
        "search --vectors a.npy --ids c.jsonl --queries q.jsonl --query-ids x --output r "
        "--checkpoint w --step 3 --adapters.use= --batch-size 8 --inputs-length 16 --depth 5 "
        "--same-ids drop --format marco --tag x --prefix q: --part 1/4",
        "searching.search",
        (("a.npy",),),
        {
            "ids": ("c.jsonl",),
            "queries": "q.jsonl",
            "query_ids": ("x",),
            "encoder": encoder,
            "output": "r",
            "depth": 5,
            "same_ids": "drop",
            "format": "marco",
            "tag": "x",
            "part": Share(1, 4),
        },
    )


def test_bm25_build(check_call):
    check_call(
        "bm25 build --input a b --output d",
        "lexical.build_bm25",
        (("a", "b"),),
        {"output": "d", "analyzer": "english"},
    )


def test_bm25_search(check_call):
    check_call(
        "bm25 search --index d --queries q --output r --k1 1.2 --b 0.75 --lengths lucene --depth 9",
        "lexical.search_bm25",
        ("d",),
        {
            "queries": "q",
            "output": "r",
            "depth": 9,
            "k1": 1.2,
            "b": 0.75,
            "lengths": "lucene",
            "same_ids": "keep",
            "format": None,
            "tag": "bm25",
        },
    )


def test_fuse(check_call):
    check_call(
        "fuse --runs a b --output r --method sum --weights 1 0.3 --depth 10 --k 5 --rrf-k 0",
        "run_measuring.fuse",
        (("a", "b"),),
        {
            "output": "r",
            "method": "sum",
            "weights": (1.0, 0.3),
            "depth": 10,
            "k": 5,
            "rrf_k": 0,
            "format": None,
            "tag": "fused",
        },
    )


def test_evaluate_run(check_call):
    assert METRICS == DEFAULT
    check_call(
        "evaluate-run --runs a b --qrels q --metrics map hole@5 --output d --seed 3",
        "run_measuring.evaluate_run",
        (("a", "b"),),
        {
            "qrels": "q",
            "metrics": ("map", "hole@5"),
            "answers": None,
            "corpus": (),
            "cuts": (5, 20, 100),
            "output": "d",
            "seed": 3,
        },
    )


@pytest.mark.parametrize(
    "line",
    [
        "search --vectors a --queries q --output r --depth 0",
        "search --vectors a --queries q --output r --step -1",
        "bm25 search --index d --queries q --output r --depth 0",
        "fuse --runs a --output r --k 0",
        "evaluate-run --runs a --qrels q --cuts 0",
    ],
)
def test_numbers_that_are_too_small(line, capsys):
    assert main(line.split()) == 2
    assert capsys.readouterr().err
