"""Division of examples into batches of one shape, of several shapes, or by a schedule.

`OneShape`: all batches have one shape, and a batch has the next rows. `Grouped`: batches have
several shapes, and each shape has a bucket of examples with similar lengths:

    batches = Grouped(stream, data)             # data.batches is Bucketed
    made = batches.make(Position(), part=0, parts=1)
    batches.make(made.position, part=0, parts=1)        # the next one

Examples are assigned to buckets in their order until one bucket is full; if a row has one text,
only lengths are read. Examples in other buckets wait, and their numbers are part of the position. A
batch therefore depends only on (seed, position): all processes have the same shape at the same
step. When a new search replaces the negatives (`data.refresh`), lengths change, and `regrouped`
assigns the waiting examples to buckets again, in their order. If a bucket then has more than a
batch, its first rows are the next batch.

`Scheduled`: each batch has examples of one cache, in an order that is computed for each epoch:

    batches = Scheduled(stream, data)           # data.batches is config.Scheduled
    made = batches.make(Position(), part=0, parts=1)
    batches.make(made.position, part=0, parts=1)        # the next one

A group is the set of examples of one cache in one bucket of `data.config`. A group of n examples
with B rows per batch has n // B batches in each epoch e. The batches of all groups are permuted by
(seed, e). The examples of a group are permuted by (seed, e, group), and batch k has the positions
[k B, (k + 1) B) of this permutation. The remaining n % B examples are skipped in this epoch. A
batch therefore depends only on (seed, epoch, number): a position consists of epoch and number, and
all processes compute the same batch.

Source: Chen et al. 2024 (BGE-M3), "Efficient Batching". In the authors' code
(research/BGE_M3/data.py) the remaining examples of a group form a smaller batch, and the order of
batches differs between hosts.

`mixed_sources`: several caches without rates are mixed by their numbers of training examples:

    Data(cache=("caches/glue_cola", "caches/glue_rte"), mixing=Mixing(maximum=65536), ...)

Caches are mixed by exact arithmetic (mixing.py), so the rates are rounded to ten-thousandths. A
cache records the name of its task; no task is imported. If one task has several caches, such as one
per language, each cache has its own rate. If data.task names a mixture with these tasks, the
mixture's constant rates, limits and shared examples also apply. data.mixing.unlabelled does not
need data.task, because caches record whether they contain unlabelled text.
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
    """Part of a global batch that one process reads, and the data position after the batch.

    Attributes:
      batch: features of the process's rows.
      position: data position of the next batch.
      repeated: indices of the caches with repeated examples in the global batch.
    """

    batch: dict[str, np.ndarray]
    position: Position
    repeated: set[int]


class OneShape:
    """Division of a sequence of rows into consecutive batches of one shape.

    Attributes:
      stream: rows of the training data.
    """

    def __init__(self, stream: Stream, *, batch_size: int):
        self.stream, self._batch_size = stream, batch_size

    def epochs(self, position: Position) -> list[float]:
        return self.stream.epochs(position)

    def repeated(self, position: Position) -> set[int]:
        return self.stream.repeated(position)

    def make(self, position: Position, *, part: int, parts: int) -> Made | None:
        """Return the batch at a data position, or None after the last batch."""
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
        return position


class Grouped:
    """Division of a sequence of examples into batches of several shapes, by example length.

    Attributes:
      stream: examples of the training data, one per row.
    """

    def __init__(self, stream: Stream, data: Data):
        self.stream = stream
        self._buckets = data.batches.buckets()
        self._lengths = [lengths_of(shape) for shape in shapes_of(data)]
        self._looked_at: tuple[int, Int[np.ndarray, " n"]] | None = None

    def epochs(self, position: Position) -> list[float]:
        return self.stream.epochs(position)

    def repeated(self, position: Position) -> set[int]:
        return self.stream.repeated(position)

    def make(self, position: Position, *, part: int, parts: int) -> Made | None:
        """Return the batch at a data position, or None after the last batch."""
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
        self._looked_at = None
        numbers = np.array(sorted(n for bucket in position.waiting for n in bucket), np.int64)
        if not len(numbers):
            return position
        buckets = bucket_of(self.stream.longest_texts(numbers), self._buckets)
        waiting = (tuple(numbers[buckets == k].tolist()) for k in range(len(self._buckets)))
        return dataclasses.replace(position, waiting=tuple(waiting))

    def _next(self, position: Position) -> tuple[int, list[int], Position]:
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
        counts = np.bincount(self._buckets_of(window), minlength=len(self._buckets))
        rows = [rows for _, rows in self._buckets]
        return float(sum(count / size for count, size in zip(counts, rows, strict=True)))

    def _buckets_of(self, window: int) -> Int[np.ndarray, " n"]:
        if self._looked_at is None or self._looked_at[0] != window:
            size = len(self.stream.window(window).sources)
            lengths = self.stream.longest_texts(window * WINDOW + np.arange(size))
            self._looked_at = window, bucket_of(lengths, self._buckets)
        return self._looked_at[1]


_GROUP_SEED = 1 << 40
"""Factor that makes different random seeds for the groups of a cache."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Examples of one cache with similar lengths, which share batches.

    Attributes:
      source: index of the cache.
      bucket: index of the batch shape.
      rows: number of rows per batch.
      members: positions of the examples in the cache, ascending.
      repeats: number of times that an epoch reads the group.
    """

    source: int
    bucket: int
    rows: int
    members: Int[np.ndarray, " n"]
    repeats: Fraction

    @property
    def full(self) -> int:
        """Number of full batches."""
        return len(self.members) // self.rows

    def before(self, epoch: int) -> int:
        """Return the number of batches that earlier epochs take from this group."""
        return int(epoch * self.repeats * self.full)


class Scheduled:
    """Division of examples into batches of one cache and one shape, in a random order per epoch.

    Attributes:
      stream: examples of the training data.
      groups: groups of examples, each with at least one batch.
    """

    def __init__(self, stream: Stream, data: Data, *, seed: int, natural: bool = True):
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
                "no row length in data.batches has enough examples for one batch; use fewer rows "
                "in data.batches, or set --data.batches.small above "
                f"{max(rows for _, rows in self._buckets)}"
            )

    def make(self, position: Position, *, part: int, parts: int) -> Made | None:
        """Return the batch at a data position, which is an epoch and a batch number."""
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
        return position

    def epochs(self, position: Position) -> list[float]:
        """Return the approximate number of passes over each cache before a data position."""
        share = position.row / max(1, int(self._starts(position.window)[-1]))
        repeats = {group.source: group.repeats for group in self.groups}
        sources = range(len(self.stream.sources))
        return [float(repeats.get(k, Fraction(0))) * (position.window + share) for k in sources]

    def repeated(self, position: Position) -> set[int]:
        """Return the indices of the caches that are read more than once before a data position."""
        return {group.source for group in self.groups if group.before(position.window) > group.full}

    def report(self) -> list[str]:
        """Return log lines with the number of batches and the padding of each group of examples."""
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
        lengths = self.stream.longest_of_all(k)
        buckets = bucket_of(lengths, self._buckets)
        where = self.stream.sources[k].name
        for bucket in range(len(self._buckets) - 1):
            num = int((buckets == bucket).sum())
            if 0 < num < self._rule.small:
                buckets[buckets == bucket] = bucket + 1
                _logger.info(
                    "%s: adding the %d examples of at most %d tokens to batches of longer "
                    "examples (--data.batches.small)",
                    where,
                    num,
                    self._buckets[bucket][0],
                )
        found = []
        for bucket, (length, rows) in enumerate(self._buckets):
            members = np.flatnonzero(buckets == bucket)
            if 0 < len(members) < max(rows, self._rule.drop):
                _logger.warning(
                    "%s: skipping the %d examples of at most %d tokens, because a batch needs "
                    "%d of them; --data.batches.small adds them to longer batches",
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
        counts = [group.before(epoch + 1) - group.before(epoch) for group in self.groups]
        return np.cumsum([0, *counts])

    def _permuted(
        self, places: Int[np.ndarray, " n"], epoch: int, *, size: int, seed: int
    ) -> Int[np.ndarray, " n"]:
        if not self._shuffle:
            return places
        return order(places, np.full_like(places, epoch), size=size, seed=seed)


def each_cache(data: Data, *, split: str) -> dict[str, Data]:
    """Return a config for each cache with the given split, by the last part of the cache's path."""
    texts = [data.cache] if isinstance(data.cache, str) else list(data.cache)
    if not data.cache:
        raise InputError(
            f"evaluation.loss_of_each_cache needs caches, but only data.task {data.task} is set; "
            "give --data.cache"
        )
    found: dict[str, Data] = {}
    for text in texts:
        directory, _ = split_rate(text)
        _, name = names_of(directory)
        if name in found:
            raise InputError(
                f"two caches have the name {name}, {found[name].cache} and {directory}; "
                "evaluation.loss_of_each_cache needs different names"
            )
        if split in Cache(directory).index.splits:
            found[name] = dataclasses.replace(data, cache=directory, mixing=Mixing())
    return found


