"""Tokens a second that training can read: from a cache, and of the same task on the fly.

    python scripts/bench/cache_read.py TEXT_DIRECTORY [--task tasks.text:span_corruption]
        [--vocabulary DIR] [--batch-size 128] [--inputs-length 512] [--targets-length 114]
        [--batches 40] [--repeats 3]

Writes a cache of the task below a temporary directory, then reads both in turn, `repeats` times
each, in one process, and discards the first batches of each. Without --vocabulary text is bytes.
One JSON line: median and range of tokens a second and a CPU-second (padding not counted), the share
of padding, random examples a CPU-second, CPU-seconds of opening the cache and of writing it, its
bytes, and the machine's load, which other programs share.
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


def read(batches, count: int) -> tuple[float, float, float]:
    """Tokens a second and a CPU-second of `count` batches, and the share of padding in them."""
    for _ in range(5):
        next(batches)
    tokens = places = 0
    start, begun = time.perf_counter(), time.process_time()
    for _ in range(count):
        batch = next(batches)
        for name in ("encoder_input_tokens", "decoder_target_tokens"):
            tokens += int(np.count_nonzero(batch[name]))
            places += batch[name].size
    seconds, used = time.perf_counter() - start, time.process_time() - begun
    return tokens / seconds, tokens / used, 1 - tokens / places


def read_randomly(directory: str, *, batch_size: int) -> tuple[float, float]:
    """CPU-seconds of opening a split, and random examples a CPU-second."""
    from t5x_lite.data.cache.files import Cache

    start = time.process_time()
    split = Cache(directory).split("train")
    split.read(np.array([0]))
    opening = time.process_time() - start
    rows = np.random.default_rng(0).integers(0, split.size, (1 + 16_384 // batch_size, batch_size))
    split.read(rows[0])
    start = time.process_time()
    for row in rows[1:]:
        split.read(row)
    return opening, rows[1:].size / (time.process_time() - start)


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
    start, begun = time.perf_counter(), time.process_time()
    index = write_cache(data, vocabulary, directory, splits=["train"])
    seconds, used = time.perf_counter() - start, time.process_time() - begun
    opening, examples = read_randomly(directory, batch_size=arguments.batch_size)
    split = index.splits["train"]
    sources = {
        "cache": dataclasses.replace(data, cache=directory),
        "task": data,
    }
    rates: dict[str, list[float]] = {name: [] for name in sources}
    per_cpu: dict[str, list[float]] = {name: [] for name in sources}
    padding = {}
    for _ in range(arguments.repeats):
        for name, config in sources.items():
            batches = data_batches.train_batches(config, vocabulary, seed=0)
            rate, cpu_rate, padding[name] = read(batches, arguments.batches)
            rates[name].append(rate)
            per_cpu[name].append(cpu_rate)
            batches.close()
    return {
        "written": {
            "examples": split.examples,
            "tokens": split.tokens,
            "bytes": sum(file.size for file in split.files),
            "seconds": round(seconds, 1),
            "cpu_seconds": round(used, 2),
        },
        "opening_cpu_seconds": round(opening, 3),
        "random_examples_per_cpu_second": round(examples),
        **{
            name: {
                "tokens_per_second": round(statistics.median(found)),
                "range": [round(min(found)), round(max(found))],
                "tokens_per_cpu_second": round(statistics.median(per_cpu[name])),
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
