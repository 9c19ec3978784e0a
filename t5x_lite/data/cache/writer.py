"""Writing the files of a cache: records, lengths, and the index that makes them one.

    with new_cache("caches/prose") as directory:
        writer = SplitWriter(directory, "train", num_features=1, dtype="uint16")
        for example in examples:
            writer.add([example["tokens"]])
        ...
        write_index(directory, index, vocabulary)

The directory has another name, hidden, until the block has ended well and all of it is on the disk.
The cache of a bucket is written to a temporary directory and copied then, its index last.
"""

import array
import contextlib
import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from t5x_lite.buckets.objects import files_in, remove, upload
from t5x_lite.buckets.paths import BucketPath, data_path
from t5x_lite.data.cache.files import (
    INDEX_NAME,
    LENGTHS_DTYPE,
    VOCABULARY_DIRECTORY,
    File,
    Index,
    SplitIndex,
    file_digest,
)
from t5x_lite.errors import InputError
from t5x_lite.files import reason, sync_to_disk, unfinished, write_atomically
from t5x_lite.vocabulary.loading import Vocabulary

_logger = logging.getLogger(__name__)

SHARD_BYTES = 1 << 28
"""Bytes of tokens in a shard: a file that can be copied and replaced by itself."""


@contextlib.contextmanager
def new_cache(output: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory that takes the name `output` when the block ends well, and is removed if not.

    Raises:
      InputError: `output` is there and is not an empty directory, or cannot be made.
      BucketError: it is in a bucket that stays away.
    """
    where = data_path(output)
    if isinstance(where, BucketPath):
        with _new_in_bucket(where) as directory:
            yield directory
        return
    target = Path(os.path.abspath(output))
    if target.is_dir() and not any(target.iterdir()):
        pass  # os.replace puts a directory in the place of an empty one
    elif target.exists():
        raise InputError(f"--output {output} is there already: give a new directory, or remove it")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    for left in target.parent.glob(f".{target.name}.[0-9]*"):
        _logger.warning("%s belongs to a run that was interrupted or is still running", left)
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
    """A temporary directory, which is copied to a bucket when the block ends well."""
    if files_in(target):
        raise InputError(f"--output {target} is there already: give a new directory, or remove it")
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
            with contextlib.suppress(Exception):  # the one that is raised says enough
                for url in copied:
                    remove(url)
            raise


def is_about(error: OSError, directory: Path) -> bool:
    """Whether an error is about a directory or what is in it; that of a full disk names none."""
    if error.filename is None:
        return True
    path = Path(os.path.abspath(os.fsdecode(error.filename)))
    return path.is_relative_to(directory) or directory.is_relative_to(path)


def write_index(directory: Path, index: Index, vocabulary: Vocabulary) -> None:
    """Writes the vocabulary and, last, the index."""
    vocabulary.save(directory / VOCABULARY_DIRECTORY)
    write_atomically(directory / INDEX_NAME, index.to_json())


class SplitWriter:
    """Writes the examples of a split, in order.

    Attributes:
      examples: those written.
      tokens: of all their features.
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
    ):
        """Begins a split.

        Args:
          directory: the cache's.
          split: its name.
          num_features: token sequences of an example.
          dtype: of the tokens on the disk.
          shard_bytes: a shard ends with the example that fills it.
          longest: tokens of an example's longest text, where the cache is to hold them.
        """
        self._directory, self._split = directory, split
        self._num_features, self._dtype = num_features, np.dtype(dtype).newbyteorder("<")
        self._largest = np.iinfo(self._dtype).max
        self._shard_bytes = shard_bytes
        self._shards: list[File] = []
        self._lengths_name = lengths_name(split)
        self._lengths = (directory / self._lengths_name).open("wb")
        self._longest, self._longest_of = array.array("I"), longest
        self._records = None
        self._in_shard = self._bytes = 0
        self.examples = self.tokens = 0

    def add(self, features: Sequence[np.ndarray]) -> None:
        """Writes one example: int token ids [_] of each feature.

        Raises:
          InputError: a token id does not fit the dtype.
        """
        if len(features) != self._num_features:
            raise ValueError(f"an example has {self._num_features} features, got {len(features)}")
        tokens = np.concatenate(features)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() <= self._largest:
            raise InputError(
                f"the task gives token ids from {tokens.min()} to {tokens.max()}, and its "
                f"vocabulary has ids from 0 to {self._largest} at most"
            )
        record = tokens.astype(self._dtype).tobytes()
        try:
            self._writer().write(record)
        except RuntimeError as error:
            raise _os_error(error, self._path()) from error
        self._lengths.write(np.array([len(f) for f in features], LENGTHS_DTYPE).tobytes())
        if self._longest_of is not None:
            self._longest.append(self._longest_of(features))
        self._in_shard += 1
        self._bytes += len(record)
        self.examples += 1
        self.tokens += len(tokens)
        if self._bytes >= self._shard_bytes:
            self._end_shard()

    def _path(self) -> Path:
        return self._directory / shard_name(self._split, len(self._shards))

    def _writer(self):
        if self._records is None:
            from array_record.python.array_record_module import ArrayRecordWriter

            # One record a group: examples are read one by one, in any order.
            self._records = ArrayRecordWriter(str(self._path()), "group_size:1")
        return self._records

    def _end_shard(self) -> None:
        if self._records is not None:
            try:
                self._records.close()
            except RuntimeError as error:
                raise _os_error(error, self._path()) from error
            self._shards.append(described(self._path(), examples=self._in_shard))
        self._records, self._in_shard, self._bytes = None, 0, 0

    def finish(self) -> SplitIndex:
        """Closes the files, and gives what the index says of them."""
        self._end_shard()
        self._lengths.close()
        longest = self._directory / f"{self._split}.longest"
        if self._longest_of is not None:
            longest.write_bytes(np.asarray(self._longest, LENGTHS_DTYPE).tobytes())
        return SplitIndex(
            examples=self.examples,
            tokens=self.tokens,
            shards=tuple(self._shards),
            lengths=described(self._directory / self._lengths_name, examples=self.examples),
            longest=(
                None if self._longest_of is None else described(longest, examples=self.examples)
            ),
        )

    def close(self) -> None:
        """Closes the files of a split that is given up; does nothing after `finish`."""
        if self._records is not None:
            self._records.close()
            self._records = None
        self._lengths.close()


def _os_error(error: RuntimeError, path: Path) -> OSError:
    """The error of a file that ArrayRecord could not write, with the system's words."""
    return OSError(errno.EIO, str(error).partition(";")[0], str(path))


def shard_name(split: str, number: int) -> str:
    """The name of a file of records."""
    return f"{split}-{number:05d}.array_record"


def lengths_name(split: str) -> str:
    """The name of a file of lengths."""
    return f"{split}.lengths"


def described(path: Path, *, examples: int) -> File:
    """What the index says of a file."""
    return File(
        name=path.name, size=path.stat().st_size, sha256=file_digest(path), examples=examples
    )
