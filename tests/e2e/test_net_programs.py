"""A train step costs what it did when its figures were recorded (scripts/net_programs.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import net_programs

ROOT = Path(__file__).resolve().parents[2]
RECORDS = json.loads(net_programs.PROGRAMS.read_text())
MORE = 1.01
"""A figure may grow by a hundredth."""


def printed(*asked: str) -> dict:
    """The figures of today, compiled with the options that users get."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "scripts/net_programs.py", "print", *asked],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {k: v for line in done.stdout.splitlines() for k, v in json.loads(line).items()}


def check(found: dict) -> None:
    for name, figures in found.items():
        record = RECORDS[name]
        assert figures.keys() == record.keys()
        assert figures.pop("kernel_calls", 0) == record.get("kernel_calls", 0), name
        grown = {key: (record[key], value) for key, value in figures.items()
                 if value > MORE * record[key]}  # fmt: skip
        assert grown == {}, name


def test_there_is_a_record_of_every_step_on_a_cpu():
    assert {name for name in net_programs.names() if name.startswith(net_programs.CPU)} == {
        name for name in RECORDS if name.startswith(net_programs.CPU)
    }


@pytest.mark.slow
def test_some_steps_of_the_net():
    found = printed("run/bert", "run/t5_live")
    assert len(found) == 2
    check(found)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("asked", [f"{net_programs.CPU} run/", f"{net_programs.CPU} configs/"])
def test_all_steps(asked):
    check(printed(asked))
