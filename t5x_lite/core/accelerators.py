"""Accelerators: which ones this machine has, and what chips can do.

JAX asks libtpu wherever it is installed (extra `plan`), also on machines without a TPU, and libtpu
then writes lines of errors to standard error: "Failed to find host bounds ...".

Chips by the name that JAX gives them: what they can do, for MFU and for plans.

chip("TPU v5 lite").peak                -> 197e12
chip("NVIDIA H100 80GB HBM3").peak      -> 989.5e12
chip("cpu").peak                        -> None
"""

import contextlib
import dataclasses
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
    """Return True if a TPU chip is plugged in, without starting JAX's backend."""
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


GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Peak, memory, clock and bandwidth of one device; a figure that is not known is None.

    Attributes:
      peak: FLOP/s in bf16, dense.
      hbm: bytes that a program can have.
      clock: Hz of the compiler's estimates in cycles.
      bandwidth: bytes a second from and to HBM.
      links: bytes a second that a device sends over all its links to the rest of its slice, and as
        many that it receives at the same time.
    """

    peak: float | None = None
    hbm: int | None = None
    clock: float | None = None
    bandwidth: float | None = None
    links: float | None = None


# peak: Cloud TPU documentation, "System architecture", peak compute per chip (bf16); a device is a
# chip, but of TPU7x half of one. v5p calls itself "TPU v5" or "TPU v5p", v5e and v6e "lite".
# hbm: as the compiler says it when a program does not fit; the rest is kept by the system.
# clock: the peak over 2 * 128 * 128 a cycle for each MXU, of which v5e has 4, v4 and v5p 8 (Cloud
# TPU documentation; v4's 1050 MHz is also in Jouppi et al. 2023, table 4). Of v6e the number and
# the size of its MXUs and its peak do not give one.
# bandwidth: Cloud TPU documentation, "System architecture".
# links: half of the bidirectional inter-chip interconnect (ICI) bandwidth per chip there (v5e 400,
# v5p 1200, v6e 800, TPU7x 1200 GB/s); of v4 six links of 50 GB/s (Jouppi et al. 2023, table 4).
_V5P = Chip(459e12, int(95.74 * GIB), 1.75e9, 2765e9, 600e9)
_CHIPS = {
    "TPU v4": Chip(275e12, int(30.75 * GIB), 1.05e9, 1228e9, 300e9),
    "TPU v5 lite": Chip(197e12, int(15.75 * GIB), 1.50e9, 819e9, 200e9),
    "TPU v5e": Chip(197e12),
    "TPU v5": _V5P,
    "TPU v5p": _V5P,
    "TPU v6 lite": Chip(918e12, int(31.25 * GIB), bandwidth=1640e9, links=400e9),
    "TPU v6e": Chip(918e12),
    "TPU7x": Chip(2307e12 / 2, int(94.75 * GIB), bandwidth=7380e9 / 2, links=600e9 / 2),
    # NVIDIA A100 Tensor Core GPU datasheet, BFLOAT16 Tensor Core, dense.
    "NVIDIA A100": Chip(312e12),
    # NVIDIA H100 Tensor Core GPU datasheet, half of the figures with sparsity: SXM, PCIe, NVL.
    "NVIDIA H100": Chip(989.5e12),
    "NVIDIA H100 PCIe": Chip(756e12),
    "NVIDIA H100 NVL": Chip(835.5e12),
    # NVIDIA H200 Tensor Core GPU datasheet, half of the figures with sparsity: SXM, NVL.
    "NVIDIA H200": Chip(989.5e12),
    "NVIDIA H200 NVL": Chip(835.5e12),
}
"""Device kind -> chip; of a GPU the beginning of its name."""


def is_nvidia(device_kind: str) -> bool:
    """Return True for kinds of CUDA devices: "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2"."""
    return device_kind.startswith(("NVIDIA", "Tesla", "Quadro", "GeForce"))


def chip(device_kind: str) -> Chip:
    """Return the chip of a jax.Device's kind; an empty one where nothing is known, as of a CPU."""
    if device_kind.startswith("NVIDIA"):
        words = device_kind.replace("-", " ")  # "NVIDIA A100-SXM4-40GB"
        kinds = [kind for kind in _CHIPS if f"{words} ".startswith(f"{kind} ")]
        device_kind = max(kinds, key=len, default="")
    return _CHIPS.get(device_kind, Chip())
