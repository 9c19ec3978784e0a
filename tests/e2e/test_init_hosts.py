"""--init in two processes that share the parameters: of shared layers, and of a frozen base."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from t5x_lite import config
from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.init import Init
from t5x_lite.inference.loading import Loaded
from tests.e2e.processes import free_port

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

ROOT = Path(__file__).resolve().parents[2]


def first_loss(directory, experiment, compiled, *, count=1, steps=1):
    """The loss of the first step, of a run in so many processes."""
    config.save(experiment, directory.with_suffix(".json"))
    hosts = ["--hosts.coordinator", f"127.0.0.1:{free_port()}", "--hosts.num-processes", str(count)]
    hosts += ["--mesh.data", "1", "--mesh.fsdp", str(count)]
    line = [sys.executable, "-m", "t5x_lite", "train", str(directory.with_suffix(".json"))]
    processes = [
        subprocess.Popen(
            [
                *line,
                *("--workdir", str(directory), "--steps", str(steps)),
                *([*hosts, "--hosts.process-id", str(i)] if count > 1 else []),
            ],
            env={**os.environ, **compiled, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    told = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, told[0][-2000:]
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return next(row["loss"] for row in map(json.loads, lines) if "loss" in row)


@pytest.fixture
def plain(tiny_experiment):
    """A run without dropout that measures nothing."""
    model = tiny_experiment.model.replace(dropout_rate=0.0)
    evaluation = dataclasses.replace(tiny_experiment.evaluation, loss=False, task_metrics=False)
    return dataclasses.replace(tiny_experiment, model=model, evaluation=evaluation)


@pytest.mark.exhaustive
def test_two_processes_begin_from_shared_layers_as_shared_and_as_plain(
    plain, tmp_path, compile_once
):
    shared = dataclasses.replace(plain, model=plain.model.replace(share_layers=True))
    first_loss(tmp_path / "shared", shared, compile_once)
    init = Init(checkpoint=str(tmp_path / "shared"))
    found = [
        first_loss(
            tmp_path / name, dataclasses.replace(kind, init=init, seed=1), compile_once, count=2
        )
        for name, kind in (("as_shared", shared), ("as_plain", plain))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.exhaustive
def test_two_processes_leave_a_frozen_base_to_its_checkpoint(
    plain, tiny_run, tmp_path, compile_once
):
    init = Init(checkpoint=str(tiny_run))
    part = dataclasses.replace(plain, init=init, adapters=Adapters(add=("lora = lora(r=2)",)))
    for steps in (1, 2):  # the second time each process reads the base and compares its part
        first_loss(tmp_path / "part", part, compile_once, count=2, steps=steps)
    paths = items.saved_leaves(tmp_path / "part" / "checkpoints" / "2" / "params")
    assert {path.split("/")[0] for path in paths} == {"adapters"}
    ours, base = (
        Loaded.from_checkpoint(str(run), step=None) for run in (tmp_path / "part", tiny_run)
    )
    assert ours.step == 2
    jax.tree.map(np.testing.assert_array_equal, ours.params["model"], base.params["model"])
