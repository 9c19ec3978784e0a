"""Full fine-tuning and each adapter method from one base: tuned rates, seeds, paired intervals.

    python scripts/bench/adapt_study.py --base BASE --table CORPUS/sections --output WORK \
        [--rows 10000] [--steps 600] [--seeds 0 1 2] [--methods full head lora] [--report]
    python scripts/bench/adapt_study.py ... --plot adapter-order.svg

BASE is a checkpoint of an encoder, TABLE a folder with {train,validation,test}.jsonl of
{"text", "label"}, such as CORPUS/sections of corpus.py. Each seed has --rows training rows of its
own, which all methods share, and the same batches. The rate of a method is the best of three by the
accuracy on the validation rows of the first seed; if it is the smallest or largest of them, up to
two more are tried in that direction. "head" trains the classifier alone.

All runs are `t5x-lite finetune`, and the accuracies those of `t5x-lite predict` on the test rows. A
run that is there is not repeated, and one that was killed goes on. Two run at once, each on a core.

The last lines are one JSON line for each method: its rate, its mean accuracy, and the difference
from full fine-tuning with a 95 % interval of a bootstrap over seeds and test rows, paired. The gate
is that full fine-tuning is at least 10 points better than the head alone.
"""

import argparse
import dataclasses
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from arms import Arm, Made, merged, run_all, t5x_lite
from gpu_study import interval

METHODS: dict[str, tuple[str, float]] = {
    "full": ("", 3e-4),
    "head": ("", 3e-3),
    "lora": ("x = lora(r=8)", 3e-3),
    "seq_bn": ("x = seq_bn(reduction=4)", 3e-3),
    "par_bn": ("x = par_bn(reduction=4)", 3e-3),
    "ia3": ("x = ia3()", 1e-2),
    "bitfit": ("x = bitfit()", 3e-3),
    "prefix": ("x = prefix(length=10)", 3e-3),
    "layers": ("x = layers(last=2)", 3e-4),
    "dora": ("x = lora(r=8, dora=True)", 3e-3),
    "compacter": ("x = compacter(reduction=4)", 1e-2),
}
"""Name -> value of --adapters.add, and the middle one of the three rates."""
FACTORS = (1 / 27, 1 / 9, 1 / 3, 1.0, 3.0, 9.0, 27.0)
"""Rates of a method, in units of the middle one; the first three tries are around the middle."""
MAIN = ("full", "head", "lora", "seq_bn", "ia3", "bitfit", "prefix")
HELD, TESTED = 1000, 2000


@dataclasses.dataclass(frozen=True)
class FineTuning(Arm):
    """A run of `t5x-lite finetune`; its arguments have no config."""

    def command(self) -> list[str]:
        """Trains, or resumes."""
        compiled = ("--compilation-cache", str(self.workdir.parent.parent / "compiled"))
        own = ("--workdir", str(self.workdir), "--steps", str(self.steps))
        return t5x_lite("finetune", *merged((*compiled, *self.arguments)), *own)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(output: Path, table: Path, seeds: Iterable[int], rows: int) -> None:
    """Write the rows of each seed, with every class in them; the test rows, which are last."""
    splits = {name: lines_of(table / f"{name}.jsonl") for name in ("train", "validation")}
    labels = sorted({row["label"] for row in splits["train"]})
    for seed in seeds:
        chosen = random.Random(seed).sample(splits["train"], rows)
        seen = {row["label"] for row in chosen}
        others = [x for x in labels if x not in seen]
        chosen += [next(row for row in splits["train"] if row["label"] == x) for x in others]
        held = random.Random(0).sample(splits["validation"], HELD)
        for name, those in (("train", chosen), ("validation", held)):
            write_lines(output / "rows" / str(seed) / f"{name}.jsonl", map(json.dumps, those))
    tests = random.Random(0).sample(lines_of(table / "test.jsonl"), TESTED)
    named = [json.dumps({"inputs": row["text"], "label": row["label"]}) for row in tests]
    write_lines(output / "test.jsonl", named)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


