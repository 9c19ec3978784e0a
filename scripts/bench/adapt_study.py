"""A pilot: full fine-tuning beside each method of adapters/, on SST-2, one seed.

    python scripts/bench/adapt_study.py --data-directory GLUE --base WORK/prose --output WORK \
        --vocabulary spiece.model [--methods full lora ia3] [--steps 300]

The base is a model of configs/pretrain/prose.py (or of configs/tiny_pretrain.py, with --config
configs/tiny_finetune.py); every arm begins from it, sees the same batches for --steps steps, and is
evaluated on the validation split at the end. A module's rate is that of its paper, or near.

Each arm has a work directory below --output, named by its method: one that is there is not
repeated, and one that was stopped goes on. One JSON line for each method that is there, and with
--report these lines alone. One seed tells no order: a gap below the spread of seeds is none.
"""

import argparse
import json
import time
from pathlib import Path

from arms import Arm, run_all

METHODS: dict[str, tuple[str, float]] = {
    "full": ("", 1e-3),
    "seq_bn": ("x = seq_bn()", 1e-3),
    "double_seq_bn": ("x = double_seq_bn()", 1e-3),
    "par_bn": ("x = par_bn(reduction=4)", 1e-3),
    "compacter": ("x = compacter()", 3e-3),
    "compacter_plus_plus": ("x = compacter_plus_plus()", 3e-3),
    "lora": ("x = lora(r=8)", 1e-3),
    "dora": ("x = lora(r=8, dora=True)", 1e-3),
    "ia3": ("x = ia3()", 3e-3),
    "bitfit": ("x = bitfit()", 3e-3),
    "t5_adapter": ("x = t5_adapter(d=32)", 1e-3),
}
"""Name -> the line of --adapters.add, and the learning rate."""


def arm(options: argparse.Namespace, method: str) -> Arm:
    """The run of a method."""
    line, rate = METHODS[method]
    module = ("--adapters.add", line) if line else ()
    # The parameter scale would hold what begins at 0 back.
    scale = ("--optimizer.multiply-by-parameter-scale", "False") if line else ()
    return Arm(
        Path(options.output) / method,
        options.steps,
        (
            options.config,
            *("--data.directory", options.data_directory),
            *("--data.vocabulary", options.vocabulary),
            *("--init", options.base, "--seed", "0"),
            *("--optimizer.schedule.value", str(rate)),
            *("--evaluation.period", str(options.steps)),
            *module,
            *scale,
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
    parser.add_argument("--config", default="configs/finetune/sst2.py")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=30.0, help="no arm begins after these")
    parser.add_argument("--report", action="store_true", help="the lines alone; run nothing")
    options = parser.parse_args()
    start = time.monotonic()
    for method in () if options.report else options.methods:
        if time.monotonic() - start > 60 * options.minutes:
            break
        run_all([arm(options, method)], at_once=1)
    report(options)


if __name__ == "__main__":
    main()
