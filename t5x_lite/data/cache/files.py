"""The files of an offline cache, on disk or in an object store.

The files of an offline cache of tokens.

    CACHE/cache.json               the index: what the rest is, with sizes and SHA-256 of all of it
    CACHE/vocabulary/...           the vocabulary, as `load_vocabulary` reads it
    CACHE/train-00000.array_record, ...     one record an example: the tokens of its features, one
                                   after another, in the index's dtype
    CACHE/train.lengths            the tokens of each feature of each example, uint32 [n, F]

All numbers are little-endian. The index is written last, and a directory without a whole index is
no cache. A record that was damaged on the disk is found when it is read, by ArrayRecord's own
hashes; `Cache.verify` compares all files with the index.

The records of a split whose cache is in a bucket, by the ranges of bytes that hold them.

    records = BucketRecords(directory, shards, sizes)
    records.__getitems__([5, 0, 1234])      # as of grain's ArrayRecordDataSource

Where a shard's records begin is read from its end when one of them is asked for first, and then
stands in a temporary file, as do the lengths: 8 bytes an example, and 4 for each feature. Of the
shards nothing else is held, but where all of them are small: splits whose shards have no more than
`HELD_BYTES` together are read by blocks, each of which is read once and held in memory.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_lite.core.errors import InputError
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
from t5x_lite.data.formats import array_records

HELD_BYTES = 1 << 28
"""Of shards, held in memory by a process, of all splits that it reads together."""
BLOCK_BYTES = 1 << 18
"""Of a shard that is held: what is read at a time."""
_SHARDS_AT_A_TIME = 16
_COPIED_AT_A_TIME = 1 << 20
_held = [0]


class BucketRecords:
    """Random access to the records of shards."""

    def __init__(
        self,
        directory: BucketPath,
        shards: Sequence[tuple[str, int, int]],
        sizes: Callable[[Int[np.ndarray, " n"]], Int[np.ndarray, " n"]],
    ):
        """Reads nothing."""
        self._urls = [str(directory / name) for name, _, _ in shards]
        self._bytes = [size for _, size, _ in shards]
        self._counts = [count for _, _, count in shards]
        self._sizes = sizes
        self._before = np.append(0, np.cumsum(self._counts)).astype(np.int64)
        self._opened = np.zeros(len(shards), bool)
        self._starts = _on_disk(np.dtype(np.int64), (int(self._before[-1]) + len(shards),))
        self._blocks: dict[tuple[int, int], bytes] | None = None
        total = sum(self._bytes)
        if _held[0] + total <= HELD_BYTES:
            self._blocks = {}
            _held[0] += total
            weakref.finalize(self, _let_go, total)

    def __getitems__(self, wanted: Sequence[int]) -> list[bytes]:
        """Some records, by their numbers."""
        numbers = np.asarray(wanted, np.int64)
        shards = np.searchsorted(self._before, numbers, side="right") - 1
        self._open(np.unique(shards))
        places = numbers + shards  # each shard has one start more than it has records
        starts, ends = self._starts[places].tolist(), self._starts[places + 1].tolist()
        contents = self._read([*zip(shards.tolist(), starts, ends, strict=True)])
        chunks = [
            array_records.plain_chunk(content, start)
            for content, start in zip(contents, starts, strict=True)
        ]
        return array_records.records(chunks, self._sizes(numbers).tolist())

    def _open(self, shards: Int[np.ndarray, " n"]) -> None:
        """Reads where the records of shards begin, of those that were not read yet."""
        new = shards[~self._opened[shards]].tolist()
        for first in range(0, len(new), _SHARDS_AT_A_TIME):
            some = new[first : first + _SHARDS_AT_A_TIME]
            sizes = [self._bytes[shard] for shard in some]
            begins = [max(0, size - array_records.LAST_BYTES) for size in sizes]
            lasts = self._ranges(some, begins, sizes)
            places = [array_records.footer_range(*pair) for pair in zip(sizes, lasts, strict=True)]
            footers = self._ranges(some, *zip(*places, strict=True))
            for shard, footer, (start, _) in zip(some, footers, places, strict=True):
                count = self._counts[shard]
                found = array_records.record_starts(footer, start, examples=count)
                place = int(self._before[shard]) + shard
                self._starts[place : place + count + 1] = found
                self._opened[shard] = True

    def _ranges(
        self, shards: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> list[bytes]:
        places = zip(shards, starts, ends, strict=True)
        return read_ranges([Range(self._urls[shard], start, end) for shard, start, end in places])

    def _read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Bytes [start, end) of shards, each (shard, start, end)."""
        if self._blocks is None:
            return self._ranges(*zip(*ranges, strict=True))
        held = self._blocks
        wanted = {block for one in ranges for block in _blocks_of(*one)}
        new = sorted(wanted - held.keys())
        starts = [number * BLOCK_BYTES for _, number in new]
        ends = [
            min(start + BLOCK_BYTES, self._bytes[shard])
            for (shard, _), start in zip(new, starts, strict=True)
        ]
        found = self._ranges([shard for shard, _ in new], starts, ends)
        held.update(zip(new, found, strict=True))
        contents = []
        for shard, start, end in ranges:
            content = b"".join(held[block] for block in _blocks_of(shard, start, end))
            offset = start % BLOCK_BYTES
            contents.append(content[offset : offset + end - start])
        return contents


