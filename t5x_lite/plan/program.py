"""Compilation of a train step for slices that need not be attached, and the sheet that shows it.

TPU slices: descriptions by name, and comparison with attached devices.

libtpu can compile for a slice named GENERATION:SHAPE, with the shape in chips. The prefix N@ means
N slices that are connected by the data center network.

Attached devices of all hosts must have the kind, number and shape of the plan. The memory size that
they report overrides the memory size of their kind.

Compilation of a train step, with or without its devices, and its memory and cost.

It also warns about parameters that a mesh splits into shards narrower than a TPU tile.

A tile of TPU memory is 128 values wide. If an axis of a parameter is split into narrower shards,
the compiler does not use all-gather for parameters and reduce-scatter for gradients. Instead, it
pads shards with zeros and all-reduces the complete array.

    d_model 2048 over fsdp 64: shards of 32; over fsdp 16, with data 4: shards of 128

Report of a plan: whether a train step fits into memory, and its estimated time.

    sheet.text()      lines for standard output
    sheet.record()    the same numbers in bytes, seconds and FLOPs, for json.dumps

`Sheets` has one `Sheet` for each static batch shape of a run.
"""

import collections
import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from t5x_lite.core.accelerators import GIB, STAND_IN, Chip
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.sharding import is_axes, mesh_axes
from t5x_lite.core.trees import Axes
from t5x_lite.plan import hlo
from t5x_lite.plan.hlo import Reading, RingTime

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
    """Return devices that can only compile, for a TPU slice that is not attached."""
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
    """Kind, number and arrangement of the devices of a run, attached or planned.

    Attributes:
      kind: device kind as reported by JAX.
      num_devices: number of devices on all hosts.
      shape: number of chips along each side of a TPU slice; () if JAX reports no coordinates.
      slices: number of TPU slices that the devices belong to; 1 if JAX reports no slices.
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
    """Return the kind, number and arrangement of attached or simulated devices."""
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
    """Return an error message if attached devices differ from planned devices, or None.

    Only the order of the side lengths of a slice may differ.
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

    All fields except the peak are sizes of unpadded arrays. For the peak, the compiler pads arrays
    to the device's tiles, and ignores batch features that the step does not read.

    Attributes:
      parameters: bytes of float32 master parameters.
      optimizer: bytes of the optimizer state and the step.
      batch: bytes of the batch features.
      temporaries: bytes of activations, gradients and other arrays that exist only within a step.
      results: bytes of the step's results that are not stored in the memory of its arguments.
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
      reading: contents of the program's HLO text; None if the compiler cannot print the text.
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
    """Return the largest divisor of `parts` that splits an axis into shards of 128 or more."""
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
    """Return the largest divisor of `parts` that splits fsdp axes into shards of 128 or more."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated time of a train step, from the compiler's cycle estimates; nothing is executed.

    Attributes:
      seconds: seconds per step: estimated cycles of all operations (loops multiplied by their
        iterations) divided by the clock rate, plus the larger of compute time and memory time of
        each kernel. Operations without an estimate, such as collectives, count as 0.
      mfu: model FLOPs utilization at this time; None if the peak rate or FLOPs are unknown.
    """

    seconds: float
    mfu: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sheet:
    """Report of a train step's memory and time, for one batch shape.

    Attributes:
      model: class name of the model's config.
      num_parameters: number of parameters, including the objective's.
      compute_dtype: compute dtype of the activations.
      devices: device kind, and the option that selected the devices, such as ("TPU v5 lite",
        "v5e:4x4").
      num_devices: number of devices.
      mesh: mesh axis -> size.
      rows: number of rows of the global batch.
      steps: number of steps of the run; 0 if unknown.
      epochs: number of passes over the data; None if the config counts steps.
      lengths: feature -> number of tokens per row.
      microbatches: number of microbatches per batch.
      chip: peak rates and memory size of a device.
      flops: FLOPs per step over all devices; None if not counted for this model.
      memory: memory on one device; None if the step did not compile for lack of memory.
      needed: bytes needed on one device; None if the step does not fit and the compiler reports no
        size.
      reading: facts from the compiled program's text, or None.
      trace_seconds: seconds of tracing; None if the step did not compile.
      compile_seconds: seconds of compilation, successful or not.
      remedies: suggested changes if the step does not fit.
      operations: number of most expensive operations to list.
      warnings: warnings about causes of slower steps.
      choices: settings that replaced "auto", a line per model.
      compiled_flops: FLOPs on one device, as counted by the compiler, or None.
      compiled_bytes_accessed: bytes accessed on one device, as counted by the compiler, or None.
    """

    model: str
    num_parameters: int
    compute_dtype: str
    devices: tuple[str, str]
    num_devices: int
    mesh: Mapping[str, int]
    rows: int
    lengths: Mapping[str, int]
    microbatches: int
    chip: Chip
    flops: int | None
    memory: Memory | None
    needed: int | None
    reading: Reading | None
    trace_seconds: float | None
    compile_seconds: float
    remedies: Sequence[str] = ()
    operations: int = 0
    warnings: Sequence[str] = ()
    compiled_flops: int | None = None
    compiled_bytes_accessed: int | None = None
    steps: int = 0
    epochs: float | None = None
    choices: Sequence[str] = ()

    @property
    def fits(self) -> bool | None:
        """True if the step fits into device memory; None if the memory size is unknown."""
        if self.memory is None:
            return False
        if self.chip.hbm is None:
            return None
        return self.memory.peak <= self.chip.hbm

    @property
    def over(self) -> int | None:
        """Number of bytes by which the step exceeds device memory; None if unknown."""
        if self.needed is None or self.chip.hbm is None:
            return None
        return max(0, self.needed - self.chip.hbm)

    @property
    def estimate(self) -> Estimate | None:
        """Estimated time of the step from the compiler's cycles; None if unavailable."""
        cycles = self.reading.cycles if self.reading else None
        if cycles is None or self.chip.clock is None:
            return None
        seconds = cycles / self.chip.clock + self._kernel_seconds()
        known = self.flops is not None and self.chip.peak is not None and seconds > 0
        peak = (self.chip.peak or 0.0) * self.num_devices
        return Estimate(seconds=seconds, mfu=(self.flops or 0) / seconds / peak if known else None)

    @property
    def rings(self) -> RingTime | None:
        """Minimum time of the collectives; None without collectives or known link speeds."""
        traffic = self.reading.traffic if self.reading else ()
        rate = self.chip.links
        return None if rate is None or not traffic else hlo.ring_time(traffic, rate)

    @property
    def with_links(self) -> float | None:
        """Seconds per step, including the wait for collectives between chips; None if unknown."""
        estimate, rings = self.estimate, self.rings
        return rings.added_to(estimate.seconds) if estimate and rings else None

    def _kernel_seconds(self) -> float:
        """Return the minimum time of all Pallas kernels; 0 if the chip's peak rates are unknown."""
        peak, bandwidth = self.chip.peak, self.chip.bandwidth
        if self.reading is None or peak is None or bandwidth is None:
            return 0.0
        return sum(
            kernel.count * max(kernel.flops / peak, kernel.bytes / bandwidth)
            for kernel in self.reading.kernels
        )

    def costliest(self) -> list[dict[str, Any]]:
        """Return the most expensive operations of the train step, as a JSON list."""
        clock = self.chip.clock
        if self.reading is None or clock is None:
            return []
        return [
            {"source": found.source, "count": found.count, "seconds": found.cycles / clock}
            for found in self.reading.operations[: self.operations]
        ]

    def record(self) -> dict[str, Any]:
        """Return the report as JSON."""
        estimate = self.estimate
        rings = self.rings
        collectives = self.reading.collectives if self.reading else {}
        return {
            "model": self.model,
            "parameters": self.num_parameters,
            "compute_dtype": self.compute_dtype,
            "devices": self.devices[1],
            "device_kind": self.devices[0],
            "num_devices": self.num_devices,
            "mesh": dict(self.mesh),
            "rows": self.rows,
            "steps": self.steps,
            "epochs": self.epochs,
            "lengths": dict(self.lengths),
            "microbatches": self.microbatches,
            "fits": self.fits,
            "memory_bytes_available": self.chip.hbm,
            "memory_bytes_needed": self.needed,
            "memory_bytes_over": self.over,
            "memory_bytes": None if self.memory is None else dataclasses.asdict(self.memory),
            "flops": self.flops,
            "compiled_flops": self.compiled_flops,
            "compiled_bytes_accessed": self.compiled_bytes_accessed,
            "collectives": {
                kind: dataclasses.asdict(traffic) for kind, traffic in collectives.items()
            },
            "collective_bytes": (
                dataclasses.asdict(hlo.moved(self.reading.traffic)) if self.reading else None
            ),
            "kernels": [
                dataclasses.asdict(kernel)
                for kernel in (self.reading.kernels if self.reading else ())
            ],
            "loops_of_unknown_length": self.reading.unknown_loops if self.reading else None,
            "trace_seconds": self.trace_seconds,
            "compile_seconds": self.compile_seconds,
            "estimated_cycles": self.reading.cycles if self.reading else None,
            "estimated_step_seconds": estimate.seconds if estimate else None,
            "estimated_mfu": estimate.mfu if estimate else None,
            "least_link_seconds": dataclasses.asdict(rings) if rings else None,
            "estimated_step_seconds_with_links": self.with_links,
            "operations": self.costliest(),
            "choices": list(self.choices),
            "remedies": list(self.remedies),
            "warnings": list(self.warnings),
        }

    def text(self) -> str:
        """Return the report as text."""
        parts = (self._head(), self._memory(), self._work(), self._estimate(), self._links())
        return "\n".join(line for part in parts for line in part)

    def verdict(self) -> str:
        """Return a line on whether the step fits into memory, with suggestions if it does not."""
        chip, kind = self.chip.hbm, self.devices[0]
        if self.fits is None:
            return f"the memory size of a {kind} device is unknown, so the fit cannot be checked"
        if self.fits:
            needed = self.memory.peak if self.memory else 0
            return f"fits: {_gib((chip or 0) - needed)} GiB of {_gib(chip or 0)} are left"
        over = "" if self.over is None else f" by {_gib(self.over)} GiB"
        size = "" if self.needed is None else f": {_gib(self.needed)} GiB are needed"
        there = "" if chip is None else f" and a {kind} has {_gib(chip)}"
        what = "; ".join(self.remedies)
        return f"does not fit{over}{size}{there if size else ''}. Try {what}"

    def _head(self) -> list[str]:
        axes = ", ".join(f"{name} {size}" for name, size in self.mesh.items() if size > 1)
        tokens = " / ".join(
            str(self.lengths[name])
            for name in ("encoder_input_tokens", "decoder_target_tokens")
            if name in self.lengths
        )
        parts = f", {self.microbatches} microbatches" if self.microbatches > 1 else ""
        epochs = "" if self.epochs is None else f", {self.epochs:g} epochs of the data"
        return [
            f"{self.model}, {self.num_parameters:,} parameters, {self.compute_dtype}",
            f"{self.num_devices} x {self.devices[0]} ({self.devices[1]}), mesh: {axes or 'one'}",
            f"batch of {self.rows} rows of {tokens} tokens{parts}",
            *([f"{self.steps:,} steps{epochs}"] if self.steps else []),
            *self.choices,
            *(f"warning: {warning}" for warning in self.warnings),
            "",
        ]

    def _memory(self) -> list[str]:
        if self.memory is None:
            return ["memory of a device", f"  {self.verdict()}", ""]
        names = {
            "parameters": "parameters",
            "optimizer": "optimizer state",
            "batch": "batch",
            "temporaries": "temporaries (activations, gradients)",
            "results": "results",
            "program": "program",
            "peak": "peak, with padding",
        }
        unit, size = ("GiB", GIB) if self.memory.peak >= GIB else ("MiB", 2**20)
        lines = [
            f"  {label:<38}{getattr(self.memory, name) / size:>8.2f}"
            for name, label in names.items()
        ]
        return [f"memory of a device, {unit}", *lines, f"  {self.verdict()}", ""]

    def _work(self) -> list[str]:
        flops = "not counted for this model" if self.flops is None else f"{self.flops:.3e}"
        lines = [
            f"FLOPs of a step            {flops} (analytic: matrix products, no rematerialisation)",
        ]
        if self.reading is None:
            lines.append("collectives                not known: the compiler gives no text")
        elif not self.reading.collectives:
            lines.append("collectives                none")
        else:
            lines.append("collectives of a device in a step")
            for kind, traffic in sorted(self.reading.collectives.items()):
                lines.append(f"  {kind:<25}{traffic.bytes / 1e6:>10.1f} MB in {traffic.count}")
            lines += hlo.lines(self.reading.traffic)
        kernels = self.reading.kernels if self.reading else ()
        if kernels:
            flops = sum(kernel.count * kernel.flops for kernel in kernels)
            moved = sum(kernel.count * kernel.bytes for kernel in kernels)
            lines += [
                "kernels of a device in a step, as their code says",
                f"  {sum(kernel.count for kernel in kernels)} runs, {flops:.3e} FLOPs, "
                f"{moved / 1e6:.1f} MB from and to HBM",
            ]
        if self.reading and self.reading.unknown_loops:
            lines.append(
                f"  {self.reading.unknown_loops} loop(s) whose length is not known count once"
            )
        seconds = self.trace_seconds
        traced = "" if seconds is None else f", after {seconds:.0f} s of tracing"
        return [*lines, f"compile time               {self.compile_seconds:.0f} s{traced}"]

    def _estimate(self) -> list[str]:
        estimate = self.estimate
        if estimate is None:
            return []
        mfu = "" if estimate.mfu is None else f", estimated MFU {estimate.mfu:.2f}"
        clock = (self.chip.clock or 0.0) / 1e9
        kernels = ""
        if self.reading and self.reading.kernels:
            share = f"{1e3 * self._kernel_seconds():.1f} ms"
            kernels = f" and the kernels at the chip's rates ({share})"
        return [
            f"estimated step time        {1e3 * estimate.seconds:.1f} ms{mfu}",
            f"  an ESTIMATE: the compiler's cycles at {clock:.2f} GHz{kernels}, without waiting "
            "for collectives; nothing was run",
            *(
                f"  {1e3 * found['seconds']:>9.2f} ms in {found['count']:>4}  {found['source']}"
                for found in self.costliest()
            ),
        ]

    def _links(self) -> list[str]:
        rings, total = self.rings, self.with_links
        if rings is None:
            return []
        waiting, beside = 1e3 * rings.synchronous, 1e3 * rings.asynchronous
        sum_ = "" if total is None else f"{1e3 * total:.1f} ms, with "
        return [
            f"and waiting for links      {sum_}{waiting:.1f} ms of synchronous collectives, and "
            f"{beside:.1f} ms beside other work",
            "  at least: by rings over all links of a device at once, "
            f"{(self.chip.links or 0) / 1e9:.0f} GB/s each way",
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sheets:
    """Reports on the memory and time of a train step, for all batch shapes of a run.

    Attributes:
      sheets: report of each shape.
      lengths: row length of each shape, in tokens; () for a single shape.
    """

    sheets: tuple[Sheet, ...]
    lengths: tuple[int, ...] = ()

    @property
    def largest(self) -> Sheet:
        """Report of the batch shape that needs the most memory."""
        unknown = float("inf")
        needs = [unknown if one.needed is None else one.needed for one in self.sheets]
        return self.sheets[max(range(len(needs)), key=lambda place: (needs[place], place))]

    def verdict(self) -> str:
        return self.largest.verdict()

    def record(self) -> dict[str, Any]:
        """Return the reports of all batch shapes as JSON."""
        record = self.largest.record()
        if not self.lengths:
            return record
        shapes = zip(self.lengths, self.sheets, strict=True)
        return {**record, "shapes": [{"length": n, **one.record()} for n, one in shapes]}

    def text(self) -> str:
        """Return a table of all batch shapes, and the report of the largest shape, as text."""
        if not self.lengths:
            return self.largest.text()
        columns = f"{'rows':>8}{'tokens':>8}{'peak, GiB':>12}{'FLOPs':>12}{'compiled in':>13}"
        columns += f"{'estimate':>12}{'MFU':>6}"
        lines = [f"batches of {len(self.sheets)} shapes, each a program of its own", columns]
        for length, one in zip(self.lengths, self.sheets, strict=True):
            peak = "not known" if one.needed is None else _gib(one.needed)
            flops = "-" if one.flops is None else f"{one.flops:.3e}"
            seconds = f"{one.compile_seconds:.0f} s"
            estimate = one.estimate
            time = "-" if estimate is None else f"{1e3 * estimate.seconds:.1f} ms"
            mfu = "-" if estimate is None or estimate.mfu is None else f"{estimate.mfu:.2f}"
            shape = f"{one.rows:>8}{length:>8}{peak:>12}{flops:>12}{seconds:>13}"
            lines.append(f"{shape}{time:>12}{mfu:>6}")
        return "\n".join([*lines, "", "the one that needs the most memory:", self.largest.text()])


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
