"""Reader of ArrayRecord files by byte ranges, for caches of version 0.1; to be removed in 0.2.0.

    examples = ArrayRecords(shards, counts, lengths=lengths, dtype=dtype)
    examples.read(np.array([5, 0]))

    start, end = footer_range(size, last)                   # last: the last 64 KiB of the file
    starts = record_starts(footer, start, examples=n)       # int64 [n + 1]; footer: [start, end)
    chunks = [plain_chunk(content, at) ...]     # content: [starts[i], starts[i + 1]), at: starts[i]
    records(chunks, sizes)                      # the records, decompressed, their hashes compared

A file with one record per group is a sequence of Riegeli chunks of one record each. A footer, the
second-to-last chunk, has the positions of the records. The last chunk, 64 KiB before the end, has
the position of the footer (array_record/cpp/layout.proto,
riegeli/records/riegeli_records_file_format.md). Every 64 KiB, a block header of 24 bytes interrupts
the file.

Riegeli's checksum is HighwayHash-64, computed in NumPy for many byte strings at a time:

    highway_hash([b"one", b"another"], RIEGELI_KEY)     # uint64 [2]

Source: Alakuijala, Cox and Wassenberg 2016 (arXiv:1612.06257), and its highwayhash/portable code.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, UInt32, UInt64

from t5x_lite.core.errors import InputError, install_command

RIEGELI_KEY = struct.unpack("<4Q", b"Riegeli/records\n" * 2)
"""Hash key of Riegeli's chunks (riegeli/chunk_encoding/hash.cc)."""

_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_ZIPPED = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7])
"""Source index of each byte when two 64-bit lanes of the hash state are mixed."""
_PACKET = 32
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 4

_Lanes = UInt64[np.ndarray, "n 4"]


