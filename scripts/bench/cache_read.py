"""Tokens a second that training can read: from a cache, and of the same task on the fly.

    python scripts/bench/cache_read.py TEXT_DIRECTORY [--task tasks.text:span_corruption]
        [--vocabulary DIR] [--batch-size 128] [--inputs-length 512] [--targets-length 114]
        [--batches 40] [--repeats 3]

Writes a cache of the task below a temporary directory, then reads both in turn, `repeats` times
each, in one process, and discards the first batches of each. Without --vocabulary text is bytes.
One JSON line: median and range of tokens a second (padding not counted), the share of padding,
seconds and examples a second of writing, and the machine's load, which other programs share.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time

import numpy as np


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--task", default="tasks.text:span_corruption")
    parser.add_argument("--vocabulary", default="bytes")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--inputs-length", type=int, default=512)
    parser.add_argument("--targets-length", type=int, default=114)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def read(batches, count: int) -> tuple[float, float]:
    """Tokens a second of `count` batches, and the share of padding in them."""
    for _ in range(5):
        next(batches)
    tokens = places = 0
    start = time.perf_counter()
    for _ in range(count):
        batch = next(batches)
        for name in ("encoder_input_tokens", "decoder_target_tokens"):
            tokens += int(np.count_nonzero(batch[name]))
            places += batch[name].size
    return tokens / (time.perf_counter() - start), 1 - tokens / places


def measure(arguments: argparse.Namespace, directory: str) -> dict:
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache
    from t5x_lite.data.config import Data
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    data = Data(
        task=arguments.task,
        vocabulary=arguments.vocabulary,
        directory=str(arguments.directory),
        batch_size=arguments.batch_size,
        inputs_length=arguments.inputs_length,
        targets_length=arguments.targets_length,
    )
    vocabulary = load_vocabulary(arguments.vocabulary, extra_ids=data.extra_ids)
    start = time.perf_counter()
    index = write_cache(data, vocabulary, directory, splits=["train"])
    seconds = time.perf_counter() - start
    split = index.splits["train"]
    sources = {
        "cache": dataclasses.replace(data, cache=directory),
        "task": data,
    }
    rates: dict[str, list[float]] = {name: [] for name in sources}
    padding = {}
    for _ in range(arguments.repeats):
        for name, config in sources.items():
            batches = data_batches.train_batches(config, vocabulary, seed=0)
            rate, padding[name] = read(batches, arguments.batches)
            rates[name].append(rate)
    return {
        "written": {
            "examples": split.examples,
            "tokens": split.tokens,
            "bytes": sum(shard.size for shard in split.shards),
            "seconds": round(seconds, 1),
        },
        **{
            name: {
                "tokens_per_second": round(statistics.median(found)),
                "range": [round(min(found)), round(max(found))],
                "padding": round(padding[name], 4),
            }
            for name, found in rates.items()
        },
    }


def main() -> None:
    arguments = parse()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        found = measure(arguments, f"{directory}/cache")
    print(
        json.dumps(
            {
                "bench": "cache_read",
                "device": platform.processor() or platform.machine(),
                "cpus": os.cpu_count(),
                "load": [round(before, 1), round(os.getloadavg()[0], 1)],
                "task": arguments.task,
                "batch_size": arguments.batch_size,
                "lengths": [arguments.inputs_length, arguments.targets_length],
                **found,
            }
        )
    )


if __name__ == "__main__":
    main()
