"""Does pretraining help? Fine-tunes from a pretrained checkpoint and from scratch, at equal steps.

    python scripts/bench/transfer.py --config configs/finetune/sst2.py --pretrained WORKDIR \
        --output WORKDIRS --seeds 0 1 2 --jobs 2 -- --data.directory GLUE --data.vocabulary MODEL

What follows `--` goes to every `t5x-lite train`. With --jobs above 1 each run is pinned to a core
of its own. One JSON line a run (metric at every evaluation), then one a step with mean, minimum and
maximum over the seeds. A run that is there already is not repeated.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import queue
import statistics
import subprocess
import sys
from pathlib import Path


def read_metric(workdir: Path, metric: str) -> dict[int, float]:
    """The metric at every evaluation of a work directory, by step."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return {record["step"]: record[metric] for record in records if metric in record}


def train(options: argparse.Namespace, init: str, seed: int, cores: queue.Queue) -> dict:
    """One fine-tuning, pinned to a free core."""
    name = "pretrained" if init else "scratch"
    workdir = Path(options.output, f"{name}_{seed}")
    command = [
        *(sys.executable, "-m", "t5x_lite", "train", options.config, "--workdir", str(workdir)),
        *("--seed", str(seed), "--init", init),
        *options.overrides,
    ]
    core = cores.get()
    try:
        with open(f"{workdir}.log", "w", encoding="utf-8") as log:
            subprocess.run(
                command,
                stdout=log,
                stderr=log,
                check=True,
                preexec_fn=(lambda: os.sched_setaffinity(0, {core})) if options.jobs > 1 else None,
            )
    finally:
        cores.put(core)
    return {"init": name, "seed": seed, options.metric: read_metric(workdir, options.metric)}


def main() -> None:
    """Runs all and prints JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", required=True)
    parser.add_argument("--pretrained", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--metric", default="validation/accuracy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("overrides", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    options.overrides = [item for item in options.overrides if item != "--"]
    Path(options.output).mkdir(parents=True, exist_ok=True)

    cores: queue.Queue = queue.Queue()
    for core in sorted(os.sched_getaffinity(0))[: options.jobs]:
        cores.put(core)
    runs = [(init, seed) for seed in options.seeds for init in (options.pretrained, "")]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda run: train(options, *run, cores), runs))
    for result in results:
        print(json.dumps({"device": platform.processor() or platform.machine(), **result}))
    for step in results[0][options.metric]:
        for name in ("pretrained", "scratch"):
            values = [r[options.metric][step] for r in results if r["init"] == name]
            print(
                json.dumps(
                    {
                        "step": step,
                        "init": name,
                        "mean": statistics.mean(values),
                        "min": min(values),
                        "max": max(values),
                    }
                )
            )


if __name__ == "__main__":
    main()
