"""A pilot of sparse fine-tuning, winning tickets and supermasks on SST-2, one seed.

    python scripts/bench/sparse_study.py --data-directory GLUE --vocabulary vocab.txt \
        --base WORK/bert --output WORK/sparse [--arms lottery random] [--steps 600] [--seed 0]

The base is a run of configs/pretrain/bert_tiny.py.
Arms, each named by what it is:

    full, head                          all weights, and the classifier alone
    lottery, magnitude, fisher, random  K = 0.5 % of the weights, by four scores (random: by lot)
    diff                                diff pruning at the same K
    ticket-50, ticket-20                magnitude pruning with rewinding, of the pretrained weights
    ticket-50-random, ticket-20-random  the same of random weights
    supermask, supermask-random         a mask of half the kernels, whose weights never train
    movement                            15 % of the kernels

A work directory that is there is not repeated, and one that was stopped goes on. One JSON line for
each arm that is there; with --report these alone. A gap below the spread of seeds is none.
"""

import argparse
import json
import time
from pathlib import Path

from arms import Arm, run_all

K = "density=0.005"
ARMS: dict[str, tuple[str, float]] = {
    "full": ("", 3e-4),
    "head": ("", 1e-3),
    "lottery": (f"x = sparse({K})", 1e-3),
    "magnitude": (f"x = sparse({K}, select='magnitude')", 1e-3),
    "fisher": (f"x = sparse({K}, select='fisher', examples=256)", 1e-3),
    "random": (f"x = sparse({K}, select='random')", 1e-3),
    "diff": (f"x = diff({K}, alpha_rate=100)", 1e-3),
    "ticket-50": ("x = prune(density=0.5, rounds=1)", 3e-4),
    "ticket-20": ("x = prune(density=0.2, rounds=2)", 3e-4),
    "supermask": ("x = supermask(density=0.5)", 1e-2),
    "movement": ("x = movement(density=0.15)", 3e-4),
}
"""Name -> the line of --adapters.add, and the learning rate."""
RANDOM = "-random"
FROM_RANDOM = ("full", "ticket-50", "ticket-20", "supermask")
"""Arms that also begin with random weights."""


def names() -> list[str]:
    """All arms."""
    return [*ARMS, *(f"{name}{RANDOM}" for name in FROM_RANDOM)]


def arm(options: argparse.Namespace, name: str) -> Arm:
    """The run of an arm."""
    is_random = name.endswith(RANDOM)
    line, rate = ARMS[name.removesuffix(RANDOM)]
    schedule = "--optimizer.schedule."
    return Arm(
        Path(options.output) / f"{name}_{options.seed}",
        options.steps,
        (
            options.config,
            *("--data.directory", options.data_directory),
            *("--data.vocabulary", options.vocabulary),
            *("--seed", str(options.seed)),
            *(() if is_random else ("--init", options.base)),
            *(f"{schedule}peak", str(rate), f"{schedule}total-steps", str(options.steps)),
            *(f"{schedule}warmup-steps", str(options.steps // 10)),
            *("--evaluation.period", str(options.steps)),
            *(("--adapters.add", line) if line else ()),
            *(("--train", "heads/.*") if name == "head" else ()),
        ),
    )


def report(options: argparse.Namespace) -> None:
    """Prints a JSON line for each arm that is there."""
    for name in options.arms:
        one = arm(options, name)
        if one.done():
            line = {"arm": name, "module": ARMS[name.removesuffix(RANDOM)][0]}
            line |= {"seed": options.seed, "steps": options.steps}
            print(json.dumps(line | {"accuracy": one.last("validation/accuracy")}), flush=True)


def main() -> None:
    """Runs what is not there yet, until the minutes are over, and prints the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-directory", required=True, help="of GLUE, which holds SST-2")
    parser.add_argument("--base", required=True, help="a work directory or a step directory")
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--config", default="configs/finetune/encoder_glue_tiny.py")
    parser.add_argument("--arms", nargs="+", default=names(), choices=names())
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30.0, help="no arm begins after these")
    parser.add_argument("--report", action="store_true", help="the lines alone; run nothing")
    options = parser.parse_args()
    start = time.monotonic()
    arms = [] if options.report else [arm(options, name) for name in options.arms]
    for first in range(0, len(arms), 2):
        if time.monotonic() - start > 60 * options.minutes:
            break
        run_all(arms[first : first + 2], at_once=2)
    report(options)


if __name__ == "__main__":
    main()
