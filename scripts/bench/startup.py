"""Seconds until a train step is compiled, first and with the persistent cache, beside plain JAX.

    python scripts/bench/startup.py [--shapes small base] [--rounds 3] [--markdown]

The shapes and the sides of JAX are those of scripts/bench/train_step.py. Every start is a process
of its own, "cold" with an empty cache (t5x-lite train's --compilation-cache), "again" with what a
cold one left there. Of each: how long JAX takes to trace, lower and compile (or to read) the step's
program, and the three together, "program"; and the first step less a usual one, by the clock and in
CPU seconds of all threads, in which new pages of memory are dear. "times": cold over again, of the
program. Sides are interleaved; one JSON line for each, with medians.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path

from train_step import SHAPES, VOCABULARY, Side

SIDES = ("ours-bf16", "ours-f32", "plain-bf16", "plain-f32")
KINDS = ("trace", "lower", "compile", "program", "seconds", "cpu_seconds")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=["small", "base"], choices=SHAPES)
    parser.add_argument("--sides", nargs="+", default=["ours-bf16", "plain-bf16"], choices=SIDES)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="size of it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true", help="a table after the JSON lines")
    return parser.parse_args()


def start(work: dict) -> dict[str, float]:
    """Seconds of the first step of a new process, see `KINDS`."""
    side = Side(work)
    first = side.ask("compare")
    usual = [side.ask("time") for _ in range(2)]
    side.end()
    beyond = {
        name: max(0.0, first[f"first_{name}"] - min(u[name] for u in usual))
        for name in ("seconds", "cpu_seconds")
    }
    return {**beyond, **first["phases"], "program": sum(first["phases"].values())}


def ratios(starts: dict[str, list[dict[str, float]]]) -> list[float]:
    """How many times faster a program is there again, by round."""
    pairs = zip(starts["cold"], starts["again"], strict=True)
    return [cold["program"] / again["program"] for cold, again in pairs]


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
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        each: {"cold": [], "again": []} for each in options.sides
    }
    for number in range(options.rounds):
        for each in options.sides:
            side, dtype = each.split("-")
            cache = directory / f"{shape}-{each}-{number}"
            work = {**common, "side": side, "dtype": dtype, "cache": str(cache)}
            for starts in found[each].values():
                starts.append(start(work))
    return [
        {
            "device": platform.processor() or platform.machine(),
            "threads": len(common["cores"]),
            "shape": shape,
            "side": each,
            **{
                name: {
                    kind: round(statistics.median(one[kind] for one in those), 2) for kind in KINDS
                }
                for name, those in starts.items()
            },
            "times": round(statistics.median(ratios(starts)), 1),
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
        print(f"\n| shape | side | start | {' | '.join(KINDS)} |\n{'|---' * (3 + len(KINDS))}|")
        for result in results:
            for name in ("cold", "again"):
                cells = (result["shape"], result["side"], name, *result[name].values())
                print("| " + " | ".join(str(cell) for cell in cells) + " |")


if __name__ == "__main__":
    main()
