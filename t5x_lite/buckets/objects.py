"""Objects of a bucket: ranges of their bytes, their sizes, and what a directory holds.

    read_ranges([Range("gs://bucket/a.txt", 100, 200), ...])     # [100 bytes, ...]
    files_in("gs://bucket/prose")                                # {"a.txt": 5}, by one listing

fsspec's file systems read them: gcsfs for gs://, s3fs for s3://, and any other that fsspec knows.
"""

import errno
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t5x_lite.buckets.asking import PATIENCE, ask, ask_all, not_installed
from t5x_lite.errors import InputError
from t5x_lite.remote import is_remote

MERGED_GAP = 1 << 14
"""Ranges of an object with no more bytes between them are one request."""
MERGED_BYTES = 1 << 23
"""Bytes of a request for several ranges, at most."""


class Range(NamedTuple):
    """The bytes [start, end) of an object."""

    url: str
    start: int
    end: int


def can_read(path: str | os.PathLike[str]) -> bool:
    """Whether the package that reads a bucket is installed."""
    try:
        _store(_scheme(os.fspath(path)), os.getpid())
    except (ImportError, ValueError):
        return False
    return True


def read_ranges(ranges: Sequence[Range]) -> list[bytes]:
    """Bytes of objects. Ranges that are near each other are read by one request.

    Raises:
      OSError: an object is not there.
      InputError: there is no access, or a package is missing.
      BucketError: the bucket stays away.
    """
    merged: list[tuple[Range, list[int]]] = []
    for place in sorted(range(len(ranges)), key=ranges.__getitem__):
        one = ranges[place]
        if merged:
            before, places = merged[-1]
            whole = Range(one.url, before.start, max(before.end, one.end))
            near = before.url == one.url and one.start - before.end <= MERGED_GAP
            if near and whole.end - whole.start <= MERGED_BYTES:
                places.append(place)
                merged[-1] = whole, places
                continue
        merged.append((one, [place]))
    found = ask_all([(whole.url, functools.partial(_range, whole)) for whole, _ in merged])
    contents = [b""] * len(ranges)
    for (whole, places), content in zip(merged, found, strict=True):
        for place in places:
            start = ranges[place].start - whole.start
            contents[place] = content[start : start + ranges[place].end - ranges[place].start]
    return contents


def _range(wanted: Range) -> bytes:
    url, start, end = wanted
    if end <= start:
        return b""
    content = store_of(url).cat_file(url, start=start, end=end)
    if len(content) != end - start:
        raise OSError(f"{len(content)} bytes came, and {end - start} were asked for")
    return content


def size_of(path: str | os.PathLike[str]) -> int:
    """Bytes of a file, here or in a bucket; in a bucket as it was last listed.

    Raises:
      OSError: there is none.
    """
    if not is_remote(path):
        return os.path.getsize(path)
    url = os.fspath(path)
    if url not in _sizes:
        entry = info_of(url)
        if entry["type"] != "file":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
        _sizes[url] = int(entry["size"])
    return _sizes[url]


_sizes: dict[str, int] = {}
"""Bytes of objects that were listed or asked for."""


def info_of(url: str) -> Any:
    """What fsspec says of an object or a directory: "type" and "size".

    Raises:
      OSError, InputError, BucketError: as `read_ranges`.
    """
    return ask(url, lambda: store_of(url).info(url))


def files_in(directory: str | os.PathLike[str]) -> dict[str, int]:
    """Names and sizes of the objects right in a directory of a bucket, in order of their names.

    Raises:
      InputError, BucketError: as `read_ranges`.
    """
    url = os.fspath(directory).rstrip("/")
    try:
        entries = ask(url, lambda: store_of(url).ls(url, detail=True))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    top = store_of(url)._strip_protocol(url).rstrip("/") + "/"
    found = {
        entry["name"].removeprefix(top): int(entry["size"])
        for entry in entries
        if entry["type"] == "file" and entry["name"].startswith(top)
    }
    found = {name: size for name, size in sorted(found.items()) if name}
    for known in [known for known in _sizes if known.rpartition("/")[0] == url]:
        del _sizes[known]
    _sizes.update({f"{url}/{name}": size for name, size in found.items()})
    return found


def upload(file: Path, url: str) -> None:
    """Copies a file of this machine to a bucket.

    Raises:
      InputError, BucketError: as `read_ranges`.
    """
    ask(url, lambda: store_of(url).put_file(str(file), url), answer=PATIENCE.total * 12)
    _sizes.pop(url, None)


def remove(url: str) -> None:
    """Removes an object.

    Raises:
      OSError, InputError, BucketError: as `read_ranges`.
    """
    _sizes.pop(url, None)
    ask(url, lambda: store_of(url).rm_file(url))


# File systems.


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def store_of(url: str) -> Any:
    """fsspec's file system of a URL."""
    try:
        return _store(_scheme(url), os.getpid())
    except ImportError as error:
        raise not_installed(url) from error
    except ValueError as error:
        raise InputError(
            f"{url}: fsspec knows no {_scheme(url)}://, as gs:// and s3:// are"
        ) from error


@functools.cache
def _store(scheme: str, process: int) -> Any:
    """A file system for all threads of a process: fsspec's own cache has one for each thread."""
    import fsspec

    del process
    return fsspec.filesystem(scheme, use_listings_cache=False)
