"""mine: the options that reach `run`."""

import pytest

from t5x_lite.cli import main
from t5x_lite.retrieval.mine import Rules
from t5x_lite.run.mining import RunSource
from t5x_lite.run.mining_search import EncoderSource


def test_with_a_checkpoint(check_call):
    source = EncoderSource(
        checkpoint="w",
        vectors=("v.npy",),
        step="best",
        use="a",
        pooling="cls",
        query_prefix="q:",
        batch_size=4,
        passage_length=9,
    )
    rules = Rules(first=0, last=200, negatives=30, take="top", margin=0.05, fill="random", seed=3)
    check_call(
        "mine --input p.jsonl --output m.jsonl --checkpoint w --vectors v.npy --step best "
        "--adapters.use a --pooling cls --query-prefix q: --batch-size 4 --passage-length 9 "
        "--passages c.jsonl d.tsv --first 0 --last 200 --negatives 30 --take top --margin 0.05 "
        "--fill random --seed 3 --rescore",
        "mining.mine",
        (),
        {
            "input": "p.jsonl",
            "output": "m.jsonl",
            "source": source,
            "passages": ("c.jsonl", "d.tsv"),
            "split": "train",
            "rules": rules,
            "rescore": True,
        },
    )


def test_with_a_run(check_call):
    check_call(
        "mine --input scifact --output m.jsonl --rankings r.trec --split test --max-score 2.5",
        "mining.mine",
        (),
        {
            "input": "scifact",
            "output": "m.jsonl",
            "source": RunSource("r.trec"),
            "passages": (),
            "split": "test",
            "rules": Rules(max_score=2.5),
            "rescore": False,
        },
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "give --checkpoint DIR or --rankings FILE"),
        ("--checkpoint w --rankings r", "give --checkpoint DIR or --rankings FILE"),
        ("--rankings r --vectors v", "--vectors are searched by"),
        ("--rankings r --negatives 0", "must be at least"),
    ],
)
def test_wrong_options(options, message, capsys):
    assert main(f"mine --input i --output o {options}".split()) == 2
    assert message in capsys.readouterr().err
