"""The best checkpoint of each task: its table after training, and what `evaluate` answers with."""

import dataclasses
import json
import shutil

import pytest

from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.config.evaluation import EarlyStopping
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.tracking import Record, evaluated_steps
from t5x_lite.evaluate.results import BestParams, SameParams, best_of_run
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.train.measuring import evaluate
from t5x_lite.train.training import train


def test_best_of_run(tmp_path):
    with Record(tmp_path) as record:
        for step, value in ((5, 0.75), (10, 0.5), (15, 0.9)):
            record.add(step, 0.0, {"loss": 1.0})
            record.add(
                step,
                0.0,
                {
                    "validation/loss": 2.0,
                    "validation/a_b/accuracy": value,
                    "validation/a_b/score": value,
                    "validation/score": value,
                },
            )
    shown = best_of_run(tmp_path, until=10, split="validation")
    assert shown == "task  step  score  metrics\na_b      5  75.00  accuracy 75.00"
    assert json.loads((tmp_path / "best.json").read_text()) == {
        "tasks": {"a_b": {"step": 5, "accuracy": 0.75}},
        "benchmarks": {},
    }
    assert "15  90.00" in best_of_run(tmp_path, until=20, split="validation")


def test_a_run_on_one_task_or_measured_by_test_has_no_table(tmp_path):
    with Record(tmp_path) as record:
        record.add(5, 0.0, {"validation/accuracy": 0.5, "test/a_b/score": 0.5})
    assert best_of_run(tmp_path, until=5, split="validation") is None
    assert best_of_run(tmp_path, until=5, split="test") is None
    assert not (tmp_path / "best.json").exists()


def test_same_params():
    chosen = SameParams({"model": {}}, 7)
    assert chosen("any") == {"model": {}}
    assert chosen.step("any") == 7


def test_best_params(tiny_run, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(tiny_run, workdir)
    mesh = make_mesh(MeshConfig())
    model = Checkpoint.load([str(workdir)], mesh=mesh)
    for step, rte, cola in ((5, 0.9, 0.1), (10, 0.2, 0.6)):
        values = {
            "validation/a_rte/score": rte,
            "validation/a_cola/score": cola,
            "validation/score": (rte + cola) / 2,
        }
        path = workdir / "checkpoints" / str(step) / "files" / "metrics.json"
        path.write_text(json.dumps(values))
    names = ["a_rte", "a_cola", "a_ax"]
    # The manifest knows the older files: reading parameters checks those of params/ alone.
    chosen = BestParams.of([str(workdir)], model, names, mesh=mesh, step=None)
    assert [chosen.step(name) for name in names] == [5, 10, 5]
    for several, step in (([str(workdir)] * 2, None), ([str(workdir)], 5)):
        with pytest.raises(InputError, match="chooses the step of each task"):
            BestParams.of(several, model, names, mesh=mesh, step=step)


@pytest.mark.exhaustive
def test_a_single_task_is_reported_at_its_best_step(
    tiny_experiment, tiny_glue, tmp_path, caplog, compile_once
):
    caplog.set_level("INFO", logger="t5x_lite")
    run = tmp_path / "run"
    experiment = dataclasses.replace(
        tiny_experiment,
        workdir=str(run),
        steps=3,
        data=dataclasses.replace(
            tiny_experiment.data, task="tasks.glue:sst2", directory=str(tiny_glue)
        ),
        checkpoints=Checkpoints(period=1, keep=1, best="validation/score"),
        stop_early=EarlyStopping(metric="validation/loss"),
        evaluation=Evaluation(period=1, max_batches=1, rank=True),
    )
    train(experiment)
    measured = evaluated_steps(run, until=3)
    scores = {step: metrics["validation/score"] for step, metrics in measured.items()}
    best = max(scores, key=lambda step: (scores[step], step))
    assert measured[best]["validation/accuracy"] == scores[best]
    assert "checkpoints.best: the highest validation/score is best" in caplog.messages
    assert "stop_early.metric: the lowest validation/loss is best" in caplog.messages
    value = f"step {best} has the highest validation/score ({scores[best]:.4f})"
    assert f"{value}; load it by --step best" in caplog.messages

    settings = dataclasses.replace(experiment.evaluation, loss=False)
    by_step = evaluate(
        dataclasses.replace(experiment, evaluation=settings),
        [str(run)],
        step="best",
        output=str(tmp_path / "out"),
    )
    assert by_step["validation/accuracy"] == pytest.approx(scores[best])
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["step"] == best
    assert f"using the best checkpoint of {run}: {value}" in caplog.messages
    settings = dataclasses.replace(settings, best_per_task=True)
    per_task = evaluate(dataclasses.replace(experiment, evaluation=settings), [str(run)])
    assert per_task == by_step


def test_a_run_that_was_not_measured_has_no_best(tiny_run):
    mesh = make_mesh(MeshConfig())
    model = Checkpoint.load([str(tiny_run)], mesh=mesh)
    with pytest.raises(InputError, match="no checkpoint has the metric validation/score"):
        BestParams.of([str(tiny_run)], model, ["a_b"], mesh=mesh, step=None)
