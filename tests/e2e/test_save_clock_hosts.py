"""Two processes save after the same steps, by the clock of the first."""

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


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_go_by_the_first():
    port = str(free_port())
    told = finish(start([[sys.executable, "-c", PROGRAM, port, str(i)] for i in range(2)]))
    assert [code for code, _, _ in told] == [0, 0], told
    first, second = (json.loads(output.splitlines()[-1]) for _, output, _ in told)
    # Half a minute is 15 steps and a minute 30: over at 30, asked at 32, known at 40.
    assert first == second == [40, 80]
