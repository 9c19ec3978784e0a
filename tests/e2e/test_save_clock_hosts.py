"""Two processes save and end after the same steps, by the clock and the callbacks of the first."""

import json
import sys

import pytest

from tests.e2e.processes import finish, free_port, start

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
def test_two_processes_save_by_the_clock_of_the_first():
    # Half a minute is 15 steps and a minute 30: over at 30, asked at 32, known at 40.
    assert run_two(PROGRAM) == [[40, 80]] * 2


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_end_by_the_callback_of_the_first():
    assert run_two(CALLBACK) == [["", "mine: low", "mine: low"]] * 2


def run_two(program):
    """The JSON that each of two processes prints last."""
    port = str(free_port())
    told = finish(start([[sys.executable, "-c", program, port, str(i)] for i in range(2)]))
    assert [code for code, _, _ in told] == [0, 0], told
    return [json.loads(output.splitlines()[-1]) for _, output, _ in told]
