"""Paths of data, which lie here or in a bucket, and streams of what is in a bucket.

path = data_path("gs://bucket/prose")               # a BucketPath; of a local path a pathlib.Path
[file.name for file in path.glob("*.txt")]          # one listing
with (path / "a.txt").open() as file: ...           # reads ahead by blocks of 1 MiB at most
"""

import fnmatch
import functools
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from t5x_lite.buckets.asking import ask
from t5x_lite.buckets.objects import Range, files_in, info_of, read_ranges, size_of, store_of
from t5x_lite.remote import is_remote

FIRST_BLOCK, LARGEST_BLOCK = 1 << 16, 1 << 20
"""Bytes that a stream reads at first and, doubled each time, at last."""


@functools.total_ordering
class BucketPath:
    """The path of an object or a directory of a bucket, with those of pathlib's methods that read.

    Attributes:
      url: of it, without a slash at its end.
    """

    def __init__(self, url: str):
        """Asks for nothing."""
        self.url = url.rstrip("/")

    def __fspath__(self) -> str:
        return self.url

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"BucketPath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketPath) and self.url == other.url

    def __lt__(self, other: "BucketPath") -> bool:
        return self.url.split("/") < other.url.split("/")

    def __hash__(self) -> int:
        return hash(self.url)

    def __truediv__(self, name: str) -> "BucketPath":
        return BucketPath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The name's last dot and what is behind it."""
        return Path(self.name).suffix

    @property
    def parent(self) -> "BucketPath":
        """What it is in."""
        return BucketPath(self.url.rpartition("/")[0])

    def with_name(self, name: str) -> "BucketPath":
        """The path of a neighbour."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> "BucketPath":
        """The path of a neighbour with another suffix."""
        return self.with_name(Path(self.name).with_suffix(suffix).name)

    def is_file(self) -> bool:
        """Whether there is such an object."""
        try:
            return size_of(self) >= 0
        except (FileNotFoundError, IsADirectoryError):
            return False

    def is_dir(self) -> bool:
        """Whether there are objects below it."""
        try:
            return info_of(self.url)["type"] == "directory"
        except FileNotFoundError:
            return False

    def exists(self) -> bool:
        """Whether it is either of them."""
        return self.is_file() or self.is_dir()

    def glob(self, pattern: str) -> "Iterator[BucketPath]":
        """The objects right in it whose names match, in order."""
        return (self / name for name in fnmatch.filter(files_in(self.url), pattern))

    def read_bytes(self) -> bytes:
        """The whole object, which should be small.

        Raises:
          OSError, InputError, BucketError: as `read_ranges`.
        """
        return ask(self.url, lambda: store_of(self.url).cat_file(self.url))

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole object as text."""
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """A stream of its bytes, which can go to any place.

        Raises:
          OSError, InputError, BucketError: as `read_ranges`.
        """
        if mode != "rb":
            raise ValueError(f"an object is opened to be read, got mode {mode!r}")
        return open_stream(self.url)


DataPath: TypeAlias = Path | BucketPath
"""A path of data, wherever they are."""


def data_path(path: str | os.PathLike[str]) -> DataPath:
    """The path of data, wherever they are; it looks at nothing.

    Args:
      path: a local path, or a URL that fsspec knows, such as gs://bucket/prose.
    """
    text = os.fspath(path)
    return BucketPath(text) if is_remote(text) else Path(text)


def files_among(directory: str | os.PathLike[str], names: Iterable[str]) -> list[DataPath]:
    """The files of some names that are right in a directory; in a bucket by one listing.

    Raises:
      InputError, BucketError: as `read_ranges`.
    """
    place = data_path(directory)
    if isinstance(place, BucketPath):
        there = files_in(place)
        return [place / name for name in names if name in there]
    return [file for name in names if (file := place / name).is_file()]


def open_stream(url: str, *, first: int = FIRST_BLOCK) -> io.BufferedReader:
    """A stream of an object's bytes, which can go to any place.

    Args:
      url: of the object.
      first: bytes that are read at once at first, and at a new place.

    Raises:
      OSError, InputError, BucketError: as `read_ranges`.
    """
    return io.BufferedReader(_Blocks(url, size_of(url), first=first))


class _Blocks(io.RawIOBase):
    """An object's bytes; those that come next are read with those that are asked for."""

    def __init__(self, url: str, size: int, *, first: int):
        self.name, self.mode, self._size, self._first = url, "rb", size, first
        self._next, self._place = first, 0
        self._start, self._block = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        if not self._start <= self._place < self._start + len(self._block):
            goes_on = self._place == self._start + len(self._block)
            self._next = (
                min(2 * self._next, LARGEST_BLOCK) if goes_on and self._block else self._first
            )
            end = min(self._place + max(self._next, 1), self._size)
            if end <= self._place:
                return 0
            [self._block] = read_ranges([Range(self.name, self._place, end)])
            self._start = self._place
        offset = self._place - self._start
        found = self._block[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)
