"""pairs, synthesize: the options that reach `run`."""

import pytest

from t5x_lite.cli import main
from t5x_lite.retrieval.pair_filters import Filters
from t5x_lite.retrieval.synthesis import Excerpts


def test_pairs(check_call):
    check_call(
        "pairs --input a.en a.de --output o.jsonl --rule parallel --languages en de "
        "--max-query-words 32 --bad-words b.txt --languages-by cld3",
        "pair_making.make_pairs",
        (("a.en", "a.de"),),
        {
            "output": "o.jsonl",
            "rule": "parallel",
            "languages": ("en", "de"),
            "filters": Filters(max_query_words=32, bad_words="b.txt", languages_by="cld3"),
            "seed": 0,
            "min_score": None,
            "text": "{text}",
        },
    )


def test_pairs_with_scores_and_a_seed(check_call):
    check_call(
        "pairs --input a.tsv --output o.jsonl --rule ict --min-score 1.06 --seed 3",
        "pair_making.make_pairs",
        (("a.tsv",),),
        {
            "output": "o.jsonl",
            "rule": "ict",
            "languages": (),
            "filters": Filters(),
            "seed": 3,
            "min_score": 1.06,
            "text": "{text}",
        },
    )


def test_synthesize_requests(check_call):
    check_call(
        "synthesize requests --articles a.jsonl --output r.jsonl --number 5 --seed 2 --prompt p",
        "synthesizing.requests",
        (("a.jsonl",),),
        {"output": "r.jsonl", "prompt": "p", "excerpts": Excerpts(number=5, seed=2)},
    )


def test_synthesize_collect(check_call):
    check_call(
        "synthesize collect --articles a.jsonl --answers q.jsonl --output o.jsonl --max-words 9",
        "synthesizing.collect",
        (("a.jsonl",),),
        {
            "answers": "q.jsonl",
            "output": "o.jsonl",
            "min_words": 3,
            "max_words": 9,
            "languages_by": "",
        },
    )


@pytest.mark.parametrize("option", ["--min-query-words 0", "--max-queries 0"])
def test_numbers_that_are_too_small(option, capsys):
    assert main(f"pairs --input i --output o --rule sentences {option}".split()) == 2
    assert "must be at least 1" in capsys.readouterr().err
