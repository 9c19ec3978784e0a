"""The JSON of requests, and their texts in batches of few static shapes.

Parsing and checking of JSON requests.

    record = parse(b'{"inputs": "dogs bark"}', fields={"inputs", "seed"})
    texts(record, "inputs", most=128)        # ["dogs bark"]

Every error is a complete sentence that names the field.

Batching of texts from many requests into batches of few static shapes.

    batcher = Batcher({"predict": answer}, sizes=(1, 8, 32), queue=1024, wait=0.005)
    batcher.start()
    batcher.submit("predict", [Row((128,), tokens)], on_done=tell)   # tell([Outcome]) in the thread
    batcher.close()         # finishes all accepted requests

A batch starts with the text that has waited longest, and adds texts of the same endpoint with the
same or a smaller length, oldest first. It runs when it is full, or when its first text has waited
for `wait` seconds. While the device is busy, the next texts accumulate, so batches fill up under
load.

A batch has one of the `sizes` and the static lengths of its first row, so no other shapes are
compiled. While programs are still compiling, a batch uses the smallest compiled shape that fits,
and endpoints without a compiled program wait. The batcher selects the size with the most texts per
second, measured on earlier batches. Example: of five texts, a batch of four runs first if a batch
of sixteen takes much longer.

All programs can be compiled at the start because batches have few static shapes:

    sizes(32)               (1, 2, 4, 8, 16, 32)
    lengths(512)            (32, 128, 512)
    fit((32, 128, 512), 33) 128
"""

import collections
import dataclasses
import ipaddress
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, check_bounds, did_you_mean

_logger = logging.getLogger(__name__)


SHORTEST_TOKEN = 16
"""Minimum length of an access token, in characters."""


class Refused(Exception):
    """Exception for a request that is rejected with an HTTP error.

    Attributes:
      status: HTTP status.
      headers: additional headers of the response.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server on requests, connections and times.

    Attributes:
      max_body: maximum bytes of a request body.
      max_rows: maximum texts of a request, or pairs of a text and a candidate.
      queue: maximum texts that wait in the queue; requests beyond it are rejected.
      connections: maximum number of open connections.
      timeout: maximum seconds from the headers of a request to its response.
      body_timeout: maximum seconds to receive the headers of a request, and again for its body.
    """

    max_body: Count = 1 << 20
    max_rows: Count = 128
    queue: Count = 1024
    connections: Count = 1000
    timeout: Annotated[float, AtLeast(0.05)] = 60.0
    body_timeout: Annotated[float, AtLeast(0.05)] = 10.0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.max_rows > self.queue:
            raise InputError(
                f"a request may have {self.max_rows} texts, but the queue holds only "
                f"{self.queue}; increase the queue, or decrease max_rows"
            )


