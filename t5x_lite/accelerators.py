"""Which accelerators this machine has, as far as can be said before JAX starts.

JAX asks libtpu wherever it is installed (extra `plan`), also on machines without a TPU, and libtpu
then writes lines of errors to standard error: "Failed to find host bounds ...".
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GOOGLE = "0x1ae0"
"""The PCI vendor of a Cloud TPU chip."""

_DISK_OR_NETWORK = ("0x01", "0x02")
"""The PCI classes of what else Google makes: each of its newer machines has some."""

STAND_IN = {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}
"""Variables that libtpu reads at its start; with them set, it looks for no description of a TPU."""

_CHOICES = (*STAND_IN, "JAX_PLATFORMS", "JAX_FORCE_TPU_INIT")
"""Variables by which a person or a launcher says which platform is meant."""


def has_tpu(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether a TPU chip is plugged in, without starting JAX's backend."""
    return any(
        (device / "vendor").read_text().strip() == _GOOGLE
        and not (device / "class").read_text().startswith(_DISK_OR_NETWORK)
        for device in devices.glob("*")
    )


@contextlib.contextmanager
def quiet_without_tpu() -> Iterator[None]:
    """JAX that starts in the block is silent about a TPU that is not there.

    Its devices are the same, and nothing changes where there is a TPU, or where the environment
    says which platform is meant.
    """
    if any(os.environ.get(name) for name in _CHOICES) or has_tpu():
        yield
        return
    os.environ.update(STAND_IN)
    try:
        yield
    finally:
        for name in STAND_IN:
            os.environ.pop(name, None)
