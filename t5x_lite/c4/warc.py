r"""Reader of WARC files (ISO 28500), compressed or not, which skips damaged parts.

`read_records` yields the records of WARC files (versions 1.0 and 1.1):

    for found in read_records(read_members(file)):
        Record(offset, headers, body)       headers by their lower-cased names
        Damage(offset, reason)              unreadable data, and its position

A record consists of a version line, headers, an empty line, and as many bytes as its
Content-Length. It is followed by the end of the file or of the gzip member, or by the next version
line. Otherwise, the Content-Length is wrong and the record ends at the next version line, if an
empty line precedes that line; if not, the record was truncated, and is lost. Only one record is
kept in memory; a record of more than `max_bytes` is skipped.

`read_members` yields the bytes of a file that may be compressed, member by member.

A file of Common Crawl is a sequence of gzip members, one per record. If a member cannot be
decompressed, its bytes before the damage are yielded, and reading continues at the next gzip header
after the damaged member's header.

    for event in read_members(file):
        Start(offset)       a member, or a file that is not compressed, begins
        bytes               its content
        End("", ...)        it ended without an error; else with a reason

The format is RFC 1952. Time is linear in the size of the file for any content: bytes after damage
are read again, but in total at most `_READ_AGAIN` times the file's size.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

_CHUNK = 1 << 14
_FIRST_LOOK = 1 << 9
_PIECE = 1 << 18
_HEADER = b"\x1f\x8b\x08"
_READ_AGAIN = 64
_READ_AT_LEAST = 1 << 26


@runtime_checkable
class Readable(Protocol):
    """Interface of a seekable file that is open for reading bytes."""

    def read(self, size: int = ..., /) -> bytes: ...
    def seek(self, offset: int, whence: int = ..., /) -> int: ...


@dataclass(frozen=True, slots=True)
class Start:
    """Event of `read_members`: a gzip member of a WARC file begins.

    Attributes:
      offset: position of the member's first byte in the file.
      plain: True for an uncompressed file, which counts as one member.
    """

    offset: int
    plain: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Event of `read_members`: a gzip member of a WARC file ends.

    Attributes:
      reason: error message if the member is damaged; "" if the member is complete.
      cut: True if the file ended inside the member; the bytes read so far are correct.
    """

    reason: str = ""
    cut: bool = False


Event = Start | End | bytes


class _Exhausted(Exception):
    """Error raised if a file has too much damage to be read in linear time."""


class _File:
    """File that counts the bytes that are read."""

    def __init__(self, file: Readable):
        self._file = file
        size = file.seek(0, 2)
        file.seek(0)
        self._left = _READ_AGAIN * size + _READ_AT_LEAST

    def read(self, size: int = _CHUNK) -> bytes:
        chunk = self._file.read(size)
        self.spend(len(chunk))
        return chunk

    def spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise _Exhausted

    def seek(self, offset: int) -> None:
        self._file.seek(offset)


def read_members(file: Readable, *, compressed: bool = False) -> Iterator[Event]:
    """Yield the bytes of a WARC file, and events at the start and end of each gzip member."""
    counted = _File(file)
    first = counted.read()
    if not first:
        return
    if not compressed and not first.startswith(_HEADER[:2]):
        yield Start(0, plain=True)
        while first:
            yield first
            first = counted.read(_PIECE)
        yield End()
        return
    try:
        yield from _gzip_members(counted, first)
    except _Exhausted:
        yield End("the rest is not read: too much of the file is damaged")


def _gzip_members(file: _File, data: bytes) -> Iterator[Event]:
    offset = 0
    while True:
        padded = len(data)
        data = data.lstrip(b"\0")  # padding of tapes and block devices after a member
        offset += padded - len(data)
        if not data:
            data = file.read()
            if not data:
                return
            continue
        if len(data) < len(_HEADER):
            data += file.read()
        yield Start(offset)
        if data.startswith(_HEADER):
            member = _Member(file, offset, data)
            yield from member.pieces()
            yield member.end
            if not member.end.reason:
                offset, data = offset + member.size, member.unused
                continue
        else:
            yield End("no gzip header")
        found = _find_member(file, offset + 1)
        if found is None:
            return
        offset = found
        file.seek(offset)
        data = file.read()


