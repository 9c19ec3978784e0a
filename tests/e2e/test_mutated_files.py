"""Damaged files of every kind that is read: a typed error, or contents; in time and in memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import module_files
from tests.e2e.fuzz_readers import READERS

ROOT = Path(__file__).resolve().parents[2]
SLOW = ("t5x", "orbax", "encoder config.json", "checkpoint", *module_files.READERS)
"""Readers of which a file takes a tenth of a second."""


def fuzz(count: int, *names: str, seed: int = 0) -> list[dict[str, Any]]:
    """What a process says of its readers: in this one, types are checked at every call."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.fuzz_readers", str(count), str(seed), *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]  # a signal, where C++ gave up
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: list[dict[str, Any]], count: int) -> None:
    for one in found:
        assert one["failures"] == [], "\n".join(one["failures"][:5])
        assert one["read"] + one["refused"] == count
        print(one["reader"], one["read"], "read", one["refused"], "refused")


@pytest.mark.slow
def test_some_damaged_files_of_every_kind():
    names = [name for name in READERS if name not in SLOW]
    check(fuzz(5, *names), 5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_some_damaged_files_of_slow_kinds():
    check(fuzz(20, *SLOW), 20)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", READERS)
def test_five_hundred_damaged_files(name):
    check(fuzz(500, name, seed=1), 500)
