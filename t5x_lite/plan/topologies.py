"""Slices of TPU chips by name: "v5e:4x4", "2@v5p:4x4x4".

What libtpu compiles for is named GENERATION:SHAPE, the shape in chips; N@ before it is N slices
that are joined by the data centre's network.
"""

import contextlib
import importlib.util
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from t5x_lite.accelerators import STAND_IN
from t5x_lite.errors import InputError
from t5x_lite.extras import install_command

_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
TOPOLOGIES = {"v4": _CUBES, "v5e": _FLAT, "v5p": _CUBES, "v6e": _FLAT, "tpu7x": _CUBES}
"""Generation -> shapes of a slice that are offered; others of the same form may work.

A chip is a device, but of tpu7x it is two.
"""

_NAME = re.compile(r"(?:([1-9]\d*)@)?(\w+):(\d+(?:x\d+)*)")

_QUIET = {
    # Nothing is asked of a metadata server, and another process may hold the library's lock file.
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    **STAND_IN,
}


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
            f"--topology {name} needs libtpu, which is not installed: {install_command('plan')}"
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
