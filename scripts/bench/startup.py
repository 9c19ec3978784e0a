"""Seconds until a train step is compiled, first and with the persistent cache, beside plain JAX.

    python scripts/bench/startup.py [--shapes small base] [--rounds 3] [--markdown]

The shapes and sides are those of scripts/bench/train_step.py. Every start is a process of its own:
the seconds are those of the first step, which traces, compiles and runs, less those of a usual one;
beside them the CPU seconds of all threads, which tell on a busy machine too. "cold" begins with an
empty cache (t5x-lite train's --compilation-cache), "again" with what a cold one left there. Sides
are interleaved; one JSON line for each, with medians.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path

from train_step import SHAPES, VOCABULARY, Side


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=["small", "base"], choices=SHAPES)
    parser.add_argument("--sides", nargs="+", default=["ours-bf16", "plain-bf16"])
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="size of it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true", help="a table after the JSON lines")
    return parser.parse_args()


def seconds_of_start(work: dict) -> tuple[float, float]:
    """What the first step of a new process took beyond a usual one, and in CPU seconds."""
    side = Side(work)
    first = side.ask("compare")
    usual = [side.ask("time") for _ in range(2)]
    side.end()
    names = ("seconds", "cpu_seconds")
    wall, cpu = [first[f"first_{name}"] - min(u[name] for u in usual) for name in names]
    return max(0.0, wall), max(0.0, cpu)


def measure(options: argparse.Namespace, shape: str, directory: Path) -> list[dict]:
    """The results of all sides at one shape."""
    common = {
        "shape": shape,
        "cores": sorted(os.sched_getaffinity(0)),
        "weights": str(directory / f"{shape}.npz"),
        "vocabulary": options.vocabulary,
        "dropout": 0.0,
        "steps": 1,
        "compare_steps": 1,
    }
    if Side({**common, "side": "weights", "dtype": "f32"}).process.wait():
        raise SystemExit("the weights were not made")
    found: dict[str, dict[str, list[tuple[float, float]]]] = {
        each: {"cold": [], "again": []} for each in options.sides
    }
    for number in range(options.rounds):
        for each in options.sides:
            side, dtype = each.split("-")
            cache = directory / f"{shape}-{each}-{number}"
            work = {**common, "side": side, "dtype": dtype, "cache": str(cache)}
            for start in found[each].values():
                start.append(seconds_of_start(work))
    return [
        {
            "device": platform.processor() or platform.machine(),
            "threads": len(common["cores"]),
            "shape": shape,
            "side": each,
            **{
                f"{name}_{kind}": round(statistics.median(start[index] for start in those), 2)
                for name, those in starts.items()
                for index, kind in enumerate(("seconds", "cpu_seconds"))
            },
            "rounds": {name: [round(s, 2) for s, _ in those] for name, those in starts.items()},
        }
        for each, starts in found.items()
    ]


def main() -> None:
    options = parse()
    results = []
    with tempfile.TemporaryDirectory() as directory:
        for shape in options.shapes:
            for result in measure(options, shape, Path(directory)):
                results.append(result)
                print(json.dumps(result), flush=True)
    if options.markdown:
        print("\n| shape | side | cold, s | CPU s | again, s | CPU s |\n|---|---|---|---|---|---|")
        for result in results:
            names = ("shape", "side", "cold_seconds", "cold_cpu_seconds")
            names += ("again_seconds", "again_cpu_seconds")
            print("| " + " | ".join(str(result[name]) for name in names) + " |")


if __name__ == "__main__":
    main()
