"""Parts of a cache: workers write one part per shard of a task's source, and `join` merges them.

    work = PartWriter.of(job, parts, counts={"train": 8})      # pickled to the workers
    part = work("train", 3)                                    # on a worker: the fourth shard of 8
    join("train", [part, ...], where=parts, directory=cache)   # in the launching process, last

`parts` is a directory that has the same path on all workers. A worker writes to a unique name and
then renames the file, so each part is complete or missing. If a runner loses a worker and writes a
part again, the part has the same bytes. Names and order do not depend on the workers.

Each worker runs the task on one shard of its source:

    count = len(shards_of(job, "train"))      # its files, in the source's order
    check_shards(job, "train", count)         # InputError if the task cannot run by shards
    dataset = shard_dataset(job, "train", 3, count)   # output of the fourth at the placeholder

The preprocessors before the placeholder start again with each shard. They may therefore process
single examples or groups of neighboring examples, as `stages.chunk_documents` does, but must not
count the examples of the complete source. The only exception is `stages.number` right before the
placeholder, because a cache numbers its examples by position.
"""

import dataclasses
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5x_lite.core import project
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import reason, sync_to_disk
from t5x_lite.core.remote import is_remote
from t5x_lite.data.cache.files import File, SplitIndex
from t5x_lite.data.cache.making import (
    SHARD_BYTES,
    Job,
    SplitWriter,
    checksums_path,
    described,
    ends_path,
    features_of,
    is_about,
    load_job,
    shard_name,
    stored_examples,
)
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary

_LOCAL = "write the cache without --runner"
_SEED_OF_SHARD = 1_000_003
"""Distance between the random seeds of two shards; one shard uses a few consecutive seeds."""
_building = threading.Lock()
"""Lock for building a dataset, because seqio keeps the next seed in a global variable."""

# Classes of tf.data that look at one example at a time, or at groups of neighbours.
_IN_ORDER = {
    "DatasetV1Adapter",
    "_BatchDataset",
    "_DenseToRaggedDataset",
    "_FilterDataset",
    "_FlatMapDataset",
    "_IgnoreErrorsDataset",
    "_InterleaveDataset",
    "_MapDataset",
    "_OptionsDataset",
    "_PaddedBatchDataset",
    "_ParallelBatchDataset",
    "_ParallelInterleaveDataset",
    "_ParallelMapDataset",
    "_PrefetchDataset",
    "_RandomDataset",
    "_RestructuredDataset",
    "_UnbatchDataset",
    "_ZipDataset",
}
_NUMBERS = {"_RangeDataset", "_VariantDataset"}
"""Names of TensorFlow's datasets that are inputs of `enumerate`."""


def shards_of(job: Job, split: str) -> Sequence[str]:
    """Return the shards of a task's source for a split, in order; [] if the split has no data."""
    from t5x_lite.data import elements
    from t5x_lite.data.tasks import stages

    source = job.task.source
    try:
        if isinstance(source, stages.FileSource):
            return source.files(split)
        return source.list_shards(split)
    except (NotImplementedError, AttributeError) as error:
        raise InputError(
            f"data.task {job.data.task!r} has a source without shards, {type(source).__name__}; "
            f"{_LOCAL}, or use stages.FileSource or one of seqio's file sources"
        ) from error
    except InputError:
        raise
    except Exception as error:
        raise elements.input_error(error) from error


def shard_dataset(job: Job, split: str, number: int, count: int) -> Any:
    """Return the examples from one shard of a task's source, ready to be cached."""
    return _from_raw(job, split, number, count)[1]


def _from_raw(job: Job, split: str, number: int, count: int) -> tuple[Any, Any]:
    from t5x_lite.data.elements import seqio

    shard = seqio.ShardInfo(number, count) if count > 1 else None
    with _building:
        raw = job.task.source.get_dataset(split=split, shuffle=False, shard_info=shard)
        # The first shard has the seed that one process uses for its single shard.
        seed = job.seed + number * _SEED_OF_SHARD
        return raw, job.task.preprocess_precache(raw, seed=seed)


def check_shards(job: Job, split: str, count: int) -> None:
    """Raise InputError unless a task can be tokenized shard by shard."""
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks import stages

    raw, dataset = _from_raw(job, split, 0, count)
    features_of(dataset, job.recipe, job.data.task)
    if count == 1:
        return
    steps = list(job.task.preprocessors)
    end = next(i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder))
    numbers_last = end > 0 and steps[end - 1] is stages.number
    counting = sorted(_counting(dataset, raw, may_number=numbers_last))
    if stages.number in steps[: max(end - 1, 0)]:
        counting = ["stages.number"]
    if counting:
        raise InputError(
            f"data.task {job.data.task!r} counts its examples over the whole source "
            f"({', '.join(counting)}), but a worker reads only one of {count} shards; {_LOCAL}, "
            "or count only with stages.number, right before the CacheDatasetPlaceholder"
        )


def _counting(dataset: Any, raw: Any, *, may_number: bool) -> set[str]:
    """Return the names of preprocessors that cannot run on each shard separately."""
    found, numbered = set(), 0
    for node in _nodes(dataset, raw):
        name = type(node).__name__
        if name in _NUMBERS:
            numbered += 1
        elif name not in _IN_ORDER:
            found.add(name.strip("_").removesuffix("Dataset").lower())
    if numbered > may_number:
        found.add("enumerate")
    return found


def _nodes(dataset: Any, raw: Any) -> Iterator[Any]:
    """Yield a dataset and, recursively, its input datasets, up to the dataset `raw`."""
    if dataset is raw:
        return
    yield dataset
    for part in dataset._inputs():  # TensorFlow has no public name for it
        yield from _nodes(part, raw)


