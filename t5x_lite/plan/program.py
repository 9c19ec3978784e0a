"""Compilation of a train step, with or without its devices, and its memory and cost.

It also warns about parameters that a mesh splits into shards narrower than a TPU tile.

A tile of TPU memory is 128 values wide. If an axis of a parameter is split into narrower shards,
the compiler does not use all-gather for parameters and reduce-scatter for gradients. Instead, it
pads shards with zeros and all-reduces the complete array.

    d_model 2048 over fsdp 64: shards of 32; over fsdp 16, with data 4: shards of 128
"""

import dataclasses
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from t5x_lite.core.sharding import is_axes, mesh_axes
from t5x_lite.core.trees import Axes
from t5x_lite.plan import hlo
from t5x_lite.plan.hlo import Reading

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+)([KMGT]?)"
# Two ways of the TPU compiler to say it: after assigning buffers, and before.
_OVERFLOWS = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm", re.IGNORECASE),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)", re.IGNORECASE),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of a compiled step on one device, in bytes.

    All fields except the peak are array sizes. The compiler computes the peak with arrays padded to
    the device's tiles, and without features that the step does not read.

    Attributes:
      parameters: bytes of float32 master parameters.
      optimizer: bytes of the optimizer state and the step.
      batch: bytes of the batch features.
      temporaries: bytes of activations, gradients and other arrays that exist only within a step.
      results: bytes of the step's results other than the state; their memory is reused.
      program: bytes of the compiled program.
      peak: peak memory in bytes.
    """

    parameters: int
    optimizer: int
    batch: int
    temporaries: int
    results: int
    program: int
    peak: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """Compiled train step with its memory, cost and compile time.

    Attributes:
      memory: memory on one device.
      reading: facts from the program's text; None if the compiler cannot print it.
      flops: FLOPs on one device, as counted by the compiler, or None.
      bytes_accessed: bytes accessed on one device, as counted by the compiler, or None.
      trace_seconds: seconds of tracing and lowering.
      compile_seconds: seconds of compilation.
    """

    memory: Memory
    reading: Reading | None
    flops: int | None
    bytes_accessed: int | None
    trace_seconds: float
    compile_seconds: float


class OutOfMemory(Exception):
    """Error raised if the compiled step does not fit into device memory.

    Attributes:
      needed: bytes that the program needs; None if unknown.
      available: bytes that the device has; None if unknown.
      seconds: compile time in seconds.
    """

    def __init__(self, needed: int | None, available: int | None, *, seconds: float) -> None:
        super().__init__(f"{needed} bytes of {available}")
        self.needed = needed
        self.available = available
        self.seconds = seconds


def compile_step(step: Any, state: Any, batch: Any, *, mesh: Mesh) -> Program:
    """Compile a jitted train step and return its memory, cost and compile time."""
    start = time.perf_counter()
    with jax.set_mesh(mesh):
        lowered = step.lower(state, batch)
    lowered_at = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        overflow = read_overflow(str(error))
        if overflow is None:
            raise
        raise OutOfMemory(*overflow, seconds=time.perf_counter() - lowered_at) from error
    seconds = time.perf_counter() - lowered_at
    found = compiled.memory_analysis()
    temporaries, program = found.temp_size_in_bytes, found.generated_code_size_in_bytes
    cost = compiled.cost_analysis() or {}
    flops, accessed = cost.get("flops"), cost.get("bytes accessed")
    results = max(0, found.output_size_in_bytes - found.alias_size_in_bytes)
    return Program(
        memory=Memory(
            parameters=bytes_on_device(state.params),
            optimizer=bytes_on_device((state.step, state.optimizer)),
            batch=bytes_on_device(batch),
            temporaries=temporaries,
            results=results,
            program=program,
            peak=found.argument_size_in_bytes + temporaries + results + program,
        ),
        reading=_read(compiled),
        flops=None if flops is None else int(flops),
        bytes_accessed=None if accessed is None else int(accessed),
        trace_seconds=lowered_at - start,
        compile_seconds=seconds,
    )


def read_overflow(message: str) -> tuple[int | None, int | None] | None:
    """Parse a compiler's out-of-memory error to bytes needed and bytes available, or None."""
    for pattern in _OVERFLOWS:
        if found := pattern.search(message):
            needed, unit, available, unit_of_available = found.groups()
            return (
                round(float(needed) * _UNITS[unit]),
                round(float(available) * _UNITS[unit_of_available]),
            )
    return (None, None) if message.startswith("RESOURCE_EXHAUSTED") else None


def bytes_on_device(tree: Any) -> int:
    """Return the bytes per device of a tree of jax.ShapeDtypeStructs with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _read(compiled: Any) -> Reading | None:
    try:
        return hlo.read(compiled.as_text())
    except jax.errors.JaxRuntimeError:  # raised for some programs with asynchronous collectives
        return None


TILE = 128
"""Number of values in a row of a TPU tile."""


def widest(size: int, parts: int) -> int:
    """Return the largest divisor of `parts` that splits an axis into shards of at least 128."""
    return max(n for n in range(1, parts + 1) if parts % n == 0 and (n == 1 or size // n >= TILE))


def narrow_shards(mesh: Mapping[str, int], axes: Axes, shapes: Any) -> list[str]:
    """Return warnings about parameter axes with shards narrower than a TPU tile."""
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
    """Return the largest divisor of `parts` that is an fsdp size without too narrow shards."""
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
        f"axis {name!r} of size {size} is split over {over} into shards of {size // parts}, "
        f"narrower than a tile of {TILE}, so complete gradients are all-reduced{remedy}"
    )
