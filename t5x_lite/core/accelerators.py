"""Accelerators: detection, malloc settings on a machine without one, and peak figures by chip.

JAX asks libtpu if it is installed (extra `plan`), also on machines without a TPU, and libtpu then
writes error lines to standard error: "Failed to find host bounds ...".

`keep_freed_memory` keeps the memory that a step on CPU frees, for the next step. XLA's CPU backend
allocates a step's buffers by malloc and frees them after the step. glibc returns large blocks to
the kernel at once, so each step needs new, zeroed pages: a fifth to a third of the time of a small
model's training step (docs/experiments/008-small-t5-pretraining.md). The settings must come before
the first thread of the process: malloc may give a thread a separate arena, which JAX's threads
would then share.

Model FLOPs utilization (MFU) and memory plans use the figures of a chip, found by JAX's device
kind:

chip("TPU v5 lite").peak                -> 197e12
chip("NVIDIA H100 80GB HBM3").peak      -> 989.5e12
chip("cpu").peak                        -> None
"""

import contextlib
import ctypes
import dataclasses
import glob
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_GOOGLE = "0x1ae0"
"""PCI vendor id of a Cloud TPU chip."""

_DISK_OR_NETWORK = ("0x01", "0x02")
"""PCI classes of Google's disks and network cards, which are not TPU chips."""

STAND_IN = {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}
"""Environment variables that keep libtpu from searching for a TPU when it starts."""

_PLACES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/accel*", "/dev/vfio/[0-9]*")
"""Files of the kernel's drivers of accelerators."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
"""Constants of glibc's malloc.h."""

_CHOICES = (*STAND_IN, "JAX_PLATFORMS", "JAX_FORCE_TPU_INIT")
"""Environment variables by which a user or a launcher selects the platform."""


def has_tpu(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Return True if the machine has a TPU chip; JAX's backend is not started."""
    return any(
        (device / "vendor").read_text().strip() == _GOOGLE
        and not (device / "class").read_text().startswith(_DISK_OR_NETWORK)
        for device in devices.glob("*")
    )


@contextlib.contextmanager
def quiet_without_tpu() -> Iterator[None]:
    """Silence JAX's messages about a missing TPU while JAX starts its backend in the `with` block.

    The devices that JAX finds stay the same. Nothing changes if the machine has a TPU, or if an
    environment variable selects the platform.
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


def without_accelerator() -> bool:
    """Return True if JAX will compute on the CPU; JAX's backend is not started."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms == "cpu"
    return not any(glob.glob(pattern) for pattern in _PLACES)


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory for reuse; call this before the process starts a thread.

    Malloc then uses a single arena and never mmap. Nothing changes without glibc or with an
    accelerator.

    Returns:
      True if the settings were changed.
    """
    return _set({_M_ARENA_MAX: 1, _M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1})


def give_back() -> bool:
    """Undo `keep_freed_memory`: return freed memory to the kernel now and after later frees.

    Returns:
      True if the settings were changed.
    """
    largest = 32 << 20  # glibc's own maximum of the threshold
    settings = {_M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: largest, _M_TRIM_THRESHOLD: 2 * largest}
    done = _set(settings)
    if done:
        ctypes.CDLL(None).malloc_trim(0)
    return done


def _set(settings: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux") or not without_accelerator():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(name, value) == 1 for name, value in settings.items())


GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Performance figures of one device: peak, memory, clock and bandwidth; None if unknown.

    Attributes:
      peak: dense bf16 FLOP/s.
      hbm: device memory that a program can use, in bytes.
      clock: clock frequency in Hz, which converts the compiler's estimates in cycles to seconds.
      bandwidth: memory bandwidth in bytes per second.
      links: bytes per second over all links of a device within its slice, in each direction.
    """

    peak: float | None = None
    hbm: int | None = None
    clock: float | None = None
    bandwidth: float | None = None
    links: float | None = None


# peak: Cloud TPU documentation, "System architecture", peak compute per chip (bf16). A device is a
# chip, but for TPU7x half a chip. v5p's name is "TPU v5" or "TPU v5p"; v5e and v6e are "lite".
# hbm: from the compiler's message when a program does not fit; the system keeps the rest.
# clock: the peak over 2 * 128 * 128 per cycle for each MXU; v5e has 4 MXUs, v4 and v5p 8 (Cloud
# TPU documentation; v4's 1050 MHz is also in Jouppi et al. 2023, table 4). For v6e the number and
# size of its MXUs and its peak give no consistent value.
# bandwidth: Cloud TPU documentation, "System architecture".
# links: half of the bidirectional inter-chip interconnect (ICI) bandwidth per chip there (v5e 400,
# v5p 1200, v6e 800, TPU7x 1200 GB/s); for v4 six links of 50 GB/s (Jouppi et al. 2023, table 4).
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
"""Device kind -> chip; for a GPU, the key is the beginning of the device kind."""


def is_nvidia(device_kind: str) -> bool:
    """Return True for device kinds of NVIDIA GPUs, such as "NVIDIA H100 80GB HBM3"."""
    return device_kind.startswith(("NVIDIA", "Tesla", "Quadro", "GeForce"))


def chip(device_kind: str) -> Chip:
    """Return the performance figures of a device kind, such as peak FLOP/s; None if unknown."""
    if device_kind.startswith("NVIDIA"):
        words = device_kind.replace("-", " ")  # "NVIDIA A100-SXM4-40GB"
        kinds = [kind for kind in _CHIPS if f"{words} ".startswith(f"{kind} ")]
        device_kind = max(kinds, key=len, default="")
    return _CHIPS.get(device_kind, Chip())
