"""Writing of offline caches: tokenization of a task, and the files of a cache.

    index = write_cache(data, vocabulary, "caches/prose")

A cache contains a task's output at its `seqio.CacheDatasetPlaceholder`: tokens before corruption
and trimming. The preprocessors after the placeholder run when the cache is read (`cache.recipe`). A
baked cache contains the final examples of one epoch, which are the same in every epoch of training.

A single process runs the task over the complete source, in order. Several processes each run the
task on blocks of 4096 raw examples, and the results are written in order. Both ways give the same
cache if the preprocessors before the placeholder process single raw examples, or groups of 128 as
in `stages.chunk_documents`. `making_beam` runs a task on a cluster, file by file.

These steps are the same in one process and on a cluster:

job = load_job(data, vocabulary, splits=None, seed=0, bake=False)
dataset = job.task.preprocess_precache(raw, seed=job.seed)
for features in stored_examples(job, dataset): ...
index = index_of(job, {"train": written})

`new_cache` and `SplitWriter` write the files of a cache: tokens, ends, checksums and the index:

    with new_cache("caches/prose") as directory:
        writer = SplitWriter(directory, "train", num_features=1, dtype="uint16")
        for example in examples:
            writer.add([example["tokens"]])
        ...
        write_index(directory, index, vocabulary)

The directory has a hidden name until the `with` block has succeeded and all files are on disk. A
cache in a bucket is first written to a temporary directory, and then copied; its index is copied
last.
"""

import array
import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from t5x_lite.core import project
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import reason, sync_to_disk, unfinished, write_atomically
from t5x_lite.core.jobs import IDENTITY, resumable_directory
from t5x_lite.core.object_store import BucketPath, data_path, files_in, remove, upload
from t5x_lite.core.workers import WorkerContext, counting, end_with_parent
from t5x_lite.data.cache.files import (
    DTYPES,
    FORMAT,
    INDEX_NAME,
    MOST_TOKENS,
    NUMBERS_DTYPE,
    VOCABULARY_DIRECTORY,
    Cache,
    File,
    Index,
    SplitIndex,
    file_digest,
)
from t5x_lite.data.cache.recipe import Recipe, examples_of_block, recipe_of
from t5x_lite.data.config import Data, trimmed_lengths, words_of_inputs
from t5x_lite.data.vocabularies.loading import Vocabulary, load_vocabulary
from t5x_lite.layouts.base import Layout, longest_joined

_logger = logging.getLogger(__name__)

_READ_AT_A_TIME = 64


@dataclass(frozen=True, kw_only=True)
class Job:
    """Task to write to a cache, with the settings of the cache.

    Attributes:
      data: the data config.
      vocabulary: vocabulary of inputs and targets.
      task: the seqio.Task.
      recipe: description of how stored features become examples.
      seed: random seed of the preprocessors.
      bake: True to store examples after random corruption instead of before.
    """

    data: Data
    vocabulary: Vocabulary
    task: Any
    recipe: Recipe
    seed: int
    bake: bool

    @property
    def dtype(self) -> str:
        """Dtype of the tokens on disk."""
        return DTYPES[0] if self.vocabulary.size <= 1 << 16 else DTYPES[1]


def load_job(
    data: Data, vocabulary: Vocabulary, *, splits: Sequence[str] | None, seed: int, bake: bool
) -> Job:
    """Load the task of a data config; raise InputError if it cannot be cached."""
    # Imported here, because TensorFlow takes seconds.
    from t5x_lite.data import loading

    if not data.task:
        raise InputError("no task to cache; give --data.task module:function")
    task = loading.load_task(data, vocabulary, seed=seed)
    for split in splits or ():
        loading.check_split(data, task, split=split)
    recipe = recipe_of(data, vocabulary, task, bake=bake)
    task = loading.truncated(data, task, seed=seed)
    return Job(data=data, vocabulary=vocabulary, task=task, recipe=recipe, seed=seed, bake=bake)


