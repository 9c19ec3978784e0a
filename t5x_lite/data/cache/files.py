"""Format of an offline cache of tokens, and readers for caches on disk or in an object store.

    CACHE/cache.json           the index: the task, the recipe, and size and SHA-256 of each file
    CACHE/vocabulary/...       the vocabulary, as `load_vocabulary` reads it
    CACHE/train-00000.tokens   a shard: the tokens of example after example, in the index's dtype
    CACHE/train.ends           uint32 [n, F], where each feature of each example ends in its shard
    CACHE/train.checksums      uint32 [n], CRC-32 of the tokens of each example
    CACHE/train.longest        uint32 [n], the longest text of each example; some layouts only

All numbers are little-endian. Two examples of two features, [5 6] [7] and [8] [], as uint16:

    tokens       05 00 06 00 07 00 08 00
    ends         [[2, 3], [4, 4]]
    checksums    [crc32(05 00 06 00 07 00), crc32(08 00)]

The position of an example in its shard is computed from the ends, so one request to the file or
bucket reads the example. Each example has a checksum, because examples are read in random order.
The index is written last; a directory without a complete index is rejected. A damaged example is
detected when it is read, and damaged ends when a split is opened. `Cache.verify` compares all files
with the index.

A cache of version 0.1 (format 1) has ArrayRecord shards, `train-00000.array_record`, and the tokens
of each feature of each example in `train.lengths`. This version reads format 1; version 0.2.0 will
not.
"""

import dataclasses
import hashlib
import json
import logging
import math
import os
import tempfile
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, UInt32

from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.files import reason
from t5x_lite.core.object_store import (
    BucketPath,
    DataPath,
    Range,
    data_path,
    files_in,
    read_ranges,
    size_of,
)
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.formats.array_records import ArrayRecords

NUMBERS_DTYPE = np.dtype("<u4")
"""Dtype of the files of ends and checksums."""
MOST_TOKENS = np.iinfo(NUMBERS_DTYPE).max
"""Maximum number of tokens in a shard."""
HELD_BYTES = 1 << 28
"""Maximum total size in bytes of the shards in buckets that a process keeps in memory."""
BLOCK_BYTES = 1 << 18
"""Number of bytes per read when a shard in a bucket is loaded into memory."""
_OPEN_FILES = 128
_COPIED_AT_A_TIME = 1 << 20
_held = [0]


