"""How the cost of a T5 train step grows with rows, length, layers and devices: data and plots.

    python scripts/bench/growth.py --output docs/plots/growth.jsonl               # measures, draws
    python scripts/bench/growth.py --output docs/plots/growth.jsonl --draw-only

On this machine's CPU: T5 1.1 small, bfloat16 operands, the median of --rounds steps (those of
scripts/bench/train_step.py). With libtpu, for slices that are not attached: the compiler's estimate
and memory a chip of T5 1.1 base (`t5x-lite plan`), plain attention beside the kernel by length, and
one batch over more and more chips. A point is a line of the file, and what is there is not measured
again. The plots lie beside it, as SVG; they need matplotlib (the extra "bench").
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from train_step import SHAPES, VOCABULARY, Shape, Side, step_flops

ROWS = (1, 2, 4, 8, 16)
LENGTHS = (128, 256, 512, 1024, 2048)
LAYERS = (1, 2, 4, 8)
TPU_LENGTHS = (512, 2048, 8192)
CHIPS = {4: "v5e:2x2", 16: "v5e:4x4", 64: "v5e:8x8", 256: "v5e:16x16"}
TOKENS = 256 * 512
BASE = "configs/pretrain/t5_1_1_base.py"
LOOP = ("--model.unroll", "1", "--model.remat", "dots_no_batch")
KERNEL = ("--model.attention", "pallas", "--model.attention-block", "256")
TPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

Point = Mapping[str, Any]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", required=True, type=Path, help="a .jsonl file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--panels", nargs="+", default=list(PANELS), choices=PANELS)
    parser.add_argument("--draw-only", action="store_true")
    return parser.parse_args()


def targets_of(length: int) -> int:
    """The target tokens of so many input tokens, in T5's proportion."""
    return length * 114 // 512


def small(**changes: int) -> Shape:
    """T5 1.1 small, with other rows, inputs or layers."""
    shape = SHAPES["small"]
    inputs = changes.get("inputs", shape.inputs)
    sizes = {**shape.sizes, "layers": changes.get("layers", shape.sizes["layers"])}
    return Shape(sizes, changes.get("rows", shape.rows), inputs, targets_of(inputs))


def seconds(shape: Shape, *, rounds: int) -> Point:
    """A train step on this machine."""
    work = {
        "shape": dataclasses.asdict(shape),
        "cores": sorted(os.sched_getaffinity(0)),
        "vocabulary": VOCABULARY,
        "dropout": 0.0,
        "dtype": "bf16",
        "steps": 1,
        "compare_steps": 3,
    }
    with tempfile.TemporaryDirectory() as directory:
        work["weights"] = str(Path(directory) / "weights.npz")
        if Side({**work, "side": "weights"}).process.wait():
            raise SystemExit("the weights were not made")
        side = Side({**work, "side": "ours"})
        side.ask("compare")
        found = [side.ask("time") for _ in range(rounds)]
        side.end()
    return {
        "seconds": round(statistics.median(answer["seconds"] for answer in found), 4),
        "peak_gib": round(found[-1]["peak_mib"] / 1024, 2),
        "flops": step_flops(work),
    }


def plan(topology: str, *arguments: str) -> Point:
    """A train step of T5 1.1 base, compiled for a slice."""
    command = (sys.executable, "-m", "t5x_lite", "plan", BASE, "--topology", topology, "--json")
    result = subprocess.run(
        (*command, *arguments),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**TPU_ENVIRONMENT, **os.environ},
    )
    if result.returncode not in (0, 1) or not result.stdout.startswith("{"):
        raise SystemExit(f"{' '.join(result.args)}: exit code {result.returncode}")
    found = json.loads(result.stdout)
    estimate, memory = found["estimated_step_seconds"], found["memory_bytes"] or {}
    return {
        "fits": found["fits"],
        "seconds": estimate and round(estimate, 5),
        "peak_gib": round(found["memory_bytes_needed"] / 2**30, 2),
        "temporaries_gib": round(memory.get("temporaries", 0) / 2**30, 2),
        "mfu": found["estimated_mfu"] and round(found["estimated_mfu"], 3),
        "compile_seconds": round(found["compile_seconds"], 1),
    }


def on_cpu(name: str, values: Sequence[int], *, rounds: int) -> Iterator[tuple[str, int, Any]]:
    for value in values:
        yield "measured", value, lambda value=value: seconds(small(**{name: value}), rounds=rounds)


