"""Workers that a plain script can start, and what is said of one that ended."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from t5x_lite.core.project import safe_path
from t5x_lite.core.workers import WorkerContext, without_main_module
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
print("top of the script", flush=True)
from t5x_lite.c4.local import run_tasks
print(sorted(run_tasks(abs, [-2, 1, -3], workers=2)), flush=True)
print(__file__ is not None, __spec__)
"""


def run_script(path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return subprocess.run(
        [sys.executable, *options, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=path.parent,
        capture_output=True,
        text=True,
    )


def test_a_plain_script_is_not_run_again(tmp_path):
    for name in ("socket", "random", "tempfile", "numpy"):  # which a worker imports at its start
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'{__file__} ran')")
    (tmp_path / "scripts").mkdir()
    done = run_script(tmp_path / "scripts" / "plain.py", SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "top of the script\n[1, 2, 3]\nTrue None\n"


def why_broken(function, argument) -> str:
    context = WorkerContext()
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        future = pool.submit(function, argument)
        with pytest.raises(BrokenProcessPool):
            future.result()
        return context.why_broken()


@pytest.mark.parametrize(
    ("function", "argument", "why"),
    [
        (signal.raise_signal, signal.SIGKILL, "a worker was killed by SIGKILL, perhaps for its m"),
        (signal.raise_signal, signal.SIGTERM, "a worker was killed by SIGTERM"),
        (os._exit, 3, "a worker ended with exit code 3; its own message is above"),
    ],
)
def test_the_cause_is_told(function, argument, why):
    assert why_broken(function, argument).startswith(why)


def test_what_is_hidden_comes_back():
    main = sys.modules["__main__"]
    before = dict(vars(main)), dict(os.environ)
    with without_main_module(), safe_path():
        assert getattr(main, "__file__", None) is None
        assert main.__spec__ is None
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert (dict(vars(main)), dict(os.environ)) == before


ORPHANS = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from t5x_lite.core.workers import WorkerContext, end_with_parent
pool = ProcessPoolExecutor(1, mp_context=WorkerContext(), initializer=end_with_parent)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(600)
"""


def test_workers_of_a_killed_process_end():
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    worker = Path("/proc") / parent.stdout.readline().strip()
    assert worker.exists()
    parent.kill()
    parent.wait()
    wait_until(lambda: not worker.exists())


LOCKS = """
import time
from t5x_lite.core.workers import WorkerContext
lock = WorkerContext().Lock()
print(lock._semlock.name, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGTERM])
def test_semaphores_go_when_all_processes_get_a_signal(signum):
    parent = subprocess.Popen(
        [sys.executable, "-c", LOCKS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    semaphore = Path("/dev/shm", f"sem.{parent.stdout.readline().strip().removeprefix('/')}")
    assert semaphore.exists()
    os.killpg(parent.pid, signum)
    assert parent.communicate() == ("", "")  # the process that unlinks them writes there, too
    assert not semaphore.exists()