class Shards:
    """Reader of byte ranges from the shard files of a split of a cache.

    Files are opened on first use. Small files in a bucket are kept in memory.

    Args:
      paths: paths of the shard files.
      sizes: sizes of the files in bytes.
    """

    def __init__(self, paths: Sequence[DataPath], sizes: Sequence[int]):
        self.paths, self.sizes = list(paths), list(sizes)
        self._files: dict[int, _File] = {}
        self._in_bucket = any(isinstance(path, BucketPath) for path in paths)
        self._blocks: dict[tuple[int, int], bytes] | None = None
        if self._in_bucket and _held[0] + sum(sizes) <= HELD_BYTES:
            self._blocks = {}
            _held[0] += sum(sizes)
            weakref.finalize(self, _release, sum(sizes))

    def read(
        self, shards: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> list[bytes]:
        """Return one byte range [start, end) of each of the given shard files."""
        if self._blocks is not None:
            return self._from_blocks(self._blocks, shards, starts, ends)
        if self._in_bucket:
            places = zip(shards, starts, ends, strict=True)
            return read_ranges([Range(str(self.paths[k]), start, end) for k, start, end in places])
        return [self._local(*place) for place in zip(shards, starts, ends, strict=True)]

    def _local(self, shard: int, start: int, end: int) -> bytes:
        file = self._files.get(shard)
        if file is None:
            if len(self._files) >= _OPEN_FILES:
                self._files = {}  # other threads may still read from them
            file = self._files[shard] = _File(self.paths[shard])
        content = os.pread(file.descriptor, end - start, start)
        while len(content) < end - start:
            more = os.pread(file.descriptor, end - start - len(content), start + len(content))
            if not more:
                raise ValueError(f"{self.paths[shard].name} is truncated")
            content += more
        return content

    def _from_blocks(
        self,
        held: dict[tuple[int, int], bytes],
        shards: Sequence[int],
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> list[bytes]:
        ranges = list(zip(shards, starts, ends, strict=True))
        wanted = {block for one in ranges for block in _blocks_of(*one)}
        new = sorted(wanted - held.keys())
        found = read_ranges(
            [
                Range(
                    str(self.paths[shard]),
                    number * BLOCK_BYTES,
                    min((number + 1) * BLOCK_BYTES, self.sizes[shard]),
                )
                for shard, number in new
            ]
        )
        held.update(zip(new, found, strict=True))
        contents = []
        for shard, start, end in ranges:
            content = b"".join(held[block] for block in _blocks_of(shard, start, end))
            offset = start % BLOCK_BYTES
            contents.append(content[offset : offset + end - start])
        return contents


class _File:
    def __init__(self, path: str | os.PathLike[str]):
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "descriptor"):
            close(self.descriptor)  # bound: at the end of the program the module may be empty


def array_on_disk(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of zeros in a temporary file, which is removed when the array is deleted."""
    if not all(shape):
        return np.zeros(shape, dtype)
    with tempfile.TemporaryFile(prefix="t5x_lite_") as file:
        return np.memmap(file, dtype, mode="w+", shape=shape)


def copied_array(
    path: BucketPath, dtype: np.dtype, shape: tuple[int, ...]
) -> tuple[np.ndarray, str]:
    """Copy a file from a bucket to an array on disk, and return the array and its SHA-256."""
    array, digest, place = array_on_disk(dtype, shape), hashlib.sha256(), 0
    flat = array.reshape(-1).view(np.uint8)
    with path.open() as file:
        while place < len(flat) and (content := file.read(_COPIED_AT_A_TIME)):
            content = content[: len(flat) - place]
            flat[place : place + len(content)] = np.frombuffer(content, np.uint8)
            digest.update(content)
            place += len(content)
    return array, digest.hexdigest()


def _blocks_of(shard: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    return ((shard, number) for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)))


def _release(total: int) -> None:
    _held[0] -= total


class FlatExamples:
    """Reader of the tokens of a cached split's examples, with random access by index.

    Args:
      shards: reader of the token files.
      counts: number of examples in each shard.
      ends: uint32 [examples, features], end of each feature of an example in the token file.
      checksums: uint32 [examples], CRC-32 of the tokens of each example.
      dtype: dtype of the tokens.
    """

    def __init__(
        self,
        shards: Shards,
        counts: Sequence[int],
        *,
        ends: UInt32[np.ndarray, "n F"],
        checksums: UInt32[np.ndarray, " n"],
        dtype: np.dtype,
    ):
        self._shards, self._ends, self._checksums, self._dtype = shards, ends, checksums, dtype
        self._before = np.append(0, np.cumsum(counts)).astype(np.int64)
        self._sizes = np.array(shards.sizes, np.int64)
        for name, size, first, behind in zip(
            shards.paths, shards.sizes, self._before[:-1], self._before[1:], strict=True
        ):
            tokens = int(ends[behind - 1, -1]) if behind > first else 0
            if size != tokens * dtype.itemsize:
                raise ValueError(
                    f"the size of shard {name.name} differs from the total size of its examples"
                )

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """Return the number of tokens of each feature, int64 [examples, features].

        Raises:
          ValueError: if an example ends before its start.
        """
        return self._find(indices)[2]

    def _find(
        self, indices: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, "n F"]]:
        shards = np.searchsorted(self._before, indices, side="right") - 1
        ends = self._ends[indices].astype(np.int64)
        starts = self._ends[indices - 1, -1].astype(np.int64)
        starts[self._before[shards] == indices] = 0
        counts = ends.copy()
        counts[:, 0] -= starts
        counts[:, 1:] -= ends[:, :-1]
        if counts.size and counts.min() < 0:
            raise ValueError("an example of the cache ends before its start")
        return shards, starts, counts

    def read(self, indices: Int[np.ndarray, " n"]) -> tuple[list[bytes], Int[np.ndarray, "n F"]]:
        """Return each example's tokens as bytes, and the number of tokens of each feature.

        Raises:
          ValueError: if an example is damaged.
          OSError: if a shard cannot be read.
        """
        shards, starts, counts = self._find(indices)
        size = self._dtype.itemsize
        first, last = starts * size, (starts + counts.sum(axis=1)) * size
        if (last > self._sizes[shards]).any():
            raise ValueError("an example of the cache ends after the end of its shard")
        contents = self._shards.read(shards.tolist(), first.tolist(), last.tolist())
        known = self._checksums[indices].tolist()
        if [*map(zlib.crc32, contents)] != known:
            wrong = next(i for i, c in enumerate(contents) if zlib.crc32(c) != known[i])
            name, number = self._shards.paths[shards[wrong]].name, int(indices[wrong])
            raise ValueError(f"example {number} in shard {name} does not fit its checksum")
        return contents, counts


FORMAT = 2
OLD_FORMAT = 1
"""Format of caches of version 0.1, which this version still reads."""
INDEX_NAME = "cache.json"
VOCABULARY_DIRECTORY = "vocabulary"
DTYPES = ("uint16", "int32")
_COUNTED_AT_A_TIME = 1 << 20
_AGAIN = "copy the cache again, or write it again with `t5x-lite cache`"
_logger = logging.getLogger(__name__)
_noted: set[str] = set()
"""Directories of version 0.1 caches for which the warning was already logged."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """Name, size and checksum of one file of a cache.

    Attributes:
      name: file name in the cache's directory.
      size: size in bytes.
      sha256: SHA-256 of the content, in hex.
      examples: number of examples in the file.
    """

    name: str
    size: int
    sha256: str
    examples: int

    def __post_init__(self) -> None:
        _check_counts(size=self.size, examples=self.examples)
        if type(self.sha256) is not str:
            raise ValueError("the field sha256 of a file entry must be a string")
        name = self.name
        if type(name) is not str or name in ("", ".", "..") or os.path.basename(name) != name:
            raise ValueError(f"the file name {name!r} must be a plain name, without a directory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitIndex:
    """Description of one split of a cache: its files and numbers of examples and tokens.

    Attributes:
      examples: number of examples in all shards.
      tokens: number of tokens in all features.
      shards: token files, in the order of their examples.
      ends: file with uint32 [examples, features], the end of each feature of an example in the
        token file.
      checksums: file with uint32 [examples], the CRC-32 of the tokens of each example.
      longest: file with uint32 [examples], the number of tokens of each example's longest text;
        None if not stored.
      lengths: file with uint32 [examples, features], the length of each feature, instead of ends
        and checksums in caches of version 0.1.
    """

    examples: int
    tokens: int
    shards: tuple[File, ...]
    ends: File | None = None
    checksums: File | None = None
    longest: File | None = None
    lengths: File | None = None

    @property
    def files(self) -> tuple[File, ...]:
        """All files of the split."""
        others = (self.ends, self.checksums, self.lengths, self.longest)
        return (*self.shards, *(file for file in others if file is not None))

    def to_json(self) -> dict[str, Any]:
        node = dataclasses.asdict(self)
        return {name: value for name, value in node.items() if value is not None}

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> "SplitIndex":
        names = ("ends", "checksums", "longest", "lengths")
        files = {name: File(**node[name]) for name in names if node.get(name) is not None}
        return cls(**{**node, "shards": tuple(File(**shard) for shard in node["shards"]), **files})

    def __post_init__(self) -> None:
        _check_counts(examples=self.examples, tokens=self.tokens)
        there = (self.ends is None, self.checksums is None, self.lengths is None)
        if there not in ((False, False, True), (True, True, False)):
            raise ValueError(
                "a split must have both the fields ends and checksums, or the field lengths"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index:
    """Index of a cache, the content of cache.json.

    Attributes:
      task: name of the task, "module:function".
      vocabulary: "digest", "extra_ids" and "size" of the vocabulary.
      dtype: dtype of the tokens, one of `DTYPES`.
      recipe: description of how stored features become examples.
      splits: entries of the splits, by name.
      has_metrics: True if the task defines metrics.
      baked: random seed of the corruption if examples were corrupted when the cache was written, or
        None.
      documents: maximum number of the task's documents when the cache was written; None for all
        documents.
      wording: template, prefix and augmentation of the inputs if the config changed them.
      converted: digest of the version 0.1 cache from which this cache was converted, or "".
      format: number of the cache format.
    """

    task: str
    vocabulary: Mapping[str, Any]
    dtype: str
    recipe: Recipe
    splits: Mapping[str, SplitIndex]
    has_metrics: bool = False
    baked: int | None = None
    documents: int | None = None
    wording: Mapping[str, str] = dataclasses.field(default_factory=dict)
    converted: str = ""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"the field dtype must be one of {DTYPES}, but is {self.dtype!r}")
        _check_counts(**{name: self.vocabulary[name] for name in ("extra_ids", "size")})
        texts = (self.task, self.vocabulary["digest"], self.converted)
        if not all(type(text) is str for text in texts) or type(self.has_metrics) is not bool:
            raise ValueError(
                "one of the fields task, has_metrics, vocabulary and converted has a wrong type"
            )
        if self.baked is not None and type(self.baked) is not int:
            raise ValueError("the field baked must be an integer")
        if self.documents is not None:
            _check_counts(documents=self.documents)
        if not all(type(text) is str for text in self.wording.values()):
            raise ValueError("the values of the field wording must be strings")
        is_old = self.format == OLD_FORMAT
        if any((split.lengths is None) is is_old for split in self.splits.values()):
            raise ValueError(
                f"the cache has format {self.format}, but the files of a split have another format"
            )

    def to_json(self) -> bytes:
        """Return the content of cache.json."""
        splits = {name: split.to_json() for name, split in self.splits.items()}
        node = dataclasses.asdict(self) | {"recipe": self.recipe.to_json(), "splits": splits}
        if self.documents is None:
            del node["documents"]
        for name in ("wording", "converted"):
            if not node[name]:
                del node[name]
        return json.dumps({**node, "sha256": _digest(node)}, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> "Index":
        """Return the index in a cache.json; raise ValueError if it is damaged."""
        node = json.loads(content)
        if node.pop("sha256") != _digest(node):
            raise ValueError("the content of the cache index does not fit its checksum")
        splits = {name: SplitIndex.from_json(split) for name, split in node.pop("splits").items()}
        return cls(**node | {"recipe": Recipe.from_json(node["recipe"]), "splits": splits})


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            raise ValueError(
                f"the field {name} must be an integer of at least 0, but is {str(count)[:40]}"
            )


def _digest(node: Any) -> str:
    return hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()


def file_digest(path: DataPath) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Cache:
    """Offline cache of a task's tokenized examples, on disk or in a bucket.

    Attributes:
      directory: path of the cache.
      index: content of cache.json.
      digest: hash of the index, which has the checksums of all files. Caches with equal digests
        have equal examples. A converted cache keeps the digest of the original cache.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        """Read the index of a cache, and check that no file is missing or truncated."""
        self.directory = data_path(directory)
        content = self._index_content()
        try:
            number = json.loads(content)["format"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(INDEX_NAME, "is not an index") from error
        if number not in (OLD_FORMAT, FORMAT) or type(number) is not int:
            raise InputError(
                f"cache {directory} has format {shown(number)}, but this version reads only "
                f"formats {OLD_FORMAT} and {FORMAT}; write the cache again with `t5x-lite "
                "cache`, or use the version that wrote it"
            )
        try:
            self.index = Index.from_json(content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = " ".join(str(error).split())[:200]
            raise self._damaged(INDEX_NAME, f"is damaged ({why})") from error
        self.digest = self.index.converted or hashlib.sha256(content).hexdigest()
        if isinstance(self.directory, BucketPath):
            files_in(self.directory)  # the sizes of all, by one listing
        for split in self.index.splits.values():
            for file in split.files:
                self._check_size(file)
        if number == OLD_FORMAT and str(directory) not in _noted:
            _noted.add(str(directory))
            _logger.warning(
                "cache %s has the format of version 0.1, which version 0.2.0 will not read; "
                "convert the cache with `t5x-lite cache --convert %s --output NEW`",
                directory,
                directory,
            )

    def _index_content(self) -> bytes:
        try:
            return (self.directory / INDEX_NAME).read_bytes()
        except FileNotFoundError as error:
            raise InputError(
                f"{self.directory} is not a cache, because it has no {INDEX_NAME}; write a cache "
                "with `t5x-lite cache`"
            ) from error
        except OSError as error:
            raise InputError(f"cannot read cache {self.directory}: {reason(error)}") from error

    def _check_size(self, file: File) -> None:
        try:
            size = size_of(self.directory / file.name)
        except OSError as error:
            raise self._damaged(file.name, f"cannot be read ({reason(error)})") from error
        if size != file.size:
            raise self._damaged(file.name, f"has {size} bytes, but should have {file.size}")

    def _damaged(self, name: str, what: str) -> InputError:
        return InputError(f"cache {self.directory}: {name} {what}; {_AGAIN}")

    def verify(self) -> None:
        """Read all files and compare their checksums with the index."""
        for split in self.index.splits.values():
            for file in split.files:
                self._check_content(file)

    def _check_content(self, file: File) -> None:
        try:
            digest = file_digest(self.directory / file.name)
        except OSError as error:
            raise self._damaged(file.name, f"cannot be read ({reason(error)})") from error
        if digest != file.sha256:
            raise self._damaged(file.name, "does not fit its checksum")

    def summary(self) -> dict[str, Any]:
        """Return the task and the examples, tokens, shards and bytes of each split, for a log."""
        splits = {
            name: {
                "examples": split.examples,
                "tokens": split.tokens,
                "shards": len(split.shards),
                "bytes": sum(file.size for file in split.files if file != split.longest),
            }
            for name, split in self.index.splits.items()
        }
        return {"cache": str(self.directory), "task": self.index.task, "splits": splits}

    def split(self, name: str) -> "Split":
        """Return a reader of a split's examples."""
        if name not in self.index.splits:
            there = ", ".join(self.index.splits)
            remedy = "; --evaluation.loss False trains without it" if name == "validation" else ""
            raise InputError(
                f"cache {self.directory} has no split {name!r}; its splits are {there}{remedy}"
            )
        return Split(self, self.index.splits[name])

    def unreadable(self, error: Exception) -> InputError:
        """Convert an error from reading a token file to an InputError."""
        return InputError(
            f"cache {self.directory} is damaged ({str(error).splitlines()[0]}); {_AGAIN}"
        )


class Split:
    """Reader of the tokens of a cached split's examples, with random access by index.

    Attributes:
      size: number of examples.
    """

    def __init__(self, cache: Cache, index: SplitIndex):
        self._cache, self._index = cache, index
        self._features = cache.index.recipe.stored
        self._dtype = np.dtype(cache.index.dtype).newbyteorder("<")
        self.size = index.examples
        if sum(shard.examples for shard in index.shards) != index.examples:
            raise cache._damaged(
                INDEX_NAME, "has a number of examples that does not fit its shards"
            )
        paths = [cache.directory / shard.name for shard in index.shards]
        shards = Shards(paths, [shard.size for shard in index.shards])
        counts = [shard.examples for shard in index.shards]
        self._examples: ArrayRecords | FlatExamples
        if index.ends is None or index.checksums is None:
            lengths = self._array(index.lengths, len(self._features))
            starts = array_on_disk(np.dtype(np.int64), (self.size + len(counts),))
            self._examples = ArrayRecords(
                shards, counts, lengths=lengths, starts=starts, dtype=self._dtype
            )
            return
        try:
            self._examples = FlatExamples(
                shards,
                counts,
                ends=self._array(index.ends, len(self._features)),
                checksums=self._array(index.checksums, verified=False),
                dtype=self._dtype,
            )
        except ValueError as error:
            raise cache.unreadable(error) from error

    def _array(self, file: File | None, *columns: int, verified: bool = True) -> np.ndarray:
        assert file is not None
        shape, path = (self.size, *columns), self._cache.directory / file.name
        if file.size != math.prod(shape) * NUMBERS_DTYPE.itemsize:
            raise self._cache._damaged(file.name, "does not fit the number of examples")
        if isinstance(path, BucketPath):
            try:
                array, digest = copied_array(path, NUMBERS_DTYPE, shape)
            except OSError as error:
                why = f"cannot be read ({reason(error)})"
                raise self._cache._damaged(file.name, why) from error
            if digest != file.sha256:
                raise self._cache._damaged(file.name, "does not fit its checksum")
            return np.asarray(array)
        if verified:  # checksums of examples are compared when the examples are read
            self._cache._check_content(file)
        if not file.size:
            return np.zeros(shape, NUMBERS_DTYPE)
        return np.asarray(np.memmap(path, NUMBERS_DTYPE, mode="r", shape=shape))

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """Return the number of stored tokens of each feature of the given examples, int64."""
        try:
            return self._examples.counts(indices)
        except ValueError as error:
            raise self._cache.unreadable(error) from error

    def longest(self) -> Int[np.ndarray, " n"] | None:
        """Return the length of each example's longest text in tokens, int64; None if not stored."""
        file = self._index.longest
        if file is None:
            return None
        path = self._cache.directory / file.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self._cache._damaged(file.name, f"cannot be read ({reason(error)})") from error
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise self._cache._damaged(file.name, "does not fit its checksum")
        return np.frombuffer(content, NUMBERS_DTYPE).astype(np.int64)

    def first_with(self, tokens: int, *, floats: Collection[str] = ()) -> int:
        """Count the examples from the start of the split that fit into `tokens` tokens in total."""
        columns = [k for k, name in enumerate(self._features) if name not in floats]
        for start in range(0, self.size, _COUNTED_AT_A_TIME):
            some = np.arange(start, min(start + _COUNTED_AT_A_TIME, self.size))
            totals = self.counts(some)[:, columns].sum(1).cumsum()
            within = int(np.searchsorted(totals, tokens, side="right"))
            if within < len(totals):
                return start + within
            tokens -= int(totals[-1])
        return self.size

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        """Return the stored features of the given examples as int32 token ids."""
        if not len(indices):
            return []
        try:
            contents, counts = self._examples.read(indices)
        except InputError:
            raise
        except (ValueError, IndexError, OSError) as error:
            raise self._cache.unreadable(error) from error
        # All tokens are converted at once; conversion by example would take longer than reading.
        tokens = np.frombuffer(b"".join(contents), self._dtype).astype(np.int32)
        ends = counts.ravel().cumsum().tolist()
        parts = [tokens[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        step = len(self._features)
        return [
            dict(zip(self._features, parts[first : first + step], strict=True))
            for first in range(0, len(parts), step)
        ]


def check_local(directory: str | os.PathLike[str], *, what: str) -> None:
    """Raise InputError if a directory is in a bucket instead of on a local disk."""
    text = os.fspath(directory)
    if "://" in text:
        bucket = text.split("://", 1)[1].split("/", 1)[0]
        raise InputError(
            f"{what} {text} is in a bucket, but must be in a file system; mount the bucket, for "
            f"example with `gcsfuse --implicit-dirs {bucket} DIR`, and give the path below DIR"
        )
