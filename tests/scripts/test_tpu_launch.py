"""scripts/tpu/launch.sh with a gcloud that runs a worker's command on this machine."""

import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "tpu" / "launch.sh"

GCLOUD = """#!/bin/bash
echo "$@" >> "$WORKER_HOME/calls"
for argument in "$@"; do
  case "$argument" in --command=*) cd "$WORKER_HOME"; exec bash -c "${argument#--command=}" ;; esac
done
"""

TRAINING = """#!/bin/bash
trap 'echo saved; exit 143' TERM
printf '<%s>' "$@"
while true; do sleep 0.05; done
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Runs the script; the worker's home is tmp_path / "worker"."""
    home = tmp_path / "worker"
    for path, text in (("bin/gcloud", GCLOUD), ("worker/t5x_lite-venv/bin/t5x-lite", TRAINING)):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    (home / "t5x_lite").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("WORKER_HOME", str(home))

    def run(*arguments, **environment):
        return subprocess.run(
            [str(SCRIPT), *arguments],
            env={**os.environ, "TPU": "slice", "ZONE": "zone", **environment},
            capture_output=True,
            text=True,
        )

    yield run
    run("stop")


def test_a_run_starts_once_and_is_stopped_by_a_signal(launch, tmp_path):
    log = tmp_path / "worker" / "t5x_lite-train.log"
    assert "no run" in launch("status").stdout
    started = launch("train", "a config.py", "--workdir", "gs://b/x y")
    assert started.returncode == 0, started.stderr
    again = launch("train", "b.py")
    assert again.returncode == 1
    assert again.stderr == "a run goes on already: stop it first\n"
    assert "a run goes on" in launch("status").stdout
    assert launch("stop").returncode == 0
    for _ in range(100):
        if "saved" in log.read_text():
            break
        time.sleep(0.05)
    assert log.read_text() == "<train><a config.py><--workdir><gs://b/x y>saved\n"
    calls = (tmp_path / "worker" / "calls").read_text()
    assert calls.startswith("compute tpus tpu-vm ssh slice --zone=zone --worker=all --command=")


def test_what_would_be_run(launch, tmp_path):
    shown = launch("stop", DRY_RUN="1", PROJECT="mine").stdout
    head = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "slice", "--zone=zone", "--project=mine"]
    assert shlex.split(shown)[: len(head)] == head
    assert not (tmp_path / "worker" / "calls").exists()


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        ([], {}, 2, "TPU=NAME ZONE=us-west4-a scripts/tpu/launch.sh setup"),
        (["train"], {}, 2, "launch.sh setup"),
        (["fly"], {}, 2, "launch.sh setup"),
        (["stop"], {"ZONE": ""}, 1, "set ZONE to the zone of the slice"),
    ],
)
def test_wrong_usage(launch, arguments, environment, code, message):
    done = launch(*arguments, **environment)
    assert (done.returncode, message in done.stderr) == (code, True)
