"""Batches of one length and one cache, in an order that is worked out for each epoch.

    batches = Scheduled(stream, data)           # data.batches is shapes.Scheduled
    made = batches.make(Position(), part=0, parts=1)
    batches.make(made.position, part=0, parts=1)        # the next one

A group is the examples of one cache that go to one bucket of `data.shapes`. Epoch e has n // B
batches of a group of n examples and B rows; all batches of all groups come in one order that (seed,
e) permutes, and batch k of a group has the places [k B, (k + 1) B) of the order that (seed, e,
group) gives its examples. The rest of a group, fewer than B, is not seen in that epoch. So a batch
is a function of (seed, epoch, number): a position is these two numbers, each process works out the
same, and at each step all devices have the same shape.

Source: Chen et al. 2024 (BGE-M3), "Efficient Batching". In its code (research/BGE_M3/data.py) a
group's rest is a smaller batch, and the order of files, and so of batches, differs between hosts.
"""

import logging
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Int

from t5x_lite.data import shapes
from t5x_lite.data.cache.grouped import Made
from t5x_lite.data.cache.stream import Position, Stream
from t5x_lite.data.config import Data, lengths_of, shapes_of
from t5x_lite.data.permutation import order
from t5x_lite.data.shapes import bucket_of
from t5x_lite.errors import InputError

_GROUP_SEED = 1 << 40
"""Equal places of two groups of a cache have different examples."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Examples that make batches together.

    Attributes:
      source: the number of their cache.
      bucket: the number of their shape.
      rows: of a batch.
      members: their places in the cache, rising.
      repeats: how often the group comes in an epoch.
    """

    source: int
    bucket: int
    rows: int
    members: Int[np.ndarray, " n"]
    repeats: Fraction

    @property
    def full(self) -> int:
        """Batches that have all rows."""
        return len(self.members) // self.rows

    def before(self, epoch: int) -> int:
        """Batches of the group in all epochs before one."""
        return int(epoch * self.repeats * self.full)


