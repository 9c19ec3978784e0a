"""Encoders' objectives have the same gradients on eight devices as on one, on every mesh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("encoder_gradients.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "meshes", "num"),
    [
        ("others", ["data 2, fsdp 2, tensor 2"], 10 + 2 * 2),
        ("m3", ["data 2, fsdp 2, tensor 2"], 2 + 2),
        pytest.param("others", ["data 8", "fsdp 8"], 2 * 10 + 2 * 2, marks=pytest.mark.exhaustive),
        pytest.param("m3", ["data 8", "fsdp 8"], 2 * 2 + 2, marks=pytest.mark.exhaustive),
    ],
)
def test_gradients_on_eight_devices_are_those_on_one(which, meshes, num):
    # Two programs to the last digits: they are compiled with the fusions that users get.
    flags = (
        os.environ["XLA_FLAGS"]
        + " --xla_cpu_use_fusion_emitters=true --xla_force_host_platform_device_count=8"
    )
    done = subprocess.run(
        [sys.executable, str(PROGRAM), which, *meshes],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    errors = {
        (objective, mesh): worst
        for objective, meshes in found.items()
        for mesh, worst in meshes.items()
    }
    assert len(errors) == num
    assert {key: worst for key, worst in errors.items() if worst[1] > 1e-5} == {}
