"""Batches of one length and one cache: grouping, schedules, mixtures.

Batches of one length and one cache, in an order that is worked out for each epoch.

    batches = Scheduled(stream, data)           # data.batches is shapes.Scheduled
    made = batches.make(Position(), part=0, parts=1)
    batches.make(made.position, part=0, parts=1)        # the next one

A group is the examples of one cache that go to one bucket of `data.config`. Epoch e has n // B
batches of a group of n examples and B rows; all batches of all groups come in one order that (seed,
e) permutes, and batch k of a group has the places [k B, (k + 1) B) of the order that (seed, e,
group) gives its examples. The rest of a group, fewer than B, is not seen in that epoch. So a batch
is a function of (seed, epoch, number): a position is these two numbers, each process works out the
same, and at each step all devices have the same shape.

Source: Chen et al. 2024 (BGE-M3), "Efficient Batching". In its code (research/BGE_M3/data.py) a
group's rest is a smaller batch, and the order of files, and so of batches, differs between hosts.

Which examples of a stream make the next global batch, of one shape or of several.

    batches = Grouped(stream, data)             # data.batches is Bucketed
    made = batches.make(Position(), part=0, parts=1)
    batches.make(made.position, part=0, parts=1)        # the next one

With one shape a batch has the next rows. With several (`data.config`), examples are looked at in
their order, by their lengths alone where a row has one text, until the bucket of one is full; those
of other buckets wait, and their numbers are a part of the position. So a batch is a function of
(seed, position), the same in every process: all have the same shape at the same step.

When the negatives are those of another search (`data.refresh`), lengths change: `regrouped` sorts
the waiting examples into buckets again, in their order. A bucket may then hold more than a batch;
its first rows are the next batch.

Several caches without rates: mixed by the numbers of their training examples.

    Data(cache=("caches/glue_cola", "caches/glue_rte"), mixing=Mixing(maximum=65536), ...)

Caches are mixed by exact arithmetic (mixing.py), so the rates are rounded to ten-thousandths. Names
are those of the tasks that the caches were made of; no task is imported. Several caches of one
task, as of one language each, are mixed by their own numbers. Where data.task names a mixture that
has these tasks, its constant rates, limits and shared examples count here, too.
data.mixing.unlabelled needs no such name: caches say whether they hold unlabelled text.
"""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Int

from t5x_lite.core.errors import InputError
from t5x_lite.data import config
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.config import Data, bucket_of, lengths_of, names_of, shapes_of
from t5x_lite.data.mixing import CACHE_PERIOD, Mixing, cache_rates, order, parse_sources, split_rate
from t5x_lite.data.mixtures import Member, Mixture, mixture_named
from t5x_lite.data.stream import WINDOW, Position, Stream

_logger = logging.getLogger(__name__)


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
        """The batch at a position; its last rows may be padding; None where no row is left."""
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


_GROUP_SEED = 1 << 40
"""Equal places of two groups of a cache have different examples."""


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
        """Sorts the examples of all caches into groups."""
        assert isinstance(data.batches, config.Scheduled)
        self.stream, self._seed, self._shuffle = stream, seed, data.shuffle
        self._rule, self._buckets = data.batches, data.batches.buckets()
        self._lengths = [lengths_of(shape) for shape in shapes_of(data)]
        total = sum(source.size or 0 for source in stream.sources)
        self.groups: list[Group] = []
        self._padding = np.zeros(3, np.int64)
        for k, source in enumerate(stream.sources):
            repeats = Fraction(1) if natural else source.rate * total / (source.size or 1)
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
            where = self.stream.sources[group.source].name
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
        where = self.stream.sources[k].name
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


def each_cache(data: Data, *, split: str) -> dict[str, Data]:
    """The data of each cache alone, of those that have a split, by the name of its directory."""
    texts = [data.cache] if isinstance(data.cache, str) else list(data.cache)
    if not data.cache:
        raise InputError(
            "evaluation.loss_of_each_cache needs the caches of --data.cache: data.task "
            f"{data.task} has none"
        )
    found: dict[str, Data] = {}
    for text in texts:
        directory, _ = split_rate(text)
        _, name = names_of(directory)
        if name in found:
            raise InputError(
                f"two caches are called {name}, {found[name].cache} and {directory}: "
                "evaluation.loss_of_each_cache has one name for both"
            )
        if split in Cache(directory).index.splits:
            found[name] = dataclasses.replace(data, cache=directory, mixing=Mixing())
    return found


def mixed_sources(data: Data) -> list[tuple[str, Fraction]]:
    """The caches that data.cache names, each with its share of the examples."""
    texts = [data.cache] if isinstance(data.cache, str) else list(data.cache)
    if len(texts) < 2 or any(split_rate(text)[1] is not None for text in texts):
        if data.mixing != Mixing():
            raise InputError(
                "data.mixing mixes several caches that are given without rates: take the rates out "
                "of data.cache, or leave data.mixing alone"
            )
        return parse_sources(data.cache)
    if len({text.rstrip("/") for text in texts}) < len(texts):
        raise InputError("data.cache names a directory twice: name it once")
    caches = [Cache(directory) for directory in texts]
    for cache in caches:
        if "train" not in cache.index.splits:
            raise InputError(
                f"cache {cache.directory} has no training examples, and can have no rate"
            )
    members = _members(data, texts, caches)
    found = {
        member.name: (text, cache.index.splits["train"].examples)
        for member, text, cache in zip(members, texts, caches, strict=True)
    }
    left = Mixture(members=members).without(data.mixing.leave_out)
    left = left.with_unlabelled(data.mixing.unlabelled)
    rates = cache_rates(left.rates(data.mixing, count=lambda member: found[member.name][1]))
    return [
        (found[member.name][0], Fraction(rate, CACHE_PERIOD))
        for member, rate in zip(left.members, rates, strict=True)
    ]


def _members(data: Data, texts: Sequence[str], caches: Sequence[Cache]) -> tuple[Member, ...]:
    """The tasks of caches, as the mixture has them that data.task names; their sizes are theirs."""
    tasks = [cache.index.task for cache in caches]
    named = mixture_named(data.task) if data.task and data.task not in tasks else None
    known = {} if named is None else {m.task: m for m in named.members}
    members: list[Member] = []
    for text, cache in zip(texts, caches, strict=True):
        task = cache.index.task
        several = tasks.count(task) > 1
        alone = Member(
            task=task, unlabelled=_is_unlabelled(cache), cache=text.rstrip("/") if several else ""
        )
        if several and task in known:
            raise InputError(
                f"data.task {data.task} has one rate for {task}, and {tasks.count(task)} caches "
                "are of that task: give each cache a rate, as DIRECTORY=RATE"
            )
        member = known.get(task, alone)
        members.append(dataclasses.replace(member, examples=None) if member.is_trained else alone)
    return tuple(members)


def _is_unlabelled(cache: Cache) -> bool:
    """Whether it was made of unlabelled text: that is corrupted, or has no inputs."""
    recipe = cache.index.recipe
    return bool(recipe.corruption) or tuple(recipe.outputs) == ("targets",)