def highway_hash(texts: Sequence[bytes], key: Sequence[int]) -> UInt64[np.ndarray, " n"]:
    """Return the HighwayHash-64 of each byte string."""
    if not texts:
        return np.zeros(0, np.uint64)
    places = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    wholes = np.array([len(texts[place]) // _PACKET for place in places])
    packets = np.zeros((len(texts), int(wholes[0]) * _PACKET), np.uint8)
    for row, place in enumerate(places):
        size = int(wholes[row]) * _PACKET
        packets[row, :size] = np.frombuffer(texts[place], np.uint8, size)
    lanes = packets.view("<u8").astype(np.uint64)
    state = _State(len(texts), key)
    for number in range(int(wholes[0])):
        count = int(np.searchsorted(-wholes, -number))  # the longest come first
        state.update(slice(count), lanes[:count, 4 * number : 4 * number + 4])
    rests = {
        row: rest
        for row, place in enumerate(places)
        if (rest := texts[place][int(wholes[row]) * _PACKET :])
    }
    if rests:
        state.add_rests(np.array([*rests]), [*rests.values()])
    found = np.zeros(len(texts), np.uint64)
    found[places] = state.digest()
    return found


class _State:
    """State of the HighwayHash computation for several strings at once."""

    def __init__(self, count: int, key: Sequence[int]):
        keys = np.array(key, np.uint64)
        mul0, mul1 = np.array(_MUL0, np.uint64), np.array(_MUL1, np.uint64)
        halves = (keys >> _HALF) | (keys << _HALF)
        starts = (mul0 ^ keys, mul1 ^ halves, mul0, mul1)
        self._v0, self._v1, self._mul0, self._mul1 = (np.tile(one, (count, 1)) for one in starts)

    def update(self, rows: slice | np.ndarray, lanes: _Lanes) -> None:
        v0, v1, mul0, mul1 = self._v0[rows], self._v1[rows], self._mul0[rows], self._mul1[rows]
        v1 = v1 + mul0 + lanes
        mul0 = mul0 ^ ((v1 & _LOW) * (v0 >> _HALF))
        v0 = v0 + mul1
        mul1 = mul1 ^ ((v0 & _LOW) * (v1 >> _HALF))
        v0 = v0 + _zipped(v1)
        v1 = v1 + _zipped(v0)
        self._v0[rows], self._v1[rows], self._mul0[rows], self._mul1[rows] = v0, v1, mul0, mul1

    def add_rests(self, rows: np.ndarray, rests: Sequence[bytes]) -> None:
        sizes = np.array([len(rest) for rest in rests], np.uint64)[:, None]
        self._v0[rows] += (sizes << _HALF) + sizes
        low, high = self._v1[rows] & _LOW, self._v1[rows] >> _HALF
        low, high = (((n << sizes) | (n >> (_HALF - sizes))) & _LOW for n in (low, high))
        self._v1[rows] = low | (high << _HALF)
        packets = np.frombuffer(b"".join(map(_last_packet, rests)), "<u8").astype(np.uint64)
        self.update(rows, packets.reshape(len(rests), 4))

    def digest(self) -> UInt64[np.ndarray, " n"]:
        for _ in range(_ROUNDS):
            turned = self._v0[:, [2, 3, 0, 1]]
            self.update(slice(None), (turned >> _HALF) | (turned << _HALF))
        return self._v0[:, 0] + self._v1[:, 0] + self._mul0[:, 0] + self._mul1[:, 0]


def _zipped(lanes: _Lanes) -> _Lanes:
    mixed = lanes.astype("<u8").view(np.uint8).reshape(-1, 2, 16)[..., _ZIPPED]
    return np.ascontiguousarray(mixed).reshape(-1, _PACKET).view("<u8").astype(np.uint64)


def _last_packet(rest: bytes) -> bytes:
    """Return the 32-byte packet that HighwayHash makes of the last 1 to 31 bytes."""
    size = len(rest)
    packet = bytearray(_PACKET)
    packet[: size & ~3] = rest[: size & ~3]
    last = rest[size & ~3 :]
    if size & 16:
        packet[28:] = rest[-4:]
    elif last:
        packet[16:19] = bytes([last[0], last[len(last) >> 1], last[-1]])
    return bytes(packet)


@runtime_checkable
class Shards(Protocol):
    """Protocol of a list of files that are read by byte ranges."""

    sizes: list[int]

    def read(
        self, shards: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> list[bytes]:
        """Return the bytes [start, end) of each of the given files."""
        ...


class ArrayRecords:
    """Random access to the records of ArrayRecord files.

    A record contains the tokens of one example. Record offsets are read at a file's first use.

    Args:
      shards: the ArrayRecord files.
      counts: number of records of each file.
      lengths: number of tokens of each feature in each record, uint32 [records, features].
      starts: buffer that stores the start of each record and the end of each file's last record,
        int64 [records + files].
      dtype: dtype of the tokens.
    """

    def __init__(
        self,
        shards: Shards,
        counts: Sequence[int],
        *,
        lengths: UInt32[np.ndarray, "n F"],
        starts: Int[np.ndarray, " _"],
        dtype: np.dtype,
    ):
        self._shards, self._counts, self._lengths, self._dtype = shards, counts, lengths, dtype
        self._before = np.append(0, np.cumsum(counts)).astype(np.int64)
        self._opened = np.zeros(len(counts), bool)
        self._starts = starts

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """Return the number of tokens of each feature in each given record."""
        return self._lengths[indices].astype(np.int64)

    def read(self, indices: Int[np.ndarray, " n"]) -> tuple[list[bytes], Int[np.ndarray, "n F"]]:
        """Return the bytes of the given records, and the number of tokens of each feature.

        Raises:
          ValueError: if a record is damaged.
          OSError: if a shard cannot be read.
        """
        shards = np.searchsorted(self._before, indices, side="right") - 1
        self._open(np.unique(shards))
        places = indices + shards  # each shard has one start more than it has records
        starts, ends = self._starts[places].tolist(), self._starts[places + 1].tolist()
        contents = self._shards.read(shards.tolist(), starts, ends)
        chunks = [
            plain_chunk(content, start) for content, start in zip(contents, starts, strict=True)
        ]
        counts = self.counts(indices)
        return records(chunks, (counts.sum(axis=1) * self._dtype.itemsize).tolist()), counts

    def _open(self, shards: Int[np.ndarray, " n"]) -> None:
        new = shards[~self._opened[shards]].tolist()
        for first in range(0, len(new), _SHARDS_AT_A_TIME):
            some = new[first : first + _SHARDS_AT_A_TIME]
            sizes = [self._shards.sizes[shard] for shard in some]
            begins = [max(0, size - LAST_BYTES) for size in sizes]
            lasts = self._shards.read(some, begins, sizes)
            places = [footer_range(*pair) for pair in zip(sizes, lasts, strict=True)]
            footers = self._shards.read(some, *zip(*places, strict=True))
            for shard, footer, (start, _) in zip(some, footers, places, strict=True):
                count = self._counts[shard]
                place = int(self._before[shard]) + shard
                self._starts[place : place + count + 1] = record_starts(
                    footer, start, examples=count
                )
                self._opened[shard] = True


_SHARDS_AT_A_TIME = 16

LAST_BYTES = 1 << 16
"""Number of bytes at the end of a file that contain the position of its footer."""
_BLOCK, _BLOCK_HEADER = 1 << 16, 24
_HEADER = struct.Struct("<QQQQQ")
_MAGIC = 0x71930E704FDAE05E
_SIMPLE = ord("r")
_OFFSET_TAG = 0x08
_PLAIN, _ZSTD = 0, ord("z")
_FOOTER_BYTES_A_RECORD = 64
"""Upper bound of the size of one entry of the footer, in bytes."""
_MOST_SIZES = 1 << 16


def footer_range(size: int, last: bytes) -> tuple[int, int]:
    """Return the byte range of a file's footer, given the file's size and its last 64 KiB."""
    if size < 2 * LAST_BYTES or size % LAST_BYTES:
        raise ValueError("the file is not an ArrayRecord file")
    chunk = plain_chunk(last, size - LAST_BYTES, is_first=True)
    [(sizes, values)] = _decoded([chunk], most=LAST_BYTES)
    start, magic = _fields(values[: int(_numbers(sizes)[0])], (1, 2))
    if magic != _MAGIC or not 0 < start < size - LAST_BYTES:
        raise ValueError("the file is not an ArrayRecord file")
    return start, size - LAST_BYTES


def record_starts(footer: bytes, start: int, *, examples: int) -> Int[np.ndarray, " n"]:
    """Return the byte offset of each record of an ArrayRecord file, and the last record's end."""
    most = _FOOTER_BYTES_A_RECORD * (examples + 2)
    [(sizes, values)] = _decoded([plain_chunk(footer, start, is_first=True)], most=most)
    ends = np.cumsum(_numbers(sizes))
    if len(ends) != examples + 1 or len(values) != ends[-1]:
        raise ValueError(
            f"the ArrayRecord file has {len(ends) - 1} record groups, but should have {examples}"
        )
    entries, first = np.frombuffer(values + bytes(10), np.uint8), ends[:-1]
    if (entries[first] != _OFFSET_TAG).any():
        raise ValueError("the footer of the ArrayRecord file is invalid")
    starts = np.append(_numbers_at(entries, first + 1), start)
    if starts[0] < 0 or (np.diff(starts) < _HEADER.size).any():
        raise ValueError("the footer of the ArrayRecord file is invalid")
    return starts


def plain_chunk(content: bytes, start: int, *, is_first: bool = False) -> bytes:
    """Return a chunk of an ArrayRecord file without the file's block headers."""
    parts, place, end = [], 0, len(content)
    while place < end:
        if (start + place) % _BLOCK == 0:
            place += _BLOCK_HEADER
        stop = min(end, place + _BLOCK - (start + place) % _BLOCK)
        parts.append(content[place:stop])
        place = stop
    chunk = b"".join(parts)
    if len(chunk) < _HEADER.size:
        raise ValueError("a record of the ArrayRecord file is truncated")
    size = _HEADER.size + _HEADER.unpack_from(chunk)[1]
    if len(chunk) < size or (len(chunk) > size and not is_first):
        raise ValueError("the length of an ArrayRecord record differs from the expected length")
    return chunk[:size]


def records(chunks: Sequence[bytes], sizes: Sequence[int]) -> list[bytes]:
    """Decompress chunks that contain one record each, and check the sizes of the records."""
    found = []
    for (numbers, values), size in zip(
        _decoded(chunks, most=max(sizes, default=0)), sizes, strict=True
    ):
        if len(values) != size or _numbers(numbers).tolist() != [size]:
            raise ValueError("the length of an ArrayRecord record differs from the expected length")
        found.append(values)
    return found


def _decoded(chunks: Sequence[bytes], *, most: int) -> list[tuple[bytes, bytes]]:
    """Decompress chunks, check their hashes, and return their record sizes and records."""
    headers = [_HEADER.unpack_from(chunk) for chunk in chunks]
    said = [number for header in headers for number in (header[0], header[2])]
    parts = [p for c in chunks for p in (c[8 : _HEADER.size], c[_HEADER.size :])]
    if highway_hash(parts, RIEGELI_KEY).tolist() != said:
        raise ValueError("a record of the ArrayRecord file is damaged")
    if any(header[3] & 0xFF != _SIMPLE for header in headers):
        raise ValueError("an ArrayRecord record has an unsupported chunk type")
    decompress = _decompressor()
    found = []
    for chunk in chunks:
        place = _HEADER.size + 1
        size, place = _number(chunk, place)
        kind, parts = chunk[_HEADER.size], (chunk[place : place + size], chunk[place + size :])
        limits = (max(_MOST_SIZES, most), most)
        sizes, values = (decompress(kind, *pair) for pair in zip(parts, limits, strict=True))
        found.append((sizes, values))
    return found


def _decompressor() -> Callable[[int, bytes, int], bytes]:
    """Return a function: (compression type, bytes, maximum size) -> decompressed bytes."""
    try:
        import zstandard
    except ImportError as error:
        raise InputError(
            "a cache of t5x-lite 0.1 requires the package zstandard, which is missing: "
            f"{install_command('zst')}"
        ) from error
    made: Any = zstandard.ZstdDecompressor()

    def decompress(kind: int, part: bytes, most: int) -> bytes:
        if kind == _PLAIN:
            return part
        if kind != _ZSTD:
            raise ValueError("an ArrayRecord record has an unsupported compression type")
        size, place = _number(part, 0)
        if size > most:
            raise ValueError("the length of an ArrayRecord record differs from the expected length")
        if not size:
            return b""
        try:
            found = made.decompress(part[place:], max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(f"a record of the ArrayRecord file is damaged ({error})") from error
        if len(found) != size:
            raise ValueError("the length of an ArrayRecord record differs from the expected length")
        return found

    return decompress


# Numbers of seven bits a byte, as Protocol Buffers write them.


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Return the varint at an offset, and the offset after the varint."""
    found = shift = 0
    while True:
        if place >= len(content) or shift > 63:
            raise ValueError("an integer in the ArrayRecord file is truncated")
        found |= (content[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if content[place - 1] < 0x80:
            return found, place


def _fields(message: bytes, wanted: Sequence[int]) -> list[int]:
    """Return the fields with the given numbers from a Protocol Buffers message; -1 if missing."""
    found, place = {}, 0
    while place < len(message):
        tag, place = _number(message, place)
        if tag & 7 == 1:
            found[tag >> 3] = int.from_bytes(message[place : place + 8], "little")
            place += 8
        elif tag & 7 == 0:
            found[tag >> 3], place = _number(message, place)
        else:
            raise ValueError("a metadata field of the ArrayRecord file is not an integer")
    return [found.get(field, -1) for field in wanted]


def _numbers(content: bytes) -> Int[np.ndarray, " n"]:
    """Return all varints of a byte string."""
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) < 0x80)
    starts = np.append(0, ends + 1)[: len(ends)]
    return _numbers_at(np.frombuffer(content + bytes(10), np.uint8), starts)


def _numbers_at(content: np.ndarray, starts: np.ndarray) -> Int[np.ndarray, " n"]:
    found = np.zeros(len(starts), np.int64)
    goes_on = np.ones(len(starts), bool)
    for byte in range(9):
        values = content[starts + byte].astype(np.int64)
        found[goes_on] |= (values[goes_on] & 0x7F) << (7 * byte)
        goes_on &= values >= 0x80
    return found
