"""scripts/tpu/worker.sh in a home of its own, with stubs of python3, pip, uv and t5x-lite."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, wait_until

WORKER = Path(__file__).resolve().parents[2] / "scripts" / "tpu" / "worker.sh"

TOOLS = ("bash", "cat", "chmod", "dirname", "grep", "hostname", "ln", "mkdir", "mv", "nohup", "rm")
"""What the script needs of a machine, besides Python; with `sleep` and `tail`."""

TRAINING = """#!/bin/bash
# Takes the first word of the file `codes` as its exit code; `wait` waits for SIGTERM.
read -r code rest < ../codes
echo "$rest" > ../codes
echo "$PWD:$*" >> ../runs
if [[ $code == wait ]]; then
  trap 'echo saved; exit 143' TERM
  echo up
  while true; do sleep 0.05; done
fi
[[ $code != kill ]] || kill -ABRT $$
exit $code
"""

PYTHON_310 = """#!/bin/bash
case "$1 $2" in
  "-c "*) exit 1 ;;
  "-m pip") [[ -z "${NO_PIP:-}" ]] || { echo 'No module named pip' >&2; exit 1; }
    echo "pip ${*:3}" >> calls
    mkdir -p t5x_lite-uv/bin
    cp uv t5x_lite-uv/bin/uv ;;
esac
"""

UV = r"""#!/bin/bash
[[ -z "${NO_NETWORK:-}" ]] || { printf 'error: Failed to download\n  cause: dns\n' >&2; exit 2; }
echo "uv $*" >> calls
for last in "$@"; do :; done
mkdir -p "$last/bin"
cp pip "$last/bin/pip"
"""

PIP = r"""#!/bin/bash
echo "pip of the venv in ${PWD##*/}: $*" >> ../calls
"""

GOOD_PYTHON = """#!/bin/bash
[[ "$1 $2" != "-m venv" ]] || { mkdir -p "$3/bin"; cp pip "$3/bin/pip"; echo "venv" >> calls; }
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def worker(tmp_path):
    """Runs the script in tmp_path / "home", with what is in tmp_path / "bin" alone."""
    home, tools = tmp_path / "home", tmp_path / "bin"
    write(home / "t5x_lite" / "scripts" / "tpu" / "worker.sh", WORKER.read_text())
    write(home / "t5x_lite-venv" / "bin" / "t5x-lite", TRAINING)
    tools.mkdir()
    for tool in (*TOOLS, "cp", "sleep", "tail"):
        (tools / tool).symlink_to(shutil.which(tool) or "")

    def run(*arguments, **environment):
        return subprocess.run(
            ["bash", "t5x_lite/scripts/tpu/worker.sh", *arguments],
            cwd=home,
            env={"PATH": str(tools), "HOME": str(home), "RESTART_WAIT": "0.2", **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    yield run
    run("stop")


def ended(worker, home: Path) -> str:
    """Waits for the end of the run; returns its log."""
    log = home / "t5x_lite-train.log"
    wait_until(lambda: "no run" in worker("status").stdout, why=log.read_text)
    return log.read_text()


def until(path: Path, text: str) -> None:
    wait_until(
        lambda: path.is_file() and text in path.read_text(), why=lambda: f"{path} lacks {text!r}"
    )


@pytest.mark.parametrize(
    ("codes", "restarts", "runs", "last"),
    [
        ("1 143 0 2", 5, 3, 0),  # it failed, was preempted, and is done
        ("2 0", 5, 1, 2),  # bad input is not tried again
        ("1 2 0", 5, 2, 2),
        ("130 0", 5, 1, 130),  # Ctrl-C
        ("kill 137 0", 5, 3, 0),  # JAX's SIGABRT, and a want of memory
        ("1 1 1 0", 2, 3, 1),  # often enough
        ("1 0", 0, 1, 1),
        ("143 0", 0, 1, 143),
    ],
)
def test_which_ends_are_restarted(worker, tmp_path, codes, restarts, runs, last):
    home = tmp_path / "home"
    (home / "codes").write_text(f"{codes}\n")
    assert worker("train", str(restarts), "a config.py", "--seed", "1").returncode == 0
    log = ended(worker, home)
    line = f"{home / 't5x_lite'}:train a config.py --seed 1\n"
    assert (home / "runs").read_text() == line * runs
    assert log.count(f" of {restarts} in 0.2 seconds") == runs - 1
    assert f"the last one ended with code {last}" in worker("status").stdout


def test_another_command_has_a_log_of_its_own(worker, tmp_path):
    home = tmp_path / "home"
    (home / "codes").write_text("0 1 2 0\n")
    worker("train", "0", "a.py")
    ended(worker, home)
    (home / "t5x_lite-train.log").write_text("trained\n")
    assert worker("run", "5", "evaluate", "a config.json").returncode == 0
    wait_until(lambda: "the last one" in worker("status").stdout)
    status = worker("status").stdout
    assert "the last one ended with code 2" in status
    runs = (home / "runs").read_text().splitlines()
    assert [run.partition(":")[2] for run in runs] == [
        "train a.py",
        *["evaluate a config.json"] * 2,
    ]
    assert (home / "t5x_lite-train.log").read_text() == "trained\n"
    log = "ended with code 1: restart 1 of 5 in 0.2 seconds\n"
    assert (home / "t5x_lite-run.log").read_text() == (home / "t5x_lite.log").read_text() == log
    assert log in status


def test_the_log_says_why(worker, tmp_path):
    home = tmp_path / "home"
    (home / "codes").write_text("1 143 0\n")
    worker("train", "3", "a.py")
    assert ended(worker, home) == (
        "ended with code 1: restart 1 of 3 in 0.2 seconds\n"
        "ended with code 143: restart 2 of 3 in 0.2 seconds\n"
    )


def test_a_run_that_is_stopped_saves_and_is_not_restarted(worker, tmp_path):
    home = tmp_path / "home"
    (home / "codes").write_text("1 wait 0\n")
    worker("train", "5", "a.py")
    until(home / "t5x_lite-train.log", "up")
    assert worker("stop").returncode == 0
    assert ended(worker, home).endswith("up\nsaved\n")
    assert (home / "codes").read_text() == "0\n"
    assert "the last one ended with code 143" in worker("status").stdout


def test_stop_reaches_a_worker_that_waits(worker, tmp_path):
    """Its process has ended with the others', of which one was told first."""
    home = tmp_path / "home"
    (home / "codes").write_text("143 0\n")
    worker("train", "5", "a.py", RESTART_WAIT="60")
    until(home / "t5x_lite-train.log", "restart 1 of 5 in 60 seconds")
    assert "a run goes on" in worker("status").stdout
    assert worker("train", "5", "b.py").stderr == "a run goes on already: stop it first\n"
    assert "a run goes on: stop it first" in worker("setup", "tpu").stderr
    assert worker("stop").returncode == 0
    ended(worker, home)
    assert (home / "codes").read_text() == "0\n"
    assert "the last one ended with code 143" in worker("status").stdout


def test_the_number_of_another_process_is_no_run(worker, tmp_path):
    (tmp_path / "home" / "t5x_lite-train.pid").write_text(f"{os.getpid()}\n")
    assert "no run" in worker("status").stdout
    assert worker("stop").returncode == 0


def prepared(tmp_path: Path, python3: str) -> Path:
    """The home of a worker that has no environment yet."""
    home = tmp_path / "home"
    shutil.rmtree(home / "t5x_lite-venv")
    for name, text in (("uv", UV), ("pip", PIP)):
        write(home / name, text)
    write(tmp_path / "bin" / "python3", python3)
    return home


INSTALLED = (
    "pip of the venv in t5x_lite: install --quiet --disable-pip-version-check"
    " -e .[tpu,data,zst] gcsfs -c constraints.txt\n"
)


def test_an_old_python_gets_another_one_by_uv(worker, tmp_path):
    home = prepared(tmp_path, PYTHON_310)
    write(home / "t5x_lite.new" / "scripts" / "tpu" / "worker.sh", WORKER.read_text())
    write(home / "t5x_lite.new" / "pyproject.toml", "")
    done = worker("setup", "tpu,data")
    assert (done.returncode, done.stderr) == (0, "")
    assert (home / "calls").read_text() == (
        "pip install --quiet --disable-pip-version-check --target t5x_lite-uv uv\n"
        f"uv venv --quiet --seed --python 3.12 {home / 't5x_lite-venv'}\n{INSTALLED}"
    )
    assert (home / "t5x_lite" / "pyproject.toml").is_file()
    assert not (home / "t5x_lite.new").exists()


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({"NO_PIP": "1"}, "No module named pip"), ({"NO_NETWORK": "1"}, "error: Failed to download")],
)
def test_one_line_where_uv_cannot_help(worker, tmp_path, environment, reason):
    home = prepared(tmp_path, PYTHON_310)
    done = worker("setup", "tpu,data", **environment)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert f"uv could not get one ({reason}; more in ~/t5x_lite-setup.log)" in line
    assert line.endswith("install one on every worker and set PYTHON= to its path")
    assert not (home / "t5x_lite-venv").exists()


