"""Training from a cache in an environment of the base dependencies, without TensorFlow or seqio."""

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

ROOT = Path(__file__).resolve().parents[2]

LACKING = """
import importlib.util, sys
found = [name for name in ("tensorflow", "seqio", "torch") if importlib.util.find_spec(name)]
sys.exit(f"found {found}" if found else 0)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_cache_is_all_that_training_needs(tiny_experiment, tmp_path):
    cache(saved(tiny_experiment, tmp_path), output=str(tmp_path / "cache"))
    data = dataclasses.replace(
        tiny_experiment.data, task="", directory="", cache=str(tmp_path / "cache")
    )
    config.save(dataclasses.replace(tiny_experiment, data=data), tmp_path / "tiny.json")
    environment = tmp_path / "base"
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    packages = ["-c", str(ROOT / "constraints.txt"), "-e", str(ROOT)]
    subprocess.run([python, "-m", "pip", "install", "-qq", "--no-compile", *packages], check=True)
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = {"cwd": tmp_path, "env": plain, "capture_output": True, "text": True}
    lacking = subprocess.run([python, "-c", LACKING], **run)
    assert lacking.returncode == 0, lacking.stderr
    done = subprocess.run([python, "-m", "t5x_lite", "train", "tiny.json", "--workdir", "w"], **run)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "w/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if "loss" in r] == list(range(1, 11))
    assert "validation/loss" in records[-1]
