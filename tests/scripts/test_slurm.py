"""scripts/slurm/train.sbatch with an srun and an scontrol that write down what they are given."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "slurm" / "train.sbatch"

SRUN = """#!/bin/bash
printf '%s\\n' "$@" > srun
env > environment
exit "$CODE"
"""
SCONTROL = """#!/bin/bash
echo "$@" > scontrol
"""


@pytest.fixture
def job(tmp_path):
    """Runs the job, whose processes end with a code."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    def run(code=0, **environment):
        names = {"PATH": path, "CODE": str(code), "SLURM_JOB_ID": "7"}
        names |= {"SLURM_CPUS_ON_NODE": "96", **environment}
        return subprocess.run(
            ["bash", str(SCRIPT), "a config.py", "--seed", "1"],
            cwd=tmp_path,
            env=names,
            capture_output=True,
            text=True,
        )

    return run


def test_every_node_runs_the_command(job, tmp_path):
    assert job().returncode == 0
    words = (tmp_path / "srun").read_text().splitlines()
    assert words[:2] == ["--cpus-per-task=96", "--kill-on-bad-exit=0"]
    assert words[2:] == [".venv/bin/t5x-lite", "train", "a config.py", "--seed", "1"]
    job(SLURM_NTASKS_PER_NODE="8", T5X_LITE_VENV="/shared/venv")
    words = (tmp_path / "srun").read_text().splitlines()
    assert (words[0], words[2]) == ("--cpus-per-task=12", "/shared/venv/bin/t5x-lite")


@pytest.mark.parametrize(
    ("code", "before", "again"),
    [
        (0, 0, False),
        (2, 0, False),  # bad input
        (130, 0, False),  # Ctrl-C
        (143, 500, True),  # the time is up, however often
        (1, 0, True),
        (1, 19, True),
        (1, 20, False),
        (134, 3, True),  # JAX ends a process that has lost another one
        (137, 20, False),
    ],
)
def test_which_ends_queue_again(job, tmp_path, code, before, again):
    assert job(code, SLURM_RESTART_COUNT=str(before)).returncode == code
    asked = tmp_path / "scontrol"
    assert asked.is_file() == again
    assert not again or asked.read_text() == "requeue 7\n"


def environment_of(tmp_path: Path) -> dict[str, str]:
    lines = (tmp_path / "environment").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.slow
def test_this_jaxlib_knows_every_flag(job, tmp_path):
    job()
    flags = environment_of(tmp_path)["XLA_FLAGS"].split()
    assert len(flags) == len(re.findall(r"^  --xla_", SCRIPT.read_text(), re.MULTILINE)) == 7

    def started(*more):
        program = "import jax; jax.devices()"
        given = {"XLA_FLAGS": " ".join([*flags, *more]), "JAX_PLATFORMS": "cpu"}
        return subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **given}, capture_output=True
        )

    done = started()
    assert done.returncode == 0, done.stderr.decode()
    unknown = started("--xla_gpu_that_is_not_there=true")
    assert unknown.returncode != 0
    assert b"Unknown flag in XLA_FLAGS" in unknown.stderr


def test_what_the_user_sets_comes_last(job, tmp_path):
    flag = "--xla_gpu_enable_latency_hiding_scheduler=false"
    job(XLA_FLAGS=flag, XLA_PYTHON_CLIENT_MEM_FRACTION="0.8")
    environment = environment_of(tmp_path)
    assert environment["XLA_FLAGS"].endswith(f" {flag}")
    assert environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.8"
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    job(BLACKWELL="1")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in environment_of(tmp_path)


def test_slurm_is_asked_for_a_notice_and_for_a_second_try():
    asked = re.findall(r"^#SBATCH (.*)$", SCRIPT.read_text(), re.MULTILINE)
    assert {"--signal=TERM@300", "--requeue", "--open-mode=append"} <= set(asked)
