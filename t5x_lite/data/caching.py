"""From a task to an offline cache of its tokens.

    index = write_cache(data, vocabulary, "caches/prose")

A cache holds what a task gives at its `seqio.CacheDatasetPlaceholder`: tokens before corruption and
trimming. What comes after the placeholder runs when the cache is read (task_recipe.py). A baked
cache holds whole examples of one epoch, which do not change any more.

One process runs a task as training does, over all of its source at once. Several get blocks of 4096
raw examples each; their results are written in order. For a task whose preprocessors before the
placeholder look at one raw example at a time, or at groups of 128 as `stages.chunk_documents` does,
the cache is the same.
"""

import collections
import concurrent.futures
import itertools
import logging
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.data.cache_files import DTYPES, Index
from t5x_lite.data.cache_writer import SHARD_BYTES, SplitWriter, new_cache, write_index
from t5x_lite.data.config import Data, lengths_of
from t5x_lite.data.recipe import Recipe
from t5x_lite.data.task_recipe import recipe_of
from t5x_lite.data.vocabulary import Vocabulary, load_vocabulary
from t5x_lite.errors import InputError

_logger = logging.getLogger(__name__)

BLOCK = 4096
"""Raw examples that a worker gets at a time: whole groups of `stages.DOCUMENTS_PER_GROUP`."""
_AHEAD = 2
_NOTE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A task that is run once.

    Attributes:
      data: the data config.
      vocabulary: of inputs and targets.
      task: the seqio.Task.
      recipe: what the records hold.
      seed: of randomness before the placeholder and, baked, of the corruption.
      bake: whether whole examples are written.
      num_workers: processes.
    """

    data: Data
    vocabulary: Vocabulary
    task: Any
    recipe: Recipe
    seed: int
    bake: bool
    num_workers: int


def write_cache(
    data: Data,
    vocabulary: Vocabulary,
    output: str | Path,
    *,
    splits: Sequence[str] | None = None,
    seed: int = 0,
    bake: bool = False,
    num_workers: int = 1,
    shard_bytes: int = SHARD_BYTES,
) -> Index:
    """Runs a task once and writes its tokens.

    Args:
      data: the data config; task, directory and lengths are used.
      vocabulary: of inputs and targets.
      output: a new directory; it has this name only when all of it is written.
      splits: those to write; None writes all of the task that have an example.
      seed: of randomness before the placeholder and, baked, of the corruption.
      bake: whether whole examples are written: corrupted as in the first epoch, trimmed and ended
        by EOS.
      num_workers: processes that run the task; 1 runs it in this one.
      shard_bytes: a shard ends with the example that fills it.

    Returns:
      The index that was written.

    Raises:
      InputError: the task, its files or `output` are wrong, or the task cannot be cached so.
    """
    from t5x_lite.data import pipeline  # now, because TensorFlow takes seconds

    if num_workers < 1 or (bake and num_workers > 1):
        raise InputError(
            f"--num-workers must be at least 1{', and with --bake 1' if bake else ''}: "
            f"got {num_workers}"
        )
    if not data.task:
        raise InputError("which task is cached? give --data.task module:function")
    task = pipeline.load_task(data, vocabulary, seed=seed)
    for split in splits or ():
        pipeline.check_split(data, task, split=split)
    job = _Job(
        data=data,
        vocabulary=vocabulary,
        task=task,
        recipe=recipe_of(data, vocabulary, task, bake=bake),
        seed=seed,
        bake=bake,
        num_workers=num_workers,
    )
    with new_cache(output) as directory:
        index = _write(job, directory, splits=splits, shard_bytes=shard_bytes)
        write_index(directory, index, vocabulary)
    return index


def _write(job: _Job, directory: Path, *, splits: Sequence[str] | None, shard_bytes: int) -> Index:
    """Writes the splits, and gives the index of them."""
    dtype = DTYPES[0] if job.vocabulary.size <= 1 << 16 else DTYPES[1]
    written = {}
    for split in splits or job.task.splits:
        writer = SplitWriter(
            directory,
            split,
            num_features=len(job.recipe.stored),
            dtype=dtype,
            shard_bytes=shard_bytes,
        )
        run = _run if job.num_workers == 1 else _run_in_workers
        for features in _telling(run(job, split), split=split):
            writer.add(features)
        found = writer.finish()
        if found.examples:
            written[split] = found
            continue
        if splits or split == "train":
            where = f" in {job.data.directory}" if job.data.directory else ""
            raise InputError(
                f"data.task {job.data.task!r} found no example for split {split!r}{where}"
            )
        _logger.warning("split %s has no example: the cache goes without it", split)
        (directory / found.lengths.name).unlink()
    return Index(
        task=job.data.task,
        vocabulary={
            "digest": job.vocabulary.digest,
            "extra_ids": job.vocabulary.extra_ids,
            "size": job.vocabulary.size,
        },
        dtype=dtype,
        recipe=job.recipe,
        splits=written,
        has_metrics=bool(job.task.predict_metric_fns),
        baked=job.seed if job.bake else None,
    )


def _telling(examples: Iterator[Any], *, split: str) -> Iterator[Any]:
    """The same examples; how many there were is logged from time to time."""
    due = time.monotonic() + _NOTE_SECONDS
    for number, example in enumerate(examples, start=1):
        yield example
        if time.monotonic() >= due:
            _logger.info("%s: %d examples so far", split, number)
            due = time.monotonic() + _NOTE_SECONDS


# Running it.


def _run(job: _Job, split: str) -> Iterator[list[np.ndarray]]:
    """The stored features of all examples of a split."""
    from t5x_lite.data import pipeline

    if job.bake:
        lengths = lengths_of(job.data)
        dataset = job.task.get_dataset(
            lengths, split, shuffle=False, seed=job.seed, try_in_mem_cache=False
        )
    else:
        raw = job.task.source.get_dataset(split=split, shuffle=False)
        dataset = job.task.preprocess_precache(raw, seed=job.seed)
    names = _features(dataset, job.recipe, job.data.task)
    needed = [name for name in dataset.element_spec if name in (*names, "index")]
    dataset = dataset.map(lambda example: {name: example[name] for name in needed})
    for number, example in enumerate(pipeline.as_numpy(pipeline.deterministic(dataset))):
        if example.get("index", number) != number:
            raise InputError(
                f"data.task {job.data.task!r} drops or reorders examples behind stages.number, "
                "which must come right before the CacheDatasetPlaceholder"
            )
        yield [example[name] for name in names]


def _features(dataset: Any, recipe: Recipe, task: str) -> tuple[str, ...]:
    """The stored features, after a look whether they are sequences of token ids."""
    there = dataset.element_spec
    for name in recipe.stored:
        if name not in there:
            raise InputError(
                f"data.task {task!r} gives {', '.join(there)} at its CacheDatasetPlaceholder, and "
                f"not {name}: put the placeholder behind its tokenisation"
            )
        if not there[name].dtype.is_integer or there[name].shape.rank != 1:
            raise InputError(
                f"data.task {task!r}: {name} must be a sequence of token ids at the "
                f"CacheDatasetPlaceholder, and is {there[name].dtype.name} of shape "
                f"{there[name].shape}"
            )
    return recipe.stored


def _run_in_workers(job: _Job, split: str) -> Iterator[list[np.ndarray]]:
    """The same from several processes, in the same order."""
    from t5x_lite.data import pipeline

    raw = job.task.source.get_dataset(split=split, shuffle=False)
    if any(spec.shape.rank != 0 for spec in raw.element_spec.values()):
        raise InputError(
            f"data.task {job.data.task!r} has raw examples that are not scalars and strings: "
            "cache it with --num-workers 1"
        )
    blocks = pipeline.as_numpy(pipeline.deterministic(raw.batch(BLOCK)))
    given = (job.data, str(job.vocabulary.model_path), job.vocabulary.extra_ids, job.seed)
    pending: collections.deque[concurrent.futures.Future] = collections.deque()
    # Spawned, not forked: TensorFlow's threads do not survive a fork.
    with concurrent.futures.ProcessPoolExecutor(
        job.num_workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=given,
    ) as pool:
        try:
            for block in blocks:
                pending.append(pool.submit(_run_block, block))
                if len(pending) > _AHEAD * job.num_workers:
                    yield from _split(*pending.popleft().result())
            while pending:
                yield from _split(*pending.popleft().result())
        except BrokenProcessPool as error:
            raise RuntimeError("a worker of the cache ended unexpectedly") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _split(tokens: np.ndarray, counts: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Back from one array to the features of each example."""
    parts = iter(np.split(tokens, np.cumsum(counts)[:-1]))
    for _ in counts:
        yield list(itertools.islice(parts, counts.shape[1]))


_worker: dict[str, Any] = {}


def _start_worker(data: Data, vocabulary: str, extra_ids: int, seed: int) -> None:
    from t5x_lite.data import pipeline

    loaded = load_vocabulary(vocabulary, extra_ids=extra_ids)
    task = pipeline.load_task(data, loaded, seed=seed)
    _worker.update(
        task=task, recipe=recipe_of(data, loaded, task, bake=False), name=data.task, seed=seed
    )


def _run_block(block: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all stored features of the examples of a block, and their lengths [n, F]."""
    from t5x_lite.data import pipeline
    from t5x_lite.data.quiet_tensorflow import tf

    columns: Any = dict(block)
    raw = tf.data.Dataset.from_tensor_slices(columns)
    dataset = _worker["task"].preprocess_precache(raw, seed=_worker["seed"])
    names = _features(dataset, _worker["recipe"], _worker["name"])
    found = [
        [example[name] for name in names]
        for example in pipeline.as_numpy(pipeline.deterministic(dataset))
    ]
    counts = np.array([[len(part) for part in parts] for parts in found], np.int64)
    parts = [part for parts in found for part in parts]
    tokens = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    return tokens, counts.reshape(len(found), len(names))
