"""A run with a step that hangs ends by itself, and the same command goes on from its checkpoint."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite import config
from t5x_lite.config import Checkpoints, Evaluation

ROOT = Path(__file__).resolve().parents[2]

# `t5x-lite train`, whose step $HANG never returns.
PROGRAM = """
import os, sys, threading
from t5x_lite.cli import main
from t5x_lite.train import training

make_train_step = training.make_train_step

def make_hanging(*args, **kwargs):
    take_step = make_train_step(*args, **kwargs)

    def collective_that_waits(state, batch):
        if int(state.step) + 1 == int(os.environ["HANG"]):
            threading.Event().wait()
        return take_step(state, batch)

    return collective_that_waits

training.make_train_step = make_hanging
sys.exit(main(sys.argv[1:]))
"""


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_hung_step_ends_the_run_and_a_restart_resumes_it(
    tmp_path, tiny_experiment, tiny_run, compile_once
):
    experiment = dataclasses.replace(
        tiny_experiment,
        checkpoints=Checkpoints(period=5),
        evaluation=Evaluation(period=10, max_batches=1, task_metrics=False),
    )
    config.save(experiment, tmp_path / "tiny.json")
    workdir = tmp_path / "run"
    command = [sys.executable, "-c", PROGRAM, "train", str(tmp_path / "tiny.json")]
    command += ["--workdir", str(workdir), "--hosts.watchdog", "2"]

    def run(hang):
        environment = {**os.environ, **compile_once, "PYTHONPATH": str(ROOT), "HANG": str(hang)}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    done = run(hang=8)
    assert done.returncode == 1, done.stderr
    assert "in collective_that_waits" in done.stderr
    assert "no step has ended for" in done.stderr.splitlines()[-1]
    assert "after step 7 (--hosts.watchdog)" in done.stderr.splitlines()[-1]
    assert "in collective_that_waits" in (workdir / "stacks" / "process_0.txt").read_text()
    assert [line["step"] for line in lines(workdir)] == list(range(1, 8))

    done = run(hang=0)
    assert done.returncode == 0, done.stderr
    assert "resuming from step 5" in done.stderr
    steps = [line for line in lines(workdir) if "loss" in line]
    assert [line["step"] for line in steps] == [*range(1, 8), *range(6, 11)]
    assert steps[-1]["lost_to_restart"] > 0
    assert steps[-1]["run_seconds"] > steps[6]["run_seconds"]
    alone = [line["loss"] for line in lines(tiny_run) if "loss" in line]
    assert [line["loss"] for line in steps[-5:]] == alone[-5:]