class Study:
    """All runs and where they are."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.output, self.table = Path(options.output), Path(options.table)

    def write_files(self) -> None:
        """Write the rows of each seed, and the test rows, which are written last."""
        if (self.output / "test.jsonl").exists():
            return
        write_rows(self.output, self.table, self.options.seeds, self.options.rows)

    def run(self, method: str, seed: int, rate: float) -> FineTuning:
        steps = self.options.steps
        line, _ = METHODS[method]
        return FineTuning(
            self.output / f"seed_{seed}" / f"{method}_{rate:.1e}",
            steps,
            (
                *("--init", self.options.base, "--table", str(self.output / "rows" / str(seed))),
                *("--inputs", "{text}", "--targets", "{label}", "--task", "classify"),
                *("--data.inputs-length", str(self.options.length), "--seed", str(seed)),
                *("--optimizer.schedule.peak", str(rate)),
                *("--evaluation.period", str(steps), "--checkpoints.period", "200"),
                *(("--adapters.add", line) if line else ()),
                *(("--train", "heads/.*") if method == "head" else ()),
            ),
        )

    def tried(self, method: str) -> dict[float, float]:
        """Accuracy on the validation rows of the first seed, by the rates that were run."""
        found = {}
        for factor in FACTORS:
            rate = METHODS[method][1] * factor
            accuracy = self.run(method, self.options.seeds[0], rate).last("validation/accuracy")
            if accuracy is not None:
                found[rate] = accuracy
        return found

    def best_rate(self, method: str) -> float:
        tried = self.tried(method)
        return max(tried, key=lambda rate: tried[rate])

    def next_rates(self, method: str) -> list[float]:
        """Rates to run before the best one is known."""
        rates, tried = [METHODS[method][1] * factor for factor in FACTORS], self.tried(method)
        missing = [rate for rate in rates[2:5] if rate not in tried]
        if missing:
            return missing
        best = rates.index(self.best_rate(method))
        beside = rates[max(best - 1, 0) : best + 2]
        return [rate for rate in beside if rate not in tried]

    def predictions(self, method: str, seed: int) -> Made:
        chosen = self.run(method, seed, self.best_rate(method)).workdir
        output = chosen.with_name(f"{chosen.name}.jsonl")
        files = ("--input", str(self.output / "test.jsonl"), "--output", str(output))
        return Made(output, ("predict", "--checkpoint", str(chosen), *files))

    def run_all(self) -> None:
        """Make everything that is not there yet."""
        methods, (first, *others) = self.options.methods, self.options.seeds
        while tries := [self.run(m, first, rate) for m in methods for rate in self.next_rates(m)]:
            run_all(tries, at_once=2)
        run_all([self.run(m, s, self.best_rate(m)) for s in others for m in methods], at_once=2)
        run_all([self.predictions(m, s) for m in methods for s in self.options.seeds], at_once=2)

    def right(self, method: str) -> np.ndarray | None:
        """Whether each test row is right, of each seed [seeds, rows]; None if a run is missing."""
        if not self.tried(method):
            return None
        made = [self.predictions(method, seed) for seed in self.options.seeds]
        if not all(each.done() for each in made):
            return None
        return np.array(
            [[row["prediction"] == row["label"] for row in lines_of(each.output)] for each in made],
            float,
        )

    def report(self) -> list[dict[str, object]]:
        """One line for each method, best first."""
        full, found = self.right("full"), []
        for method in self.options.methods:
            right = self.right(method)
            if right is None or full is None:
                continue
            low, high = interval(right - full)
            found.append(
                {
                    "method": method,
                    "rate": self.best_rate(method),
                    "accuracy": round(100 * right.mean(), 2),
                    "by_seed": [round(100 * each, 2) for each in right.mean(axis=1)],
                    "less_full": round(100 * (right - full).mean(), 2),
                    "interval": [round(100 * low, 2), round(100 * high, 2)],
                }
            )
        return sorted(found, key=lambda line: -float(str(line["accuracy"])))


def carry_out(
    study_of: Callable[[argparse.Namespace], Any],
    parser: argparse.ArgumentParser,
    plot: Callable[..., None],
) -> None:
    """Run what is not there yet, unless --report is given; print the lines, and draw them."""
    parser.add_argument("--report", action="store_true", help="the lines alone; run nothing")
    parser.add_argument("--plot", help="file of the picture")
    options = parser.parse_args()
    study = study_of(options)
    if not options.report:
        study.write_files()
        study.run_all()
    lines = study.report()
    for line in lines:
        print(json.dumps(line), flush=True)
    if options.plot:
        plot(lines, options.plot)


def plot(lines: list[dict[str, object]], path: str) -> None:
    """Draw the accuracies; the same lines make the same file."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "study", "svg.fonttype": "none", "font.size": 9})
    figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
    names = [str(line["method"]) for line in lines]
    axis.barh(names, [float(str(line["accuracy"])) for line in lines], height=0.6)
    axis.set(xlabel="test accuracy, %", xlim=(0, 100))
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def main() -> None:
    """Run what is not there yet, and print the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base", required=True, help="checkpoint of an encoder")
    parser.add_argument("--table", required=True, help="folder of train, validation, test.jsonl")
    parser.add_argument("--output", required=True)
    parser.add_argument("--methods", nargs="+", default=list(MAIN), choices=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=10_000, help="training rows of each seed")
    parser.add_argument("--steps", type=int, default=600, help="of 32 rows")
    parser.add_argument("--length", type=int, default=64, help="tokens of a text")
    carry_out(Study, parser, plot)


if __name__ == "__main__":
    main()
