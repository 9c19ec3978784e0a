"""The files of an offline cache of tokens.

    CACHE/cache.json               the index: what the rest is, with sizes and SHA-256 of all of it
    CACHE/vocabulary/...           the vocabulary, as `load_vocabulary` reads it
    CACHE/train-00000.array_record, ...     one record an example: the tokens of its features, one
                                   after another, in the index's dtype
    CACHE/train.lengths            the tokens of each feature of each example, uint32 [n, F]

All numbers are little-endian. The index is written last, and a directory without a whole index is
no cache. A record that was damaged on the disk is found when it is read, by ArrayRecord's own
hashes; `Cache.verify` compares all files with the index.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.errors import InputError
from t5x_lite.files import reason

FORMAT = 1
INDEX_NAME = "cache.json"
VOCABULARY_DIRECTORY = "vocabulary"
DTYPES = ("uint16", "int32")
LENGTHS_DTYPE = np.dtype("<u4")
_FEW = 32
"""Below so many records it costs more to start threads than to read one after another."""
_AGAIN = "copy it anew, or write it anew with `t5x-lite cache`"


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
            raise ValueError(f"{name!r} is no name of a file in the cache's directory")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitIndex:
    """What the index says of a split.

    Attributes:
      examples: in all shards.
      tokens: of all features.
      shards: the records, in order.
      lengths: the file of lengths.
    """

    examples: int
    tokens: int
    shards: tuple[File, ...]
    lengths: File

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> "SplitIndex":
        """What `dataclasses.asdict` gave.

        Raises:
          KeyError, TypeError, ValueError: it is none.
        """
        shards = tuple(File(**shard) for shard in node["shards"])
        return cls(**{**node, "shards": shards, "lengths": File(**node["lengths"])})

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
    """

    task: str
    vocabulary: Mapping[str, Any]
    dtype: str
    recipe: Recipe
    splits: Mapping[str, SplitIndex]
    has_metrics: bool = False
    baked: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {DTYPES}, got {self.dtype!r}")
        _check_counts(**{name: self.vocabulary[name] for name in ("extra_ids", "size")})
        texts = (self.task, self.vocabulary["digest"])
        if not all(type(text) is str for text in texts) or type(self.has_metrics) is not bool:
            raise ValueError("the task, has_metrics or the vocabulary is another thing")
        if self.baked is not None and type(self.baked) is not int:
            raise ValueError("baked is no number")

    def to_json(self) -> bytes:
        """The content of cache.json."""
        node = dataclasses.asdict(self) | {"recipe": self.recipe.to_json(), "format": FORMAT}
        return json.dumps({**node, "sha256": _digest(node)}, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes) -> "Index":
        """What `to_json` gave.

        Raises:
          KeyError, TypeError, ValueError: it is no index, or was changed.
        """
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


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Cache:
    """A cache on the disk.

    Attributes:
      directory: where it is.
      index: what it is.
      digest: of the index, and so of all files: equal digests give equal examples.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        """Reads the index, and looks whether the files are there in their full size.

        Raises:
          InputError: there is no cache, or it is damaged or of another format.
        """
        check_local(directory, what="data.cache")
        self.directory = Path(directory)
        content = self._index_content()
        try:
            number = json.loads(content)["format"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(INDEX_NAME, "is not an index") from error
        if number != FORMAT:
            raise InputError(
                f"cache {directory} has format {number}, and this version reads format {FORMAT}: "
                "write it anew with `t5x-lite cache`, or use the version that wrote it"
            )
        try:
            self.index = Index.from_json(content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = " ".join(str(error).split())[:200]
            raise self._damaged(INDEX_NAME, f"is damaged ({why})") from error
        self.digest = hashlib.sha256(content).hexdigest()
        for split in self.index.splits.values():
            for file in (*split.shards, split.lengths):
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
            size = (self.directory / file.name).stat().st_size
        except OSError as error:
            raise self._damaged(file.name, f"cannot be read ({reason(error)})") from error
        if size != file.size:
            raise self._damaged(file.name, f"has {size} bytes and should have {file.size}")

    def _damaged(self, name: str, what: str) -> InputError:
        return InputError(f"cache {self.directory}: {name} {what}: {_AGAIN}")

    def verify(self) -> None:
        """Reads all files and compares them with the index.

        Raises:
          InputError: naming the first that differs.
        """
        for split in self.index.splits.values():
            for file in (*split.shards, split.lengths):
                self._check_content(file)

    def _check_content(self, file: File) -> None:
        try:
            digest = file_digest(self.directory / file.name)
        except OSError as error:
            raise self._damaged(file.name, f"cannot be read ({reason(error)})") from error
        if digest != file.sha256:
            raise self._damaged(file.name, "does not fit its checksum")

    def split(self, name: str) -> "Split":
        """The examples of a split.

        Raises:
          InputError: there is no such split.
        """
        if name not in self.index.splits:
            there = ", ".join(self.index.splits)
            raise InputError(f"cache {self.directory} has no split {name!r}: there are {there}")
        self._check_content(self.index.splits[name].lengths)
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
        import grain  # now, because it takes a second

        self._cache = cache
        self._features = cache.index.recipe.stored
        self._dtype = np.dtype(cache.index.dtype).newbyteorder("<")
        self.size = index.examples
        shape = (index.examples, len(self._features))
        if sum(shard.examples for shard in index.shards) != index.examples:
            raise cache._damaged(INDEX_NAME, "has shards of another number of examples")
        if index.lengths.size != math.prod(shape) * LENGTHS_DTYPE.itemsize:
            raise cache._damaged(index.lengths.name, "does not fit the number of examples")
        path = cache.directory / index.lengths.name
        self._lengths = np.memmap(path, LENGTHS_DTYPE, mode="r", shape=shape)
        # With the numbers of their records, the shards need not be opened to count them.
        paths = [f"{cache.directory / s.name}[0:{s.examples}]" for s in index.shards]
        self._records: Any = grain.sources.ArrayRecordDataSource(paths)

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """Tokens of each stored feature of some examples, int64."""
        return self._lengths[indices].astype(np.int64)

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        """The stored features of some examples, int32 token ids.

        Raises:
          InputError: a shard is damaged.
        """
        if not len(indices):
            return []
        wanted = indices.tolist()
        try:
            if len(wanted) < _FEW:
                records = [self._records[index] for index in wanted]
            else:
                records = self._records.__getitems__(wanted)
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


def check_local(directory: str | os.PathLike[str], *, what: str) -> None:
    """Refuses a bucket's address: records are read from, and written to, mounted file systems."""
    text = os.fspath(directory)
    if "://" in text:
        bucket = text.split("://", 1)[1].split("/", 1)[0]
        raise InputError(
            f"{what} {text} is not a path of a file system: mount the bucket, for example with "
            f"`gcsfuse --implicit-dirs {bucket} DIR`, and give the path below DIR"
        )
