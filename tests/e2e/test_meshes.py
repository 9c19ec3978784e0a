"""Eight devices give what one gives: losses, gradients and the optimizer's state, on every mesh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("tiny_training.py")


@pytest.fixture(scope="module")
def found():
    """What `tiny_training.py meshes` finds; one process, whose import is paid once."""
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "meshes"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def assert_equal(found, expected, *, tolerance):
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=tolerance)
    assert len(found["state"]) == len(expected["state"]) > 10
    for leaf, other in zip(found["state"], expected["state"], strict=True):
        leaf, other = np.asarray(leaf), np.asarray(other)
        scale = np.max(np.abs(other), initial=0.0)
        np.testing.assert_allclose(leaf, other, rtol=10 * tolerance, atol=tolerance * scale)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    ["data 8", "fsdp 8", "tensor 2, fsdp 4", "data 2, fsdp 2, tensor 2", "sequence 2"],
)
def test_twenty_steps_on_eight_devices_are_those_on_one(found, mesh):
    one = found["meshes"]["one"]
    losses = [loss for loss, _, _ in one["losses"]]
    assert len(losses) == 20
    assert len(set(losses)) == 20
    assert_equal(found["meshes"][mesh], one, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("parts", ["one 2", "one 4", "mixed 1", "mixed 2"])
def test_microbatches_give_the_gradient_of_the_whole_batch(found, parts):
    assert_equal(found["gradients"][parts], found["gradients"]["one 1"], tolerance=1e-6)
