"""Two processes save and end after the same steps, by the clock and the callbacks of the first."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
import jax
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.train.stopping import SaveClock

port, index = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
mesh = make_mesh(MeshConfig())
seconds = [0.0]
clock = SaveClock(1.0, clock=lambda: seconds[0])
saved = []
for step in range(1, 101):
    seconds[0] += 2 if index == "0" else 50  # the second's clock is wrong
    if clock.due(step, mesh):
        saved.append(step)
        clock.restart()
print(json.dumps(saved))
"""


CALLBACK = """
import json, sys
import jax
from t5x_lite.train.track import Tracker

class Low:
    synchronous, id, stop = True, None, None
    def __init__(self, run): pass
    def log(self, step, metrics): self.stop = "low" if step > 1 else None
    def close(self, outcome): pass

port, index = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
trackers = {"mine": Low}
with Tracker("run", total_steps=3, enabled=index == "0", trackers=trackers) as tracker:
    reasons = []
    for step in range(1, 4):
        tracker.log(step, {"loss": 1.0})
        reasons.append(tracker.stop())
print(json.dumps(reasons))
"""


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_save_by_the_clock_of_the_first(tmp_path):
    # Half a minute is 15 steps and a minute 30: over at 30, asked at 32, known at 40.
    assert run_two(PROGRAM, tmp_path) == [[40, 80]] * 2


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_end_by_the_callback_of_the_first(tmp_path):
    assert run_two(CALLBACK, tmp_path) == [["", "mine: low", "mine: low"]] * 2


def run_two(program, directory):
    """The JSON that each of two processes prints last."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(port), str(index)],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        told = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], told
    return [json.loads(output.splitlines()[-1]) for output, _ in told]
