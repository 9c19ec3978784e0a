"""From a task to an offline cache of its tokens.

    index = write_cache(data, vocabulary, "caches/prose")

A cache holds what a task gives at its `seqio.CacheDatasetPlaceholder`: tokens before corruption and
trimming. What comes after the placeholder runs when the cache is read (`task_recipe`). A baked
cache holds whole examples of one epoch, which do not change any more.

One process runs a task over all of its source at once, in its own order. Several get blocks of 4096
raw examples each; their results are written in order. For a task whose preprocessors before the
placeholder look at one raw example at a time, or at groups of 128 as `stages.chunk_documents` does,
the cache is the same. `making_beam` runs a task on a cluster, file by file.
"""

import collections
import concurrent.futures
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite import project
from t5x_lite.data.cache.files import Index, SplitIndex
from t5x_lite.data.cache.job import (
    Job,
    as_stored,
    features_of,
    goes_without,
    index_of,
    load_job,
    longest_of,
    stored_examples,
)
from t5x_lite.data.cache.task_recipe import recipe_of
from t5x_lite.data.cache.writer import SHARD_BYTES, SplitWriter, new_cache, write_index
from t5x_lite.data.config import Data, trimmed_lengths
from t5x_lite.errors import InputError
from t5x_lite.files import unfinished
from t5x_lite.progress import counting
from t5x_lite.records.worker_processes import WorkerContext, end_with_parent
from t5x_lite.vocabulary.loading import Vocabulary, load_vocabulary

BLOCK = 4096
"""Raw examples that a worker gets at a time: whole groups of `stages.DOCUMENTS_PER_GROUP`."""
_AHEAD = 2


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
    if num_workers < 1 or (bake and num_workers > 1):
        raise InputError(
            f"--num-workers must be at least 1{', and with --bake 1' if bake else ''}: "
            f"got {num_workers}"
        )
    job = load_job(data, vocabulary, splits=splits, seed=seed, bake=bake)
    run = _run if num_workers == 1 else partial(_run_in_workers, num_workers=num_workers)
    with new_cache(output) as directory:
        written = {}
        for split in splits or job.task.splits:
            found = _write(job, run, split, directory=directory, shard_bytes=shard_bytes)
            if found.examples:
                written[split] = found
            else:
                goes_without(job, split, asked=bool(splits))
                for file in found.files:
                    (directory / file.name).unlink()
        index = index_of(job, written)
        write_index(directory, index, vocabulary)
    from t5x_lite.data.live import tasks as live_tasks  # now, because TensorFlow takes seconds

    for split in [*written][:1]:
        live_tasks.look_at(data, job.task, vocabulary, name=job.task.name, split=split)
    return index


_Run = Callable[[Job, str], Iterator[list[np.ndarray]]]


def _write(job: Job, run: _Run, split: str, *, directory: Path, shard_bytes: int) -> SplitIndex:
    """Writes a split, and gives what the index says of it."""
    writer = SplitWriter(
        directory,
        split,
        num_features=len(job.recipe.stored),
        dtype=job.dtype,
        shard_bytes=shard_bytes,
        longest=longest_of(job.recipe, job.data.layout),
    )
    for features in _telling(run(job, split), split=split):
        writer.add(features)
    return writer.finish()


def _telling(examples: Iterator[Any], *, split: str) -> Iterator[Any]:
    """The same examples; how many there were is shown meanwhile."""
    with counting(split, unit="examples") as advance:
        for example in examples:
            yield example
            advance(1)


# Running it.


def _run(job: Job, split: str) -> Iterator[list[np.ndarray]]:
    """The stored features of all examples of a split."""
    if job.bake:
        lengths = trimmed_lengths(job.data)
        dataset = job.task.get_dataset(
            lengths, split, shuffle=False, seed=job.seed, try_in_mem_cache=False
        )
    else:
        raw = job.task.source.get_dataset(split=split, shuffle=False)
        dataset = job.task.preprocess_precache(raw, seed=job.seed)
    yield from stored_examples(job, dataset)


def _run_in_workers(job: Job, split: str, *, num_workers: int) -> Iterator[list[np.ndarray]]:
    """The same from several processes, in the same order."""
    from t5x_lite.data import elements

    raw = job.task.source.get_dataset(split=split, shuffle=False)
    if any(spec.shape.rank != 0 for spec in raw.element_spec.values()):
        raise InputError(
            f"data.task {job.data.task!r} has raw examples that are not scalars and strings: "
            "cache it with --num-workers 1"
        )
    blocks = elements.as_numpy(elements.deterministic(raw.batch(BLOCK)))
    context = WorkerContext()
    pending: collections.deque[concurrent.futures.Future] = collections.deque()
    with (
        _scratch(job.vocabulary) as scratch,
        concurrent.futures.ProcessPoolExecutor(
            num_workers,
            mp_context=context,
            initializer=_start_worker,
            initargs=(project.opened(), job.data, scratch, job.vocabulary.extra_ids, job.seed),
        ) as pool,
    ):
        try:
            for block in blocks:
                pending.append(pool.submit(_run_block, block))
                if len(pending) > _AHEAD * num_workers:
                    yield from _split(*pending.popleft().result())
            while pending:
                yield from _split(*pending.popleft().result())
        except BrokenProcessPool as error:
            raise RuntimeError(f"{context.why_broken()} (--num-workers {num_workers})") from error
        except KeyboardInterrupt:
            context.kill()  # a block takes many seconds
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _split(tokens: np.ndarray, counts: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Back from one array to the features of each example."""
    parts = iter(np.split(tokens, np.cumsum(counts)[:-1]))
    for _ in counts:
        yield list(itertools.islice(parts, counts.shape[1]))


_worker: dict[str, Any] = {}


@contextlib.contextmanager
def _scratch(vocabulary: Vocabulary) -> Iterator[str]:
    """A temporary directory of all workers, which holds the vocabulary.

    It is this process's: a worker that is killed removes nothing.
    """
    directory = tempfile.mkdtemp(prefix="t5x_lite_")
    try:
        with unfinished(directory):
            folder = Path(directory, _VOCABULARY)
            folder.mkdir()
            # All files, as one of them alone does not say how added tokens are read.
            for name, content in vocabulary.files().items():
                (folder / name).write_bytes(content)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


_VOCABULARY = "vocabulary"


def _start_worker(
    opened: project.Opened, data: Data, scratch: str, extra_ids: int, seed: int
) -> None:
    end_with_parent()
    tempfile.tempdir = scratch  # TensorFlow writes code there
    from t5x_lite.data.live import tasks as live_tasks

    project.open_again(opened)
    loaded = load_vocabulary(str(Path(scratch, _VOCABULARY)), extra_ids=extra_ids)
    task = live_tasks.load_task(data, loaded, seed=seed)
    _worker.update(
        task=task, recipe=recipe_of(data, loaded, task, bake=False), name=data.task, seed=seed
    )


def _run_block(block: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of all stored features of the examples of a block, and their lengths [n, F]."""
    from t5x_lite.data import elements
    from t5x_lite.data.quiet_tensorflow import tf

    columns: Any = dict(block)
    raw = tf.data.Dataset.from_tensor_slices(columns)
    dataset = _worker["task"].preprocess_precache(raw, seed=_worker["seed"])
    names = features_of(dataset, _worker["recipe"], _worker["name"])
    found = [
        [as_stored(example[name]) for name in names]
        for example in elements.as_numpy(elements.deterministic(dataset))
    ]
    counts = np.array([[len(part) for part in parts] for parts in found], np.int64)
    parts = [part for parts in found for part in parts]
    tokens = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    return tokens, counts.reshape(len(found), len(names))
