import functools
import signal
import subprocess
import sys

import pytest

from t5x_lite.c4.local import run_tasks
from t5x_lite.core.errors import InputError
from tests.waiting import wait_until


def double(number: int) -> int:
    return 2 * number


def fails(where: str, number: int) -> int:
    if number == 2:
        raise InputError(f"{where}: two is no number")
    return number


def test_here():
    assert list(run_tasks(double, [3, 1, 2], workers=1)) == [6, 2, 4]
    assert list(run_tasks(double, [], workers=4)) == []


# A spawned worker imports the function's module by its name.
WORKERS = functools.partial(run_tasks, workers=2)


def test_in_processes():
    assert sorted(WORKERS(abs, [-3, 1, -2])) == [1, 2, 3]
    with pytest.raises(ValueError, match="invalid literal"):
        list(WORKERS(int, ["1", "x", "2"]))


@pytest.mark.slow
def test_a_worker_that_is_killed_is_an_error():
    with pytest.raises(
        RuntimeError, match="a worker was killed by SIGKILL, perhaps for its memory"
    ):
        list(WORKERS(signal.raise_signal, [signal.SIGKILL]))


def test_an_error_ends_it():
    with pytest.raises(InputError, match="here: two is no number"):
        list(run_tasks(functools.partial(fails, "here"), [1, 2, 3], workers=1))


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "from t5x_lite.c4.local import run_tasks\n"
        "if __name__ == '__main__':\n"
        "    for _ in run_tasks(time.sleep, [0.0, 600.0, 600.0], workers=2):\n"
        "        print('begun', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait()

    def left() -> list[str]:
        command = ["ps", "-o", "pid=", "-g", str(process.pid)]
        return subprocess.run(command, capture_output=True, text=True).stdout.split()

    wait_until(lambda: not left(), why=lambda: f"processes {left()} are left")