def stored_examples(job: Job, dataset: Any) -> Iterator[list[np.ndarray]]:
    """Yield, for each example, the features that the cache stores."""
    from t5x_lite.data import elements
    from t5x_lite.data.tasks import stages

    names = features_of(dataset, job.recipe, job.data.task)
    numbered = ("index",) if "index" in dataset.element_spec else ()
    blocks = stages.in_blocks(dataset, names, _READ_AT_A_TIME, scalars=numbered)
    number = 0
    for block in elements.as_numpy(elements.deterministic(blocks)):
        found = examples_of_block(block, names)
        places = np.arange(number, number + len(found))
        if numbered and not np.array_equal(block["index"], places):
            raise InputError(
                f"data.task {job.data.task!r} drops or reorders examples after stages.number, "
                "but stages.number must be right before the CacheDatasetPlaceholder"
            )
        number += len(found)
        yield from found


def features_of(dataset: Any, recipe: Recipe, task: str) -> tuple[str, ...]:
    """Check the features that a cache stores, which must be token ids, and return their names."""
    there = dataset.element_spec
    for name in recipe.stored:
        if name not in there:
            raise InputError(
                f"data.task {task!r} has the features {', '.join(there)} at its "
                f"CacheDatasetPlaceholder, but not {name}; put the placeholder after the "
                "tokenization"
            )
        is_float = name in recipe.floats
        right = there[name].dtype.is_floating if is_float else there[name].dtype.is_integer
        if not right or there[name].shape.rank != 1:
            raise InputError(
                f"data.task {task!r}: feature {name} must be a sequence of token ids at the "
                f"CacheDatasetPlaceholder, but is {there[name].dtype.name} of shape "
                f"{there[name].shape}"
            )
    return recipe.stored


def longest_of(recipe: Recipe, layout: Layout) -> Callable[[Sequence[np.ndarray]], int] | None:
    """Return a function that computes the length of an example's longest text; None if unused."""
    if not layout.joined or recipe.corruption:
        return None
    return lambda features: longest_joined(layout, dict(zip(recipe.stored, features, strict=True)))


def goes_without(job: Job, split: str, *, asked: bool) -> None:
    """Warn that a split without examples is skipped; raise InputError if the split is required."""
    if asked or split == "train":
        where = f" in {job.data.directory}" if job.data.directory else ""
        raise InputError(f"data.task {job.data.task!r} found no example for split {split!r}{where}")
    _logger.warning("skipping split %s, because it has no examples", split)


def index_of(job: Job, splits: Mapping[str, SplitIndex]) -> Index:
    """Return the index of a cache with the given splits."""
    return Index(
        task=job.data.task,
        vocabulary={
            "digest": job.vocabulary.digest,
            "extra_ids": job.vocabulary.extra_ids,
            "size": job.vocabulary.size,
        },
        dtype=job.dtype,
        recipe=job.recipe,
        splits=splits,
        has_metrics=bool(job.task.predict_metric_fns),
        baked=job.seed if job.bake else None,
        documents=job.data.first_documents,
        wording=words_of_inputs(job.data),
    )


SHARD_BYTES = 1 << 28
"""Approximate number of bytes of tokens in a shard."""


