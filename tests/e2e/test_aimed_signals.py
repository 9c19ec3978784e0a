"""SIGTERM in the middle of an evaluation, and of a save: saved soon, and gone on with exactly."""

import dataclasses
import json
import os
import signal
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.errors import Interrupted
from t5x_lite.evaluate.results import LossEvaluator
from t5x_lite.train import loop
from t5x_lite.train.training import train

pytestmark = pytest.mark.slow


def aim_at_evaluation(monkeypatch, *, number):
    """A signal while a batch of an evaluation is read; gives the numbers of those that were."""
    read, run = [], LossEvaluator.run

    def interrupted(self, params):
        batches = self._batches

        def signalling():
            for index, batch in enumerate(batches()):
                read.append(index)
                if len(read) == number:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

        self._batches = signalling
        try:
            return run(self, params)
        finally:
            self._batches = batches

    monkeypatch.setattr(LossEvaluator, "run", interrupted)
    return read


def aim_at_save(monkeypatch):
    write = checkpoint_manifest.write

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        write(*args, **kwargs)

    monkeypatch.setattr(checkpoint_manifest, "write", interrupted)


def aim_at_step(monkeypatch, number):
    """A signal while a step runs, whose tokens are counted."""
    counted, count = [], loop.count_tokens

    def interrupted(batch):
        counted.append(None)
        if len(counted) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return count(batch)

    monkeypatch.setattr(loop, "count_tokens", interrupted)


def metrics(workdir):
    """[(step, name, value)] of the losses, the gradients and the evaluations."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return sorted(
        (line["step"], name, value)
        for line in lines
        for name, value in line.items()
        if name in ("loss", "gradient_norm") or "/" in name
    )


def leaves(step):
    handler = ocp.StandardCheckpointHandler()
    trees = [handler.restore(step / item) for item in ("params", "optimizer")]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trees)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, tiny_experiment, compile_once):
    """The experiment of a run that was left alone, in its work directory."""
    experiment = dataclasses.replace(
        tiny_experiment,
        steps=8,
        checkpoints=Checkpoints(period=4, keep=1, best="validation/loss", best_mode="min"),
        evaluation=Evaluation(period=4, max_batches=3, task_metrics=False),
    )
    workdir = tmp_path_factory.mktemp("aimed") / "alone"
    experiment = dataclasses.replace(experiment, workdir=str(workdir))
    train(experiment)
    return experiment


@pytest.mark.gate("save")
@pytest.mark.parametrize("aim", ["step", "evaluation", "last evaluation", "save"])
def test_a_signal_inside(aim, alone, tmp_path, monkeypatch):
    aimed = dataclasses.replace(alone, workdir=str(tmp_path / "aimed"))
    whole = Path(alone.workdir)
    with monkeypatch.context() as patch:
        if aim == "save":
            aim_at_save(patch)
        elif aim == "step":
            aim_at_step(patch, 6)
        else:
            read = aim_at_evaluation(patch, number=2 if aim == "evaluation" else 5)
        with pytest.raises(Interrupted) as stopped:
            train(aimed)
    checkpoints = tmp_path / "aimed" / "checkpoints"
    manifest = json.loads((checkpoints / str(stopped.value.step) / "manifest.json").read_text())
    assert manifest["hurried"]
    assert not any("sha256" in saved for saved in manifest["files"].values())
    if aim == "step":
        assert stopped.value.step == 6
    elif aim != "save":
        step = 4 if aim == "evaluation" else 8
        assert stopped.value.step == step
        assert read == ([0, 1] if step == 4 else [0, 1, 2, 0, 1])
        assert not (checkpoints / str(step) / "files" / "metrics.json").exists()
    train(aimed)
    assert metrics(tmp_path / "aimed") == metrics(whole)
    kept = sorted(path.name for path in checkpoints.iterdir())
    assert kept == sorted(path.name for path in (whole / "checkpoints").iterdir())
    for name in kept:
        step = whole / "checkpoints" / name
        assert leaves(checkpoints / name) == leaves(step)
        saved = checkpoints / name / "files" / "metrics.json"
        assert json.loads(saved.read_text()) == json.loads(
            (step / "files" / "metrics.json").read_text()
        )
        assert checkpoint_manifest.find_damage(checkpoints / name) is None
