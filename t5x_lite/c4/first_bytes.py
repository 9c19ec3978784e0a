"""Which of many entries may stand at the words of a text: one table lookup for each place.

Text and entries are bytes of UTF-8, *normalized*: letters of ASCII in lower case, digits and "_" as
they are, all else a space, those of characters beyond ASCII too.

    FirstBytes(["bad day"]).candidates("A BAD-day, badly.".encode()) == ["bad day"]

An entry is known by the space before it and its next five bytes, the space behind it among them:
" bad d", and of the short "bad" all that may follow " bad ". The table holds a bit for a hash of
those six bytes; the few places that pass it and begin no entry are compared. Entries of one byte
are looked for one by one.
"""

import itertools
from collections.abc import Iterable

import numpy as np

_SPACE = ord(" ")
_KEY = 6
_PREFIX = 3
"""Bytes by which patterns are found again: of the shortest in the table, with the space behind."""
_ALPHABET = b" 0123456789_abcdefghijklmnopqrstuvwxyz"
_NORMAL = bytes(
    code if code in _ALPHABET else _SPACE
    for code in (ord(chr(byte).lower()) if byte < 128 else byte for byte in range(256))
)
_BITS = 19
_UNUSED_BITS = np.uint64(64 - 8 * _KEY)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Knuth's multiplicative hash: the golden ratio in 64 bits."""
_SHIFT = np.uint64(64 - _BITS)


class FirstBytes:
    """A table of entries.

    Args:
      entries: ASCII, as they are; normalized here.
    """

    def __init__(self, entries: Iterable[str]):
        self._short: list[tuple[bytes, str]] = []
        found: dict[bytes, list[tuple[bytes, str]]] = {}
        keys = [bytes(8)]
        for entry in entries:
            pattern = entry.encode().translate(_NORMAL) + b" "
            if len(pattern) < _PREFIX:
                self._short.append((b" " + pattern, entry))
                continue
            found.setdefault(pattern[:_PREFIX], []).append((pattern, entry))
            key = b" " + pattern[: _KEY - 1]
            rest = itertools.product(_ALPHABET, repeat=_KEY - len(key))
            keys += [(key + bytes(more)).ljust(8, b"\0") for more in rest]
        self._entries = found
        self._patterns = {
            prefix: tuple(pattern for pattern, _ in group) for prefix, group in found.items()
        }
        self._table = np.zeros(1 << _BITS, bool)
        self._table[_hash(np.frombuffer(b"".join(keys), "<u8"))] = True

    def candidates(self, text: bytes) -> list[str]:
        """Entries whose normalized form the normalized text contains between spaces.

        Args:
          text: UTF-8; the ends of the text are spaces too.
        """
        normal = b" " + text.translate(_NORMAL) + b"        "
        found = [entry for pattern, entry in self._short if pattern in normal]
        windows = np.ndarray((len(normal) - 8,), "<u8", normal, strides=(1,))
        for place in self._table.take(_hash(windows)).nonzero()[0].tolist():
            if normal[place] != _SPACE:
                continue
            start = place + 1
            prefix = normal[start : start + _PREFIX]
            patterns = self._patterns.get(prefix)
            if patterns and normal.startswith(patterns, start):
                found += [
                    entry
                    for pattern, entry in self._entries[prefix]
                    if normal.startswith(pattern, start)
                ]
        return found


def _hash(windows: np.ndarray) -> np.ndarray:
    """A place in the table for the first bytes of each window, as numpy's own type of an index."""
    hashes = windows << _UNUSED_BITS
    hashes *= _FACTOR
    hashes >>= _SHIFT
    return hashes.view(np.int64)
