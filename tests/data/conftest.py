"""Small offline caches, written without TensorFlow."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from t5x_lite.data.cache.files import INDEX_NAME, Cache, Index, file_digest
from t5x_lite.data.cache.making import SplitWriter, new_cache, write_index
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import load_vocabulary


@pytest.fixture(scope="session")
def byte_vocabulary() -> Bytes:
    return Bytes()


@pytest.fixture(scope="session")
def vocabulary(tiny_vocabulary: Path):
    """The tiny SentencePiece model."""
    return load_vocabulary(tiny_vocabulary)


@pytest.fixture(scope="session")
def recipes() -> SimpleNamespace:
    """What caches may hold."""
    supervised = Recipe(
        stored=("inputs", "targets"),
        outputs={"inputs": True, "targets": True},
        eos="after_trim",
        eos_id=1,
    )
    spans = Recipe(
        stored=("tokens",),
        outputs={"inputs": True, "targets": True},
        eos="after_trim",
        eos_id=1,
        corruption="span_corruption",
        options={"sentinel_start": 258, "noise_density": 0.15, "mean_noise_span_length": 3.0},
        lengths={"inputs": 32, "targets": 16},
    )
    targets = Recipe(stored=("targets",), outputs={"targets": True}, eos="after_trim", eos_id=1)
    return SimpleNamespace(supervised=supervised, spans=spans, targets=targets)


@pytest.fixture(scope="session")
def small_cache(byte_vocabulary: Bytes) -> Callable[..., Path]:
    """A function that writes a cache: (directory, {split: examples}, recipe) -> directory."""

    def write(
        directory: Path,
        splits: dict[str, Sequence[Sequence[np.ndarray]]],
        recipe: Recipe,
        *,
        task: str = "tasks.small:task",
        shard_bytes: int = 600,
        longest: Callable[[Sequence[np.ndarray]], int] | None = None,
    ) -> Path:
        with new_cache(directory) as temporary:
            written = {}
            for split, examples in splits.items():
                writer = SplitWriter(
                    temporary,
                    split,
                    num_features=len(recipe.stored),
                    dtype="uint16",
                    shard_bytes=shard_bytes,
                    longest=longest,
                )
                for features in examples:
                    writer.add(features)
                written[split] = writer.finish()
            vocabulary = {
                "digest": byte_vocabulary.digest,
                "extra_ids": byte_vocabulary.extra_ids,
                "size": byte_vocabulary.size,
            }
            index = Index(
                task=task, vocabulary=vocabulary, dtype="uint16", recipe=recipe, splits=written
            )
            write_index(temporary, index, byte_vocabulary)
        return directory

    return write


@pytest.fixture(scope="session")
def chunks() -> Callable[..., list[list[np.ndarray]]]:
    """A function that makes examples of byte ids; most are of full length, a few shorter."""

    def make(count: int, *, length: int = 32, seed: int = 0) -> list[list[np.ndarray]]:
        rng = np.random.default_rng(seed)
        sizes = np.where(rng.random(count) < 0.2, rng.integers(2, length, count), length)
        return [[rng.integers(3, 150, size)] for size in sizes]

    return make


@pytest.fixture(scope="session")
def pairs() -> Callable[..., list[list[np.ndarray]]]:
    """A function that makes examples of inputs and targets, of several lengths."""

    def make(count: int, *, longest: int = 20, seed: int = 0) -> list[list[np.ndarray]]:
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, [longest, longest // 2], (count, 2))
        return [[rng.integers(3, 150, size) for size in both] for both in sizes]

    return make


@pytest.fixture(scope="session")
def as_old() -> Callable[[Path, Path], Path]:
    """A function that writes a cache again as version 0.1 did: (cache, directory) -> directory."""
    record = pytest.importorskip("array_record.python.array_record_module")

    def described(path: Path, examples: int) -> dict[str, Any]:
        digest, size = file_digest(path), path.stat().st_size
        return {"name": path.name, "size": size, "sha256": digest, "examples": examples}

    def write(cache: Path, directory: Path) -> Path:
        opened = Cache(cache)
        shutil.copytree(cache / "vocabulary", directory / "vocabulary")
        node = json.loads((cache / INDEX_NAME).read_bytes())
        del node["sha256"]
        node["format"] = 1
        for name, known in node["splits"].items():
            split, start, shards = opened.split(name), 0, []
            lengths = directory / f"{name}.lengths"
            lengths.write_bytes(split.counts(np.arange(split.size)).astype("<u4").tobytes())
            for number, shard in enumerate(known["shards"]):
                path = directory / f"{name}-{number:05d}.array_record"
                writer = record.ArrayRecordWriter(str(path), "group_size:1")
                for example in split.read(np.arange(start, start + shard["examples"])):
                    tokens = np.concatenate([*example.values()])
                    writer.write(tokens.astype(node["dtype"]).tobytes())
                writer.close()
                start += shard["examples"]
                shards.append(described(path, shard["examples"]))
            del known["ends"], known["checksums"]
            known |= {"shards": shards, "lengths": described(lengths, split.size)}
            if "longest" in known:
                shutil.copy(cache / known["longest"]["name"], directory)
        digest = hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()
        (directory / INDEX_NAME).write_text(json.dumps({**node, "sha256": digest}))
        return directory

    return write
