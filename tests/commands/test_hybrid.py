"""hybrid: the options that reach `run`."""

import pytest

from t5x_lite.retrieval.hybrid import Ways


@pytest.mark.parametrize(
    ("options", "ways", "changed"),
    [
        ("", Ways(), {}),
        (
            "--ways lexical all --weights .15 .5 .35 --pair-weights .2 .8 --depth 10 --rerank 5 "
            "--same-ids drop --tag mine",
            Ways(
                names=("lexical", "all"),
                weights=(0.15, 0.5, 0.35),
                pair_weights=(0.2, 0.8),
                depth=10,
                rerank=5,
            ),
            {"same_ids": "drop", "tag": "mine"},
        ),
    ],
)
def test_options_reach_run(check_call, options, ways, changed):
    check_call(
        f"hybrid --corpus c --queries q --output o {options}",
        "hybrid.hybrid",
        ("c",),
        {
            "queries": "q",
            "output": "o",
            "ways": ways,
            "same_ids": "keep",
            "tag": "t5x_lite",
            **changed,
        },
    )


@pytest.mark.parametrize("option", ["--depth 0", "--rerank 0", "--ways sparse"])
def test_nonsense_is_refused(option, capsys):
    from t5x_lite.cli import main

    assert main(f"hybrid --corpus c --queries q --output o {option}".split()) == 2
