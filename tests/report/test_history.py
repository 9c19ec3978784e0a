"""Tests of a run as its report reads it; malformed files are in test_runs.py."""

import json

from t5x_lite.report.runs import read_run


def write(directory, records, config=None):
    directory.mkdir()
    (directory / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (directory / "config.json").write_text(json.dumps(config or {}))
    return read_run(directory)


def test_what_a_run_says_of_itself(tmp_path):
    run = write(
        tmp_path / "sst2",
        [
            {"step": 1, "loss": 3.0, "time": 1.0},
            {"step": 2, "loss": None, "validation/loss": 2.0, "validation/accuracy": 0.5},
            {"step": 4, "validation/loss": 2.5, "validation/accuracy": 0.5},
        ],
        {"data": {"task": "tasks.glue:sst2"}, "checkpoints": {"best": "validation/accuracy"}},
    )
    assert (run.name, run.task, run.last_step) == ("sst2", "tasks.glue:sst2", 4)
    assert run.curves["loss"] == {1: 3.0, 2: None}
    assert run.finite("loss") == [(1, 3.0)]
    assert run.measured == ["validation/loss", "validation/accuracy"]
    assert run.best("validation/loss") == (2, 2.0)
    assert run.best("validation/accuracy") == (4, 0.5)
    assert run.headlines() == ["validation/accuracy", "validation/loss"]


def test_without_a_metric_of_the_task_the_loss_is_first(tmp_path):
    run = write(tmp_path / "run", [{"step": 1, "validation/token_accuracy": 0.5}])
    assert run.headlines() == ["validation/token_accuracy"]
    both = {"step": 1, "validation/token_accuracy": 0.5, "validation/loss": 1.0}
    run = write(tmp_path / "both", [both], {"data": {"cache": ["a=0.5", "b=0.5"]}})
    assert run.headlines() == ["validation/loss", "validation/token_accuracy"]
    assert run.task == "a=0.5, b=0.5"


def test_a_mixture_s_own_score_comes_before_those_of_its_tasks(tmp_path):
    names = ["glue_rte/accuracy", "glue_rte/score", "score", "glue_rte/f1"]
    values = [0.5, 0.25, 0.75, 0.125]
    record = {f"validation/{n}": v for n, v in zip(names, values, strict=True)}
    run = write(tmp_path / "run", [{"step": 1, **record}])
    assert run.headlines() == ["validation/score"]
