"""The words of a line; bars and messages are tested with the tracker that opens them."""

import io
import re
import sys

import pytest

from t5x_lite.train.track import Bar, Lines, evaluation, line, open_display


def test_a_line_of_training():
    metrics = {
        "learning_rate": 0.01,
        "token_accuracy": 0.25,
        "loss": 5.43211,
        "tokens_per_second": 12345.0,
        "steps_per_second": 2.0,
        "mfu": 0.4142,
        "data_wait": 0.02,
        "epoch": 0.5,
        "gradient_norm": 1.0,
    }
    assert line(200, 1000, metrics, 65.2) == (
        "step 200/1000  loss 5.4321  token_accuracy 0.2500  lr 0.0100  12.3k tokens/s  mfu 0.41"
        "  ETA 0:01:05"
    )


def test_a_long_wait_for_data_is_shown():
    assert line(2, 9, {"loss": 1.0, "data_wait": 0.334}) == (
        "step 2/9  loss 1.0000  33% waiting for data"
    )
    assert line(2, 9, {"loss": 1.0, "data_wait": 0.09}) == "step 2/9  loss 1.0000"


def test_the_tasks_of_a_mixture_are_a_table():
    metrics = {
        "validation/loss": 5.25,
        "validation/glue_cola/matthews_correlation": 0.25,
        "validation/glue_cola/score": 0.25,
        "validation/glue_mrpc/f1": 0.8,
        "validation/glue_mrpc/accuracy": 0.7,
        "validation/glue_mrpc/score": 0.75,
        "validation/score": 0.5,
    }
    assert evaluation(200, 1000, metrics).splitlines() == [
        "step 200/1000  validation/loss 5.2500  validation/score 0.5000",
        "  validation/glue_cola  score 0.2500  matthews_correlation 0.2500",
        "  validation/glue_mrpc  score 0.7500  f1 0.8000  accuracy 0.7000",
    ]
    assert evaluation(2, 9, {"validation/loss": 1.0}) == "step 2/9  validation/loss 1.0000"


def test_without_a_terminal_there_are_lines(capsys):
    display = open_display(10)
    assert type(display) is Lines
    display.training(3, {"loss": 1e-9, "learning_rate": 2e7}, None)
    assert capsys.readouterr().err == "step 3/10  loss 1.00e-09  lr 2.00e+07\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("columns", [60, 80, 110, 200])
@pytest.mark.parametrize("steps", [1000, 1_000_000])
def test_a_narrow_terminal_keeps_step_bar_and_eta(monkeypatch, columns, steps):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    bar = Bar(steps)
    metrics = {f"accuracy_of_task_{i}": 0.5 for i in range(9)}
    bar.training(steps // 2, {**metrics, "loss": 5.25, "tokens_per_second": 1e4}, 3725.0)
    bar.close()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).split("\r")[-1].strip()
    assert last.startswith(f"step {steps // 2}/{steps} ")
    assert last.endswith("ETA 1:02:05")
    assert "━" * 4 in last
    assert "loss 5.2500" in last
    assert ("accuracy_of_task_0 0.5000" in last) == (columns >= 80)
    assert "accuracy_of_task_8" not in last
    assert len(last) <= columns
