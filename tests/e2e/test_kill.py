"""A run that is killed again and again is, bit for bit, the run that was left alone."""

import dataclasses
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from t5x_lite import config
from t5x_lite.config import Checkpoints, Evaluation

ROOT = Path(__file__).resolve().parents[2]
STEPS = 400


def losses(workdir):
    """{step: numbers}; a step that is repeated after a restart must give them again."""
    found = {}
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            numbers = (record["loss"], record["gradient_norm"], record["token_accuracy"])
            assert found.setdefault(record["step"], numbers) == numbers
    return found


def leaves(workdir):
    """The bytes of the last step's parameters and optimizer."""
    handler = ocp.StandardCheckpointHandler()
    step = epath.Path(workdir.resolve()) / "checkpoints" / str(STEPS)
    trees = [handler.restore(step / item) for item in ("params", "optimizer")]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trees)]


def saving(workdir):
    return any("tmp" in path.name for path in (workdir / "checkpoints").glob("*"))


def lines(workdir):
    path = workdir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.slow
def test_killed_three_times(tmp_path, tiny_experiment, compile_once):
    settings = dataclasses.replace(
        tiny_experiment,
        steps=STEPS,
        checkpoints=Checkpoints(period=20, keep=2),
        evaluation=Evaluation(period=STEPS, max_batches=1),
    )
    config.save(settings, tmp_path / "tiny.json")
    environment = {**os.environ, **compile_once, "PYTHONPATH": str(ROOT)}

    def start(workdir):
        return subprocess.Popen(
            [sys.executable, "-m", "t5x_lite", "train", "tiny.json", "--workdir", str(workdir)],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(workdir, when):
        """Kills a run as soon as when() holds; returns the steps that it had logged."""
        with start(workdir) as process:
            deadline = time.monotonic() + 300
            while not when():
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.0005)
            process.kill()
        return max(losses_so_far(workdir))

    def finish(workdir):
        with start(workdir) as process:
            told = process.stderr.read()
        assert process.returncode == 0, told

    alone, killed = tmp_path / "alone", tmp_path / "killed"
    finish(alone)
    moments = sorted(random.sample(range(30, 330), 2))
    first = kill(killed, lambda: lines(killed) >= moments[0])
    before = lines(killed)
    second = kill(killed, lambda: lines(killed) >= before + 10 and saving(killed))
    before = lines(killed)
    third = kill(killed, lambda: lines(killed) >= before + moments[1] - moments[0])
    assert 0 < first < STEPS, moments
    assert 0 < second < STEPS, moments
    assert 0 < third < STEPS, moments
    finish(killed)
    assert losses(killed) == losses(alone), moments
    assert sorted(losses(killed)) == list(range(1, STEPS + 1))
    assert leaves(killed) == leaves(alone), moments
    assert not saving(killed)


def losses_so_far(workdir):
    """The steps that were logged whole, though the last line may be torn."""
    text = (workdir / "metrics.jsonl").read_text()
    return [json.loads(line)["step"] for line in text[: text.rfind("\n") + 1].splitlines()]
