"""Parameters that a mesh cuts into shards narrower than a TPU's tile.

A tile of a TPU's memory is 128 numbers wide. Where an axis of a parameter is cut into less, the
compiler no longer gathers shards by all-gather and scatters gradients as it reduces them: it writes
shards among zeros, and reduces all of it on all devices.

    d_model 2048 over fsdp 64: shards of 32; over fsdp 16, with data 4: shards of 128
"""

import math
from collections.abc import Mapping
from typing import Any

import jax

from t5x_lite.sharding import is_axes, mesh_axes
from t5x_lite.types import Axes

TILE = 128
"""Numbers in a row of a TPU's tile."""


def widest(size: int, parts: int) -> int:
    """The most parts, a divisor of `parts`, in which an axis of a size has whole tiles at least."""
    return max(n for n in range(1, parts + 1) if parts % n == 0 and (n == 1 or size // n >= TILE))


def narrow_shards(mesh: Mapping[str, int], axes: Axes, shapes: Any) -> list[str]:
    """One line for each logical axis whose shards are narrower than a tile.

    Args:
      mesh: mesh axis -> size.
      axes: logical axes of the parameters.
      shapes: the parameters, or anything with their shapes.

    Returns:
      Lines that name the axis, its size and what to set; [] where all is well. Vectors and axes
      that are narrower than a tile as they are do not count.
    """
    narrow: dict[tuple[str, int], str] = {}

    def look(logical: tuple[str | None, ...], leaf: Any) -> None:
        if sum(size > 1 for size in leaf.shape) < 2:
            return
        for name, size in zip(logical, leaf.shape, strict=True):
            cut = [axis for axis in mesh_axes(name) if mesh[axis] > 1]
            parts = math.prod(mesh[axis] for axis in cut)
            if name and size >= TILE and parts > 1 and size // parts < TILE:
                narrow[name, size] = _line(mesh, name, size, cut, parts)

    jax.tree.map(look, axes, shapes, is_leaf=is_axes)
    return list(narrow.values())


def widest_fsdp(axes: Axes, shapes: Any, parts: int) -> int:
    """The largest fsdp, a divisor of `parts`, that cuts no matrix narrower than a tile.

    Args:
      axes: logical axes of the parameters.
      shapes: the parameters, or anything with their shapes.
      parts: devices that may share a parameter.
    """
    divisors = [parts]

    def look(logical: tuple[str | None, ...], leaf: Any) -> None:
        for name, size in zip(logical, leaf.shape, strict=True):
            if "fsdp" in mesh_axes(name) and len(leaf.shape) > 1 and size >= TILE:
                divisors.append(widest(size, parts))

    jax.tree.map(look, axes, shapes, is_leaf=is_axes)
    return min(divisors)


def _line(mesh: Mapping[str, int], name: str, size: int, cut: list[str], parts: int) -> str:
    over = " x ".join(f"{axis} {mesh[axis]}" for axis in cut)
    best = widest(size, parts)
    remedy = ""
    if len(cut) == 1 and cut[0] != "data":
        data = mesh["data"] * parts // best
        remedy = f"; set --mesh.data {data} --mesh.{cut[0]} {best}"
    return (
        f"axis {name!r} of size {size} is cut over {over} into shards of {size // parts}, narrower "
        f"than a tile of {TILE}: gradients are then all-reduced whole{remedy}"
    )
