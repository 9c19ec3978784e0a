"""--init from a T5 with shared layers, in two processes that share the parameters."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite import config
from t5x_lite.checkpoints.init import Init

pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

ROOT = Path(__file__).resolve().parents[2]


def first_loss(directory, experiment, *, count=1):
    """The loss of the first step, of a run in so many processes."""
    config.save(experiment, directory.with_suffix(".json"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    hosts = ["--hosts.coordinator", f"127.0.0.1:{port}", "--hosts.num-processes", str(count)]
    hosts += ["--mesh.data", "1", "--mesh.fsdp", str(count)]
    line = [sys.executable, "-m", "t5x_lite", "train", str(directory.with_suffix(".json"))]
    processes = [
        subprocess.Popen(
            [
                *line,
                *("--workdir", str(directory), "--steps", "1"),
                *([*hosts, "--hosts.process-id", str(i)] if count > 1 else []),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    told = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, told[0][-2000:]
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return next(row["loss"] for row in map(json.loads, lines) if "loss" in row)


def test_two_processes_begin_from_shared_layers_as_shared_and_as_plain(tiny_experiment, tmp_path):
    model = tiny_experiment.model.replace(dropout_rate=0.0)
    evaluation = dataclasses.replace(tiny_experiment.evaluation, loss=False, task_metrics=False)
    plain = dataclasses.replace(tiny_experiment, model=model, evaluation=evaluation)
    shared = dataclasses.replace(plain, model=model.replace(share_layers=True))
    first_loss(tmp_path / "shared", shared)
    init = Init(checkpoint=str(tmp_path / "shared"))
    found = [
        first_loss(tmp_path / name, dataclasses.replace(kind, init=init, seed=1), count=2)
        for name, kind in (("as_shared", shared), ("as_plain", plain))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
