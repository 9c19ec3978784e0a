"""The chips that a plan is made for, and slices of them by name: "v5e:4x4", "2@v5p:4x4x4".

What libtpu compiles for is named GENERATION:SHAPE, the shape in chips; N@ before it is N slices
that are joined by the data centre's network.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from t5x_lite.errors import InputError

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a plan compares with.

    Attributes:
      hbm: bytes that a program can have; None where it is not known.
      clock: Hz of the estimates in cycles; None where it is not known.
      bandwidth: bytes a second from and to HBM; None where it is not known.
    """

    hbm: int | None = None
    clock: float | None = None
    bandwidth: float | None = None


# hbm: as the compiler says it when a program does not fit; the rest is kept by the system.
# clock: peak bf16 FLOP/s over 2 * 128 * 128 a cycle for each MXU, of which v5e has 4, v4 and v5p 8
# (Cloud TPU documentation; v4's 1050 MHz is also in Jouppi et al. 2023, table 4). Of v6e the number
# and the size of its MXUs and its peak do not give one.
# bandwidth: Cloud TPU documentation, "System architecture".
_CHIPS = {
    "TPU v4": Chip(int(30.75 * GIB), 1.05e9, 1228e9),
    "TPU v5 lite": Chip(int(15.75 * GIB), 1.50e9, 819e9),
    "TPU v5": Chip(int(95.74 * GIB), 1.75e9, 2765e9),
    "TPU v5p": Chip(int(95.74 * GIB), 1.75e9, 2765e9),
    "TPU v6 lite": Chip(int(31.25 * GIB), bandwidth=1640e9),
}

_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
TOPOLOGIES = {"v4": _CUBES, "v5e": _FLAT, "v5p": _CUBES, "v6e": _FLAT}
"""Generation -> shapes of a slice that are offered; others of the same form may work."""

_NAME = re.compile(r"(?:([1-9]\d*)@)?(\w+):(\d+(?:x\d+)*)")

_QUIET = {
    # Nothing is asked of a metadata server, and another process may hold the library's lock file.
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


def chip(device_kind: str) -> Chip:
    """The chip of a jax.Device's kind; an empty one where nothing is known, as of a CPU."""
    return _CHIPS.get(device_kind, Chip())


def topology_devices(name: str) -> list[Any]:
    """Devices of a slice that is not attached: programs can be compiled for them, not run.

    Args:
      name: such as "v5e:4x4".

    Raises:
      InputError: there is no such topology, or libtpu is not installed.
    """
    parsed = _NAME.fullmatch(name)
    if parsed is None or parsed.group(2) not in TOPOLOGIES:
        raise _unknown(name)
    slices, generation, shape = parsed.groups()
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            f"--topology {name} needs libtpu, which is not installed: pip install 't5x_lite[plan]'"
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
    return InputError(f"unknown topology {name!r}; known are GENERATION:SHAPE of {known}")


def cpu_devices(count: int) -> list[Any]:
    """So many devices of this machine's CPU.

    JAX is told their number where it has not started yet.

    Raises:
      InputError: it has started with fewer.
    """
    with contextlib.suppress(RuntimeError):  # it has started
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise InputError(
            f"--devices cpu:{count}: JAX has started with {len(devices)} CPU device(s); set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    return devices[:count]
