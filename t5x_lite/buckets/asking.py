"""Requests to a bucket, which are sent again where they fail, and are never waited for without end.

    ask("gs://bucket/a", lambda: store.info("gs://bucket/a"))
    ask_all([(url, partial(read, url)) for url in urls])       # `CONNECTIONS` at a time

One that fails, or has no answer in time, is sent again after a while that doubles and is partly
chance (`Patience`). A bucket that stays away for longer is a `BucketError`, which ends a run with
exit code 1: it may be started again. What cannot become better by waiting (no such object, no
access, a package that is missing) is raised at once, as FileNotFoundError or InputError.
"""

import errno
import heapq
import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from t5x_lite.errors import InputError
from t5x_lite.remote import is_remote

_logger = logging.getLogger(__name__)

CONNECTIONS = 64
"""Requests at a time."""

_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs", "az": "adlfs"}
_PASSING_CODES = (408, 429)
_NOTE_SECONDS = 30.0
_LARGE_SECONDS = 3600.0

_T = TypeVar("_T")
_chance = random.Random()


class BucketError(Exception):
    """A bucket that stays away. The message is one line, with the URL and what to do."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a bucket is asked.

    Attributes:
      answer: seconds in which a request must be answered.
      first: seconds until a request is sent again, which double each time.
      longest: seconds at most until it is sent again.
      total: seconds from its first failure in which it is sent again.
      silence: seconds in which a bucket that was given up is asked for nothing: what else wants its
        data, such as the threads of tf.data, ends at once.
    """

    answer: float = 60.0
    first: float = 0.5
    longest: float = 30.0
    total: float = 300.0
    silence: float = 60.0


PATIENCE = Patience()
_given_up: dict[str, tuple[float, str]] = {}
"""Until when a bucket is asked for nothing, and what was said of it."""
_stopped = threading.Event()
_LOOK_SECONDS = 1.0


def ask(url: str, function: Callable[[], _T], *, answer: float | None = None) -> _T:
    """What one request gives, which is sent again where it fails (`Patience`).

    Args:
      url: what it is about.
      function: sends it; it runs in a thread.
      answer: seconds in which it must be answered; None are those of `PATIENCE`.

    Raises:
      OSError: there is no such object.
      InputError: there is no access, or a package is missing.
      BucketError: the bucket stays away.
    """
    [found] = ask_all([(url, function)], answer=answer)
    return found


def ask_if_remote(path: str | os.PathLike[str], function: Callable[[], _T]) -> _T:
    """Call a function of a path: for a local path directly, for a bucket as `ask` does.

    A bucket that stays away is then an error of its own, and never taken for a damaged file. The
    function may read a large object, so it has an hour.

    Args:
      path: what it is about.
      function: reads it.

    Raises:
      OSError: the file or the object cannot be read.
      InputError: there is no access to the bucket.
      BucketError: the bucket stays away.
    """
    if not is_remote(path):
        return function()
    return ask(os.fspath(path), function, answer=_LARGE_SECONDS)


def ask_all(
    requests: Sequence[tuple[str, Callable[[], Any]]], *, answer: float | None = None
) -> list[Any]:
    """What several requests give, in their order; see `ask`."""
    for url, _ in requests:
        _raise_given_up(url)
    return _Requests(requests, PATIENCE.answer if answer is None else answer).run()


def stop() -> None:
    """Ends all requests, within a second, and those that come: the program is about to end."""
    _stopped.set()


def _bucket(url: str) -> str:
    return "/".join(url.split("/")[:3])


def _raise_given_up(url: str) -> None:
    """Raises what was said of a bucket that is asked for nothing at present."""
    until, said = _given_up.get(_bucket(url), (0.0, ""))
    if time.monotonic() < until:
        raise BucketError(said)


class _Requests:
    """Requests of which each has a thread while it is under way: one that hangs is left behind."""

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
                raise BucketError("the program ends")
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
        """Seconds until there is something to do, whatever comes."""
        times = [until for until, _ in self._running.values()]
        if self._waiting and len(self._running) < CONNECTIONS:
            times.append(self._waiting[0][0])
        return max(0.0, min(times) - time.monotonic())

    def _give_up_late_ones(self) -> None:
        now = time.monotonic()
        for place, (until, _) in [*self._running.items()]:
            if until <= now:
                del self._running[place]
                self._fail(place, TimeoutError(f"no answer in {self._answer:g} seconds"))

    def _fail(self, place: int, error: BaseException) -> None:
        """Sends a request again after a while, or raises."""
        url, now = self._requests[place][0], time.monotonic()
        _raise_lasting(url, error)
        _raise_given_up(url)
        since, times = self._failed.get(place, (now, 0))
        if now - since > PATIENCE.total:
            said = (
                f"{url} cannot be read, for {PATIENCE.total:g} seconds now ({_said(error)}): look "
                "at the network and the bucket, and give the same command again"
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
    """Warns of a failure, but not of each of many."""
    if time.monotonic() - _noted[0] >= _NOTE_SECONDS:
        _noted[0] = time.monotonic()
        _logger.warning("%s: %s; asked again in %.1f seconds", url, _said(error), wait)


def _raise_lasting(url: str, error: BaseException) -> None:
    """Raises what waiting does not mend."""
    if isinstance(error, InputError):
        raise error
    if isinstance(error, ImportError):
        raise not_installed(url) from error
    code = getattr(error, "code", None) or getattr(error, "status", None)
    refused = _number(code) in (401, 403) or "Credential" in type(error).__name__
    if isinstance(error, PermissionError) or refused:
        raise InputError(
            f"{url}: no access ({_said(error)}): give this machine credentials that may read it, "
            "for example by `gcloud auth application-default login` or by AWS's variables"
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
    """What to say where the package that reads a URL is missing."""
    package = _PACKAGES.get(url.partition("://")[0])
    if package is None:
        return InputError(
            f"{url}: the package that fsspec reads {url.partition('://')[0]}:// by is missing"
        )
    return InputError(
        f"{url}: a bucket is read by the package {package}, which is not installed: "
        f"`pip install {package}`, or mount the bucket and give the mounted path"
    )
