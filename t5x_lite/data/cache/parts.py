"""A cache in parts: each shard of a task's source is written by some worker, and all are joined.

    work = PartWriter.of(job, parts, counts={"train": 8})      # pickled to the workers
    part = work("train", 3)                                    # on a worker: the fourth shard of 8
    join("train", [part, ...], where=parts, directory=cache)   # where it began, at the end

`parts` is a directory that all see under the same path. A worker writes under a name that is not
used twice, and then renames: a part is there whole or not at all, and one that is written again, as
runners do when they lose a worker, has the same bytes. No name and no order depends on the workers.
"""

import dataclasses
import os
import shutil
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5x_lite import project
from t5x_lite.data.cache.files import File, SplitIndex
from t5x_lite.data.cache.job import Job, load_job, stored_examples
from t5x_lite.data.cache.source_shards import shard_dataset, shards_of
from t5x_lite.data.cache.writer import (
    SHARD_BYTES,
    SplitWriter,
    described,
    is_about,
    lengths_name,
    shard_name,
)
from t5x_lite.data.config import Data
from t5x_lite.errors import InputError
from t5x_lite.files import reason, sync_to_disk
from t5x_lite.remote import is_remote
from t5x_lite.vocabulary.loading import load_vocabulary

_VOCABULARY = "vocabulary"
_COPY_BYTES = 1 << 24


class UnsharedError(Exception):
    """A worker does not see the directory that it shall write to."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """What became of one shard of a source.

    Attributes:
      split: of the task.
      number: of the shard.
      written: its files in the directory of the parts.
      error: what was wrong with the input, and nothing was written; "" if nothing.
    """

    split: str
    number: int
    written: SplitIndex | None = None
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists; `from_json` reads them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> "Part":
        """The part that `to_json` made this of."""
        written = node["written"]
        found = None if written is None else SplitIndex.from_json(written)
        return cls(**{**node, "written": found})


class PartWriter:
    """Writes parts, on any worker."""

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
        """See `of`."""
        self._data, self._extra_ids, self._seed = data, extra_ids, seed
        self._parts, self._counts, self._shard_bytes = parts, counts, shard_bytes
        self._project = project.opened()  # on the workers, where the task's module is looked for
        self._loaded: Job | None = None

    @classmethod
    def of(
        cls, job: Job, parts: Path, *, counts: Mapping[str, int], shard_bytes: int = SHARD_BYTES
    ) -> "PartWriter":
        """A writer that can be pickled; the vocabulary goes to the workers by `parts`.

        Args:
          job: the task.
          parts: a directory that all workers share.
          counts: shards of each split of the source.
          shard_bytes: a shard of the cache ends with the example that fills it.
        """
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
        """Runs the task on a shard of its source, and writes what comes of it.

        Args:
          split: of the task.
          number: of the shard.

        Raises:
          UnsharedError: the directory of the parts is not here.
        """
        if not self._parts.is_dir():
            raise UnsharedError(
                f"worker {socket.gethostname()} does not see {self._parts}: --output must be on a "
                "file system that all workers share, under the same path"
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
                f"worker {socket.gethostname()} sees {here} shards of split {split}, and there are "
                f"{count} where the run was started: all must read the same data.directory"
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
            for file in (*written.shards, written.lengths):
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
    """Makes the split of a cache of its parts, in the order of the source's shards.

    Args:
      split: its name.
      parts: those of the split, in any order.
      where: their directory.
      directory: the cache's.

    Returns:
      What the index says of it; None where there is no example.

    Raises:
      InputError: a worker found the input wrong; that of the first shard is told.
    """
    ordered = sorted(parts, key=lambda part: part.number)
    for part in ordered:
        if part.error:
            raise InputError(part.error)
    written = [part.written for part in ordered if part.written is not None]
    if not any(found.examples for found in written):
        return None
    shards: list[File] = []
    lengths = directory / lengths_name(split)
    with lengths.open("wb") as joined:
        for found in written:
            for shard in found.shards:
                name = shard_name(split, len(shards))
                _there(where, shard).replace(directory / name)
                shards.append(dataclasses.replace(shard, name=name))
            with _there(where, found.lengths).open("rb") as file:
                shutil.copyfileobj(file, joined, _COPY_BYTES)
    examples = sum(found.examples for found in written)
    return SplitIndex(
        examples=examples,
        tokens=sum(found.tokens for found in written),
        shards=tuple(shards),
        lengths=described(lengths, examples=examples),
    )


def _there(where: Path, file: File) -> Path:
    """The path of a file that a worker wrote, after a look whether it is here as it was there."""
    path = where / file.name
    size = path.stat().st_size if path.is_file() else None
    if size != file.size:
        found = "is not there" if size is None else f"has {size} bytes here"
        raise InputError(
            f"a worker wrote {path} ({file.size} bytes), and it {found}: --output must be on a "
            "file system that all workers share, under the same path"
        )
    return path
