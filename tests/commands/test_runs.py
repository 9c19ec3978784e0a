"""report, plan and finetune: the options that reach `run`; tests/test_cli.py has train's."""

from unittest import mock

import pytest

from t5x_lite.cli import main
from t5x_lite.data.columns import Columns


@pytest.mark.parametrize(
    ("line", "function", "args", "kwargs"),
    [
        (
            "plan configs/tiny_pretrain.py --topology v5e:4x4",
            "planning.plan",
            (mock.ANY,),
            {
                "topology": "v5e:4x4",
                "devices": None,
                "as_json": False,
                "hbm": None,
                "operations": 0,
                "attached": False,
            },
        ),
        (
            "plan configs/tiny_pretrain.py --devices cpu:8 --json --hbm 2 --operations 5 "
            "--microbatches 2",
            "planning.plan",
            (mock.ANY,),
            {
                "topology": None,
                "devices": "cpu:8",
                "as_json": True,
                "hbm": 2.0,
                "operations": 5,
                "attached": False,
            },
        ),
        ("report w", "texts.report", (("w",),), {"output": None, "group": None}),
        (
            "report a b --group seed --output p.html",
            "texts.report",
            (("a", "b"),),
            {"output": "p.html", "group": "seed"},
        ),
        (
            "glue --init c --directory d --workdir w --tasks rte cola --epochs 2 --steps 3",
            "benchmarks.glue",
            ("c",),
            {
                "directory": "d",
                "workdir": "w",
                "benchmark": "glue",
                "tasks": ("rte", "cola"),
                "together": False,
                "epochs": 2.0,
                "output": None,
                "options": ["--steps", "3"],
                "dry_run": False,
            },
        ),
    ],
)
def test_options_reach_run(check_call, line, function, args, kwargs):
    check_call(line, function, args, kwargs)


@pytest.mark.parametrize(("options", "dry_run"), [("", False), ("--dry-run", True)])
def test_finetune_makes_a_config_of_a_table_and_trains_it(monkeypatch, capsys, options, dry_run):
    made, train = mock.Mock(return_value="config"), mock.Mock()
    monkeypatch.setattr("t5x_lite.run.finetuning.experiment_for", made)
    monkeypatch.setattr("t5x_lite.run.training.train", train)
    monkeypatch.setattr("t5x_lite.run.rehearsal.rehearse", lambda _: "what would happen")
    line = (
        "finetune --init w --table t.csv --inputs see:{a} --targets {b} --workdir out "
        f"--labels 0=no 1=yes --task classify --epochs 2 --data.batch-size 4 {options}"
    )
    assert main(line.split()) == 0
    columns = Columns(inputs="see:{a}", targets="{b}", labels=("0=no", "1=yes"), hold_out=10)
    made.assert_called_once_with(
        "w",
        columns=columns,
        table="t.csv",
        workdir="out",
        task="classify",
        epochs=2,
        options=["--data.batch-size", "4"],
    )
    assert ("what would happen" in capsys.readouterr().out) == dry_run
    assert train.called != dry_run


def test_finetune_refuses_no_epoch(capsys):
    line = "finetune --init w --table t.csv --inputs a --targets b --workdir o --epochs 0"
    assert main(line.split()) == 2
    assert "--epochs" in capsys.readouterr().err
    assert main([*line.split()[:-1], "2", "--steps", "9"]) == 2
    message = "error: --steps and --epochs 2 both set the run's length; give one"
    assert message in capsys.readouterr().err
    assert main(["glue", "--init", "c", "--directory", "d", "--workdir", "w", "--epochs", "0"]) == 2
    assert "--epochs must be above 0, got 0.0" in capsys.readouterr().err