def test_a_python_that_is_new_enough_is_used(worker, tmp_path):
    home = prepared(tmp_path, GOOD_PYTHON)
    assert worker("setup", "tpu,data").returncode == 0
    assert (home / "calls").read_text() == f"venv\n{INSTALLED}"


def test_the_python_that_is_named_is_used_or_refused(worker, tmp_path):
    home = prepared(tmp_path, PYTHON_310)
    named = write(tmp_path / "a python", GOOD_PYTHON)
    assert worker("setup", "tpu,data", PYTHON=str(named)).returncode == 0
    assert (home / "calls").read_text() == f"venv\n{INSTALLED}"
    done = worker("setup", "tpu,data", PYTHON="python3")
    (line,) = done.stderr.splitlines()
    assert "PYTHON=python3 is not a Python 3.11 or 3.12 with the venv module" in line


def test_an_environment_that_is_there_is_kept(worker, tmp_path):
    home = prepared(tmp_path, PYTHON_310)
    write(home / "t5x_lite-venv" / "bin" / "python", GOOD_PYTHON)
    write(home / "t5x_lite-venv" / "bin" / "pip", PIP)
    assert worker("setup", "tpu,data").returncode == 0
    assert (home / "calls").read_text() == INSTALLED


def test_wrong_usage(worker):
    assert worker("fly").returncode == 2
    assert worker().returncode == 2
