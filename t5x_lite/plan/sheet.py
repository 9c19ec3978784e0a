"""Report of a plan: whether a train step fits into memory, and its estimated time.

    sheet.text()      lines for standard output
    sheet.record()    the same numbers in bytes, seconds and FLOPs, for json.dumps

`Sheets` has one `Sheet` for each static batch shape of a run.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.core.accelerators import GIB, Chip
from t5x_lite.plan import hlo
from t5x_lite.plan.hlo import Reading, RingTime
from t5x_lite.plan.program import Memory


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
        """Return the most expensive operations of the estimate, as JSON."""
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
    """Reports for all static batch shapes of a run, with one compiled program per shape.

    Attributes:
      sheets: report of each shape.
      lengths: row length of each shape, in tokens; () for a single shape.
    """

    sheets: tuple[Sheet, ...]
    lengths: tuple[int, ...] = ()

    @property
    def largest(self) -> Sheet:
        """Report of the batch shape that needs the most memory; the last one of equal shapes."""
        unknown = float("inf")
        needs = [unknown if one.needed is None else one.needed for one in self.sheets]
        return self.sheets[max(range(len(needs)), key=lambda place: (needs[place], place))]

    def verdict(self) -> str:
        return self.largest.verdict()

    def record(self) -> dict[str, Any]:
        """Return the report of the largest shape as JSON, with all reports in "shapes"."""
        record = self.largest.record()
        if not self.lengths:
            return record
        shapes = zip(self.lengths, self.sheets, strict=True)
        return {**record, "shapes": [{"length": n, **one.record()} for n, one in shapes]}

    def text(self) -> str:
        """Return a table of all shapes, and the report of the largest shape, as text."""
        if not self.lengths:
            return self.largest.text()
        columns = f"{'rows':>8}{'tokens':>8}{'peak, GiB':>12}{'FLOPs':>12}{'compiled in':>13}"
        lines = [f"batches of {len(self.sheets)} shapes, each a program of its own", columns]
        for length, one in zip(self.lengths, self.sheets, strict=True):
            peak = "not known" if one.needed is None else _gib(one.needed)
            flops = "-" if one.flops is None else f"{one.flops:.3e}"
            seconds = f"{one.compile_seconds:.0f} s"
            lines.append(f"{one.rows:>8}{length:>8}{peak:>12}{flops:>12}{seconds:>13}")
        return "\n".join([*lines, "", "the one that needs the most memory:", self.largest.text()])


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