@contextlib.contextmanager
def new_cache(output: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary directory, which is renamed to `output` if the `with` block succeeds."""
    where = data_path(output)
    if isinstance(where, BucketPath):
        with _new_in_bucket(where) as directory:
            yield directory
        return
    target = Path(os.path.abspath(output))
    if target.is_dir() and not any(target.iterdir()):
        pass  # os.replace puts a directory in the place of an empty one
    elif target.exists():
        raise InputError(
            f"--output {output} already exists; give a new directory, or remove {output}"
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    for left in target.parent.glob(f".{target.name}.[0-9]*"):
        _logger.warning(
            "temporary directory %s belongs to a run that was interrupted or is still running", left
        )
    try:
        temporary.mkdir(parents=True)
        with unfinished(temporary):
            yield temporary
        for path in temporary.rglob("*"):
            sync_to_disk(path)
        sync_to_disk(temporary)
        temporary.replace(target)
        sync_to_disk(target.parent)
    except OSError as error:
        if not is_about(error, temporary):
            raise  # a file that the task reads
        raise InputError(f"--output {output} cannot be written: {reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _new_in_bucket(target: BucketPath) -> Iterator[Path]:
    if files_in(target):
        raise InputError(
            f"--output {target} already exists; give a new directory, or remove {target}"
        )
    with (
        tempfile.TemporaryDirectory(prefix="t5x_lite_cache_") as temporary,
        unfinished(temporary),
    ):
        yield Path(temporary)
        files = [path for path in sorted(Path(temporary).rglob("*")) if path.is_file()]
        copied: list[str] = []
        try:
            for path in sorted(files, key=lambda path: path.name == INDEX_NAME):
                copied.append(f"{target}/{path.relative_to(temporary).as_posix()}")
                upload(path, copied[-1])
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is raised
                for url in copied:
                    remove(url)
            raise


def is_about(error: OSError, directory: Path) -> bool:
    """Return True if a directory, or a file in it, may have caused an error."""
    if error.filename is None:
        return True
    path = Path(os.path.abspath(os.fsdecode(error.filename)))
    return path.is_relative_to(directory) or directory.is_relative_to(path)


def write_index(directory: Path, index: Index, vocabulary: Vocabulary) -> None:
    """Write the vocabulary and then the index of a cache."""
    vocabulary.save(directory / VOCABULARY_DIRECTORY)
    write_atomically(directory / INDEX_NAME, index.to_json())


class SplitWriter:
    """Writer of the token files of one split of a cache.

    Attributes:
      examples: number of examples written.
      tokens: number of tokens written, over all features.
    """

    def __init__(
        self,
        directory: Path,
        split: str,
        *,
        num_features: int,
        dtype: str,
        shard_bytes: int = SHARD_BYTES,
        longest: Callable[[Sequence[np.ndarray]], int] | None = None,
        resumable: bool = False,
    ):
        """Open the token files of a split for writing.

        Args:
          directory: an existing directory.
          split: name of the split.
          num_features: number of stored features of an example.
          dtype: dtype of the tokens.
          shard_bytes: number of bytes of tokens after which a new shard begins.
          longest: function that returns the length of an example's longest text; must be None if
            `resumable` is True.
          resumable: True to continue after the last complete shard in the directory.
        """
        self._directory, self._split = directory, split
        self._num_features, self._dtype = num_features, np.dtype(dtype).newbyteorder("<")
        self._largest = np.iinfo(self._dtype).max
        self._shard_bytes = shard_bytes
        self._shard: BinaryIO | None = None
        self._progress = progress_path(directory, split) if resumable else None
        self._shards: list[File] = []
        if self._progress is not None and self._progress.is_file():
            self._shards = [File(**shard) for shard in json.loads(self._progress.read_bytes())]
        self.examples = sum(shard.examples for shard in self._shards)
        self.tokens = sum(shard.size for shard in self._shards) // self._dtype.itemsize
        self._row = struct.Struct(f"<{num_features}I")
        self._ends = _opened(ends_path(directory, split), self.examples * self._row.size)
        self._checksums = _opened(checksums_path(directory, split), self.examples * _CHECKSUM.size)
        self._longest, self._longest_of = array.array("I"), longest
        self._in_shard = self._tokens = 0

    def add(self, features: Sequence[np.ndarray]) -> None:
        """Write one example, given the token ids of each feature."""
        if len(features) != self._num_features:
            raise ValueError(
                f"an example must have {self._num_features} features, but has {len(features)}"
            )
        tokens = np.concatenate(features)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() <= self._largest:
            raise InputError(
                f"the task's token ids range from {tokens.min()} to {tokens.max()}, but its "
                f"vocabulary has only ids from 0 to {self._largest}"
            )
        if self._tokens + len(tokens) > MOST_TOKENS:
            self._end_shard()
        content = tokens.astype(self._dtype).tobytes()
        ends = list(itertools.accumulate(map(len, features), initial=self._tokens))[1:]
        self._ends.write(self._row.pack(*ends))
        self._checksums.write(_CHECKSUM.pack(zlib.crc32(content)))
        if self._shard is None:
            self._shard = self._path().open("wb", buffering=_WRITTEN_AT_A_TIME)
        self._shard.write(content)
        if self._longest_of is not None:
            self._longest.append(self._longest_of(features))
        self._in_shard += 1
        self._tokens += len(tokens)
        self.examples += 1
        self.tokens += len(tokens)
        if self._tokens * self._dtype.itemsize >= self._shard_bytes:
            self._end_shard()

    def _path(self) -> Path:
        return self._directory / shard_name(self._split, len(self._shards))

    def _end_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
            self._shards.append(described(self._path(), examples=self._in_shard))
            if self._progress is not None:
                self._ends.flush()
                self._checksums.flush()
                for file in (self._shard, self._ends, self._checksums):
                    sync_to_disk(file.name)
                shards = [dataclasses.asdict(shard) for shard in self._shards]
                write_atomically(self._progress, json.dumps(shards).encode())
        self._shard, self._in_shard, self._tokens = None, 0, 0

    def finish(self) -> SplitIndex:
        """Close the files, and return a description of the split for the cache's index."""
        self._end_shard()
        self._ends.close()
        self._checksums.close()
        longest = self._directory / f"{self._split}.longest"
        if self._longest_of is not None:
            longest.write_bytes(np.asarray(self._longest, NUMBERS_DTYPE).tobytes())
        return SplitIndex(
            examples=self.examples,
            tokens=self.tokens,
            shards=tuple(self._shards),
            ends=described(ends_path(self._directory, self._split), examples=self.examples),
            checksums=described(
                checksums_path(self._directory, self._split), examples=self.examples
            ),
            longest=(
                None if self._longest_of is None else described(longest, examples=self.examples)
            ),
        )

    def close(self) -> None:
        """Close the files of an unfinished split; does nothing after `finish`."""
        for file in (self._shard, self._ends, self._checksums):
            if file is not None:
                file.close()
        self._shard = None


_CHECKSUM = struct.Struct("<I")
_WRITTEN_AT_A_TIME = 1 << 20


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05d}.tokens"


