"""Access to data in an object store (gs://, s3:// or another fsspec file system) without a mount.

Requests have a timeout and are retried if they fail:

    ask("gs://bucket/a", lambda: store.info("gs://bucket/a"))
    ask_all([(url, partial(read, url)) for url in urls])       # `CONNECTIONS` at a time

A request that fails or times out is retried with exponential backoff and jitter (`Patience`). If
the bucket stays unavailable, a `BucketError` ends the run with exit code 1, and the user can start
the run again. Permanent errors (a missing object, no access, a missing package) are raised at once,
as FileNotFoundError or InputError.

Functions read byte ranges of objects, and list a directory with the sizes of its objects:

    read_ranges([Range("gs://bucket/a.txt", 100, 200), ...])     # [100 bytes, ...]
    files_in("gs://bucket/prose")                                # {"a.txt": 5}, by one listing

The file systems are fsspec's: gcsfs for gs://, s3fs for s3://, and any other that fsspec supports.

`data_path` returns local and bucket paths with the same methods; files in a bucket open as streams:

path = data_path("gs://bucket/prose")               # a BucketPath; pathlib.Path for a local path
[file.name for file in path.glob("*.txt")]          # one listing
with (path / "a.txt").open() as file: ...           # reads ahead, in blocks of up to 1 MiB
"""

import errno
import fnmatch
import functools
import heapq
import io
import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import is_remote

_logger = logging.getLogger(__name__)

CONNECTIONS = 64
"""Maximum number of concurrent requests."""

_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs", "az": "adlfs"}
_PASSING_CODES = (408, 429)
_NOTE_SECONDS = 30.0
_LARGE_SECONDS = 3600.0

_T = TypeVar("_T")
_chance = random.Random()


class BucketError(Exception):
    """Error of a bucket that stays unavailable; its one-line message has the URL and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts and retries of requests to a bucket, in seconds.

    Attributes:
      answer: timeout of one request.
      first: wait before the first retry; each further retry doubles the wait.
      longest: maximum wait between retries.
      total: maximum time of retries after the first failure.
      silence: time after a permanent failure during which new requests to the bucket fail at once.
    """

    answer: float = 60.0
    first: float = 0.5
    longest: float = 30.0
    total: float = 300.0
    silence: float = 60.0


PATIENCE = Patience()
_given_up: dict[str, tuple[float, str]] = {}
"""Failed bucket -> time until which requests to it fail at once, and their error message."""
_stopped = threading.Event()
_LOOK_SECONDS = 1.0


def ask(url: str, function: Callable[[], _T], *, answer: float | None = None) -> _T:
    """Send a request to a bucket, retry it after errors, and return its result."""
    [found] = ask_all([(url, function)], answer=answer)
    return found


def ask_if_remote(path: str | os.PathLike[str], function: Callable[[], _T]) -> _T:
    """Call a function that reads a path: directly for a local path, with retries for a bucket.

    The timeout is an hour, because the function may read a large object. If the bucket stays
    unavailable, a BucketError is raised, not the error of a damaged file.
    """
    if not is_remote(path):
        return function()
    return ask(os.fspath(path), function, answer=_LARGE_SECONDS)


def ask_all(
    requests: Sequence[tuple[str, Callable[[], Any]]], *, answer: float | None = None
) -> list[Any]:
    """Send requests to buckets concurrently, with retries, and return their results in order."""
    for url, _ in requests:
        _raise_given_up(url)
    return _Requests(requests, PATIENCE.answer if answer is None else answer).run()


def stop() -> None:
    """Cancel current bucket requests within a second, and reject later requests."""
    _stopped.set()


