"""Checkpoints of several real processes: each verifies its part, and any number goes on."""

import json
import os
import sys
from pathlib import Path

import pytest

from t5x_lite.checkpoints.items import find_damage
from t5x_lite.checkpoints.reading import saved_steps
from tests.e2e.processes import finish, free_port, start
from tests.tiny_checkpoint import flip

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "e2e" / "hosts_checkpoint.py"
FILES = {"config.json": "{}", "data/process_0": "here 0", "data/process_1": "here 1"}


def run(job, workdir, *, processes, devices):
    """Runs the program in so many processes of so many devices; gives what each of them told."""
    port = str(free_port())
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    commands = [
        [sys.executable, PROGRAM, job, workdir, port, str(processes), str(index)]
        for index in range(processes)
    ]
    told = finish(start(commands, XLA_FLAGS=flags))
    assert [code for code, _, _ in told] == [0] * processes, told
    return [json.loads(output.splitlines()[-1]) for _, output, _ in told]  # after Gloo's own lines


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_save_and_two_or_one_go_on(tmp_path):
    run("save", tmp_path, processes=2, devices=4)
    steps = tmp_path / "checkpoints"
    assert saved_steps(steps) == [3, 6]
    second = json.loads((steps / "6" / "manifest.process_1.json").read_text())
    first = json.loads((steps / "6" / "manifest.json").read_text())
    assert first["processes"] == second["processes"] == 2
    assert "files/data/process_1" in second["files"]
    assert any(name.startswith("params/ocdbt.process_1/") for name in second["files"])
    assert not set(first["files"]) & set(second["files"])
    assert find_damage(steps / "6") is None
    # As many processes on as many devices, fewer processes, and one device.
    for processes, devices in ((2, 4), (1, 8), (1, 1)):
        for told in run("restore", tmp_path, processes=processes, devices=devices):
            assert told == {
                "step": 6,
                "rejected": [],
                "aside": [],
                "files": FILES,
                "saved_step": 3,
                "devices": processes * devices,
            }
    # What one process finds, both know.
    flip(steps / "6" / "files" / "data" / "process_1")
    for told in run("restore", tmp_path, processes=2, devices=1):
        assert told["step"] == 3
        assert told["rejected"] == ["files/data/process_1: its SHA-256 differs"]
        assert told["aside"][0].endswith("and is now 6.damaged")
    assert sorted(path.name for path in steps.iterdir()) == ["3", "6.damaged"]
