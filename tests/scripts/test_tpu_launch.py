"""scripts/tpu/launch.sh with a gcloud that runs a worker's command on this machine."""

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

TPU = Path(__file__).resolve().parents[2] / "scripts" / "tpu"

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
    (home / "t5x_lite" / "scripts" / "tpu").mkdir(parents=True)
    shutil.copy(TPU / "worker.sh", home / "t5x_lite" / "scripts" / "tpu")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("WORKER_HOME", str(home))

    def run(*arguments, **environment):
        return subprocess.run(
            [str(TPU / "launch.sh"), *arguments],
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


WORKER = "bash t5x_lite/scripts/tpu/worker.sh"
ONE = ["--zone=zone", "--worker=all"]
QUEUED = ["--zone=zone", "--node=all", "--worker=all"]


def shown(launch, *arguments, **environment):
    """The words of each line that DRY_RUN=1 prints."""
    done = launch(*arguments, DRY_RUN="1", **environment)
    assert done.returncode == 0, done.stderr
    words = [shlex.split(line) for line in done.stdout.splitlines()]
    assert all(line[:3] == ["gcloud", "compute", "tpus"] for line in words)
    return [line[3:] for line in words]


def test_what_would_be_run(launch, tmp_path):
    shown_by_stop = launch("stop", DRY_RUN="1", PROJECT="mine").stdout
    head = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "slice", "--zone=zone", "--project=mine"]
    assert shlex.split(shown_by_stop)[: len(head)] == head
    assert not (tmp_path / "worker" / "calls").exists()


@pytest.mark.parametrize(
    ("environment", "kind", "where"),
    [
        ({}, ["tpu-vm", "slice"], ONE),
        ({"QR": "queue"}, ["queued-resources", "queue"], QUEUED),
    ],
)
def test_setup_copies_and_installs(launch, environment, kind, where):
    environment |= {"EXTRAS": "tpu,data", "PYTHON": "/a b/python3.12"}
    copied, installed = shown(launch, "setup", **environment)
    assert copied[:2] == [kind[0], "scp"]
    assert copied[3:] == [f"{kind[1]}:t5x_lite.tar.gz", *where]
    assert installed[:-1] == [kind[0], "ssh", kind[1], *where]
    assert installed[-1] == (
        "--command=rm -rf t5x_lite.new && mkdir t5x_lite.new"
        " && tar -xzf t5x_lite.tar.gz -C t5x_lite.new"
        r" && PYTHON=/a\ b/python3.12 bash t5x_lite.new/scripts/tpu/worker.sh setup tpu,data"
    )


def test_train_of_a_slice(launch):
    (words,) = shown(launch, "train", "a.py", "--workdir", "gs://b/x y")
    command = rf"--command=RESTART_WAIT=120 {WORKER} train 0 a.py --workdir gs://b/x\ y "
    assert words == ["tpu-vm", "ssh", "slice", *ONE, command]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--restarts", "20", "a.py", "--seed", "1"),
        ("--restarts=20", "a.py", "--seed", "1"),
        ("a.py", "--seed", "1", "--restarts", "20"),
    ],
)
def test_restarts(launch, arguments):
    (words,) = shown(launch, "train", *arguments, RESTART_WAIT="400")
    assert words[-1] == f"--command=RESTART_WAIT=400 {WORKER} train 20 a.py --seed 1 "


def test_one_queued_slice(launch):
    environment = {"QR": "queue", "PROJECT": "mine"}
    (made,) = shown(launch, "create", "--spot", ACCELERATOR="v6e-16", **environment)
    where = ["--zone=zone", "--project=mine"]
    assert made == [
        *("queued-resources", "create", "queue", *where),
        *("--accelerator-type=v6e-16", "--runtime-version=v2-alpha-tpuv6e"),
        *("--node-id=queue", "--spot"),
    ]
    (asked,) = shown(launch, "describe", **environment)
    assert asked == ["queued-resources", "describe", "queue", *where, "--format=value(state.state)"]


@pytest.mark.parametrize(
    ("accelerator", "runtime"),
    [
        ("v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-128", "v2-alpha-tpuv5"),
        ("v4-32", "tpu-ubuntu2204-base"),
    ],
)
def test_two_slices(launch, accelerator, runtime):
    (made,) = shown(launch, "create", QR="queue", SLICES="2", ACCELERATOR=accelerator)
    assert made[4:] == [
        *(f"--accelerator-type={accelerator}", f"--runtime-version={runtime}"),
        *("--node-count=2", "--node-prefix=queue"),
    ]
    (trained,) = shown(launch, "train", "a.py", "--mesh.replica", "2", QR="queue")
    assert trained[:-1] == ["queued-resources", "ssh", "queue", *QUEUED]
    assert trained[-1].endswith(" train 0 a.py --mesh.replica 2 ")
    (stopped,) = shown(launch, "stop", QR="queue")
    assert stopped[3:] == [*QUEUED, f"--command={WORKER} stop"]
    state, asked = shown(launch, "status", QR="queue")
    assert state[1] == "describe"
    assert asked[3:] == [*QUEUED, f"--command={WORKER} status"]
    (logs,) = shown(launch, "logs", QR="queue", NODE="1", WORKER="3")
    assert logs[3:6] == ["--zone=zone", "--node=1", "--worker=3"]


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "message"),
    [
        ([], {}, 2, "export TPU=NAME ZONE=us-west4-a"),
        (["train"], {}, 2, "launch.sh setup"),
        (["train", "--restarts", "20"], {}, 2, "launch.sh setup"),
        (["train", "a.py", "--restarts"], {}, 2, "launch.sh setup"),
        (["train", "--restarts", "many", "a.py"], {}, 2, "launch.sh setup"),
        (["fly"], {}, 2, "launch.sh setup"),
        (["stop"], {"ZONE": ""}, 1, "set ZONE to the zone of the slice"),
        (["stop"], {"TPU": ""}, 1, "set TPU to the name of the slice, or QR"),
        (["create"], {}, 2, "set QR to the name of one"),
        (["describe"], {}, 2, "set QR to the name of one"),
        (["create"], {"QR": "queue"}, 1, "set ACCELERATOR to the type of a slice"),
    ],
)
def test_wrong_usage(launch, arguments, environment, code, message):
    done = launch(*arguments, **environment)
    assert (done.returncode, message in done.stderr) == (code, True)
