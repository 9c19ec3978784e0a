"""Tests of the tracker of Weights & Biases, against a stub of wandb."""

import sys
import types

import pytest

from t5x_lite.core.tracking import KnownIds, RunTracker, TrackedRun
from t5x_lite.train.track import Tracker, WandB


@pytest.fixture
def wandb(monkeypatch):
    """Remembers calls, as (name, arguments)."""
    calls = []

    class Run:
        def __init__(self, id):
            self.id = id or "abc123"

        def __getattr__(self, name):
            return lambda *args, **kwargs: calls.append((name, args, kwargs))

    def init(**kwargs):
        calls.append(("init", (), kwargs))
        return Run(kwargs["id"])

    stub = types.ModuleType("wandb")
    stub.init, stub.calls = init, calls
    monkeypatch.setitem(sys.modules, "wandb", stub)
    return stub


def test_a_run_and_its_resumption_are_one_run(tmp_path, wandb):
    run = TrackedRun(directory=str(tmp_path), name="mine", project="t5", config={"steps": 10})
    for step in (5, 4):
        with Tracker(tmp_path, total_steps=10, trackers={"wandb": WandB}, run=run) as tracker:
            tracker.log(step, {"loss": 2.5})
    names = [name for name, _, _ in wandb.calls]
    assert names == ["init", "define_metric", "define_metric", "log", "finish"] * 2
    first, second = (kwargs for name, _, kwargs in wandb.calls if name == "init")
    assert first == {
        "project": "t5", "name": "mine", "id": None, "resume": "allow", "dir": str(tmp_path),
        "config": {"steps": 10},
    }  # fmt: skip
    assert second["id"] == "abc123"
    assert KnownIds(tmp_path).get("wandb") == "abc123"
    logged = [args for name, args, _ in wandb.calls if name == "log"]
    assert logged == [({"step": 5, "loss": 2.5},), ({"step": 4, "loss": 2.5},)]
    assert wandb.calls[2][1:] == (("*",), {"step_metric": "step"})
    assert isinstance(WandB(run), RunTracker)


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("interrupted", 0), ("failed", 1)])
def test_how_a_run_ended(wandb, outcome, code):
    WandB(TrackedRun(directory="d", name="mine")).close(outcome)
    assert wandb.calls[-1] == ("finish", (), {"exit_code": code})