class _Member:
    """Reader of one gzip member of a file.

    Attributes:
      end: event at the end of the member, set after its bytes are read.
      size: number of compressed bytes of a complete member.
      unused: bytes that were read after the member's end.
    """

    def __init__(self, file: _File, offset: int, data: bytes):
        self._file, self._offset, self._data = file, offset, data
        self.end = End()
        self.size = 0
        self.unused = b""

    def pieces(self) -> Iterator[bytes]:
        inflate, data, produced = zlib.decompressobj(wbits=31), self._data, 0
        taken = len(data)
        while True:
            try:
                piece = inflate.decompress(data, _PIECE)
            except zlib.error as error:
                self.end = End(_reason(error))
                yield from self._salvage(produced)
                return
            produced += len(piece)
            if piece:
                yield piece
            if inflate.eof:
                self.unused = inflate.unused_data
                self.size = taken - len(self.unused)
                return
            data = inflate.unconsumed_tail
            if not data and len(piece) < _PIECE:
                data = self._file.read()
                taken += len(data)
                if not data:
                    self.end = End("truncated gzip member", cut=True)
                    return

    def _salvage(self, produced: int) -> Iterator[bytes]:
        """Yield a damaged member's bytes before the damage, except the first `produced` bytes."""
        self._file.seek(self._offset)
        inflate, behind = zlib.decompressobj(wbits=31), produced
        while data := self._file.read():
            while True:
                saved = inflate.copy()
                try:
                    piece = inflate.decompress(data, _PIECE)
                except zlib.error:
                    piece = _before_error(saved, data)
                    yield piece[behind:]
                    return
                skipped = min(behind, len(piece))
                behind -= skipped
                if piece[skipped:]:
                    yield piece[skipped:]
                data = inflate.unconsumed_tail
                if not data and len(piece) < _PIECE:
                    break


def _before_error(inflate: "zlib._Decompress", data: bytes) -> bytes:
    """Decompress `data` up to its first damaged byte."""
    given = b""
    for step in (1 << 10, 1 << 5, 1):
        while data:
            saved = inflate.copy()
            try:
                given += inflate.decompress(data[:step])
            except zlib.error:
                inflate = saved
                data = data[:step]
                break
            data = data[step:]
    return given


def _reason(error: zlib.error) -> str:
    text = str(error)
    if "incorrect" in text:
        return "damaged gzip member: its checksum differs"
    return f"damaged gzip member: {text.rpartition(': ')[2]}"


