"""Whether there is a TPU, and that JAX is quiet where there is none."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite.core import accelerators

ROOT = Path(__file__).resolve().parents[2]


def test_a_tpu_is_a_device_of_google_but_neither_disk_nor_network(tmp_path):
    def add(name, vendor, kind):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")

    add("0000:00:01.3", "0x8086", "0x068000")
    add("0000:00:04.0", "0x10de", "0x030200")  # a GPU
    add("0000:00:05.0", "0x1ae0", "0x010802")  # NVMe
    add("0000:00:06.0", "0x1ae0", "0x020000")  # gVNIC
    assert not accelerators.has_tpu(tmp_path)
    add("0000:00:07.0", "0x1ae0", "0x120000")
    assert accelerators.has_tpu(tmp_path)


@pytest.fixture
def no_choice(monkeypatch):
    """An environment that says nothing of platforms."""
    for name in ("JAX_PLATFORMS", "JAX_FORCE_TPU_INIT", *accelerators.STAND_IN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(accelerators, "has_tpu", lambda: False)


def test_the_environment_stays(no_choice):
    before = dict(os.environ)
    with accelerators.quiet_without_tpu():
        assert os.environ["TPU_ACCELERATOR_TYPE"] == "v5litepod-4"
    assert dict(os.environ) == before


@pytest.mark.parametrize("name", ["JAX_PLATFORMS", "JAX_FORCE_TPU_INIT", "TPU_WORKER_HOSTNAMES"])
def test_a_choice_of_the_environment_wins(no_choice, monkeypatch, name):
    monkeypatch.setenv(name, "tpu")
    before = dict(os.environ)
    with accelerators.quiet_without_tpu():
        assert dict(os.environ) == before


def test_a_tpu_is_left_to_jax(no_choice, monkeypatch):
    monkeypatch.setattr(accelerators, "has_tpu", lambda: True)
    before = dict(os.environ)
    with accelerators.quiet_without_tpu():
        assert dict(os.environ) == before


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
@pytest.mark.skipif(accelerators.has_tpu(), reason="needs a machine without a TPU")
@pytest.mark.slow
def test_jax_starts_without_a_word(no_choice):
    program = (
        "from t5x_lite.config import Hosts\n"
        "from t5x_lite.train import hosts\n"
        "hosts.join(Hosts())\n"
        "import jax\n"
        "print(jax.default_backend() != 'tpu')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
