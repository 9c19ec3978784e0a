"""A run that is stopped and goes on is, bit for bit, the run that was never stopped."""

import dataclasses
import json
import os
import shutil
import signal
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
from t5x_lite.train.training import train

ROOT = Path(__file__).resolve().parents[2]


def losses(workdir):
    """{step: loss}; a step that was repeated must have had the same loss."""
    found = {}
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            loss = (record["loss"], record["gradient_norm"], record["token_accuracy"])
            assert found.setdefault(record["step"], loss) == loss
    return found


def assert_equal_states(workdir, other, *, step):
    """Parameters, step and optimizer of two checkpoints, by their bytes."""
    for item in ("params", "optimizer"):
        handler = ocp.StandardCheckpointHandler()
        leaves = [
            jax.tree.leaves(
                handler.restore(epath.Path(directory.resolve()) / "checkpoints" / str(step) / item)
            )
            for directory in (workdir, other)
        ]
        assert len(leaves[0]) == len(leaves[1]) > 0
        for left, right in zip(*leaves, strict=True):
            assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


def command(directory, *options):
    return [
        sys.executable,
        "-m",
        "t5x_lite",
        "train",
        "tiny.json",
        "--workdir",
        str(directory),
        *options,
    ]


def environment(compile_once):
    return {**os.environ, **compile_once, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


@pytest.mark.slow
def test_five_steps_and_five_are_ten(tiny_run, tiny_experiment, tmp_path):
    assert tiny_experiment.data.shuffle
    assert tiny_experiment.data.pack
    assert tiny_experiment.model.dropout_rate > 0
    workdir = tmp_path / "run"
    for steps in (5, 10):
        train(dataclasses.replace(tiny_experiment, workdir=str(workdir), steps=steps))
    assert losses(workdir) == losses(tiny_run)
    assert list(losses(workdir)) == list(range(1, 11))
    assert_equal_states(workdir, tiny_run, step=5)
    assert_equal_states(workdir, tiny_run, step=10)


def wait_for_steps(process, workdir, *, steps):
    """Waits until the run has logged so many steps."""
    path = workdir / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not path.exists() or path.read_text().count("\n") < steps:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def here(monkeypatch, tmp_path, tiny_experiment):
    """A directory with tiny.json, which logs every step."""
    monkeypatch.chdir(tmp_path)
    evaluation = dataclasses.replace(tiny_experiment.evaluation, period=100_000)
    config.save(dataclasses.replace(tiny_experiment, evaluation=evaluation), "tiny.json")
    return tmp_path


@pytest.mark.slow
def test_signals_save_and_the_next_run_goes_on(here, compile_once):
    workdir = here / "run"
    last = 0
    for signum, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        with subprocess.Popen(
            command(workdir, "--steps", "100000", "--checkpoints.period", "100000"),
            env=environment(compile_once),
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            wait_for_steps(process, workdir, steps=last + 5)
            process.send_signal(signum)
            message = process.stderr.read().splitlines()[-1]
            assert process.wait() == code
        steps = sorted(losses(workdir))
        assert steps == list(range(1, steps[-1] + 1))
        assert message == f"stopped by signal {int(signum)} after saving step {steps[-1]}"
        assert (workdir / "checkpoints" / str(steps[-1])).is_dir()
        assert steps[-1] > last
        last = steps[-1]
    for directory in ("run", "uninterrupted"):
        experiment = config.load("tiny.json", ["--steps", str(last + 5), "--workdir", directory])
        train(experiment)
    assert losses(workdir) == losses(here / "uninterrupted")
    assert_equal_states(workdir, here / "uninterrupted", step=last + 5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_eight_devices_go_on_where_one_stopped(here, tiny_run, compile_once):
    """The mesh may change; then the numbers are the same but for rounding."""
    shutil.copytree(tiny_run, here / "run")
    shutil.copytree(tiny_run, here / "one")
    program = (
        "import sys; from t5x_lite.cli import main\n"
        "for line in sys.argv[1:]: assert main(line.split()) == 0\n"
    )
    lines = [
        "train tiny.json --workdir run --steps 13 --mesh.fsdp 2 --mesh.tensor 2",
        "evaluate tiny.json --checkpoint run --step 10 --mesh.fsdp 2 --mesh.tensor 2",
    ]
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", program, *lines],
        env=environment(compile_once) | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    train(config.load("tiny.json", ["--workdir", "one", "--steps", "13"]))
    many, one = losses(here / "run"), losses(here / "one")
    assert list(many) == list(range(1, 14))
    np.testing.assert_allclose(list(many.values()), list(one.values()), rtol=1e-4)
    measured = json.loads(done.stdout)
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    [trained] = [line for line in lines if "validation/loss" in line]
    assert measured["validation/loss"] == pytest.approx(trained["validation/loss"], rel=1e-5)
