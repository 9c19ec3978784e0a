"""Sizes that do not fit are refused before anything is allocated."""

from types import SimpleNamespace

import jax
import pytest

from t5x_lite.core import devices
from t5x_lite.core.errors import InputError


def device(**known):
    platform, kind = known.pop("platform", "gpu"), known.pop("kind", "NVIDIA H100")
    return SimpleNamespace(
        platform=platform, device_kind=kind, process_index=0, memory_stats=lambda: known
    )


def test_a_device_s_limit_is_compared():
    fitting = device(bytes_limit=1000)
    devices.check_fits(
        {"parameters": 600, "gradients": 400}, [fitting, fitting], remedy="shrink it"
    )
    with pytest.raises(InputError, match=r"^parameters .* and gradients .*; shrink it$"):
        devices.check_fits({"parameters": 600, "gradients": 401}, [fitting], remedy="shrink it")


def test_the_devices_of_a_cpu_share_the_host(monkeypatch):
    monkeypatch.setattr(devices, "of_host", lambda: 1000)
    cpus = [device(platform="cpu", kind="cpu")] * 8
    devices.check_fits({"parameters": 125}, cpus, remedy="")
    with pytest.raises(InputError, match="8 cpu devices, which have"):
        devices.check_fits({"parameters": 126}, cpus, remedy="")


def test_a_chip_s_memory_is_known_by_its_name():
    assert devices.of_device(device(kind="TPU v5p")) == devices.chip("TPU v5p").hbm
    assert devices.of_device(device(kind="another")) is None
    devices.check_fits({"parameters": 1 << 90}, [device(kind="another")], remedy="")
    assert devices.of_device(jax.devices("cpu")[0]) == devices.of_host()
