"""The process of a run that hangs is ended, so that each of these runs is one of its own."""

import subprocess
import sys
import time

import pytest

from t5x_lite.train.stopping import Watchdog
from t5x_lite.train.track import Goodput

PROGRAM = """
import ctypes, sys, threading, time
from t5x_lite.train import stopping
from t5x_lite.train.track import Goodput
from t5x_lite.train.stopping import Watchdog

stopping._LATER = 1.0
spent = Goodput()
directory, what = sys.argv[1:]

def waits_for_ever():
    threading.Event().wait()

def never_lets_go():
    ctypes.PyDLL(None).sleep(60)  # no other thread of Python's can run

with Watchdog(spent, seconds=0.0 if what == "off" else 1.5, directory=directory) as watchdog:
    time.sleep(2.0)  # the start, and compilation, may take their time
    spent.to("steps")
    watchdog.finished(1)
    time.sleep(0.01)
    watchdog.finished(2)
    watchdog._took.clear()  # the first step's start is not to count
    time.sleep(0.3)
    if what in ("evaluation", "off"):
        with spent.on("evaluation"):
            time.sleep(2.5)
        time.sleep(0.3)
        watchdog.finished(3)
    else:
        globals()[what]()
print("done")
"""


def run(what, directory):
    began = time.monotonic()
    arguments = [sys.executable, "-c", PROGRAM, str(directory), what]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=False)
    return done, time.monotonic() - began


@pytest.mark.slow
def test_a_hung_step_ends_the_run_with_the_stacks(tmp_path):
    done, seconds = run("waits_for_ever", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert seconds < 60
    assert "in waits_for_ever" in done.stderr
    path = tmp_path / "stacks" / "process_0.txt"
    assert "in waits_for_ever" in path.read_text()
    assert done.stderr.splitlines()[-1].startswith("error: process 0 of 1: no step has ended for ")
    assert (
        f"after step 2 (--hosts.watchdog); see the stacks of its threads above and in {path}; "
        in (done.stderr)
    )


@pytest.mark.slow
def test_a_step_that_stops_all_of_python_ends_too(tmp_path):
    done, _ = run("never_lets_go", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "in never_lets_go" in done.stderr


@pytest.mark.gate("evaluation")
@pytest.mark.parametrize("what", ["evaluation", "off"])
@pytest.mark.slow
def test_what_is_no_step_may_take_long(what, tmp_path):
    done, _ = run(what, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_limit_is_twenty_times_the_usual_step_where_that_is_longer():
    now = [0.0]
    watchdog = Watchdog(Goodput(), seconds=600.0, directory="", clock=lambda: now[0])
    assert watchdog.limit == 600.0
    for took in (300.0, 45.0, 44.0, 43.0, 46.0):  # the first compiles
        now[0] += took
        watchdog.finished(1)
    assert watchdog.limit == 20 * 45.0
