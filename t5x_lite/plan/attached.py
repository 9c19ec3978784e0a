"""A slice that is attached, beside the one that a plan is for.

The devices that are there, of all hosts, must be of the kind, the number and the shape that are
meant, and what memory they say they have goes before what their kind has.
"""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from t5x_lite.chips import GIB


@dataclasses.dataclass(frozen=True)
class Slice:
    """Devices as a plan needs to know them.

    Attributes:
      kind: JAX's name of a device.
      num_devices: of all hosts.
      shape: chips along each side of a slice; () where the devices have no coordinates.
      slices: how many slices there are.
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
    """What devices are, attached or not.

    Args:
      devices: jax.Devices, or anything with their device_kind, coords and slice_index.
    """
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
    """The sizes without ones at the end, as those of a flat slice have one."""
    shape = list(sizes)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return tuple(shape)


def difference(attached: Slice, meant: Slice, *, name: str) -> str | None:
    """One line where another slice is attached than a plan is for; None where it is the same.

    Sides may come in another order.

    Args:
      attached: the slice that is there.
      meant: the slice that the plan is for.
      name: of that one, such as "v5e:8x8".
    """
    same = dataclasses.replace(attached, shape=()) == dataclasses.replace(meant, shape=())
    if same and sorted(attached.shape) == sorted(meant.shape):
        return None
    remedy = "plan for what is there: leave --topology away"
    if attached.kind == meant.kind and attached.num_devices < meant.num_devices:
        remedy = "give the command on all its hosts at once, or leave --topology away"
    return f"attached are {attached}, and {name} has {meant}: {remedy}"


def memory(devices: Sequence[Any]) -> int | None:
    """Bytes that a program can have on each of this process's devices; None if they do not say."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    known = [limit for limit in limits if limit is not None]
    return min(known, default=None)


def less_memory(attached: int | None, known: int | None) -> str | None:
    """One line where devices have less memory than their kind has; None otherwise."""
    if attached is None or known is None or attached >= 0.97 * known:
        return None
    return (
        f"a device offers {attached / GIB:.2f} GiB and its kind has {known / GIB:.2f}: another "
        "process may hold some, or XLA_PYTHON_CLIENT_MEM_FRACTION may say so"
    )