def _find_member(file: _File, offset: int) -> int | None:
    """Return the offset of the next gzip member that can be decompressed, from `offset` on."""
    for found in _headers(file, offset):
        inflate = zlib.decompressobj(wbits=31)
        file.seek(found)
        try:
            for size in (_FIRST_LOOK, _CHUNK):
                piece = inflate.decompress(file.read(size), _CHUNK)
                file.spend(len(piece) // 8)
        except zlib.error:
            continue
        return found
    return None


def _headers(file: _File, offset: int) -> Iterator[int]:
    """Yield the offsets of possible gzip headers, from `offset` on."""
    data, keep = b"", len(_HEADER)
    while True:
        file.seek(offset + len(data))
        chunk = file.read()
        if not chunk:
            return
        data += chunk
        at = data.find(_HEADER)
        while 0 <= at < len(data) - keep:
            if data[at + keep] < 0x20:  # only the defined flags are set
                yield offset + at
            at = data.find(_HEADER, at + 1)
        offset += max(0, len(data) - keep)
        data = data[-keep:]


MAX_RECORD_BYTES = 1 << 24
"""Maximum size of a record in bytes. Common Crawl truncates payloads at 1 MiB or 5 MiB."""
_MAX_HEADER_BYTES = 1 << 16
_VERSION = re.compile(rb"WARC/[01]\.[0-9]{1,2}[ \t]*\r?\n")
_NEXT = re.compile(rb"WARC/[01]\.[0-9]{1,2}[ \t]{0,8}\r?\n(?=(?:WARC|Content)-[A-Za-z-]{1,64}:)")
_LONGEST_NEXT = 128
_BLANK = re.compile(rb"\n\r?\n")
_NEWLINES = re.compile(rb"[\r\n]*")
_FIELD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_COMPACT = 1 << 20
_TOO_LONG = "the record is longer than the limit"


@dataclass(frozen=True, slots=True)
class Record:
    """Record of a WARC file, with headers and content.

    Attributes:
      offset: position of the record in the file; in a compressed file, position of its first gzip
        member.
      headers: values of the headers, by lower-cased name; if a name is repeated, its last value.
      body: content of the record.
      note: problem in a record that could still be read; "" if there was no problem. Notes are
        counted, so a note includes no details of the record.
    """

    offset: int
    headers: dict[str, str]
    body: bytes
    note: str = ""


@dataclass(frozen=True, slots=True)
class Damage:
    """Position and reason of data in a WARC file that cannot be read."""

    offset: int
    reason: str


def read_records(
    events: Iterator[Event], *, max_bytes: int = MAX_RECORD_BYTES
) -> Iterator[Record | Damage]:
    """Yield the records and the damaged parts of a WARC file, from events of `read_members`."""
    stream = _Stream(events)
    while segment := stream.segment():
        yield from _Parser(segment, max_bytes).records()


class _Stream:
    """Sequence of the events of `read_members`, with one event of lookahead."""

    def __init__(self, events: Iterator[Event]):
        self._events = events
        self._back: list[Event] = []

    def next(self) -> Event | None:
        return self._back.pop() if self._back else next(self._events, None)

    def segment(self) -> "_Segment | None":
        """Return a buffer that begins with the next gzip member, or None at the end of the file."""
        event = self.next()
        while event is not None and not isinstance(event, Start):
            if isinstance(event, End) and event.reason:  # nothing more is read
                self._back.append(event)
                return _Segment(self, Start(0))
            event = self.next()
        return None if event is None else _Segment(self, event)

    def joins(self) -> Start | None:
        held: list[Event] = []
        seen = b""
        while len(seen) < len(b"WARC/") and (event := self.next()) is not None:
            held.append(event)
            if isinstance(event, bytes):
                seen += event
            elif isinstance(event, End):
                break
        self._back += reversed(held)
        if not seen or seen.startswith(b"WARC/"):
            return None
        start = self.next()
        assert isinstance(start, Start)
        return start


class _Segment:
    """Buffer of bytes from a gzip member and from later members that continue its record.

    Attributes:
      buffer: bytes that were read but not consumed.
      end: event at the end of the last member; None before the end.
    """

    def __init__(self, stream: _Stream, start: Start):
        self._stream = stream
        self._plain = start.plain
        self._marks = [(0, start.offset)]
        self._base = self._at = 0
        self._data = bytearray()
        self.end: End | None = None

    def offset(self) -> int:
        """Return the position of the first buffered byte in the file."""
        here = self._base + self._at
        if self._plain:
            return here
        while len(self._marks) > 1 and self._marks[1][0] <= here:
            del self._marks[0]
        return self._marks[0][1]

    def more(self) -> bool:
        """Read more bytes of the current gzip member; return False at the end of the member."""
        if self.end is not None:
            return False
        event = self._stream.next()
        if isinstance(event, bytes):
            self._data += event
            return True
        assert event is None or isinstance(event, End)
        self.end = event or End()
        return False

    def join(self) -> bool:
        """Continue with the next gzip member if it continues the current record."""
        if self.end is None or self.end.reason:
            return False
        start = self._stream.joins()
        if start is None:
            return False
        self._marks.append((self._base + len(self._data), start.offset))
        self.end = None
        return True

    def need(self, size: int) -> bool:
        """Read until at least `size` bytes are buffered; return True on success."""
        while len(self._data) - self._at < size:
            if not self.more() and not self.join():
                return False
        return True

    def consume(self, size: int) -> None:
        self._at += size
        if self._at == len(self._data) or self._at > _COMPACT:
            del self._data[: self._at]
            self._base += self._at
            self._at = 0

    @property
    def size(self) -> int:
        return len(self._data) - self._at

    def slice(self, start: int, stop: int) -> bytes:
        return bytes(self._data[self._at + start : self._at + stop])

    def match(self, pattern: re.Pattern[bytes], start: int) -> int:
        """Return the end of a match that begins at `start`, or -1."""
        found = pattern.match(self._data, self._at + start)
        return found.end() - self._at if found else -1

    def blank(self, start: int) -> int:
        """Return the end of the first empty line from `start` on, or -1."""
        found = _BLANK.search(self._data, self._at + start)
        return found.end() - self._at if found else -1

    def next_version(self, start: int) -> int:
        """Return the start of the next WARC version line from `start` on, or -1.

        The version line may begin inside a line, because the record before it may be truncated.
        """
        found = _NEXT.search(self._data, self._at + start)
        return found.start() - self._at if found else -1

    def after_newlines(self, start: int) -> int:
        """Return the position of the first byte in this gzip member that is not a newline."""
        while True:
            start = self.match(_NEWLINES, start)
            if start < self.size or not self.more():
                return start


class _Parser:
    """Parser of the WARC records in a buffer of contiguous bytes."""

    def __init__(self, segment: _Segment, max_bytes: int):
        self._segment, self._max_bytes = segment, max_bytes
        self._count = 0

    def records(self) -> Iterator[Record | Damage]:
        segment = self._segment
        start = segment.offset()
        while True:
            segment.consume(segment.after_newlines(0))
            if not segment.size:
                break
            yield self._next()
        if segment.end is not None and segment.end.reason:
            yield Damage(start, segment.end.reason)

    def _next(self) -> Record | Damage:
        """Return the next record, or a `Damage` if it is unreadable, and consume its bytes."""
        segment, offset = self._segment, self._segment.offset()
        self._count += 1
        begin = self._version()
        if begin < 0:
            self._seek()
            return Damage(offset, "no WARC header where a record begins")
        blank = self._header_end(begin)
        if blank < 0:
            segment.consume(begin)
            self._seek()
            return Damage(offset, "damaged WARC header: it does not end")
        headers = _parse(segment.slice(begin, blank))
        segment.consume(begin if headers is None else blank)
        if headers is None:
            self._seek()
            return Damage(offset, "damaged WARC header: a line is no field")
        declared = headers.get("content-length", "")
        length = int(declared) if re.fullmatch("[0-9]{1,18}", declared) else None
        if length is not None and length > self._max_bytes:
            self._pass_over(length)
            return Damage(offset, _TOO_LONG)
        if length is not None and segment.need(length) and self._ends(length):
            body = segment.slice(0, length)
            segment.consume(length)
            if self._is_damaged():
                return Damage(offset, "the record is lost: its gzip member is damaged")
            return Record(offset, headers, body)
        return self._to_next(offset, headers, declared)

    def _version(self) -> int:
        """Return the end of the version line at the beginning of the buffer, or -1."""
        segment = self._segment
        while True:
            end = segment.match(_VERSION, 0)
            if end >= 0 or segment.size >= 32:
                return end
            front = segment.slice(0, 5)
            if not b"WARC/".startswith(front):
                return -1
            if not segment.need(segment.size + 1):
                return -1

    def _header_end(self, begin: int) -> int:
        """Return the start of the body, or -1 if no empty line ends the headers."""
        segment, searched = self._segment, begin - 1
        while True:
            end = segment.blank(searched)
            if end >= 0:
                return end
            searched = max(begin - 1, segment.size - 2)
            if segment.size > _MAX_HEADER_BYTES or not segment.need(segment.size + 1):
                return -1

    def _ends(self, length: int) -> bool:
        """Return True if the data after a record fit its Content-Length."""
        segment = self._segment
        after = segment.after_newlines(length)
        if segment.slice(length, after).startswith((b"\r\n\r\n", b"\n\n")):
            return True
        while segment.size < after + 5 and segment.more():
            pass
        return b"WARC/".startswith(segment.slice(after, after + 5))

    def _is_damaged(self) -> bool:
        """Return True if a failed gzip checksum covers only the record that was just consumed."""
        end = self._segment.end
        return (
            self._count == 1
            and end is not None
            and bool(end.reason)
            and not end.cut
            and self._segment.after_newlines(0) == self._segment.size
        )

    def _to_next(self, offset: int, headers: dict[str, str], declared: str) -> Record | Damage:
        """Read a record with a wrong Content-Length up to the next version line."""
        segment = self._segment
        stop, searched = -1, 0
        while stop < 0:
            stop = segment.next_version(searched)
            searched = max(0, segment.size - _LONGEST_NEXT)
            if stop < 0 and segment.size > self._max_bytes:
                self._seek()
                return Damage(offset, _TOO_LONG)
            if stop < 0 and not segment.need(segment.size + 1):
                break
        ended = segment.end
        body = segment.slice(0, stop if stop >= 0 else segment.size)
        segment.consume(len(body))
        if stop < 0 and ended is not None and ended.reason:
            return Damage(offset, f"the record is lost: {ended.reason}")
        what = "wrong Content-Length" if declared else "no Content-Length"
        if not body.endswith((b"\n\r\n", b"\n\n")):
            return Damage(offset, f"{what}, and the record is cut off")
        return Record(offset, headers, body.rstrip(b"\r\n"), f"{what}; read to the next record")

    def _pass_over(self, length: int) -> None:
        """Consume up to `length` bytes, but stop before the next version line."""
        segment = self._segment
        while length > 0 and segment.need(1):
            goes_on = segment.need(min(length, _COMPACT) + 2 * _LONGEST_NEXT)
            stop = segment.next_version(0)
            if 0 <= stop < length:
                segment.consume(stop)
                return
            size = min(length, segment.size - (_LONGEST_NEXT if goes_on else 0))
            segment.consume(size)
            length -= size

    def _seek(self) -> None:
        segment = self._segment
        while True:
            stop = segment.next_version(0)
            if stop >= 0:
                segment.consume(stop)
                return
            segment.consume(max(0, segment.size - _LONGEST_NEXT))
            if not segment.more():
                segment.consume(segment.size)
                return


def _parse(block: bytes) -> dict[str, str] | None:
    """Return the fields of a header, or None if a line is not a field."""
    headers: dict[str, str] = {}
    name = ""
    for line in block.decode("utf-8", "replace").split("\n"):
        line = line.removesuffix("\r")
        if not line:
            continue
        if line[0] in " \t" and name:
            headers[name] += " " + line.strip()
            continue
        field, colon, value = line.partition(":")
        if not colon or _FIELD.fullmatch(field) is None:
            return None
        name = field.lower()
        headers[name] = value.strip()
    return headers
