"""A pilot: full fine-tuning beside each method of adapters/, on SST-2, one seed.

    t5x-lite train configs/pretrain/bert_tiny.py --data.directory TEXT --data.vocabulary vocab.txt \
        --data.inputs-length 32 --data.batch-size 128 --steps 1500 \
        --optimizer.schedule.total-steps 1500 --optimizer.schedule.warmup-steps 150 \
        --workdir WORK/bert
    python scripts/bench/adapt_study.py --data-directory GLUE --base WORK/bert --output WORK/arms \
        --vocabulary vocab.txt [--methods full lora ia3] [--steps 1000]

Every arm begins from the base, sees the same batches for --steps steps, and is evaluated on the
validation split at the end; "head" trains the classifier alone. A module's rate is that of its
paper, or near, and falls to 0.

Each arm has a work directory below --output, named by its method: one that is there is not
repeated, and one that was stopped goes on. Two run at once, each on a core of its own. One JSON
line for each method that is there, and with --report these lines alone. One seed tells no order: a
gap below the spread of seeds is none.
"""

import argparse
import json
import time
from pathlib import Path

from arms import Arm, run_all

METHODS: dict[str, tuple[str, float]] = {
    "full": ("", 3e-4),
    "head": ("", 1e-3),
    "lora": ("x = lora(r=8)", 1e-3),
    "dora": ("x = lora(r=8, dora=True)", 1e-3),
    "seq_bn": ("x = seq_bn(reduction=4)", 1e-3),
    "double_seq_bn": ("x = double_seq_bn(reduction=4)", 1e-3),
    "par_bn": ("x = par_bn(reduction=4)", 1e-3),
    "compacter": ("x = compacter(reduction=4)", 3e-3),
    "compacter_plus_plus": ("x = compacter_plus_plus(reduction=4)", 3e-3),
    "ia3": ("x = ia3()", 3e-3),
    "bitfit": ("x = bitfit()", 1e-3),
    "layers": ("x = layers(last=2)", 3e-4),
}
"""Name -> the line of --adapters.add, and the learning rate."""

TRAIN = {"head": ("heads/.*",)}
"""Name -> what is trained of the model itself, where it is not all."""


def arm(options: argparse.Namespace, method: str) -> Arm:
    """The run of a method."""
    line, rate = METHODS[method]
    schedule = "--optimizer.schedule."
    return Arm(
        Path(options.output) / method,
        options.steps,
        (
            options.config,
            *("--data.directory", options.data_directory),
            *("--data.vocabulary", options.vocabulary),
            *("--init", options.base, "--seed", "0"),
            *(f"{schedule}peak", str(rate), f"{schedule}total-steps", str(options.steps)),
            *(f"{schedule}warmup-steps", str(options.steps // 10)),
            *("--evaluation.period", str(options.steps)),
            *(("--adapters.add", line) if line else ()),
            *(("--train", *TRAIN[method]) if method in TRAIN else ()),
        ),
    )


def sizes(workdir: Path) -> dict[str, int]:
    """Bytes of what a run's newest checkpoint holds of the parameters."""
    newest = max((workdir / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    files = (path for path in (newest / "params").rglob("*") if path.is_file())
    return {"params_bytes": sum(path.stat().st_size for path in files)}


def report(options: argparse.Namespace) -> None:
    """Prints a JSON line for each method that is there."""
    for method in options.methods:
        each = arm(options, method)
        if each.done():
            accuracy = each.last("validation/accuracy")
            line = {"method": method, "module": METHODS[method][0], "rate": METHODS[method][1]}
            line |= {"steps": options.steps, "accuracy": accuracy, **sizes(each.workdir)}
            print(json.dumps(line), flush=True)


def main() -> None:
    """Runs what is not there yet, until the minutes are over, and prints the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-directory", required=True, help="of GLUE, which holds SST-2")
    parser.add_argument("--base", required=True, help="a work directory or a step directory")
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--config", default="configs/finetune/encoder_glue_tiny.py")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=30.0, help="no arm begins after these")
    parser.add_argument("--report", action="store_true", help="the lines alone; run nothing")
    options = parser.parse_args()
    start = time.monotonic()
    arms = [] if options.report else [arm(options, method) for method in options.methods]
    for first in range(0, len(arms), 2):
        if time.monotonic() - start > 60 * options.minutes:
            break
        run_all(arms[first : first + 2], at_once=2)
    report(options)


if __name__ == "__main__":
    main()
