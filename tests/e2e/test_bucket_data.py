"""A run whose cache and vocabulary are in a bucket, killed and resumed, is the local run."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t5x_lite import config
from t5x_lite.commands.texts import cache
from tests.config_files import saved

ROOT = Path(__file__).resolve().parents[2]
STEPS = 60

# `t5x-lite train`, for which gs:// is a directory; what was asked of it is told at the end.
PROGRAM = """
import json, sys
from tests import fake_store
fake_store.use()
from t5x_lite.core import object_store
object_store.PATIENCE = object_store.Patience(answer=5.0, first=0.01, longest=0.1, total=1.0)
if "--away" in sys.argv:
    sys.argv.remove("--away")
    fake_store.trouble.always = OSError("503")
else:
    fake_store.trouble.errors = [OSError("502"), OSError("502")]
from t5x_lite.cli import main
code = main(sys.argv[1:])
print(json.dumps(dict(fake_store.counts)))
sys.exit(code)
"""


def losses(workdir):
    """{step: loss}; a step that is repeated after a restart must give it again."""
    found = {}
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            assert found.setdefault(record["step"], record["loss"]) == record["loss"]
    return found


@pytest.fixture
def start(tiny_experiment, compile_once, tmp_path):
    """A function that starts a run of a config: its name, and options."""
    cache(saved(tiny_experiment, tmp_path), output=str(tmp_path / "cache"))
    bucket = tmp_path / "store" / "bucket"
    shutil.copytree(tmp_path / "cache", bucket / "cache")
    places = {"here": tmp_path / "cache", "there": "gs://bucket/cache"}
    for name, place in places.items():
        data = dataclasses.replace(
            tiny_experiment.data,
            task="",
            directory="",
            cache=str(place),
            vocabulary=f"{place}/vocabulary",
        )
        changed = dataclasses.replace(tiny_experiment, data=data, steps=STEPS)
        config.save(changed, tmp_path / f"{name}.json")
    environment = {
        **os.environ,
        **compile_once,
        "PYTHONPATH": str(ROOT),
        "FAKE_STORE": str(tmp_path / "store"),
        "EPATH_USE_TF": "0",
    }

    def run(name, *options):
        line = [sys.executable, "-c", PROGRAM, "train", f"{name}.json", "--workdir", name, *options]
        return subprocess.Popen(
            line,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_cache_in_a_bucket_trains_as_the_local_one(start, tmp_path):
    local = start("here")
    told = local.communicate(timeout=300)
    assert local.returncode == 0, told
    killed = start("there")
    metrics = tmp_path / "there" / "metrics.jsonl"
    while killed.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 20):
        time.sleep(0.02)
    killed.kill()
    told = killed.communicate()
    assert killed.returncode == -9, told
    again = start("there")
    output, error = again.communicate(timeout=300)
    assert again.returncode == 0, error
    assert "retrying in" in error
    assert losses(tmp_path / "there") == losses(tmp_path / "here")
    assert len(losses(tmp_path / "here")) == STEPS
    counts = json.loads(output.splitlines()[-1])
    assert counts["list"] <= 10  # at the start, and at each evaluation
    assert counts["range"] < 100
    away = start("there", "--steps", str(STEPS + 1), "--away")
    _, error = away.communicate(timeout=300)
    assert away.returncode == 1
    last = error.strip().splitlines()[-1]
    assert last.startswith("error: BucketError: gs://bucket/cache/vocabulary")
    assert "cannot be read for 1 seconds (OSError: 503); check the network" in last
