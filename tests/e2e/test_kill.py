"""A run that is killed again and again is, bit for bit, the run that was left alone.

T5X_LITE_KILLS=30 kills each run thirty times.
"""

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
from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints.init import Init
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.optim.partial import Gradual
from t5x_lite.train.training import train
from tests.config_files import saved

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("T5X_LITE_KILLS", "2"))
STEPS = 80 * max(2, KILLS)

# `t5x-lite train`, which writes a digest of each batch that a step is given to $SEEN.
PROGRAM = """
import hashlib, os, sys
from t5x_lite.cli import main
from t5x_lite.train import training

make_train_step = training.make_train_step

def make_recorded(*args, **kwargs):
    take_step = make_train_step(*args, **kwargs)

    def record(state, batch):
        digest = hashlib.sha256()
        for name in sorted(batch):
            digest.update(name.encode() + jax.device_get(batch[name]).tobytes())
        seen.write(f"{int(state.step) + 1} {digest.hexdigest()}\\n")
        return take_step(state, batch)

    return record

import jax
training.make_train_step = make_recorded
with open(os.environ["SEEN"], "a", buffering=1) as seen:
    sys.exit(main(sys.argv[1:]))
"""


def losses(workdir):
    """{step: numbers}; a step that is repeated after a restart must give them again."""
    found = {}
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            numbers = (record["loss"], record["gradient_norm"], record["token_accuracy"])
            assert found.setdefault(record["step"], numbers) == numbers
    return found


def batches(workdir):
    """{step: digest of its batch}; a step that is repeated must be given it again."""
    found = {}
    for line in seen(workdir).read_text().splitlines():
        step, _, digest = line.partition(" ")
        if len(digest) == 64:  # the last line of a killed process may be torn
            assert found.setdefault(int(step), digest) == digest
    return found


def seen(workdir):
    return workdir.with_suffix(".seen")


def leaves(workdir):
    """The bytes of the last step's parameters and optimizer."""
    handler = ocp.StandardCheckpointHandler()
    step = epath.Path(workdir.resolve()) / "checkpoints" / str(STEPS)
    trees = [handler.restore(step / item) for item in ("params", "optimizer")]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trees)]


def saving(workdir):
    """Whether a step is being written, or written and not yet a checkpoint."""
    names = [path.name for path in (workdir / "checkpoints").glob("*")]
    return any("tmp" in name or name.endswith(".incomplete") for name in names)


def lines(workdir):
    path = workdir / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


@pytest.fixture(params=["task", "cache", "modules"])
def experiment(request, tiny_experiment, tmp_path):
    """A run whose data are read on the fly or from a cache, or whose modules unfreeze."""
    data = tiny_experiment.data
    if request.param == "cache":
        from t5x_lite.commands.texts import cache

        cache(saved(tiny_experiment, tmp_path), output=str(tmp_path / "cache"))
        data = dataclasses.replace(data, task="", directory="", cache=str(tmp_path / "cache"))
    run = tiny_experiment if request.param != "modules" else with_modules(tiny_experiment, tmp_path)
    return dataclasses.replace(
        run,
        data=data,
        steps=STEPS,
        checkpoints=Checkpoints(period=20, keep=2),
        evaluation=Evaluation(period=STEPS, max_batches=1, task_metrics=bool(data.task)),
    )


def with_modules(tiny_experiment, directory):
    """LoRA on a base of three layers, the highest first; its other layers follow."""
    model = tiny_experiment.model.replace(num_encoder_layers=3, num_decoder_layers=3)
    base = dataclasses.replace(tiny_experiment, model=model, steps=1)
    train(dataclasses.replace(base, workdir=str(directory / "base")))
    unfreezing = Gradual(total_steps=STEPS)
    return dataclasses.replace(
        base,
        steps=STEPS,
        optimizer=dataclasses.replace(base.optimizer, unfreezing=unfreezing),
        init=Init(checkpoint=str(directory / "base")),
        adapters=Adapters(add=("a = lora(r=2)",)),
    )


@pytest.mark.gate("cache")
@pytest.mark.slow
def test_killed_again_and_again(tmp_path, experiment, compile_once):
    config.save(experiment, tmp_path / "tiny.json")
    random.seed()

    def start(workdir):
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "train", "tiny.json", "--workdir", str(workdir)],
            cwd=tmp_path,
            env={
                **os.environ,
                **compile_once,
                "PYTHONPATH": str(ROOT),
                "SEEN": str(seen(workdir)),
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(workdir, when):
        """Kills a run as soon as when() holds."""
        with start(workdir) as process:
            deadline = time.monotonic() + 300
            while not when():
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.002)
            process.kill()

    def finish(workdir):
        with start(workdir) as process:
            told = process.stderr.read()
        assert process.returncode == 0, told

    alone, killed = tmp_path / "alone", tmp_path / "killed"
    finish(alone)
    told = []
    for number in range(KILLS):
        until = lines(killed) + random.randint(1, STEPS // KILLS - 20)
        in_saving = number % 2 == 1
        told.append((until, in_saving))
        kill(
            killed,
            lambda until=until, in_saving=in_saving: (
                lines(killed) >= until and (saving(killed) or not in_saving)
            ),
        )
    assert lines(killed) >= KILLS, told
    finish(killed)
    assert losses(killed) == losses(alone), told
    assert sorted(losses(killed)) == list(range(1, STEPS + 1))
    assert batches(killed) == batches(alone), told
    assert sorted(batches(killed)) == list(range(1, STEPS + 1))
    assert leaves(killed) == leaves(alone), told
    assert not saving(killed)
