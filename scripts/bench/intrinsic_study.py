"""A pilot: the intrinsic dimension of SST-2 at three checkpoints of two sizes, one seed.

    python scripts/bench/intrinsic_study.py --data-directory GLUE --vocabulary vocab.txt \
        --text DIRECTORY --output WORK [--dimensions 100 1000 10000] [--steps 400]

Two sizes of configs/pretrain/bert_tiny.py are pretrained on DIRECTORY. From random weights, from
the middle and from the end of it, SST-2 is trained whole and in subspaces of d numbers (SAID). d_90
is the least of these d whose accuracy reaches 90 % of that of all weights, above the majority's
share: chance counts as 0 (arXiv:2012.13255 takes 90 % of the accuracy itself; both are printed).

A work directory that is there is not repeated, and one that was stopped goes on. One JSON line for
each checkpoint; with --report these alone. A gap below the spread of seeds is none.
"""

import argparse
import json
import time
from pathlib import Path

from arms import Arm, run_all

SIZES = {"2x64": (2, 64), "4x128": (4, 128)}
"""Name -> layers and d_model."""
MAJORITY = 0.509
"""Share of the more frequent label among SST-2's validation examples."""


def model(size: str) -> tuple[str, ...]:
    """What a size changes of the config."""
    layers, width = SIZES[size]
    return (
        *("--model.num-layers", str(layers), "--model.d-model", str(width)),
        *("--model.d-ff", str(4 * width)),
    )


def pretraining(options: argparse.Namespace, size: str) -> Arm:
    """The run whose checkpoints are compared."""
    steps = options.pretraining_steps
    schedule = "--optimizer.schedule."
    return Arm(
        Path(options.output) / f"pretrain_{size}",
        steps,
        (
            "configs/pretrain/bert_tiny.py",
            *("--data.directory", options.text, "--data.vocabulary", options.vocabulary),
            *("--data.inputs-length", "64", "--seed", str(options.seed)),
            *(f"{schedule}total-steps", str(steps)),
            *(f"{schedule}warmup-steps", str(steps // 10)),
            *("--evaluation.period", str(steps), "--checkpoints.keep", "100"),
            *("--checkpoints.period", str(steps // 2)),
            *model(size),
        ),
    )


def arm(options: argparse.Namespace, size: str, checkpoint: int, d: int) -> Arm:
    """SST-2 from a checkpoint, 0 is random weights, in d dimensions, 0 is all of them."""
    schedule = "--optimizer.schedule."
    init = pretraining(options, size).workdir / "checkpoints" / str(checkpoint)
    return Arm(
        Path(options.output) / f"sst2_{size}_{checkpoint}_{d or 'full'}",
        options.steps,
        (
            "configs/finetune/encoder_glue_tiny.py",
            *("--data.directory", options.data_directory, "--data.vocabulary", options.vocabulary),
            *("--seed", str(options.seed)),
            *(("--init", str(init)) if checkpoint else ()),
            *(f"{schedule}peak", str(options.rate if d else 3e-4)),
            *(f"{schedule}total-steps", str(options.steps)),
            *(f"{schedule}warmup-steps", str(options.steps // 10)),
            *("--evaluation.period", str(options.steps)),
            *(("--adapters.add", f"x = said(d={d}, fold=True)") if d else ()),
            *model(size),
        ),
    )


def reached(scores: dict[int, float | None], full: float, *, chance: float) -> int | None:
    """The least d whose score is 90 % of the full one, both less chance; None where none is."""
    wanted = chance + 0.9 * (full - chance)
    return min((d for d, s in scores.items() if s is not None and s >= wanted), default=None)


def report(options: argparse.Namespace) -> None:
    """Prints a JSON line for each size and checkpoint."""
    for size in options.sizes:
        for checkpoint in checkpoints(options):
            full = arm(options, size, checkpoint, 0).last("validation/accuracy")
            scores = {
                d: arm(options, size, checkpoint, d).last("validation/accuracy")
                for d in options.dimensions
            }
            if full is None:
                continue
            line = {"size": size, "checkpoint": checkpoint, "full": full, "accuracy": scores}
            line["d90"] = reached(scores, full, chance=MAJORITY)
            line["d90_of_accuracy"] = reached(scores, full, chance=0.0)
            print(json.dumps(line), flush=True)


def checkpoints(options: argparse.Namespace) -> tuple[int, ...]:
    """Random weights, the middle and the end of pretraining."""
    return 0, options.pretraining_steps // 2, options.pretraining_steps


def main() -> None:
    """Runs what is not there yet, until the minutes are over, and prints the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-directory", required=True, help="of GLUE, which holds SST-2")
    parser.add_argument("--text", required=True, help="a directory of *.txt, for pretraining")
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--dimensions", nargs="+", type=int, default=[200, 1000, 5000])
    parser.add_argument("--pretraining-steps", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rate", type=float, default=3e-3, help="of the numbers of a subspace")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="no arm begins after these")
    parser.add_argument("--report", action="store_true", help="the lines alone; run nothing")
    options = parser.parse_args()
    start = time.monotonic()
    if not options.report:
        run_all([pretraining(options, size) for size in options.sizes], at_once=2)
        arms = [
            arm(options, size, checkpoint, d)
            for d in (0, *options.dimensions)
            for size in options.sizes
            for checkpoint in checkpoints(options)
        ]
        for first in range(0, len(arms), 2):
            if time.monotonic() - start > 60 * options.minutes:
                break
            run_all(arms[first : first + 2], at_once=2)
    report(options)


if __name__ == "__main__":
    main()
