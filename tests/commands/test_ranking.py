"""rerank, score-pairs: the options that reach `run`."""

import pytest

LENGTHS = {"step": None, "use": None, "batch_size": 32, "inputs_length": None, "query_length": None}
RERANK = {
    "beir": None,
    "queries": None,
    "passages": None,
    "depth": 100,
    "sigmoid": False,
    "format": None,
    "tag": "t5x_lite",
    **LENGTHS,
}


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ("--beir b", {"beir": "b"}),
        (
            "--queries q --passages p --depth 5 --sigmoid --format jsonl --tag mine "
            "--step best --batch-size 2 --inputs-length 200 --query-length 32 --adapters.use a",
            {
                "queries": "q",
                "passages": "p",
                "depth": 5,
                "sigmoid": True,
                "format": "jsonl",
                "tag": "mine",
                "step": "best",
                "batch_size": 2,
                "inputs_length": 200,
                "query_length": 32,
                "use": "a",
            },
        ),
    ],
)
def test_options_of_rerank_reach_run(check_call, options, changed):
    check_call(
        f"rerank --checkpoint w --input r.trec --output o.trec {options}",
        "reranking.rerank",
        ("w",),
        {"input": "r.trec", "output": "o.trec", **RERANK, **changed},
    )


def test_options_of_score_pairs_reach_run(check_call):
    check_call(
        "score-pairs --checkpoint w --input i.jsonl --output - --negatives-top 7",
        "pair_scoring.score_pairs",
        ("w",),
        {"input": "i.jsonl", "output": "-", "negatives_top": 7, **LENGTHS}
        | {"heads": (), "weights": (1.0, 1.0, 1.0)},
    )


def test_heads_and_weights_of_score_pairs_reach_run(check_call):
    check_call(
        "score-pairs --checkpoint w --input i.jsonl --output - --heads dense lexical "
        "--weights 1 0.3 1",
        "pair_scoring.score_pairs",
        ("w",),
        {"input": "i.jsonl", "output": "-", "negatives_top": None, **LENGTHS}
        | {"heads": ("dense", "lexical"), "weights": (1.0, 0.3, 1.0)},
    )


@pytest.mark.parametrize(
    "line",
    ["rerank --depth 0", "rerank --query-length 0", "score-pairs --negatives-top 0"],
)
def test_numbers_that_are_too_small(line, capsys):
    from t5x_lite.cli import main

    assert main(f"{line} --checkpoint w --input i --output o".split()) == 2
    assert "must be at least" in capsys.readouterr().err
