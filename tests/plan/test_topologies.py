import importlib.util
import subprocess
import sys

import jax
import pytest

from t5x_lite.core.errors import InputError, install_command
from t5x_lite.plan import program
from t5x_lite.plan.program import TOPOLOGIES, cpu_devices, topology_devices


@pytest.mark.parametrize("name", ["v5e", "v9:2x2", "v5e:axb", "0@v5e:2x2", "v5e:2x2 ", ""])
def test_an_unknown_topology_is_one_line_that_lists_the_known(name):
    with pytest.raises(InputError) as raised:
        topology_devices(name)
    message = str(raised.value)
    assert message.startswith(
        f"unknown topology {name!r}; use GENERATION:SHAPE with one of these shapes: v4: 2x2x1 "
    )
    assert "v5e: 2x2 2x4 4x4 4x8 8x8 8x16 16x16;" in message
    assert "\n" not in message


def test_without_libtpu_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(program.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as raised:
        topology_devices("v5e:2x2")
    assert str(raised.value) == (
        f"--topology v5e:2x2 needs libtpu, which is not installed; run {install_command('plan')}"
    )


PROGRAM = """
import sys
from t5x_lite.core.errors import InputError
from t5x_lite.plan.program import TOPOLOGIES, topology_devices
for generation, shapes in TOPOLOGIES.items():
    for shape in shapes:
        found = topology_devices(f"{generation}:{shape}")
        size = 1
        for side in shape.split("x"):
            size *= int(side)
        assert len(found) == size * (2 if generation == "tpu7x" else 1), (generation, shape)
    print(found[0].device_kind)
assert {d.slice_index for d in topology_devices("2@v5e:4x4")} == {0, 1}
try:
    topology_devices("v5e:3x3")
except InputError as error:
    print(str(error).split(";")[0])
"""


@pytest.mark.slow  # it is not, but the extra is there with the slow ones alone
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
def test_every_topology_that_is_offered_exists():
    """In a process of its own: libtpu writes to its environment and to standard error."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kinds = ["TPU v4", "TPU v5 lite", "TPU v5", "TPU v6 lite", "TPU7x"]
    assert done.stdout.splitlines() == [*kinds, "unknown topology 'v5e:3x3'"]
    assert list(TOPOLOGIES) == ["v4", "v5e", "v5p", "v6e", "tpu7x"]


def test_cpu_devices():
    there = len(jax.devices("cpu"))
    assert cpu_devices(1) == jax.devices("cpu")[:1]
    with pytest.raises(
        InputError,
        match=rf"cpu:{there + 1} needs {there + 1} CPU devices, but JAX has started with {there}",
    ):
        cpu_devices(there + 1)