def _bucket(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _raise_given_up(url: str) -> None:
    """Raise BucketError if requests to the URL's bucket failed permanently a short time ago."""
    until, said = _given_up.get(_bucket(url), (0.0, ""))
    if time.monotonic() < until:
        raise BucketError(said)


class _Requests:
    """Requests that run in threads, so that a hanging request can be abandoned."""

    def __init__(self, requests: Sequence[tuple[str, Callable[[], Any]]], answer: float):
        self._requests, self._answer = requests, answer
        self._results: list[Any] = [None] * len(requests)
        self._waiting = [(0.0, place) for place in range(len(requests))]  # (when, which), a heap
        self._running: dict[int, tuple[float, object]] = {}  # until when, and which attempt
        self._failed: dict[int, tuple[float, int]] = {}  # since when, and how often
        self._ended: queue.SimpleQueue = queue.SimpleQueue()

    def run(self) -> list[Any]:
        while self._waiting or self._running:
            if _stopped.is_set():
                raise BucketError("the request was canceled, because the program ends")
            self._start()
            try:
                place, attempt, result, error = self._ended.get(
                    timeout=min(self._idle(), _LOOK_SECONDS)
                )
            except queue.Empty:
                self._give_up_late_ones()
                continue
            if self._running.get(place, (0.0, None))[1] is not attempt:
                continue  # too late
            del self._running[place]
            self._results[place] = result
            if error is not None:
                self._fail(place, error)
        return self._results

    def _start(self) -> None:
        now = time.monotonic()
        while self._waiting and len(self._running) < CONNECTIONS and self._waiting[0][0] <= now:
            _, place = heapq.heappop(self._waiting)
            attempt = object()
            self._running[place] = now + self._answer, attempt
            arguments = (self._requests[place][1], place, attempt, self._ended)
            threading.Thread(target=_attempt, args=arguments, daemon=True).start()

    def _idle(self) -> float:
        times = [until for until, _ in self._running.values()]
        if self._waiting and len(self._running) < CONNECTIONS:
            times.append(self._waiting[0][0])
        return max(0.0, min(times) - time.monotonic())

    def _give_up_late_ones(self) -> None:
        now = time.monotonic()
        for place, (until, _) in [*self._running.items()]:
            if until <= now:
                del self._running[place]
                self._fail(place, TimeoutError(f"no response in {self._answer:g} seconds"))

    def _fail(self, place: int, error: BaseException) -> None:
        url, now = self._requests[place][0], time.monotonic()
        _raise_lasting(url, error)
        _raise_given_up(url)
        since, times = self._failed.get(place, (now, 0))
        if now - since > PATIENCE.total:
            said = (
                f"{url} cannot be read for {PATIENCE.total:g} seconds ({_said(error)}); check the "
                "network and the bucket, and run the same command again"
            )
            _given_up[_bucket(url)] = now + PATIENCE.silence, said
            raise BucketError(said) from error
        wait = min(PATIENCE.first * 2.0**times, PATIENCE.longest) * _chance.uniform(0.5, 1.5)
        self._failed[place] = since, times + 1
        heapq.heappush(self._waiting, (now + wait, place))
        _note(url, error, wait)


def _attempt(
    function: Callable[[], Any], place: int, attempt: object, ended: queue.SimpleQueue
) -> None:
    try:
        result, error = function(), None
    except BaseException as raised:  # it is raised where the request was made
        result, error = None, raised
    ended.put((place, attempt, result, error))


_noted = [float("-inf")]


def _note(url: str, error: BaseException, wait: float) -> None:
    if time.monotonic() - _noted[0] >= _NOTE_SECONDS:
        _noted[0] = time.monotonic()
        _logger.warning(
            "%s: the request failed (%s); retrying in %.1f seconds", url, _said(error), wait
        )


def _raise_lasting(url: str, error: BaseException) -> None:
    """Raise the error of a request, unless a retry may succeed."""
    if isinstance(error, InputError):
        raise error
    if isinstance(error, ImportError):
        raise not_installed(url) from error
    code = getattr(error, "code", None) or getattr(error, "status", None)
    refused = _number(code) in (401, 403) or "Credential" in type(error).__name__
    if isinstance(error, PermissionError) or refused:
        raise InputError(
            f"{url} cannot be accessed ({_said(error)}); set up credentials with read access, for "
            "example by `gcloud auth application-default login` or AWS's environment variables"
        ) from error
    if isinstance(error, FileNotFoundError) or _number(code) == 404:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        raise type(error)(error.errno or errno.EISDIR, error.strerror or "a directory", url)
    number = _number(code)
    if isinstance(error, TypeError | ValueError) or not isinstance(error, Exception):
        raise error
    if number is not None and 400 <= number < 500 and number not in _PASSING_CODES:
        raise InputError(f"{url} cannot be read ({_said(error)})") from error


def _number(code: Any) -> int | None:
    try:
        return int(code)
    except (TypeError, ValueError):
        return None


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def not_installed(url: str) -> InputError:
    """Return the InputError that names the missing package for a URL."""
    package = _PACKAGES.get(url.partition("://")[0])
    if package is None:
        return InputError(
            f"{url} needs fsspec's package for {url.partition('://')[0]}://, which is not installed"
        )
    return InputError(
        f"{url} needs the package {package}, which is not installed; run `pip install {package}`, "
        "or mount the bucket and give the mounted path"
    )


MERGED_GAP = 1 << 14
"""Maximum gap, in bytes, between ranges of an object that are merged into one request."""
MERGED_BYTES = 1 << 23
"""Maximum size in bytes of a request that merges several ranges."""


class Range(NamedTuple):
    """Byte range [start, end) of an object."""

    url: str
    start: int
    end: int


def can_read(path: str | os.PathLike[str]) -> bool:
    """Return True if the fsspec package for the bucket of a path is installed."""
    try:
        _store(_scheme(os.fspath(path)), os.getpid())
    except (ImportError, ValueError):
        return False
    return True


def read_ranges(ranges: Sequence[Range]) -> list[bytes]:
    """Read byte ranges of objects; nearby ranges of an object are merged into one request."""
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
        raise OSError(f"requested {end - start} bytes of {url}, but received {len(content)}")
    return content


def size_of(path: str | os.PathLike[str]) -> int:
    """Return the size of a file in bytes; sizes of files in buckets are cached."""
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
"""URL -> size in bytes, for objects that were listed or requested."""


def info_of(url: str) -> Any:
    """Return fsspec's "type" and "size" of an object or directory in a bucket."""
    return ask(url, lambda: store_of(url).info(url))


def files_in(directory: str | os.PathLike[str]) -> dict[str, int]:
    """Return name -> size in bytes of the objects directly in a bucket directory."""
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
    """Copy a local file to a bucket."""
    ask(url, lambda: store_of(url).put_file(str(file), url), answer=PATIENCE.total * 12)
    _sizes.pop(url, None)


def remove(url: str) -> None:
    """Delete an object from its bucket."""
    _sizes.pop(url, None)
    ask(url, lambda: store_of(url).rm_file(url))


# File systems.


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def store_of(url: str) -> Any:
    """Return the fsspec file system of a URL."""
    try:
        return _store(_scheme(url), os.getpid())
    except ImportError as error:
        raise not_installed(url) from error
    except ValueError as error:
        raise InputError(
            f"{url}: fsspec does not support {_scheme(url)}://; use gs:// or s3://"
        ) from error


@functools.cache
def _store(scheme: str, process: int) -> Any:
    """Return a file system that all threads share; fsspec would create one for each thread."""
    import fsspec

    del process
    return fsspec.filesystem(scheme, use_listings_cache=False)


FIRST_BLOCK, LARGEST_BLOCK = 1 << 16, 1 << 20
"""Bytes of a stream's first and of its largest read; each read doubles the previous one."""


@functools.total_ordering
class BucketPath:
    """Path of an object or directory in a bucket, with pathlib's methods for reading.

    Attributes:
      url: URL without a trailing slash.
    """

    def __init__(self, url: str):
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
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> "BucketPath":
        return BucketPath(self.url.rpartition("/")[0])

    def with_name(self, name: str) -> "BucketPath":
        return self.parent / name

    def with_suffix(self, suffix: str) -> "BucketPath":
        return self.with_name(Path(self.name).with_suffix(suffix).name)

    def is_file(self) -> bool:
        """Return True if an object with this path exists."""
        try:
            return size_of(self) >= 0
        except (FileNotFoundError, IsADirectoryError):
            return False

    def is_dir(self) -> bool:
        """Return True if objects exist below this path."""
        try:
            return info_of(self.url)["type"] == "directory"
        except FileNotFoundError:
            return False

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def glob(self, pattern: str) -> "Iterator[BucketPath]":
        """Return the matching objects directly in this directory, sorted by name."""
        return (self / name for name in fnmatch.filter(files_in(self.url), pattern))

    def read_bytes(self) -> bytes:
        """Read the complete object into memory."""
        return ask(self.url, lambda: store_of(self.url).cat_file(self.url))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Open the object as a seekable stream."""
        if mode != "rb":
            raise ValueError(
                "objects in a bucket can be opened only with the mode 'rb', but the mode is "
                f"{mode!r}"
            )
        return open_stream(self.url)


DataPath: TypeAlias = Path | BucketPath
"""Local path, or path in a bucket."""


def data_path(path: str | os.PathLike[str]) -> DataPath:
    """Convert a path or URL to a local path or a BucketPath, without a request."""
    text = os.fspath(path)
    return BucketPath(text) if is_remote(text) else Path(text)


def files_among(directory: str | os.PathLike[str], names: Iterable[str]) -> list[DataPath]:
    """Return the paths of `names` that exist in a directory; a bucket needs only one listing."""
    place = data_path(directory)
    if isinstance(place, BucketPath):
        there = files_in(place)
        return [place / name for name in names if name in there]
    return [file for name in names if (file := place / name).is_file()]


def open_stream(url: str, *, first: int = FIRST_BLOCK) -> io.BufferedReader:
    """Open an object in a bucket as a seekable stream; the first request reads `first` bytes."""
    return io.BufferedReader(_Blocks(url, size_of(url), first=first))


class _Blocks(io.RawIOBase):
    """Raw stream that reads an object from a bucket in blocks of growing size."""

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