def check_address(host: str, token: str | None) -> None:
    """Raise InputError if the host is public, and the access token is missing or short."""
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise InputError(
            f"the access token has {len(token)} characters, but needs at least {SHORTEST_TOKEN}; "
            'make one with python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError("the access token must be printable ASCII without spaces")
    if token is None and not is_loopback(host):
        raise InputError(
            f"--host {host} is reachable from other machines, but no access token is set; set "
            "one in the environment variable T5X_LITE_TOKEN or by --token-file, or serve on "
            "127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return True if a host name or address is reachable only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse(body: bytes, *, fields: Collection[str]) -> dict[str, Any]:
    """Parse a request body as a JSON object; reject other fields than `fields`."""
    try:
        record = json.loads(body.decode(), parse_constant=_no_number, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise Refused(400, f"The body is not UTF-8 (byte {error.start}).") from error
    except json.JSONDecodeError as error:
        what = f"{error.msg.removesuffix(' at')} at character {error.pos}"
        raise Refused(400, f"The body is not JSON: {what}.") from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of 5000 digits
        raise Refused(
            400, "The JSON body has an invalid or too large number, or is nested too deeply."
        ) from (error)
    if not isinstance(record, dict):
        raise Refused(400, f"The body must be a JSON object, got {_kind(record)}.")
    for name in record:
        if name not in fields:
            shown = ascii(name[:40])
            hint = did_you_mean(name[:40], fields) or f"; it may have {', '.join(sorted(fields))}"
            raise Refused(400, f"The request has an unknown field {shown}{hint}.")
    return record


def texts(record: Mapping[str, Any], name: str, *, most: int) -> list[str]:
    """Return the texts of a request field, which is a string or a list of strings."""
    if name not in record:
        raise Refused(400, f'The request must have "{name}", a string or a list of strings.')
    value = record[name]
    result = [value] if isinstance(value, str) else value
    if not isinstance(result, list):
        raise Refused(400, f'"{name}" must be a string or a list of strings, got {_kind(value)}.')
    if not result:
        raise Refused(400, f'"{name}" must have at least one text.')
    check_rows(len(result), most=most)
    for place, text in enumerate(result):
        if not isinstance(text, str):
            raise Refused(400, f'"{name}"[{place}] must be a string, got {_kind(text)}.')
        check_text(text, f'"{name}"[{place}]')
    return result


def check_rows(number: int, *, most: int) -> None:
    """Raise `Refused` with HTTP status 413 if a request has too many texts."""
    if number > most:
        raise Refused(
            413, f"A request may have at most {most} texts, got {number}; send several requests."
        )


def check_text(text: str, where: str) -> None:
    """Raise `Refused` with HTTP status 400 if a text is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(
            400, f"{where} contains half of a surrogate pair, which is not valid Unicode."
        ) from error


def optional_text(record: Mapping[str, Any], name: str) -> str | None:
    """Return a string field of a request, or None if the field is omitted or null."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f'"{name}" must be a string, got {_kind(value)}.')
    if value is not None:
        check_text(value, f'"{name}"')
    return value


def optional_number(record: Mapping[str, Any], name: str, *, below: int) -> int | None:
    """Return an integer field of a request, or None if the field is omitted or null."""
    value = record.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < below:
        raise Refused(400, f'"{name}" must be a whole number from 0 to {below - 1}.')
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value"}
    return "null" if value is None else names.get(type(value), "a number")


def _no_number(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits:.40} is too large for a float")
    return value


SHORTEST = 16


def sizes(largest: int) -> tuple[int, ...]:
    """Return the batch sizes to compile programs for: powers of four, and `largest`."""
    result = [1]
    while result[-1] * 4 < largest:
        result.append(result[-1] * 4)
    return (*result, largest) if largest > 1 else (1,)


def lengths(longest: int) -> tuple[int, ...]:
    """Return the input lengths to compile programs for: ascending powers of two, 4 times apart."""
    result = [1 << (max(longest, SHORTEST) - 1).bit_length()]
    while result[0] // 4 >= SHORTEST:
        result.insert(0, result[0] // 4)
    return tuple(result)


def fit(choices: Sequence[int], needed: int) -> int:
    """Return the smallest of some ascending lengths that is at least `needed`, else the largest."""
    return next((choice for choice in choices if choice >= needed), choices[-1])


class Row(NamedTuple):
    """Tokenized text of a request; a row of a batch.

    Attributes:
      lengths: padded lengths of the row's sequences, such as input and target.
      payload: value that the endpoint's function gets for this text.
    """

    lengths: tuple[int, ...]
    payload: Any


Outcome = Any
"""Result of an endpoint for one text: a JSON object or an exception `Refused`."""

Answer = Callable[..., Sequence[Outcome]]
"""Function (payloads, size=, lengths=) that returns the outcome of each payload of a batch."""

Done = Callable[[list[Outcome]], object]
"""Function that the batch thread calls with the outcomes of all rows of a request, in order."""


@runtime_checkable
class Observer(Protocol):
    """Listener that the batcher calls after every batch, to record metrics."""

    def batch(self, kind: str, *, rows: int, size: int, seconds: float) -> None: ...


@dataclasses.dataclass
class Ticket:
    """Request with texts in the queue or in a running batch.

    Attributes:
      outcomes: results of the request's texts, in order.
      missing: number of texts without a result.
      on_done: function that is called when every text has a result.
      dropped: True if the client has disconnected, so that waiting texts are skipped.
    """

    outcomes: list[Outcome]
    missing: int
    on_done: Done
    dropped: bool = False


class _Waiting(NamedTuple):
    row: Row
    ticket: Ticket
    place: int
    since: float


class Batcher:
    """Queue of texts with a thread that runs them in batches.

    Args:
      functions: functions that run the model on a batch, by endpoint name.
      sizes: batch sizes for which programs are compiled, ascending.
      queue: maximum number of waiting texts.
      wait: maximum seconds that a text waits for a fuller batch while the device is idle.
      observer: listener that is called after every batch.
    """

    def __init__(
        self,
        functions: Mapping[str, Answer],
        *,
        sizes: Sequence[int],
        queue: int,
        wait: float,
        observer: Observer | None = None,
    ):
        self._functions = dict(functions)
        self._sizes = tuple(sizes)
        self._queue, self._wait, self._observer = queue, wait, observer
        self._lines: dict[tuple[str, tuple[int, ...]], collections.deque[_Waiting]] = (
            collections.defaultdict(collections.deque)
        )
        self._changed = threading.Condition()
        self._num_waiting = 0
        self._rows_per_second = 0.0
        self._seconds: dict[tuple[str, tuple[int, ...], int], float] = {}
        self._closing = False
        self._compiling = False
        self._thread = threading.Thread(target=self._run, name="t5x_lite-batches", daemon=True)

    @property
    def num_waiting(self) -> int:
        """Number of texts that wait in the queue."""
        return self._num_waiting

    def start(self) -> None:
        """Start the thread that runs the batches."""
        self._thread.start()

    def close(self) -> None:
        """Reject new requests, finish the accepted requests, and end the batcher's thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def learn(self, kind: str, lengths: tuple[int, ...], *, size: int, seconds: float) -> None:
        """Record the run time of a batch, from which later batch sizes are selected."""
        key = kind, lengths, size
        with self._changed:
            self._seconds[key] = 0.8 * self._seconds.get(key, seconds) + 0.2 * seconds
            self._changed.notify_all()

    @property
    def answerable(self) -> frozenset[str]:
        """Names of the endpoints that have a compiled program."""
        with self._changed:
            return frozenset(kind for kind, _, _ in self._seconds)

    def compiling(self, under_way: bool) -> None:
        """Set whether programs are being compiled; if so, batches use only compiled shapes."""
        with self._changed:
            self._compiling = under_way
            self._changed.notify_all()

    def submit(self, kind: str, rows: Sequence[Row], *, on_done: Done) -> Ticket:
        """Add the texts of a request to the queue."""
        ticket = Ticket([None] * len(rows), len(rows), on_done)
        now = time.monotonic()
        with self._changed:
            if self._closing:
                raise Refused(503, "The server is shutting down.", {"Retry-After": "5"})
            if self._num_waiting + len(rows) > self._queue:
                seconds = self._retry_after()
                raise Refused(
                    503,
                    f"The queue is full: {self._num_waiting} texts wait; try again in {seconds} s.",
                    {"Retry-After": str(seconds)},
                )
            for place, row in enumerate(rows):
                self._lines[kind, row.lengths].append(_Waiting(row, ticket, place, now))
            self._num_waiting += len(rows)
            self._changed.notify_all()
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Remove the texts of a request from the queue."""
        with self._changed:
            ticket.dropped = True
            for line in self._lines.values():
                kept = [waiting for waiting in line if not waiting.ticket.dropped]
                self._num_waiting -= len(line) - len(kept)
                line.clear()
                line.extend(kept)

    def _retry_after(self) -> int:
        """Return the estimated seconds until the queue is empty, from 1 to 60."""
        if not self._rows_per_second:
            return 1
        return min(60, max(1, round(self._num_waiting / self._rows_per_second)))

    def _run(self) -> None:
        while batch := self._next_batch():
            kind, lengths, rows = batch
            size, start = fit(self._compiled(kind, lengths), len(rows)), time.monotonic()
            outcomes = self._answers(kind, rows, size=size, lengths=lengths)
            seconds = time.monotonic() - start
            self.learn(kind, lengths, size=size, seconds=seconds)
            rate = len(rows) / max(seconds, 1e-6)
            self._rows_per_second = 0.8 * self._rows_per_second + 0.2 * rate
            if self._observer is not None:
                self._observer.batch(kind, rows=len(rows), size=size, seconds=seconds)
            for waiting, outcome in zip(rows, outcomes, strict=True):
                _settle(waiting.ticket, waiting.place, outcome)

    def _answers(
        self, kind: str, rows: Sequence[_Waiting], *, size: int, lengths: tuple[int, ...]
    ) -> Sequence[Outcome]:
        payloads = [waiting.row.payload for waiting in rows]
        try:
            outcomes = self._functions[kind](payloads, size=size, lengths=lengths)
            assert len(outcomes) == len(rows), "an outcome for each row"
            return outcomes
        except Exception:
            _logger.exception("a batch of %d texts for the endpoint %s failed", len(rows), kind)
            return [Refused(500, "The model failed on this batch; see the server's log.")] * (
                len(rows)
            )

    def _next_batch(self) -> tuple[str, tuple[int, ...], list[_Waiting]] | None:
        with self._changed:
            while True:
                oldest = self._oldest()
                if oldest is None:
                    if self._closing:
                        return None
                    self._changed.wait()
                    continue
                (kind, lengths), since = oldest
                own = self._lines[kind, lengths]
                lengths, sizes = self._program(kind, lengths)
                lines = self._lines_within(kind, lengths, first=own)
                full = sum(len(line) for line in lines) >= sizes[-1]
                left = since + self._wait - time.monotonic()
                if full or left <= 0 or self._closing:
                    waiting = sum(len(line) for line in lines)
                    num = self._best_number(kind, lengths, waiting, sizes)
                    return kind, lengths, self._take(lines, num)
                self._changed.wait(left)

    def _oldest(self) -> tuple[tuple[str, tuple[int, ...]], float] | None:
        heads = [
            (line[0].since, key)
            for key, line in self._lines.items()
            if line and self._program(*key)[1]
        ]
        if not heads:
            return None
        since, key = min(heads)
        return key, since

    def _program(
        self, kind: str, lengths: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        sizes = self._compiled(kind, lengths)
        if sizes:
            return lengths, sizes
        longer = {
            theirs
            for other, theirs, _ in self._seconds
            if other == kind and all(a >= b for a, b in zip(theirs, lengths, strict=True))
        }
        if not longer:
            return lengths, ()
        least = min(longer, key=lambda theirs: (sum(theirs), theirs))
        return least, self._compiled(kind, least)

    def _compiled(self, kind: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if not self._compiling:
            return self._sizes
        return tuple(size for size in self._sizes if (kind, lengths, size) in self._seconds)

    def _lines_within(
        self, kind: str, lengths: tuple[int, ...], *, first: collections.deque[_Waiting]
    ) -> list[collections.deque[_Waiting]]:
        others = [
            line
            for (other, theirs), line in self._lines.items()
            if other == kind
            and line is not first
            and all(a <= b for a, b in zip(theirs, lengths, strict=True))
        ]
        return [first, *others]

    def _best_number(
        self, kind: str, lengths: tuple[int, ...], waiting: int, sizes: Sequence[int]
    ) -> int:
        largest = fit(sizes, waiting)
        choices = [size for size in sizes if size <= largest]
        seconds = [self._seconds.get((kind, lengths, size)) for size in choices]
        rates = [
            min(size, waiting) / max(took, 1e-9)
            for size, took in zip(choices, seconds, strict=True)
            if took is not None
        ]
        if len(rates) < len(choices):
            return min(largest, waiting)
        return min(choices[rates.index(max(rates))], waiting)

    def _take(self, lines: Sequence[collections.deque[_Waiting]], most: int) -> list[_Waiting]:
        rows: list[_Waiting] = []
        for line in lines:
            while line and len(rows) < most:
                rows.append(line.popleft())
        self._num_waiting -= len(rows)
        return rows


def _settle(ticket: Ticket, place: int, outcome: Outcome) -> None:
    ticket.outcomes[place] = outcome
    ticket.missing -= 1
    if not ticket.missing and not ticket.dropped:
        ticket.on_done(ticket.outcomes)
