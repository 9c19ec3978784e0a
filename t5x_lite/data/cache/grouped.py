"""Which examples of a stream make the next global batch, of one shape or of several.

    batches = Grouped(stream, data)             # data.batches is Bucketed
    made = batches.make(Position(), part=0, parts=1)
    batches.make(made.position, part=0, parts=1)        # the next one

With one shape a batch has the next rows. With several (`data.shapes`), examples are looked at in
their order, by their lengths alone where a row has one text, until the bucket of one is full; those
of other buckets wait, and their numbers are a part of the position. So a batch is a function of
(seed, position), the same in every process: all have the same shape at the same step.

When the negatives are those of another search (`data.refresh`), lengths change: `regrouped` sorts
the waiting examples into buckets again, in their order. A bucket may then hold more than a batch;
its first rows are the next batch.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from t5x_lite.data.cache.stream import WINDOW, Position, Stream
from t5x_lite.data.config import Data, lengths_of, shapes_of
from t5x_lite.data.shapes import bucket_of


@dataclass(frozen=True, kw_only=True)
class Made:
    """A process's part of a global batch.

    Attributes:
      batch: its rows.
      position: where the next batch begins.
      repeated: the caches of which the global batch has examples that were read before.
    """

    batch: dict[str, np.ndarray]
    position: Position
    repeated: set[int]


class OneShape:
    """Batches of the rows of a stream, one after the other.

    Attributes:
      stream: the rows.
    """

    def __init__(self, stream: Stream, *, batch_size: int):
        """Takes the rows and how many a global batch has."""
        self.stream, self._batch_size = stream, batch_size

    def epochs(self, position: Position) -> list[float]:
        """See `Stream.epochs`."""
        return self.stream.epochs(position)

    def repeated(self, position: Position) -> set[int]:
        """See `Stream.repeated`."""
        return self.stream.repeated(position)

    def make(self, position: Position, *, part: int, parts: int) -> Made | None:
        """The batch at a position; its last rows may be padding; None where no row is left.

        Args:
          position: where it begins.
          part: which part of its rows.
          parts: how many there are.
        """
        spans = self.stream.spans(position, self._batch_size)
        if not spans:
            return None
        share = self._batch_size // parts
        return Made(
            batch=self.stream.batch(spans, first=part * share, num_rows=share),
            position=spans[-1].after,
            repeated=set().union(*(span.repeated for span in spans)),
        )

    def regrouped(self, position: Position) -> Position:
        """Return the position itself: rows of one shape do not depend on their lengths."""
        return position


class Grouped:
    """Batches of a stream's examples, grouped by their lengths.

    Attributes:
      stream: the examples, one a row.
    """

    def __init__(self, stream: Stream, data: Data):
        """Takes the stream and the config that says the shapes."""
        self.stream = stream
        self._buckets = data.batches.buckets()
        self._lengths = [lengths_of(shape) for shape in shapes_of(data)]
        self._looked_at: tuple[int, Int[np.ndarray, " n"]] | None = None

    def epochs(self, position: Position) -> list[float]:
        """See `Stream.epochs`."""
        return self.stream.epochs(position)

    def repeated(self, position: Position) -> set[int]:
        """See `Stream.repeated`."""
        return self.stream.repeated(position)

    def make(self, position: Position, *, part: int, parts: int) -> Made | None:
        """See `OneShape.make`; where the examples end, each bucket's rest is a batch."""
        bucket, numbers, after = self._next(position)
        if not numbers:
            return None
        share = self._buckets[bucket][1] // parts
        own = np.array(numbers[part * share : (part + 1) * share], np.int64)
        return Made(
            batch=self.stream.rows(own, num_rows=share, lengths=self._lengths[bucket]),
            position=after,
            repeated=self.stream.repeated_of(np.array(numbers, np.int64)),
        )

    def regrouped(self, position: Position) -> Position:
        """Sort the waiting examples of a position into buckets by their lengths of now.

        Call it when `stream.negatives` changed. With the same negatives it returns an equal
        position.
        """
        self._looked_at = None
        numbers = np.array(sorted(n for bucket in position.waiting for n in bucket), np.int64)
        if not len(numbers):
            return position
        buckets = bucket_of(self.stream.longest_texts(numbers), self._buckets)
        waiting = (tuple(numbers[buckets == k].tolist()) for k in range(len(self._buckets)))
        return dataclasses.replace(position, waiting=tuple(waiting))

    def _next(self, position: Position) -> tuple[int, list[int], Position]:
        """The bucket and the examples of the next batch, and the position behind it."""
        waiting = [list(numbers) for numbers in position.waiting] or [[] for _ in self._buckets]
        window, first = position.window, position.row
        for bucket, (_, rows) in enumerate(self._buckets):
            if len(waiting[bucket]) >= rows:  # after `regrouped`
                return self._taken(waiting, bucket, (window, first))
        while len(buckets := self._buckets_of(window)):
            for place in range(first, len(buckets)):
                bucket = int(buckets[place])
                waiting[bucket].append(window * WINDOW + place)
                if len(waiting[bucket]) == self._buckets[bucket][1]:
                    at_end = place + 1 == len(buckets)
                    where = (window + 1, 0) if at_end else (window, place + 1)
                    return self._taken(waiting, bucket, where)
            window, first = window + 1, 0
        bucket = next((k for k, numbers in enumerate(waiting) if numbers), 0)
        return self._taken(waiting, bucket, (window, 0))

    def _taken(
        self, waiting: list[list[int]], bucket: int, where: tuple[int, int]
    ) -> tuple[int, list[int], Position]:
        rows = self._buckets[bucket][1]
        taken, rest = waiting[bucket][:rows], waiting[bucket][rows:]
        left = [tuple(rest if k == bucket else numbers) for k, numbers in enumerate(waiting)]
        return bucket, taken, Position(*where, tuple(left))

    def share_of_batches(self, window: int) -> float:
        """The batches that the examples of a window fill, as fractions of their buckets' rows."""
        counts = np.bincount(self._buckets_of(window), minlength=len(self._buckets))
        rows = [rows for _, rows in self._buckets]
        return float(sum(count / size for count, size in zip(counts, rows, strict=True)))

    def _buckets_of(self, window: int) -> Int[np.ndarray, " n"]:
        """The bucket of each example of a window; none behind the end."""
        if self._looked_at is None or self._looked_at[0] != window:
            size = len(self.stream.window(window).sources)
            lengths = self.stream.longest_texts(window * WINDOW + np.arange(size))
            self._looked_at = window, bucket_of(lengths, self._buckets)
        return self._looked_at[1]
