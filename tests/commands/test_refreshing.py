"""refresh: the options that reach `run`."""

from t5x_lite.cli import main


def test_refresh(check_call):
    check_call(
        "refresh w --passages a.jsonl b.tsv --batch-size 8 --once",
        "refreshing.refresh",
        ("w",),
        {"passages": ("a.jsonl", "b.tsv"), "batch_size": 8, "once": True},
    )


def test_numbers_that_are_too_small(capsys):
    assert main(["refresh", "w", "--passages", "a", "--batch-size", "0"]) == 2
    assert "must be at least 1" in capsys.readouterr().err
