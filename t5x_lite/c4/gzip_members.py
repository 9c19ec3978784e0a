"""The bytes of a file that may be compressed, member by member, around what is damaged.

A file of Common Crawl is a row of gzip members, one for each record. Where one cannot be
decompressed its bytes before the damage are given, and reading goes on at the next header of a
member that can be found behind its own.

    for event in read_members(file):
        Start(offset)       a member, or a file that is not compressed, begins
        bytes               what is in it
        End("", ...)        it ended well; with a reason it did not

RFC 1952 is the format. Time is linear in the size of the file, whatever is in it: bytes are read
again after damage, but not more than `_READ_AGAIN` times the file.
"""

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
    """A file that is open for reading bytes, and seekable."""

    def read(self, size: int = ..., /) -> bytes: ...
    def seek(self, offset: int, whence: int = ..., /) -> int: ...


@dataclass(frozen=True, slots=True)
class Start:
    """A member begins.

    Attributes:
      offset: of its first byte in the file.
      plain: it is the whole of a file that is not compressed.
    """

    offset: int
    plain: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """A member ended.

    Attributes:
      reason: why it could not be read to its end; "" where it was.
      cut: the file ended first, so that the bytes that were given are right.
    """

    reason: str = ""
    cut: bool = False


Event = Start | End | bytes


class _Exhausted(Exception):
    """So much is damaged that reading around it would not end."""


class _File:
    """A file whose reading is counted."""

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
    """Gives a file's bytes, decompressed where it begins like gzip.

    Args:
      file: open for reading, and seekable.
      compressed: it is gzip by its name, whatever it begins with.

    Yields:
      Start, pieces of bytes, End, for each member.

    Raises:
      OSError: the file cannot be read.
    """
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
    """As `read_members`; `data` are the file's first bytes."""
    offset = 0
    while True:
        padded = len(data)
        data = data.lstrip(b"\0")  # what tapes and block devices put behind a member
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
    """One member.

    Attributes:
      end: how it ended, when its pieces are read.
      size: its compressed bytes, and `unused` what was read behind them, where it ended well.
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
        """What the failing call had decompressed already, and lost: the bytes after `produced`."""
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
    """What `data` gives before the byte that fails, by feeding it in ever smaller pieces."""
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
    """Where the next member begins that can be decompressed at all, from `offset` on."""
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
    """Where a member might begin, from `offset` on."""
    data, keep = b"", len(_HEADER)
    while True:
        file.seek(offset + len(data))
        chunk = file.read()
        if not chunk:
            return
        data += chunk
        at = data.find(_HEADER)
        while 0 <= at < len(data) - keep:
            if data[at + keep] < 0x20:  # the flags that are in use
                yield offset + at
            at = data.find(_HEADER, at + 1)
        offset += max(0, len(data) - keep)
        data = data[-keep:]
