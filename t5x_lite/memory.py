"""The memory of devices, and sizes that are refused before anything is allocated.

A size that does not fit would otherwise wait for ever in XLA, or end the process without a line. A
caller estimates the bytes that a device must hold at least, from shapes alone, and calls
`check_fits`:

    check_fits({"parameters": 256e9, "gradients": 256e9}, devices, remedy="reduce a size")
    # InputError: parameters (238.4 GiB) and gradients (238.4 GiB) need 476.8 GiB on a cpu device,
    # which has 23.4 GiB; reduce a size
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.chips import GIB, chip
from t5x_lite.errors import InputError

LARGEST = 2**31 - 1
"""Maximum of a size: shapes and indices of JAX have 32 bits."""
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files that hold the limit of the process's container, of cgroups 2 and 1."""


def of_host() -> int:
    """Return the bytes of memory that the process can have: the machine's, or its container's."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in _LIMITS:
        try:
            found = min(found, int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found


def of_device(device: Any) -> int | None:
    """Return the bytes of memory of one device; None if they are not known."""
    if device.platform == "cpu":
        return of_host()
    try:
        limit = (device.memory_stats() or {}).get("bytes_limit")
    except Exception:  # a device of another process, or a runtime without statistics
        limit = None
    return limit or chip(device.device_kind).hbm


def check_fits(needs: Mapping[str, int], devices: Sequence[Any], *, remedy: str) -> None:
    """Raise InputError if a device of this process has less memory than is needed.

    Args:
      needs: what is needed -> bytes on each device. Devices of a CPU share the host's memory.
      devices: the devices, of all processes.
      remedy: what to do.
    """
    import jax

    own = [device for device in devices if device.process_index == jax.process_index()]
    if not own:
        return
    there, kind = of_device(own[0]), own[0].device_kind
    sharing = len(own) if own[0].platform == "cpu" else 1
    needed = sum(needs.values()) * sharing
    if there is None or needed <= there:
        return
    parts = [
        f"{name} ({gib(size * sharing)})" for name, size in needs.items() if size * 50 > needed
    ]
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
    where = f"a {kind} device" if sharing == 1 else f"{sharing} {kind} devices"
    raise InputError(
        f"{listed} need at least {gib(needed)} on {where}, which ha{'s' if sharing == 1 else 've'} "
        f"{gib(there)}; {remedy}"
    )


def check_host(needed: int, what: str, *, remedy: str) -> None:
    """Raise InputError if `what` needs more bytes than the host has."""
    if needed > (there := of_host()):
        raise InputError(f"{what} needs {gib(needed)}, and this machine has {gib(there)}; {remedy}")


def gib(size: int) -> str:
    """Return a number of bytes in GiB, as an error shows it."""
    return f"{size / GIB:,.1f} GiB" if size < 1 << 60 else f"{float(size):.1e} bytes"
