"""Tests of the tracker of MLflow, against a stub of mlflow."""

import math
import sys
import types

import pytest

from t5x_lite.core.tracking import KnownIds, RunTracker, TrackedRun
from t5x_lite.train.track import MLflow, Tracker


@pytest.fixture
def mlflow(monkeypatch):
    """Remembers calls, as (name, arguments)."""
    calls = []
    stub = types.ModuleType("mlflow")
    stub.calls = calls

    def start_run(**kwargs):
        calls.append(("start_run", (), kwargs))
        run_id = kwargs["run_id"] or "0f1e"
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id))

    stub.start_run = start_run
    for name in ("set_experiment", "log_params", "log_metrics", "end_run"):
        setattr(stub, name, lambda *args, name=name, **kwargs: calls.append((name, args, kwargs)))
    monkeypatch.setitem(sys.modules, "mlflow", stub)
    return stub


def test_a_run_and_its_resumption_are_one_run(tmp_path, mlflow):
    config = {"steps": 10, "model": {"d_model": 8}, "many": {str(i): i for i in range(150)}}
    run = TrackedRun(directory=str(tmp_path), name="mine", project="t5", config=config)
    for step in (5, 4):
        with Tracker(tmp_path, total_steps=10, trackers={"mlflow": MLflow}, run=run) as tracker:
            tracker.log(step, {"loss": 2.5, "test/ndcg@10": 0.5, "gradient_norm": math.inf})
    names = [name for name, _, _ in mlflow.calls]
    assert names == [
        *("set_experiment", "start_run", "log_params", "log_params", "log_metrics", "end_run"),
        *("set_experiment", "start_run", "log_metrics", "end_run"),
    ]
    starts = [kwargs for name, _, kwargs in mlflow.calls if name == "start_run"]
    assert starts == [{"run_id": None, "run_name": "mine"}, {"run_id": "0f1e", "run_name": None}]
    assert mlflow.calls[2][1][0]["model.d_model"] == "8"
    metrics = [call for call in mlflow.calls if call[0] == "log_metrics"]
    assert metrics[0][1:] == (({"loss": 2.5, "test/ndcg_10": 0.5},), {"step": 5})
    assert KnownIds(tmp_path).get("mlflow") == "0f1e"
    assert isinstance(MLflow(run), RunTracker)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("finished", "FINISHED"), ("interrupted", "KILLED"), ("failed", "FAILED")],
)
def test_how_a_run_ended(mlflow, outcome, status):
    MLflow(TrackedRun(directory="d", name="mine")).close(outcome)
    assert mlflow.calls[-1] == ("end_run", (status,), {})