class Scheduled:
    """Batches of groups, at any position.

    Attributes:
      stream: the examples.
      groups: those that have a batch.
    """

    def __init__(self, stream: Stream, data: Data, *, seed: int, natural: bool = True):
        """Sorts the examples of all caches into groups.

        Args:
          stream: the examples.
          data: the config, whose batches are `shapes.Scheduled`.
          seed: of all orders.
          natural: whether an epoch has each example once, or caches at the rates of the stream.

        Raises:
          InputError: no group has a whole batch, or lengths depend on the epoch.
        """
        assert isinstance(data.batches, shapes.Scheduled)
        self.stream, self._seed, self._shuffle = stream, seed, data.shuffle
        self._rule, self._buckets = data.batches, data.batches.buckets()
        self._lengths = [lengths_of(shape) for shape in shapes_of(data)]
        total = sum(source.size for source in stream.sources)
        self.groups: list[Group] = []
        self._padding = np.zeros(3, np.int64)
        for k, source in enumerate(stream.sources):
            repeats = Fraction(1) if natural else source.rate * total / source.size
            self.groups += self._groups_of(k, repeats)
        if not self.groups:
            raise InputError(
                "no group of examples fills a batch: take fewer rows in data.batches, or set "
                f"--data.batches.small above {max(rows for _, rows in self._buckets)}"
            )

    def make(self, position: Position, *, part: int, parts: int) -> Made | None:
        """See `grouped.OneShape.make`; a position's window is the epoch, its row the number."""
        epoch, number = position.window, position.row
        starts = self._starts(epoch)
        while not starts[-1]:
            epoch, number = epoch + 1, 0
            starts = self._starts(epoch)
        place = self._permuted(np.array([number]), epoch, size=int(starts[-1]), seed=self._seed)[0]
        which = int(np.searchsorted(starts, place, side="right")) - 1
        group = self.groups[which]
        passes, batch = divmod(group.before(epoch) + int(place - starts[which]), group.full)
        places = np.arange(batch * group.rows, (batch + 1) * group.rows)
        seed = self.stream.seed_of(group.source) + _GROUP_SEED * (1 + group.bucket)
        chosen = self._permuted(places, passes, size=len(group.members), seed=seed)
        share = group.rows // parts
        own = group.members[chosen[part * share : (part + 1) * share]]
        is_last = number + 1 == starts[-1]
        return Made(
            batch=self.stream.rows_of(
                group.source,
                own.astype(np.int64),
                epoch=passes,
                num_rows=share,
                lengths=self._lengths[group.bucket],
            ),
            position=Position(epoch + 1, 0) if is_last else Position(epoch, number + 1),
            repeated={group.source} if passes else set(),
        )

    def regrouped(self, position: Position) -> Position:
        """Return the position itself; `data.refresh` is not used with this schedule."""
        return position

    def epochs(self, position: Position) -> list[float]:
        """How often each cache was read before a position, about: its share of the epoch."""
        share = position.row / max(1, int(self._starts(position.window)[-1]))
        repeats = {group.source: group.repeats for group in self.groups}
        sources = range(len(self.stream.sources))
        return [float(repeats.get(k, Fraction(0))) * (position.window + share) for k in sources]

    def repeated(self, position: Position) -> set[int]:
        """The caches of which examples were read again before a position, in whole epochs."""
        return {group.source for group in self.groups if group.before(position.window) > group.full}

    def report(self) -> list[str]:
        """Lines about batches and padding, and about what is merged or dropped."""
        lines = []
        for group in self.groups:
            where = self.stream.sources[group.source].cache.directory
            length = self._buckets[group.bucket][0]
            lines.append(
                f"{where}: {len(group.members)} examples of at most {length} tokens, "
                f"{group.full} batches of {group.rows} rows an epoch"
            )
        tokens, grouped, alone = self._padding.tolist()
        lines.append(
            f"padding of the longest texts: {1 - tokens / max(1, grouped):.1%} of the tokens, and "
            f"{1 - tokens / max(1, alone):.1%} in rows of {self._buckets[-1][0]}"
        )
        return lines

    def _groups_of(self, k: int, repeats: Fraction) -> list[Group]:
        """The groups of a cache."""
        lengths = self.stream.longest_of_all(k)
        buckets = bucket_of(lengths, self._buckets)
        where = self.stream.sources[k].cache.directory
        for bucket in range(len(self._buckets) - 1):
            num = int((buckets == bucket).sum())
            if 0 < num < self._rule.small:
                buckets[buckets == bucket] = bucket + 1
                _logger.info(
                    "%s: the %d examples of at most %d tokens are few, and go with the longer ones",
                    where,
                    num,
                    self._buckets[bucket][0],
                )
        found = []
        for bucket, (length, rows) in enumerate(self._buckets):
            members = np.flatnonzero(buckets == bucket)
            if 0 < len(members) < max(rows, self._rule.drop):
                _logger.warning(
                    "%s: the %d examples of at most %d tokens are never seen: they are fewer than "
                    "%d (--data.batches.small gives such ones to the longer ones)",
                    where,
                    len(members),
                    length,
                    max(rows, self._rule.drop),
                )
            elif len(members):
                cut = np.minimum(lengths[members], length)
                longest = self._buckets[-1][0]
                self._padding += [cut.sum(), len(cut) * length, len(cut) * longest]
                found.append(
                    Group(
                        source=k,
                        bucket=bucket,
                        rows=rows,
                        members=members.astype(np.int32 if len(lengths) < 2**31 else np.int64),
                        repeats=repeats,
                    )
                )
        return found

    def _starts(self, epoch: int) -> Int[np.ndarray, " _"]:
        """The first place of each group among the batches of an epoch, and how many there are."""
        counts = [group.before(epoch + 1) - group.before(epoch) for group in self.groups]
        return np.cumsum([0, *counts])

    def _permuted(
        self, places: Int[np.ndarray, " n"], epoch: int, *, size: int, seed: int
    ) -> Int[np.ndarray, " n"]:
        if not self._shuffle:
            return places
        return order(places, np.full_like(places, epoch), size=size, seed=seed)
