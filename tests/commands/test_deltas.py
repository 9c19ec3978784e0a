"""compose and merge: the options that reach `run`."""

import pytest

from t5x_lite.cli import main

COMPOSED = {"deltas": ("a=w/a",), "fishers": (), "base": None, "allow_other_base": False}
MERGED = {
    "step": None,
    "base": None,
    "use": None,
    "dtype": "float32",
    "allow_other_base": False,
}


@pytest.mark.parametrize(
    ("line", "function", "args", "kwargs"),
    [
        (
            ["compose", "-1 * a", "dst", "--delta", "a=w/a"],
            "composing.compose",
            ("-1 * a", "dst"),
            COMPOSED,
        ),
        (
            [
                *("compose", "a-b", "dst", "--delta", "a=w/a", "b=w/b", "--fisher", "a=f"),
                *("--base", "t5", "--allow-other-base"),
            ],
            "composing.compose",
            ("a-b", "dst"),
            {
                "deltas": ("a=w/a", "b=w/b"),
                "fishers": ("a=f",),
                "base": "t5",
                "allow_other_base": True,
            },
        ),
        (["merge", "src", "dst"], "composing.merge", ("src", "dst"), MERGED),
        (
            ["merge", "src", "dst", "--step", "best", "--base", "t5", "--dtype", "bfloat16"],
            "composing.merge",
            ("src", "dst"),
            {**MERGED, "step": "best", "base": "t5", "dtype": "bfloat16"},
        ),
        (
            ["fisher", "src", "dst", "--examples", "8", "--labels", "expected"],
            "fisher.fisher",
            ("src", "dst"),
            {"examples": 8, "labels": "expected", "step": None},
        ),
        (
            ["heads", "src", "dst", "--keep", "0.5", "--step", "3"],
            "head_pruning.heads",
            ("src", "dst"),
            {"examples": 1024, "keep": 0.5, "step": 3},
        ),
    ],
)
def test_options(line, function, args, kwargs, monkeypatch):
    called = []
    monkeypatch.setattr(f"t5x_lite.run.{function}", lambda *a, **k: called.append((a, k)))
    assert main(line) == 0
    assert called == [(args, kwargs)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("merge src dst --allow-other-base", "--allow-other-base needs --base DIR"),
        ("merge src dst --step -1", "--step must be at least 0, got -1"),
        ("merge src dst --dtyp float32", "unknown option --dtyp; did you mean --dtype?"),
        ("compose a dst", "missing --delta"),
        ("heads src dst --keep 1.5", "--keep must be above 0 and at most 1, got 1.5"),
        ("fisher src dst --examples 0", "--examples must be at least 1, got 0"),
        ("merge nowhere dst", "checkpoint nowhere: no such directory"),
        ("compose a+ dst --delta a=nowhere", "expression 'a+', column 3: invalid syntax"),
    ],
)
def test_errors(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "dst").exists()