def _blocks_of(shard: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    return ((shard, number) for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)))


def _let_go(total: int) -> None:
    _held[0] -= total


def _on_disk(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array of zeros in a temporary file, which goes with it."""
    if not all(shape):
        return np.zeros(shape, dtype)
    with tempfile.TemporaryFile(prefix="t5x_lite_") as file:
        return np.memmap(file, dtype, mode="w+", shape=shape)


def copied_array(
    path: BucketPath, dtype: np.dtype, shape: tuple[int, ...]
) -> tuple[np.ndarray, str]:
    """An array that is an object of a bucket, from a copy in a temporary file."""
    array, digest, place = _on_disk(dtype, shape), hashlib.sha256(), 0
    flat = array.reshape(-1).view(np.uint8)
    with path.open() as file:
        while place < len(flat) and (content := file.read(_COPIED_AT_A_TIME)):
            content = content[: len(flat) - place]
            flat[place : place + len(content)] = np.frombuffer(content, np.uint8)
            digest.update(content)
            place += len(content)
    return array, digest.hexdigest()


FORMAT = 1
INDEX_NAME = "cache.json"
VOCABULARY_DIRECTORY = "vocabulary"
DTYPES = ("uint16", "int32")
LENGTHS_DTYPE = np.dtype("<u4")
_FEW = 32
"""Below so many records it costs more to start threads than to read one after another."""
_COUNTED_AT_A_TIME = 1 << 20
_AGAIN = "copy it again, or write it again with `t5x-lite cache`"


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """A file of a cache.

    Attributes:
      name: in the cache's directory.
      size: bytes.
      sha256: of its content, in hex.
      examples: examples in it.
    """

    name: str
    size: int
    sha256: str
    examples: int

    def __post_init__(self) -> None:
        _check_counts(size=self.size, examples=self.examples)
        if type(self.sha256) is not str:
            raise ValueError("a file without a checksum")
        name = self.name
        if type(name) is not str or name in ("", ".", "..") or os.path.basename(name) != name:
            raise ValueError(f"{name!r} is not the name of a file in the cache's directory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitIndex:
    """What the index says of a split.

    Attributes:
      examples: in all shards.
      tokens: of all features.
      shards: the records, in order.
      lengths: the file of lengths.
      longest: uint32 [n], the longest text in the features of each example that are joined
        (`layouts.base.longest_joined`); None where it was not written.
    """

    examples: int
    tokens: int
    shards: tuple[File, ...]
    lengths: File
    longest: File | None = None

    @property
    def files(self) -> tuple[File, ...]:
        """All of them."""
        return (*self.shards, self.lengths, *([] if self.longest is None else [self.longest]))

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> "SplitIndex":
        """What `dataclasses.asdict` gave."""
        shards = tuple(File(**shard) for shard in node["shards"])
        longest = node.get("longest")
        others = {
            "lengths": File(**node["lengths"]),
            "longest": None if longest is None else File(**longest),
        }
        return cls(**{**node, "shards": shards, **others})

    def __post_init__(self) -> None:
        _check_counts(examples=self.examples, tokens=self.tokens)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Index:
    """What a cache is.

    Attributes:
      task: the task that it was made of, "module:function".
      vocabulary: digest, extra_ids and size of its vocabulary.
      dtype: of the tokens, in `DTYPES`.
      recipe: what is done to an example when it is read.
      splits: by name.
      has_metrics: whether the task has metrics of its own, which need the task and seqio.
      baked: the seed of a corruption that was done when the cache was made; None where none was.
      documents: the cache was made of so many documents, the first of the task; None is all.
      wording: the words of the inputs, where they are not the task's own
        (`config.words_of_inputs`).
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

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {DTYPES}, got {self.dtype!r}")
        _check_counts(**{name: self.vocabulary[name] for name in ("extra_ids", "size")})
        texts = (self.task, self.vocabulary["digest"])
        if not all(type(text) is str for text in texts) or type(self.has_metrics) is not bool:
            raise ValueError("the task, has_metrics or the vocabulary is another thing")
        if self.baked is not None and type(self.baked) is not int:
            raise ValueError("baked is not a number")
        if self.documents is not None:
            _check_counts(documents=self.documents)
        if not all(type(text) is str for text in self.wording.values()):
            raise ValueError("wording is not a text")

    def to_json(self) -> bytes:
        """The content of cache.json."""
        node = dataclasses.asdict(self) | {"recipe": self.recipe.to_json(), "format": FORMAT}
        if self.documents is None:  # as in an index of earlier versions, which read this one
            del node["documents"]
        if not self.wording:
            del node["wording"]  # an index of earlier versions has none
        for split in node["splits"].values():
            if split["longest"] is None:
                del split["longest"]
        return json.dumps({**node, "sha256": _digest(node)}, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> "Index":
        """What `to_json` gave."""
        node = json.loads(content)
        if node.pop("sha256") != _digest(node) or node.pop("format") != FORMAT:
            raise ValueError("the content does not fit its checksum")
        splits = {name: SplitIndex.from_json(split) for name, split in node.pop("splits").items()}
        return cls(**node | {"recipe": Recipe.from_json(node["recipe"]), "splits": splits})


def _check_counts(**counts: Any) -> None:
    for name, count in counts.items():
        if type(count) is not int or count < 0:
            raise ValueError(f"{name} must be a whole number from 0, got {str(count)[:40]}")


def _digest(node: Any) -> str:
    return hashlib.sha256(json.dumps(node, sort_keys=True).encode()).hexdigest()


def file_digest(path: DataPath) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Cache:
    """A cache on the disk or in a bucket.

    Attributes:
      directory: where it is.
      index: what it is.
      digest: of the index, and so of all files: equal digests give equal examples.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        """Reads the index, and looks whether the files are there in their full size."""
        self.directory = data_path(directory)
        content = self._index_content()
        try:
            number = json.loads(content)["format"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(INDEX_NAME, "is not an index") from error
        if number != FORMAT:
            raise InputError(
                f"cache {directory} has format {number}, and this version reads format {FORMAT}: "
                "write it again with `t5x-lite cache`, or use the version that wrote it"
            )
        try:
            self.index = Index.from_json(content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = " ".join(str(error).split())[:200]
            raise self._damaged(INDEX_NAME, f"is damaged ({why})") from error
        self.digest = hashlib.sha256(content).hexdigest()
        if isinstance(self.directory, BucketPath):
            files_in(self.directory)  # the sizes of all, by one listing
        for split in self.index.splits.values():
            for file in split.files:
                self._check_size(file)

    def _index_content(self) -> bytes:
        try:
            return (self.directory / INDEX_NAME).read_bytes()
        except FileNotFoundError as error:
            raise InputError(
                f"{self.directory} is not a cache: it has no {INDEX_NAME}; write one with "
                "`t5x-lite cache`"
            ) from error
        except OSError as error:
            raise InputError(f"cannot read cache {self.directory}: {reason(error)}") from error

    def _check_size(self, file: File) -> None:
        try:
            size = size_of(self.directory / file.name)
        except OSError as error:
            raise self._damaged(file.name, f"cannot be read ({reason(error)})") from error
        if size != file.size:
            raise self._damaged(file.name, f"has {size} bytes and should have {file.size}")

    def _damaged(self, name: str, what: str) -> InputError:
        return InputError(f"cache {self.directory}: {name} {what}: {_AGAIN}")

    def verify(self) -> None:
        """Reads all files and compares them with the index."""
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
        """The task, and the examples, tokens, shards and bytes of each split; for people."""
        splits = {
            name: {
                "examples": split.examples,
                "tokens": split.tokens,
                "shards": len(split.shards),
                "bytes": sum(shard.size for shard in split.shards) + split.lengths.size,
            }
            for name, split in self.index.splits.items()
        }
        return {"cache": str(self.directory), "task": self.index.task, "splits": splits}

    def split(self, name: str) -> "Split":
        """The examples of a split."""
        if name not in self.index.splits:
            there = ", ".join(self.index.splits)
            raise InputError(f"cache {self.directory} has no split {name!r}: there are {there}")
        return Split(self, self.index.splits[name])

    def unreadable(self, error: Exception) -> InputError:
        """What to say of an error that a shard's reader raised."""
        return InputError(
            f"cache {self.directory} is damaged ({str(error).splitlines()[0]}): {_AGAIN}"
        )


class Split:
    """Random access to the tokens of a split's examples.

    Attributes:
      size: the number of examples.
    """

    def __init__(self, cache: Cache, index: SplitIndex):
        self._cache, self._index = cache, index
        self._features = cache.index.recipe.stored
        self._dtype = np.dtype(cache.index.dtype).newbyteorder("<")
        self.size = index.examples
        shape = (index.examples, len(self._features))
        if sum(shard.examples for shard in index.shards) != index.examples:
            raise cache._damaged(INDEX_NAME, "has shards of another number of examples")
        if index.lengths.size != math.prod(shape) * LENGTHS_DTYPE.itemsize:
            raise cache._damaged(index.lengths.name, "does not fit the number of examples")
        path = cache.directory / index.lengths.name
        self._few = _FEW
        if isinstance(path, BucketPath):
            self._few = 0
            self._lengths, self._records = self._in_bucket(index, path, shape)
            return
        cache._check_content(index.lengths)
        import grain  # now, because it takes a second

        self._lengths = np.memmap(path, LENGTHS_DTYPE, mode="r", shape=shape)
        # With the numbers of their records, the shards need not be opened to count them.
        paths = [f"{cache.directory / s.name}[0:{s.examples}]" for s in index.shards]
        self._records: Any = grain.sources.ArrayRecordDataSource(paths)

    def _in_bucket(
        self, index: SplitIndex, path: BucketPath, shape: tuple[int, int]
    ) -> tuple[np.ndarray, BucketRecords]:
        """The lengths, copied, and the records of a cache in a bucket."""
        try:
            lengths, digest = copied_array(path, LENGTHS_DTYPE, shape)
        except OSError as error:
            why = f"cannot be read ({reason(error)})"
            raise self._cache._damaged(index.lengths.name, why) from error
        if digest != index.lengths.sha256:
            raise self._cache._damaged(index.lengths.name, "does not fit its checksum")
        shards = [(shard.name, shard.size, shard.examples) for shard in index.shards]
        sizes = functools.partial(_record_bytes, lengths, self._dtype.itemsize)
        return lengths, BucketRecords(path.parent, shards, sizes)

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """Tokens of each stored feature of some examples, int64."""
        return self._lengths[indices].astype(np.int64)

    def longest(self) -> Int[np.ndarray, " n"] | None:
        """Tokens of the longest text of each example, int64; None where the cache does not say."""
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
        return np.frombuffer(content, LENGTHS_DTYPE).astype(np.int64)

    def first_with(self, tokens: int, *, floats: Collection[str] = ()) -> int:
        """How many of the first examples together have so many tokens at most."""
        columns = [k for k, name in enumerate(self._features) if name not in floats]
        for start in range(0, self.size, _COUNTED_AT_A_TIME):
            counts = self._lengths[start : start + _COUNTED_AT_A_TIME, columns]
            totals = counts.astype(np.int64).sum(1).cumsum()
            within = int(np.searchsorted(totals, tokens, side="right"))
            if within < len(totals):
                return start + within
            tokens -= int(totals[-1])
        return self.size

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        """The stored features of some examples, int32 token ids."""
        if not len(indices):
            return []
        wanted = indices.tolist()
        try:
            if len(wanted) < self._few:
                records = [self._records[index] for index in wanted]
            else:
                records = self._records.__getitems__(wanted)
        except InputError:
            raise
        except (RuntimeError, ValueError, IndexError, OSError) as error:
            raise self._cache.unreadable(error) from error
        found = []
        for record, counts in zip(records, self._lengths[indices].tolist(), strict=True):
            if len(record) != sum(counts) * self._dtype.itemsize:
                raise self._cache.unreadable(ValueError("a record has another length"))
            tokens = np.frombuffer(record, self._dtype).astype(np.int32)
            ends = np.cumsum(counts)[:-1]
            found.append(dict(zip(self._features, np.split(tokens, ends), strict=True)))
        return found


def _record_bytes(
    lengths: np.ndarray, itemsize: int, indices: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Bytes of some records, of split lengths [n, F]."""
    return lengths[indices].astype(np.int64).sum(axis=1) * itemsize


def check_local(directory: str | os.PathLike[str], *, what: str) -> None:
    """Refuses a bucket's address, where workers write to what all of them have mounted."""
    text = os.fspath(directory)
    if "://" in text:
        bucket = text.split("://", 1)[1].split("/", 1)[0]
        raise InputError(
            f"{what} {text} is not a path of a file system: mount the bucket, for example with "
            f"`gcsfuse --implicit-dirs {bucket} DIR`, and give the path below DIR"
        )
