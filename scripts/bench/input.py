"""Tokens a CPU-second of the input pipeline: corruption alone, and all of it, beside seqio and t5.

    python scripts/bench/input.py TEXT_DIRECTORY --vocabulary spiece.model
        [--peer T5VENV/bin/python] [--batch-size 128] [--batches 24] [--chunks 2000] [--repeats 3]

TEXT_DIRECTORY holds *.txt, one document a line. --peer is a Python that has the package t5 (0.9.4),
in an environment of its own: it runs in a process that takes its turn after each of ours, measures
the same things on the same text, and may be left out.

    corruption   chunks of tokens to span corruption; ours one by one, and t5's `denoise` in a
                 tf.data pipeline
    documents    the same from tokenised documents: joined, cut into chunks, corrupted
    text         lines, streamed, to batches: tokenized, corrupted, packed (512/114), shuffled
    cache        the same from a cache of tokens; ours only

CPU-seconds are of all threads of the process, so that other programs on the machine matter little.
Tokens are those of text for the first two, and those in the rows, without padding, for the others.
One JSON line: medians and ranges, and how many times the peer's ours is.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

INPUTS_LENGTH, TARGETS_LENGTH, CHUNK = 512, 114, 568
NOISE_DENSITY, MEAN_SPAN = 0.15, 3.0
DOCUMENT = 1000
VOCABULARY_SIZE = 32100


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--peer", default="")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--chunks", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--be-the-peer", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def tokens_per_cpu_second(
    examples: Iterable[Any], *, warm_up: int, count: int, tokens_of: Callable[[Any], int]
) -> float:
    """Of `count` examples, after `warm_up` others."""
    elements = iter(examples)
    for _ in range(warm_up):
        next(elements)
    start, tokens = time.process_time(), 0
    for _ in range(count):
        tokens += tokens_of(next(elements))
    return tokens / (time.process_time() - start)


def in_rows(batch: Any) -> int:
    names = ("encoder_input_tokens", "decoder_target_tokens")
    return sum(int(np.count_nonzero(batch[name])) for name in names)


def len_of_chunk(example: Any) -> int:
    del example
    return CHUNK


def random_documents(count: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(3, 32000, (count, length)).astype(np.int32)


# Ours.


def our_measures(
    arguments: argparse.Namespace, cache: pathlib.Path
) -> dict[str, Callable[[], float]]:
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache
    from t5x_lite.data.config import Data
    from t5x_lite.data.denoising import span_corruption
    from t5x_lite.data.tasks import text_source
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    data = Data(
        task="tasks.text:span_corruption",
        vocabulary=arguments.vocabulary,
        directory=str(arguments.directory),
        batch_size=arguments.batch_size,
        inputs_length=INPUTS_LENGTH,
        targets_length=TARGETS_LENGTH,
    )
    vocabulary = load_vocabulary(arguments.vocabulary)
    text_source.IN_MEMORY_BYTES = 0  # else the text is tokenized before the first batch
    write_cache(data, vocabulary, cache, splits=["train"])
    from_cache = dataclasses.replace(data, cache=str(cache))

    def corrupted(chunks: Iterable[np.ndarray]) -> Iterator[Any]:
        for index, tokens in enumerate(chunks):
            yield span_corruption(
                tokens, seed=0, epoch=0, index=index, sentinel_start=VOCABULARY_SIZE - 1
            )

    def joined(documents: np.ndarray) -> Iterator[np.ndarray]:
        for start in range(0, len(documents), 128):
            tokens = np.concatenate([*documents[start : start + 128]])
            for first in range(0, len(tokens) - CHUNK, CHUNK):
                yield tokens[first : first + CHUNK]

    def of_examples(examples: Iterator[Any]) -> float:
        count = arguments.chunks
        return tokens_per_cpu_second(examples, warm_up=100, count=count, tokens_of=len_of_chunk)

    def of_batches(config: Data) -> float:
        batches = data_batches.train_batches(config, vocabulary, seed=0)
        count = arguments.batches
        return tokens_per_cpu_second(batches, warm_up=2, count=count, tokens_of=in_rows)

    chunks = random_documents(arguments.chunks + 200, CHUNK)
    documents = random_documents(arguments.chunks, DOCUMENT)
    return {
        "corruption": lambda: of_examples(corrupted(chunks)),
        "documents": lambda: of_examples(corrupted(joined(documents))),
        "text": lambda: of_batches(data),
        "cache": lambda: of_batches(from_cache),
    }


# The peer.


def peer_measures(arguments: argparse.Namespace) -> dict[str, Callable[[], float]]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import functools

    import seqio
    import tensorflow as tf
    from t5.data import preprocessors as t5

    vocabulary = seqio.SentencePieceVocabulary(arguments.vocabulary, extra_ids=100)
    features = {
        name: seqio.Feature(vocabulary, add_eos=True, dtype=tf.int32)
        for name in ("inputs", "targets")
    }
    lengths = {"inputs": INPUTS_LENGTH, "targets": TARGETS_LENGTH}
    files = [str(file) for file in sorted(arguments.directory.glob("*.txt"))]
    seqio.TaskRegistry.add(
        "bench",
        source=seqio.TextLineDataSource({"train": files}),
        preprocessors=[
            lambda dataset: dataset.map(lambda line: {"targets": line}),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            t5.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=features,
    )
    chunks = random_documents(arguments.chunks + 200, CHUNK)
    documents = random_documents(arguments.chunks, DOCUMENT)

    def of_examples(make: Callable[[tf.data.Dataset], tf.data.Dataset], tokens: Any) -> float:
        dataset = tf.data.Dataset.from_tensor_slices({"targets": tokens})
        with seqio.utils.map_seed_manager(0):
            examples = make(dataset).as_numpy_iterator()
        count = arguments.chunks
        return tokens_per_cpu_second(examples, warm_up=100, count=count, tokens_of=len_of_chunk)

    def of_batches() -> float:
        dataset = seqio.get_dataset(
            mixture_or_task_name="bench",
            task_feature_lengths=lengths,
            feature_converter=seqio.EncDecFeatureConverter(pack=True),
            dataset_split="train",
            shuffle=True,
            num_epochs=None,
            seed=0,
        ).batch(arguments.batch_size)
        batches, count = dataset.as_numpy_iterator(), arguments.batches
        return tokens_per_cpu_second(batches, warm_up=2, count=count, tokens_of=in_rows)

    denoise = functools.partial(
        t5.denoise,
        output_features=features,
        noise_density=NOISE_DENSITY,
        noise_mask_fn=functools.partial(
            t5.random_spans_noise_mask, mean_noise_span_length=MEAN_SPAN
        ),
        inputs_fn=t5.noise_span_to_unique_sentinel,
        targets_fn=t5.nonnoise_span_to_unique_sentinel,
    )
    whole = functools.partial(t5.span_corruption, sequence_length=lengths, output_features=features)
    return {
        "corruption": lambda: of_examples(denoise, chunks),
        "documents": lambda: of_examples(whole, documents),
        "text": of_batches,
    }


class Peer:
    """The other process, which measures what it is asked for."""

    def __init__(self, python: str):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python, __file__, *sys.argv[1:], "--be-the-peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def measure(self, name: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("measured "):
                return float(line.split()[1])
        self._errors.seek(0)
        raise RuntimeError(f"the peer ended:\n{self._errors.read()[-2000:]}")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def be_the_peer(arguments: argparse.Namespace) -> None:
    measures = peer_measures(arguments)
    for line in sys.stdin:
        print("measured", measures[line.strip()](), flush=True)


def summary(rates: list[float]) -> dict[str, Any]:
    return {
        "tokens_per_cpu_second": round(statistics.median(rates)),
        "range": [round(min(rates)), round(max(rates))],
    }


def main() -> None:
    arguments = parse()
    if arguments.be_the_peer:
        be_the_peer(arguments)
        return
    load = os.getloadavg()[0]
    peer = Peer(arguments.peer) if arguments.peer else None
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        measures = our_measures(arguments, pathlib.Path(directory, "cache"))
        for _ in range(arguments.repeats):
            for name, measure in measures.items():
                time.sleep(1.0)  # threads of what was measured before come to their end
                rates = found.setdefault(name, {"ours": [], "t5": []})
                rates["ours"].append(measure())
                if peer and name != "cache":
                    rates["t5"].append(peer.measure(name))
    if peer:
        peer.end()
    results: dict[str, Any] = {}
    for name, rates in found.items():
        results[name] = {who: summary(values) for who, values in rates.items() if values}
        if rates["t5"]:
            medians = [statistics.median(rates[who]) for who in ("ours", "t5")]
            results[name]["times"] = round(medians[0] / medians[1], 2)
    print(
        json.dumps(
            {
                "bench": "input",
                "device": platform.processor() or platform.machine(),
                "cpus": os.cpu_count(),
                "load": [round(load, 1), round(os.getloadavg()[0], 1)],
                "lengths": [INPUTS_LENGTH, TARGETS_LENGTH],
                "batch_size": arguments.batch_size,
                **results,
            }
        )
    )


if __name__ == "__main__":
    main()