def ends_path(directory: Path, split: str) -> Path:
    return directory / f"{split}.ends"


def checksums_path(directory: Path, split: str) -> Path:
    return directory / f"{split}.checksums"


def progress_path(directory: Path, split: str) -> Path:
    """Return the path of the progress file, from which an interrupted command resumes."""
    return directory / f"{split}.progress.json"


def _opened(path: Path, size: int) -> BinaryIO:
    """Open a file for appending after its first `size` bytes."""
    path.touch()
    os.truncate(path, size)
    return path.open("ab")


def described(path: Path, *, examples: int) -> File:
    return File(
        name=path.name, size=path.stat().st_size, sha256=file_digest(path), examples=examples
    )


_CONVERTED_AT_A_TIME = 1024


def convert_cache(cache: str | os.PathLike[str], output: str | os.PathLike[str]) -> Index:
    """Convert a cache of version 0.1 to the current format.

    The examples keep their indices, so runs can continue with the converted cache. An interrupted
    conversion resumes after its last complete shard, except in a bucket.

    Args:
      cache: directory of the old cache, on disk or in a bucket.
      output: directory of the new cache.

    Raises:
      InputError: if the cache is damaged or already has the current format, or the output cannot be
        written.
    """
    old = Cache(cache)
    if old.index.format == FORMAT:
        raise InputError(
            f"cache {cache} already has the current format; use this cache with --data.cache"
        )
    if isinstance(data_path(output), BucketPath):
        with new_cache(output) as directory:
            return _convert(old, directory, resumable=False)
    identity = {"convert": old.digest}
    with resumable_directory(output, identity=identity, content="a cache") as directory:
        if (directory / INDEX_NAME).is_file():
            index = Cache(directory).index
        else:
            index = _convert(old, directory, resumable=True)
        kept = {INDEX_NAME, VOCABULARY_DIRECTORY, IDENTITY}
        kept |= {file.name for split in index.splits.values() for file in split.files}
        for path in (*directory.iterdir(), *(directory / VOCABULARY_DIRECTORY).glob(".*")):
            if path.name not in kept:
                path.unlink()
    (Path(output) / IDENTITY).unlink(missing_ok=True)
    return index


