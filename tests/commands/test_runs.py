"""finetune and glue: the config that is made, and options that contradict each other; report."""

import json
from unittest import mock

import pytest

from t5x_lite.cli import main
from t5x_lite.commands.runs import report
from t5x_lite.data.preprocessors import Columns


@pytest.mark.parametrize(("options", "dry_run"), [("", False), ("--dry-run", True)])
def test_finetune_makes_a_config_of_a_table_and_trains_it(monkeypatch, capsys, options, dry_run):
    made, train = mock.Mock(return_value="config"), mock.Mock()
    monkeypatch.setattr("t5x_lite.train.finetuning.experiment_for", made)
    monkeypatch.setattr("t5x_lite.train.training.train", train)
    monkeypatch.setattr("t5x_lite.train.planning.rehearse", lambda _: "what would happen")
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
    message = (
        "error: --steps and --epochs 2 both set the length of the run; give only one of the two"
    )
    assert message in capsys.readouterr().err
    assert main(["glue", "--init", "c", "--directory", "d", "--workdir", "w", "--epochs", "0"]) == 2
    assert "--epochs must be above 0, got 0.0" in capsys.readouterr().err


def test_report(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.5}) + "\n")
    report(str(tmp_path))
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert "2.5" in (tmp_path / "report.html").read_text()
    report(str(tmp_path), output=str(tmp_path / "page.html"))
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").is_file()