_VOCABULARY = "vocabulary"
_COPY_BYTES = 1 << 24


class UnsharedError(Exception):
    """Error raised if a worker does not see the directory that all workers must share."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Summary of a worker that tokenized one shard of a task's source.

    Attributes:
      split: split of the task.
      number: index of the shard.
      written: description of the written token files; None if nothing was written.
      error: message of an InputError; "" if there was no error.
    """

    split: str
    number: int
    written: SplitIndex | None = None
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the worker's summary as a JSON object."""
        written = None if self.written is None else self.written.to_json()
        return dataclasses.asdict(self) | {"written": written}

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> "Part":
        written = node["written"]
        found = None if written is None else SplitIndex.from_json(written)
        return cls(**{**node, "written": found})


class PartWriter:
    """Function object that tokenizes one shard of a task's source and writes token files."""

    def __init__(
        self,
        data: Data,
        *,
        extra_ids: int,
        seed: int,
        parts: Path,
        counts: Mapping[str, int],
        shard_bytes: int,
    ):
        self._data, self._extra_ids, self._seed = data, extra_ids, seed
        self._parts, self._counts, self._shard_bytes = parts, counts, shard_bytes
        self._project = project.opened()  # workers search the task's module there
        self._loaded: Job | None = None

    @classmethod
    def of(
        cls, job: Job, parts: Path, *, counts: Mapping[str, int], shard_bytes: int = SHARD_BYTES
    ) -> "PartWriter":
        job.vocabulary.save(parts / _VOCABULARY)
        directory = job.data.directory
        if directory and not is_remote(directory):
            directory = os.path.abspath(directory)  # workers may be elsewhere
        return cls(
            dataclasses.replace(job.data, directory=directory),
            extra_ids=job.vocabulary.extra_ids,
            seed=job.seed,
            parts=parts,
            counts=counts,
            shard_bytes=shard_bytes,
        )

    def __call__(self, split: str, number: int) -> Part:
        if not self._parts.is_dir():
            raise UnsharedError(
                f"worker {socket.gethostname()} does not see {self._parts}; --output must be on "
                "a file system that all workers share, under the same path"
            )
        try:
            written = self._write(split, number)
        except InputError as error:
            return Part(split=split, number=number, error=str(error))
        return Part(split=split, number=number, written=written)

    def _job(self) -> Job:
        if self._loaded is None:
            if self._project.directories and not project.opened().directories:
                project.open_again(self._project)
            vocabulary = load_vocabulary(self._parts / _VOCABULARY, extra_ids=self._extra_ids)
            self._loaded = load_job(
                self._data, vocabulary, splits=[*self._counts], seed=self._seed, bake=False
            )
        return self._loaded

    def _write(self, split: str, number: int) -> SplitIndex:
        job, count = self._job(), self._counts[split]
        here = len(shards_of(job, split))
        if here != count:
            raise InputError(
                f"worker {socket.gethostname()} sees {here} shards of split {split}, but the "
                f"launching process sees {count}; all workers must read the same data.directory"
            )
        examples = stored_examples(job, shard_dataset(job, split, number, count))
        attempt = self._parts / f".{split}.{number}.{uuid.uuid4().hex}"
        try:
            attempt.mkdir()
            writer = SplitWriter(
                attempt,
                f"{split}.{number:05d}",
                num_features=len(job.recipe.stored),
                dtype=job.dtype,
                shard_bytes=self._shard_bytes,
            )
            try:
                for features in examples:
                    writer.add(features)
                written = writer.finish()
            finally:
                writer.close()
            for file in written.files:
                sync_to_disk(attempt / file.name)
                os.replace(attempt / file.name, self._parts / file.name)
        except OSError as error:
            if not is_about(error, self._parts):
                raise  # a file that the task reads
            raise InputError(
                f"worker {socket.gethostname()} cannot write to {self._parts}: {reason(error)}"
            ) from error
        finally:
            shutil.rmtree(attempt, ignore_errors=True)
        return written


def join(split: str, parts: Sequence[Part], *, where: Path, directory: Path) -> SplitIndex | None:
    """Combine the token files of all workers into one split of a cache, in shard order."""
    ordered = sorted(parts, key=lambda part: part.number)
    for part in ordered:
        if part.error:
            raise InputError(part.error)
    written = [part.written for part in ordered if part.written is not None]
    if not any(found.examples for found in written):
        return None
    shards: list[File] = []
    ends, checksums = ends_path(directory, split), checksums_path(directory, split)
    with ends.open("wb") as joined_ends, checksums.open("wb") as joined_checksums:
        for found in written:
            for shard in found.shards:
                name = shard_name(split, len(shards))
                _there(where, shard).replace(directory / name)
                shards.append(dataclasses.replace(shard, name=name))
            for part, joined in ((found.ends, joined_ends), (found.checksums, joined_checksums)):
                assert part is not None
                with _there(where, part).open("rb") as file:
                    shutil.copyfileobj(file, joined, _COPY_BYTES)
    examples = sum(found.examples for found in written)
    return SplitIndex(
        examples=examples,
        tokens=sum(found.tokens for found in written),
        shards=tuple(shards),
        ends=described(ends, examples=examples),
        checksums=described(checksums, examples=examples),
    )


def _there(where: Path, file: File) -> Path:
    """Return the path of a worker's file; raise InputError if the file is incomplete."""
    path = where / file.name
    size = path.stat().st_size if path.is_file() else None
    if size != file.size:
        found = "is missing" if size is None else f"has {size} bytes"
        raise InputError(
            f"a worker wrote {path} with {file.size} bytes, but the file {found} in the "
            "launching process; --output must be on a file system that all workers share, under "
            "the same path"
        )
    return path