def by_length(*, rounds: int) -> Iterator[tuple[str, int, Any]]:
    for length in TPU_LENGTHS:
        sizes = ("--data.inputs-length", str(length), "--data.targets-length")
        sizes += (str(targets_of(length)), "--data.batch-size", str(TOKENS // length), *LOOP)
        for series, more in (("plain", ()), ("kernel", KERNEL)):
            yield series, length, lambda a=(*sizes, *more): plan("v5e:4x4", *a)


def by_chips(*, rounds: int) -> Iterator[tuple[str, int, Any]]:
    for chips, topology in CHIPS.items():
        arguments = ("--model.unroll", "1", "--model.remat", "full")
        yield "estimated", chips, lambda t=topology, a=arguments: plan(t, *a)


PANELS = {
    "rows": lambda rounds: on_cpu("rows", ROWS, rounds=rounds),
    "length": lambda rounds: on_cpu("inputs", LENGTHS, rounds=rounds),
    "layers": lambda rounds: on_cpu("layers", LAYERS, rounds=rounds),
    "tpu_length": lambda rounds: by_length(rounds=rounds),
    "tpu_chips": lambda rounds: by_chips(rounds=rounds),
}
"""What is measured: series, value and a function that measures, by panel."""


def read(path: Path) -> list[Point]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def measure(options: argparse.Namespace) -> None:
    """Adds the points that are not there."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    there = {(p["panel"], p["series"], p["x"]) for p in read(options.output)}
    for panel in options.panels:
        for series, value, work in PANELS[panel](options.rounds):
            if (panel, series, value) not in there:
                line = json.dumps({"panel": panel, "series": series, "x": value, **work()})
                print(line, flush=True)
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


@dataclasses.dataclass(frozen=True)
class Plot:
    """One of the plots: y of every series of a panel, beside `ideal`, a power of x."""

    panel: str
    title: str
    x: str
    y: str
    label: str
    ideal: float | None = None


PLOTS = (
    Plot("rows", "T5 1.1 small, 512/114, CPU", "rows", "seconds", "s a step", 1),
    Plot("length", "T5 1.1 small, 8 rows, CPU", "input tokens a row", "seconds", "s a step", 1),
    Plot("layers", "T5 1.1 small, 8 rows, CPU", "layers of each stack", "seconds", "s a step", 1),
    Plot(
        *("tpu_length", "T5 1.1 base, v5e:4x4, 131,072 tokens", "input tokens a row"),
        *("seconds", "estimated s a step"),
    ),
    Plot(
        *("tpu_length", "T5 1.1 base, v5e:4x4, 131,072 tokens", "input tokens a row"),
        *("peak_gib", "GiB a chip (15.75 there are)"),
    ),
    Plot(
        *("tpu_chips", "T5 1.1 base, 256 rows, v5e", "chips"),
        *("seconds", "estimated s a step", -1),
    ),
)


def draw(points: Sequence[Point], path: Path) -> None:
    """Writes the plots of what is there; the same points make the same file."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "growth", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.5), layout="constrained")
    for plot, axis in zip(PLOTS, axes.flat, strict=True):
        own = [p for p in points if p["panel"] == plot.panel and p[plot.y] is not None]
        for series in dict.fromkeys(p["series"] for p in own):
            line = sorted((p["x"], p[plot.y]) for p in own if p["series"] == series)
            axis.plot(*zip(*line, strict=True), marker="o", label=series)
            if plot.ideal is not None:
                (first, value), (last, _) = line[0], line[-1]
                end = value * (last / first) ** plot.ideal
                ends = ((first, last), (value, end))
                axis.plot(*ends, "--", color="gray", label="in proportion")
        axis.set(title=plot.title, xlabel=plot.x, ylabel=plot.label, xscale="log", yscale="log")
        ticks = sorted({p["x"] for p in own})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        bottom, top = axis.get_ylim()
        steps = [float(f"{digit}e{power}") for power in range(-3, 3) for digit in (1, 2, 5)]
        steps = [step for step in steps if bottom <= step <= top]
        axis.set_yticks(steps, [f"{step:g}" for step in steps])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        if own:
            axis.legend()
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def main() -> None:
    options = parse()
    if not options.draw_only:
        measure(options)
    draw(read(options.output), options.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
