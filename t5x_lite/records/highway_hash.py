"""HighwayHash-64 of many byte strings at a time, in NumPy: the checksum of Riegeli's files.

    highway_hash([b"one", b"another"], RIEGELI_KEY)     # uint64 [2]

Source: Alakuijala, Cox and Wassenberg 2016 (arXiv:1612.06257), and its highwayhash/portable code.
"""

import struct
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt64

RIEGELI_KEY = struct.unpack("<4Q", b"Riegeli/records\n" * 2)
"""The key of Riegeli's chunks (riegeli/chunk_encoding/hash.cc)."""

_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_ZIPPED = np.array([3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7])
"""Where the bytes of two lanes come from."""
_PACKET = 32
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 4

_Lanes = UInt64[np.ndarray, "n 4"]


def highway_hash(texts: Sequence[bytes], key: Sequence[int]) -> UInt64[np.ndarray, " n"]:
    """The hashes of byte strings.

    Args:
      texts: any; those of like length take the least time.
      key: four numbers of 64 bits.
    """
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
    """The state of each string: four lanes each of two values and two multipliers."""

    def __init__(self, count: int, key: Sequence[int]):
        keys = np.array(key, np.uint64)
        mul0, mul1 = np.array(_MUL0, np.uint64), np.array(_MUL1, np.uint64)
        halves = (keys >> _HALF) | (keys << _HALF)
        starts = (mul0 ^ keys, mul1 ^ halves, mul0, mul1)
        self._v0, self._v1, self._mul0, self._mul1 = (np.tile(one, (count, 1)) for one in starts)

    def update(self, rows: slice | np.ndarray, lanes: _Lanes) -> None:
        """Takes a packet of each of some rows."""
        v0, v1, mul0, mul1 = self._v0[rows], self._v1[rows], self._mul0[rows], self._mul1[rows]
        v1 = v1 + mul0 + lanes
        mul0 = mul0 ^ ((v1 & _LOW) * (v0 >> _HALF))
        v0 = v0 + mul1
        mul1 = mul1 ^ ((v0 & _LOW) * (v1 >> _HALF))
        v0 = v0 + _zipped(v1)
        v1 = v1 + _zipped(v0)
        self._v0[rows], self._v1[rows], self._mul0[rows], self._mul1[rows] = v0, v1, mul0, mul1

    def add_rests(self, rows: np.ndarray, rests: Sequence[bytes]) -> None:
        """Takes the last bytes, fewer than a packet, of some rows."""
        sizes = np.array([len(rest) for rest in rests], np.uint64)[:, None]
        self._v0[rows] += (sizes << _HALF) + sizes
        low, high = self._v1[rows] & _LOW, self._v1[rows] >> _HALF
        low, high = (((n << sizes) | (n >> (_HALF - sizes))) & _LOW for n in (low, high))
        self._v1[rows] = low | (high << _HALF)
        packets = np.frombuffer(b"".join(map(_last_packet, rests)), "<u8").astype(np.uint64)
        self.update(rows, packets.reshape(len(rests), 4))

    def digest(self) -> UInt64[np.ndarray, " n"]:
        """The hashes."""
        for _ in range(_ROUNDS):
            turned = self._v0[:, [2, 3, 0, 1]]
            self.update(slice(None), (turned >> _HALF) | (turned << _HALF))
        return self._v0[:, 0] + self._v1[:, 0] + self._mul0[:, 0] + self._mul1[:, 0]


def _zipped(lanes: _Lanes) -> _Lanes:
    """Lanes with the bytes of each two of them mixed."""
    mixed = lanes.astype("<u8").view(np.uint8).reshape(-1, 2, 16)[..., _ZIPPED]
    return np.ascontiguousarray(mixed).reshape(-1, _PACKET).view("<u8").astype(np.uint64)


def _last_packet(rest: bytes) -> bytes:
    """A packet of 1 to 31 bytes."""
    size = len(rest)
    packet = bytearray(_PACKET)
    packet[: size & ~3] = rest[: size & ~3]
    last = rest[size & ~3 :]
    if size & 16:
        packet[28:] = rest[-4:]
    elif last:
        packet[16:19] = bytes([last[0], last[len(last) >> 1], last[-1]])
    return bytes(packet)
