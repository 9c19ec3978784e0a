"""evaluate-suite: the options that reach `run`."""

import pytest

from t5x_lite.cli import main
from t5x_lite.inference.queries import QueryEncoder


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("--bm25 english", {"analyzer": "english"}),
        ("--runs r --depth 9", {"runs": "r", "depth": 9}),
        (
            "--checkpoint w --step best --query-prefix q: --document-prefix d: --query-length 16 "
            "--document-length 64 --batch-size 8",
            {
                "encoder": QueryEncoder(
                    "w", step="best", prefix="q:", batch_size=8, inputs_length=16
                ),
                "document_prefix": "d:",
                "document_length": 64,
            },
        ),
    ],
)
def test_options_reach_run(check_call, line, changed):
    usual = {"encoder": None, "analyzer": None, "runs": None, "document_prefix": None,
             "document_length": None, "depth": 1000}  # fmt: skip
    check_call(
        f"evaluate-suite beir --directory d --output o {line}",
        "suites.evaluate_suite",
        ("beir", "d"),
        {"output": "o", **usual, **changed},
    )


def test_numbers_that_are_too_small(capsys):
    line = "evaluate-suite beir --directory d --output o --runs r --depth 0"
    assert main(line.split()) == 2
    assert "must be at least" in capsys.readouterr().err


def test_sts(check_call):
    check_call(
        "evaluate-sts --input a.tsv b.tsv --checkpoint w --pooling cls --output o.json",
        "sts.evaluate_sts",
        (("a.tsv", "b.tsv"),),
        {"encoder": QueryEncoder("w", pooling="cls"), "output": "o.json"},
    )
