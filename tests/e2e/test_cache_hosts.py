"""A run from a cache goes on with another number of processes, in the same batches."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite import config
from t5x_lite.commands.texts import cache
from tests.config_files import saved
from tests.e2e.processes import free_port

ROOT = Path(__file__).resolve().parents[2]


def train(tmp_path, environment, *, workdir, steps, processes, own=(), code=0):
    """`t5x-lite train` in so many processes, to the end; returns their standard errors.

    `own` has options of each process.
    """
    line = f"train tiny.json --workdir {workdir} --steps {steps}"
    if processes > 1:
        line += f" --hosts.coordinator 127.0.0.1:{free_port()} --hosts.num-processes {processes}"
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "t5x_lite", *line.split()),
                *(["--hosts.process-id", str(i)] if processes > 1 else []),
                *(own[i] if own else []),
            ],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(processes)
    ]
    told = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [code] * processes, told
    return told


def losses(workdir):
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_begin_and_one_or_four_go_on(tiny_experiment, tmp_path):
    cache(saved(tiny_experiment, tmp_path), output=str(tmp_path / "cache"))
    data = dataclasses.replace(
        tiny_experiment.data, task="", directory="", cache=str(tmp_path / "cache")
    )
    model = tiny_experiment.model.replace(dropout_rate=0.0)
    config.save(
        dataclasses.replace(tiny_experiment, data=data, model=model, steps=12),
        tmp_path / "tiny.json",
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    train(tmp_path, environment, workdir="alone", steps=12, processes=1)
    train(tmp_path, environment, workdir="several", steps=4, processes=2)
    train(tmp_path, environment, workdir="several", steps=8, processes=1)
    train(tmp_path, environment, workdir="several", steps=12, processes=4)
    alone = losses(tmp_path / "alone")
    assert list(alone) == list(range(1, 13))
    assert losses(tmp_path / "several") == pytest.approx(alone, abs=1e-5)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_with_different_settings_both_end_with_one_line(tiny_experiment, tmp_path):
    config.save(tiny_experiment, tmp_path / "tiny.json")
    own = [["--seed", "1"], ["--seed", "2"]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    told = train(tmp_path, environment, workdir="w", steps=2, processes=2, own=own, code=2)
    for number, text in enumerate(told):
        [line] = [line for line in text.splitlines() if line.startswith("error: ")]
        assert (
            f"process {number} of 2: processes 0 and 1 of this run differ in seed (1 and 2)" in line
        )
    assert not (tmp_path / "w").exists()
