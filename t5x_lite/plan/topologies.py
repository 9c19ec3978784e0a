"""TPU slices: descriptions by name, and comparison with attached devices.

libtpu can compile for a slice named GENERATION:SHAPE, with the shape in chips. The prefix N@ means
N slices that are connected by the data center network.

Attached devices of all hosts must have the kind, number and shape of the plan. The memory size that
they report overrides the memory size of their kind.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

from t5x_lite.core.accelerators import GIB, STAND_IN
from t5x_lite.core.errors import InputError, install_command

_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
TOPOLOGIES = {"v4": _CUBES, "v5e": _FLAT, "v5p": _CUBES, "v6e": _FLAT, "tpu7x": _CUBES}
"""TPU generation -> available slice shapes; other shapes of the same form may work.

A chip is one device, except for tpu7x with two devices per chip.
"""

_NAME = re.compile(r"(?:([1-9]\d*)@)?(\w+):(\d+(?:x\d+)*)")

_QUIET = {
    # Nothing is asked of a metadata server, and another process may hold the library's lock file.
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    **STAND_IN,
}


def topology_devices(name: str) -> list[Any]:
    """Return devices of a TPU slice that is not attached, only for compilation."""
    parsed = _NAME.fullmatch(name)
    if parsed is None or parsed.group(2) not in TOPOLOGIES:
        raise _unknown(name)
    slices, generation, shape = parsed.groups()
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            f"--topology {name} needs libtpu, which is not installed; run {install_command('plan')}"
        )
    os.environ.update({key: value for key, value in _QUIET.items() if key not in os.environ})
    options: dict[str, Any] = {"num_slices": int(slices)} if slices else {}
    if generation == "v4":
        options["chip_config_name"] = "megacore"  # both cores of a chip are one device
    try:
        found = topologies.get_topology_desc(f"{generation}:{shape}", platform="tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        if str(error).startswith("INVALID_ARGUMENT"):
            raise _unknown(name) from error
        raise
    return list(found.devices)


def _unknown(name: str) -> InputError:
    known = "; ".join(
        f"{generation}: {' '.join(shapes)}" for generation, shapes in TOPOLOGIES.items()
    )
    return InputError(
        f"unknown topology {name!r}; use GENERATION:SHAPE with one of these shapes: {known}"
    )


def cpu_devices(count: int) -> list[Any]:
    """Return `count` simulated devices of this machine's CPU.

    JAX is configured for this number of CPU devices if it has not been initialized yet.
    """
    with contextlib.suppress(RuntimeError):  # it has started
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise InputError(
            f"--devices cpu:{count} needs {count} CPU devices, but JAX has started with "
            f"{len(devices)}; set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    return devices[:count]


@dataclasses.dataclass(frozen=True)
class Slice:
    """Description of a group of connected devices, attached or planned.

    Attributes:
      kind: device kind as reported by JAX.
      num_devices: number of devices on all hosts.
      shape: number of chips along each side of a slice; () for devices without coordinates.
      slices: number of slices.
    """

    kind: str
    num_devices: int
    shape: tuple[int, ...]
    slices: int

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        chips = f", {shape} chips" if shape else ""
        return f"{self.num_devices} x {self.kind}{chips} in {self.slices} slice(s)"


def described(devices: Sequence[Any]) -> Slice:
    """Return the description of a sequence of attached or simulated devices."""
    kinds = collections.Counter(device.device_kind for device in devices)
    coordinates = [tuple(getattr(device, "coords", ())) for device in devices]
    sides = zip(*coordinates, strict=True)
    return Slice(
        kind=" and ".join(sorted(kinds)),
        num_devices=len(devices),
        shape=_without_ones(max(side) - min(side) + 1 for side in sides),
        slices=len({getattr(device, "slice_index", None) for device in devices}),
    )


def _without_ones(sizes: Any) -> tuple[int, ...]:
    shape = list(sizes)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return tuple(shape)


def difference(attached: Slice, meant: Slice, *, name: str) -> str | None:
    """Return a message if the attached devices differ from the planned slice, or None.

    Slices are equal if only the order of their side lengths differs.
    """
    same = dataclasses.replace(attached, shape=()) == dataclasses.replace(meant, shape=())
    if same and sorted(attached.shape) == sorted(meant.shape):
        return None
    remedy = "omit --topology to plan for the attached devices"
    if attached.kind == meant.kind and attached.num_devices < meant.num_devices:
        remedy = "run the command on all hosts of the slice at the same time, or omit --topology"
    return f"the attached devices are {attached}, but {name} has {meant}; {remedy}"


def memory(devices: Sequence[Any]) -> int | None:
    """Return the minimum available memory among the devices of this process, in bytes, or None."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    known = [limit for limit in limits if limit is not None]
    return min(known, default=None)


def less_memory(attached: int | None, known: int | None) -> str | None:
    """Return a warning if attached devices have less memory than usual for their kind, or None."""
    if attached is None or known is None or attached >= 0.97 * known:
        return None
    return (
        f"a device offers only {attached / GIB:.2f} of its {known / GIB:.2f} GiB of memory; "
        "another process may use memory, or XLA_PYTHON_CLIENT_MEM_FRACTION may limit it"
    )