def _convert(old: Cache, directory: Path, *, resumable: bool) -> Index:
    converted = {}
    for name in old.index.splits:
        split = old.split(name)
        writer = SplitWriter(
            directory,
            name,
            num_features=len(old.index.recipe.stored),
            dtype=old.index.dtype,
            resumable=resumable,
        )
        with contextlib.closing(writer), counting(name, unit="examples") as advance:
            advance(writer.examples)
            for start in range(writer.examples, split.size, _CONVERTED_AT_A_TIME):
                numbers = np.arange(start, min(start + _CONVERTED_AT_A_TIME, split.size))
                for example in split.read(numbers):
                    writer.add([*example.values()])
                advance(len(numbers))
            written = writer.finish()
        if (texts := split.longest()) is not None:
            longest = directory / f"{name}.longest"
            longest.write_bytes(texts.astype(NUMBERS_DTYPE).tobytes())
            written = dataclasses.replace(written, longest=described(longest, examples=split.size))
        for file in written.files:
            sync_to_disk(directory / file.name)
        converted[name] = written
    vocabulary = load_vocabulary(
        old.directory / VOCABULARY_DIRECTORY, extra_ids=old.index.vocabulary["extra_ids"]
    )
    index = dataclasses.replace(old.index, splits=converted, converted=old.digest, format=FORMAT)
    write_index(directory, index, vocabulary)
    return index


BLOCK = 4096
"""Number of raw examples per task of a worker, a multiple of `stages.DOCUMENTS_PER_GROUP`."""
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
    """Tokenize the task in data.task, write the tokens to a cache, and return the cache's index."""
    if num_workers < 1 or (bake and num_workers > 1):
        raise InputError(
            f"--num-workers must be at least 1{', and with --bake 1' if bake else ''}, but is "
            f"{num_workers}"
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
    from t5x_lite.data import loading  # now, because TensorFlow takes seconds

    for split in [*written][:1]:
        loading.look_at(data, job.task, vocabulary, name=job.task.name, split=split)
    return index


_Run = Callable[[Job, str], Iterator[list[np.ndarray]]]


def _write(job: Job, run: _Run, split: str, *, directory: Path, shard_bytes: int) -> SplitIndex:
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
    """Yield the examples unchanged, and show their number as progress."""
    with counting(split, unit="examples") as advance:
        for example in examples:
            yield example
            advance(1)


# Running it.


def _run(job: Job, split: str) -> Iterator[list[np.ndarray]]:
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
    """Yield the stored features of a split in order, computed by several processes."""
    from t5x_lite.data import elements

    raw = job.task.source.get_dataset(split=split, shuffle=False)
    if any(spec.shape.rank != 0 for spec in raw.element_spec.values()):
        raise InputError(
            f"data.task {job.data.task!r} has raw examples with arrays, but several workers "
            "support only scalars and strings; set --num-workers 1"
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
    parts = iter(np.split(tokens, np.cumsum(counts)[:-1]))
    for _ in counts:
        yield list(itertools.islice(parts, counts.shape[1]))


_worker: dict[str, Any] = {}


@contextlib.contextmanager
def _scratch(vocabulary: Vocabulary) -> Iterator[str]:
    """Yield a temporary directory with the vocabulary's files, for all worker processes."""
    directory = tempfile.mkdtemp(prefix="t5x_lite_")
    try:
        with unfinished(directory):
            folder = Path(directory, _VOCABULARY)
            folder.mkdir()
            # All files: a single one does not define the added tokens.
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
    from t5x_lite.data import loading

    project.open_again(opened)
    loaded = load_vocabulary(str(Path(scratch, _VOCABULARY)), extra_ids=extra_ids)
    task = loading.load_task(data, loaded, seed=seed)
    _worker.update(
        task=task, recipe=recipe_of(data, loaded, task, bake=False), name=data.task, seed=seed
    )


def _run_block(block: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    from t5x_lite.data import elements
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    columns: Any = dict(block)
    raw = tf.data.Dataset.from_tensor_slices(columns)
    dataset = _worker["task"].preprocess_precache(raw, seed=_worker["seed"])
    names = features_of(dataset, _worker["recipe"], _worker["name"])
    blocks = stages.in_blocks(dataset, names, _READ_AT_A_TIME)
    found = [
        example
        for block in elements.as_numpy(elements.deterministic(blocks))
        for example in examples_of_block(block, names)
    ]
    counts = np.array([[len(part) for part in parts] for parts in found], np.int64)
    parts = [part for parts in found for part in parts]
    tokens = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    return tokens, counts.reshape(len(found), len(names))