def mixed_sources(data: Data) -> list[tuple[str, Fraction]]:
    """Return the directory and rate of each cache that data.cache names; rates add up to 1."""
    texts = [data.cache] if isinstance(data.cache, str) else list(data.cache)
    if len(texts) < 2 or any(split_rate(text)[1] is not None for text in texts):
        if data.mixing != Mixing():
            raise InputError(
                "data.mixing needs several caches without rates; remove the rates from "
                "data.cache, or unset data.mixing"
            )
        return parse_sources(data.cache)
    if len({text.rstrip("/") for text in texts}) < len(texts):
        raise InputError("data.cache names a directory twice; remove one of the entries")
    caches = [Cache(directory) for directory in texts]
    for cache in caches:
        if "train" not in cache.index.splits:
            raise InputError(
                f"cache {cache.directory} has no training examples, so it cannot have a rate"
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
                f"data.task {data.task} has one rate for {task}, but data.cache names "
                f"{tasks.count(task)} caches of this task; give each cache a rate, as "
                "DIRECTORY=RATE"
            )
        member = known.get(task, alone)
        members.append(dataclasses.replace(member, examples=None) if member.is_trained else alone)
    return tuple(members)


def _is_unlabelled(cache: Cache) -> bool:
    recipe = cache.index.recipe
    return bool(recipe.corruption) or tuple(recipe.outputs) == ("targets",)
