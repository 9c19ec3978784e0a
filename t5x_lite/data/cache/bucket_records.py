"""The records of a split whose cache is in a bucket, by the ranges of bytes that hold them.

    records = BucketRecords(directory, shards, sizes)
    records.__getitems__([5, 0, 1234])      # as of grain's ArrayRecordDataSource

Where a shard's records begin is read from its end when one of them is asked for first, and then
stands in a temporary file, as do the lengths: 8 bytes an example, and 4 for each feature. Of the
shards nothing else is held, but where all of them are small: splits whose shards have no more than
`HELD_BYTES` together are read by blocks, each of which is read once and held in memory.
"""

import hashlib
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Int

from t5x_lite.buckets.objects import Range, read_ranges
from t5x_lite.buckets.paths import BucketPath
from t5x_lite.records import ranged_records

HELD_BYTES = 1 << 28
"""Of shards, held in memory by a process, of all splits that it reads together."""
BLOCK_BYTES = 1 << 18
"""Of a shard that is held: what is read at a time."""
_SHARDS_AT_A_TIME = 16
_COPIED_AT_A_TIME = 1 << 20
_held = [0]


class BucketRecords:
    """Random access to the records of shards."""

    def __init__(
        self,
        directory: BucketPath,
        shards: Sequence[tuple[str, int, int]],
        sizes: Callable[[Int[np.ndarray, " n"]], Int[np.ndarray, " n"]],
    ):
        """Reads nothing.

        Args:
          directory: the cache's.
          shards: name, bytes and examples of each, in order.
          sizes: gives the bytes of some records, by their numbers.
        """
        self._urls = [str(directory / name) for name, _, _ in shards]
        self._bytes = [size for _, size, _ in shards]
        self._counts = [count for _, _, count in shards]
        self._sizes = sizes
        self._before = np.append(0, np.cumsum(self._counts)).astype(np.int64)
        self._opened = np.zeros(len(shards), bool)
        self._starts = _on_disk(np.dtype(np.int64), (int(self._before[-1]) + len(shards),))
        self._blocks: dict[tuple[int, int], bytes] | None = None
        total = sum(self._bytes)
        if _held[0] + total <= HELD_BYTES:
            self._blocks = {}
            _held[0] += total
            weakref.finalize(self, _let_go, total)

    def __getitems__(self, wanted: Sequence[int]) -> list[bytes]:
        """Some records, by their numbers.

        Raises:
          ValueError: a shard is damaged.
          OSError, InputError, BucketError: a shard cannot be read.
        """
        numbers = np.asarray(wanted, np.int64)
        shards = np.searchsorted(self._before, numbers, side="right") - 1
        self._open(np.unique(shards))
        places = numbers + shards  # each shard has one start more than it has records
        starts, ends = self._starts[places].tolist(), self._starts[places + 1].tolist()
        contents = self._read([*zip(shards.tolist(), starts, ends, strict=True)])
        chunks = [
            ranged_records.plain_chunk(content, start)
            for content, start in zip(contents, starts, strict=True)
        ]
        return ranged_records.records(chunks, self._sizes(numbers).tolist())

    def _open(self, shards: Int[np.ndarray, " n"]) -> None:
        """Reads where the records of shards begin, of those that were not read yet."""
        new = shards[~self._opened[shards]].tolist()
        for first in range(0, len(new), _SHARDS_AT_A_TIME):
            some = new[first : first + _SHARDS_AT_A_TIME]
            sizes = [self._bytes[shard] for shard in some]
            begins = [max(0, size - ranged_records.LAST_BYTES) for size in sizes]
            lasts = self._ranges(some, begins, sizes)
            places = [ranged_records.footer_range(*pair) for pair in zip(sizes, lasts, strict=True)]
            footers = self._ranges(some, *zip(*places, strict=True))
            for shard, footer, (start, _) in zip(some, footers, places, strict=True):
                count = self._counts[shard]
                found = ranged_records.record_starts(footer, start, examples=count)
                place = int(self._before[shard]) + shard
                self._starts[place : place + count + 1] = found
                self._opened[shard] = True

    def _ranges(
        self, shards: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> list[bytes]:
        places = zip(shards, starts, ends, strict=True)
        return read_ranges([Range(self._urls[shard], start, end) for shard, start, end in places])

    def _read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Bytes [start, end) of shards, each (shard, start, end)."""
        if self._blocks is None:
            return self._ranges(*zip(*ranges, strict=True))
        held = self._blocks
        wanted = {block for one in ranges for block in _blocks_of(*one)}
        new = sorted(wanted - held.keys())
        starts = [number * BLOCK_BYTES for _, number in new]
        ends = [
            min(start + BLOCK_BYTES, self._bytes[shard])
            for (shard, _), start in zip(new, starts, strict=True)
        ]
        found = self._ranges([shard for shard, _ in new], starts, ends)
        held.update(zip(new, found, strict=True))
        contents = []
        for shard, start, end in ranges:
            content = b"".join(held[block] for block in _blocks_of(shard, start, end))
            offset = start % BLOCK_BYTES
            contents.append(content[offset : offset + end - start])
        return contents


def _blocks_of(shard: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    return ((shard, number) for number in range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES)))


def _let_go(total: int) -> None:
    _held[0] -= total


def _on_disk(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array of zeros in a temporary file, which goes with it."""
    if not all(shape):
        return np.zeros(shape, dtype)
    with tempfile.TemporaryFile(prefix="t5x_lite_") as file:
        return np.memmap(file, dtype, mode="w+", shape=shape)


def copied_array(
    path: BucketPath, dtype: np.dtype, shape: tuple[int, ...]
) -> tuple[np.ndarray, str]:
    """An array that is an object of a bucket, from a copy in a temporary file.

    Args:
      path: of the object, which has as many bytes as the array.
      dtype: its numbers'.
      shape: the array's.

    Returns:
      The array, and the object's SHA-256 in hex.

    Raises:
      OSError, InputError, BucketError: it cannot be read.
    """
    array, digest, place = _on_disk(dtype, shape), hashlib.sha256(), 0
    flat = array.reshape(-1).view(np.uint8)
    with path.open() as file:
        while place < len(flat) and (content := file.read(_COPIED_AT_A_TIME)):
            content = content[: len(flat) - place]
            flat[place : place + len(content)] = np.frombuffer(content, np.uint8)
            digest.update(content)
            place += len(content)
    return array, digest.hexdigest()
