"""The rows of a run, at any position: of caches and of tasks, in memory or streamed.

    stream = Stream(data, sources, seed=0, shuffle=True, repeat=True)
    spans = stream.spans(Position(), 4)
    stream.batch(spans, first=2, num_rows=2)     # the last two of the first four rows
    stream.spans(spans[-1].after, 4)             # the next four

Example number g of the run comes from the source that `mixing.Schedule` says. A cache, and a task
whose tokens are in memory (`Held`), give any example: the epoch and the index follow by arithmetic
from `permutation.order`. A task that is streamed (`Running`) gives its examples in their order; the
ones between the position of the run and the last one that was read are kept, and are a part of a
saved position. In all three cases, corruption is a function of (seed, epoch, index), and the same
layout makes the rows.

1024 examples are a window, which is packed into rows from the examples' lengths alone: what a row
holds is known before any of its examples is corrupted.
"""

import bisect
import dataclasses
import hashlib
import io
import logging
import math
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache.files import Cache, Split
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.cache.refreshes import Negatives
from t5x_lite.data.config import (
    Data,
    adapter_numbers,
    lengths_of,
    names_of,
    own_negative_caches,
    trimmed_lengths,
    truncation_of,
)
from t5x_lite.data.mixing import Schedule, order
from t5x_lite.layouts import base
from t5x_lite.layouts.base import (
    ADAPTER_IDS,
    KEY,
    OWN_NEGATIVES,
    EncoderTokens,
    Layout,
    longest_joined,
)

_logger = logging.getLogger(__name__)

WINDOW = 1024
"""Examples that are packed together."""
_SOURCE_SEED = 1 << 48
_READ_AT_A_TIME = 64
_NO_LIMIT = 1 << 62


@runtime_checkable
class Examples(Protocol):
    """The stored features of examples, by their numbers."""

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """Tokens of each stored feature, int64."""
        ...

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        """The stored features, int32."""
        ...


class Held:
    """Examples in memory, of which any can be read; the twin of `cache.files.Split`.

    Attributes:
      size: the number of examples.
      digest: of the tokens and of the lengths, SHA-256.
    """

    def __init__(self, features: Sequence[str], examples: Iterable[Sequence[np.ndarray]]):
        """Takes the stored features of each example, int [_]."""
        self._features = tuple(features)
        parts, lengths = [np.zeros(0, np.int32)], []
        for example in examples:
            parts += [tokens.astype(np.int32, copy=False) for tokens in example]
            lengths.append([len(tokens) for tokens in example])
        self._tokens = np.concatenate(parts)
        self._lengths = np.array(lengths, np.int64).reshape(len(lengths), len(self._features))
        self._ends = self._lengths.sum(axis=1).cumsum()
        self.size = len(lengths)
        content = self._tokens.astype("<i4").tobytes() + self._lengths.astype("<i8").tobytes()
        self.digest = hashlib.sha256(content).hexdigest()

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """See `Examples.counts`."""
        return self._lengths[indices]

    def longest(self) -> None:
        """No lengths of texts are known beside `counts`."""

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        """See `Examples.read`."""
        found = []
        for index in indices.tolist():
            counts = self._lengths[index]
            tokens = self._tokens[self._ends[index] - counts.sum() : self._ends[index]]
            parts = np.split(tokens, counts.cumsum()[:-1])
            found.append(dict(zip(self._features, parts, strict=True)))
        return found


@runtime_checkable
class Feed(Protocol):
    """A task that is read from the front, and whose place can be saved."""

    def __next__(self) -> "tuple[list[list[np.ndarray]], Int[np.ndarray, ' n'] | None]":
        """The stored features of the next examples, and how often each was read before or None."""
        ...

    def state(self) -> bytes:
        """The place after the last `next`."""
        ...

    def restore(self, state: bytes) -> None:
        """Goes to a place that `state` gave."""
        ...

    def close(self) -> None:
        """Lets go of what is read ahead."""
        ...


class Running:
    """Examples that are read one after the other; those that a run may still need are kept.

    The number of an example is its place in all that is read, over all epochs. A thread may read
    while another saves.
    """

    def __init__(self, feed: Feed, features: Sequence[str], *, identity: str | None = None):
        """Reads nothing yet.

        Args:
          feed: what is read.
          features: the stored features of an example.
          identity: what the data are, such as their files and sizes; None is not known.
        """
        self.identity = identity
        self._feed, self._features = feed, tuple(features)
        self._lock = threading.Lock()
        self._kept: dict[int, list[np.ndarray]] = {}
        self._epochs: dict[int, int] = {}
        self._read, self._is_over = 0, False
        self._passes = [(0, 0.0)]  # from which number on how many epochs were begun before

    def available(self, count: int) -> int:
        """How many of the first `count` examples there are; it reads up to them."""
        with self._lock:
            while self._read < count and not self._is_over:
                try:
                    examples, epochs = next(self._feed)
                except StopIteration:
                    self._is_over = True
                    break
                for place, example in enumerate(examples):
                    self._kept[self._read] = example
                    self._epochs[self._read] = 0 if epochs is None else int(epochs[place])
                    told = math.nan if epochs is None else float(epochs[place])
                    if not told <= self._passes[-1][1]:
                        self._passes.append((self._read, told))
                    self._read += 1
            return min(count, self._read)

    def epochs(self, numbers: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """How often the data were read before each example."""
        self.available(int(numbers.max(initial=-1)) + 1)
        return np.array([self._epochs[number] for number in numbers.tolist()], np.int64)

    def epochs_before(self, count: int) -> float:
        """How often the data were read before the last of `count` examples; NaN is not known."""
        place = bisect.bisect_right(self._passes, (max(0, count - 1), math.inf)) - 1
        return self._passes[place][1]

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """See `Examples.counts`."""
        lengths = [[len(part) for part in self._kept[number]] for number in indices.tolist()]
        return np.array(lengths, np.int64).reshape(len(indices), len(self._features))

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        """See `Examples.read`."""
        found = [self._kept[number] for number in indices.tolist()]
        return [dict(zip(self._features, parts, strict=True)) for parts in found]

    def forget(self, before: int, *, but: Collection[int] = ()) -> None:
        """Lets go of the examples before a number, of some not."""
        with self._lock:
            for number in [n for n in self._kept if n < before and n not in but]:
                del self._kept[number], self._epochs[number]
            past = bisect.bisect_right(self._passes, (max(0, before - 1), math.inf)) - 1
            del self._passes[:past]

    def state(self) -> bytes:
        """What `restore` needs: the kept examples, and the place behind them."""
        with self._lock:
            numbers = sorted(self._kept)
            parts = [part for number in numbers for part in self._kept[number]]
            buffer = io.BytesIO()
            np.savez(
                buffer,
                numbers=np.array(numbers, np.int64),
                epochs=np.array([self._epochs[number] for number in numbers], np.int64),
                lengths=np.array([len(part) for part in parts], np.int64),
                tokens=np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32),
                passes=np.array(self._passes, np.float64),
                read=np.array(self._read),
                feed=np.frombuffer(self._feed.state(), np.uint8),
            )
            return buffer.getvalue()

    def restore(self, state: bytes) -> None:
        """Goes to where `state` was called."""
        with self._lock, np.load(io.BytesIO(state), allow_pickle=False) as saved:
            numbers = saved["numbers"].tolist()
            parts = np.split(saved["tokens"], saved["lengths"].cumsum()[:-1])
            width = len(self._features)
            self._kept = {
                number: parts[place * width : (place + 1) * width]
                for place, number in enumerate(numbers)
            }
            self._epochs = dict(zip(numbers, saved["epochs"].tolist(), strict=True))
            self._passes = [(int(first), epoch) for first, epoch in saved["passes"].tolist()]
            self._read, self._is_over = int(saved["read"]), False
            self._feed.restore(saved["feed"].tobytes())

    def close(self) -> None:
        """Lets go of what is read ahead."""
        self._feed.close()


@dataclass(frozen=True, kw_only=True)
class Source:
    """One cache or one task of a mixture.

    Attributes:
      name: what messages call it: the cache's directory, or the task.
      recipe: what is done to its examples.
      split: its examples.
      rate: its share of the examples.
      size: the examples of an epoch; None of a task that is streamed.
      cache: the cache, of one.
    """

    name: str
    recipe: Recipe
    split: Examples
    rate: Fraction
    size: int | None
    cache: Cache | None = None

    @classmethod
    def of_cache(cls, cache: Cache, split: str, *, rate: Fraction) -> "Source":
        """A split of a cache."""
        found = cache.split(split)
        return cls(
            name=str(cache.directory),
            recipe=cache.index.recipe,
            split=found,
            rate=rate,
            size=found.size,
            cache=cache,
        )

    def examples(
        self, counts: Int[np.ndarray, " n"], *, seed: int, shuffle: bool
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Epoch and index of some examples, by their number among all that the source gives."""
        if isinstance(self.split, Running):
            return self.split.epochs(counts), counts
        assert self.size is not None
        epochs, places = np.divmod(counts, self.size)
        if not shuffle:
            return epochs, places
        return epochs, order(places, epochs, size=self.size, seed=seed)

    @property
    def identity(self) -> str | None:
        """What its examples are, of a task; None is not known."""
        if isinstance(self.split, Held):
            return f"{self.split.size} examples ({self.split.digest[:16]})"
        return self.split.identity if isinstance(self.split, Running) else None

    def available(self, count: int) -> int:
        """How many of the first `count` examples there are in one pass."""
        if isinstance(self.split, Running):
            return self.split.available(count)
        assert self.size is not None
        return min(count, self.size)

    def epochs_before(self, count: float | int) -> float:
        """How often the data were read in the first `count` examples; NaN is not known."""
        if isinstance(self.split, Running):
            return self.split.epochs_before(math.ceil(count))
        assert self.size is not None
        return count / self.size


@dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive examples of a run, and the rows that they are packed into.

    Attributes:
      number: which window it is.
      sources: int64 [n], the cache of each.
      epochs: int64 [n], how often that cache was read before.
      indices: int64 [n], the example's position in it.
      rows: int64 [n], its row.
      num_rows: rows in all.
    """

    number: int
    sources: Int[np.ndarray, " n"]
    epochs: Int[np.ndarray, " n"]
    indices: Int[np.ndarray, " n"]
    rows: Int[np.ndarray, " n"]
    num_rows: int


@dataclass(frozen=True)
class Position:
    """A place between two rows: a window's number, and a row of it.

    Attributes:
      window: the window's number.
      row: of it.
      waiting: where rows are grouped by length, the numbers of the examples before that place whose
        batches are not full yet, of each bucket (`grouped`).
    """

    window: int = 0
    row: int = 0
    waiting: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Span:
    """Rows [start, end) of a window."""

    window: Window
    start: int
    end: int

    @property
    def after(self) -> Position:
        """Where the next span begins."""
        if self.end < self.window.num_rows:
            return Position(self.window.number, self.end)
        return Position(self.window.number + 1)

    @property
    def repeated(self) -> set[int]:
        """The caches of which it has examples that were read before."""
        window = self.window
        inside = (window.rows >= self.start) & (window.rows < self.end)
        return set(window.sources[inside & (window.epochs > 0)].tolist())


class Stream:
    """The rows of a run, at any position.

    Attributes:
      sources: the caches.
      negatives: of the one cache, in place of those that it holds.
    """

    def __init__(
        self,
        data: Data,
        sources: list[Source],
        *,
        seed: int,
        shuffle: bool,
        repeat: bool,
        tokens: EncoderTokens | None = None,
    ):
        """Makes the stream; nothing is read yet."""
        self.sources = sources
        self.negatives: Negatives | None = None
        self._data, self._seed, self._shuffle, self._tokens = data, seed, shuffle, tokens
        self._lengths = lengths_of(data)
        self._trimmed = trimmed_lengths(data)
        self._layout = _layout_of(data, sources)
        self._schedule = Schedule([source.rate for source in sources])
        self._repeat = repeat
        self._numbers = _numbers_of(data, sources)
        self._planned: Window | None = None

    def window(self, number: int) -> Window:
        """The examples of a window and their rows; none behind the end."""
        if self._planned is None or self._planned.number != number:
            self._planned = self._plan(number)
        return self._planned

    def _plan(self, number: int) -> Window:
        places = np.arange(number * WINDOW, (number + 1) * WINDOW)
        if not self._repeat:
            places = places[: self._before_the_end(places)]
        sources, epochs, indices = self._at(places)
        taken = np.arange(len(places))
        if self._data.pack:
            lengths = np.zeros((len(places), len(self._layout.features)), np.int64)
            for k in range(len(self.sources)):
                of = sources == k
                lengths[of] = self._example_lengths(k, epochs[of], indices[of])
            taken = base.first_fit(
                self._layout.packed_lengths(lengths), capacity=self._layout.capacity(self._lengths)
            )
        return Window(
            number=number,
            sources=sources,
            epochs=epochs,
            indices=indices,
            rows=taken,
            num_rows=int(taken.max()) + 1 if len(taken) else 0,
        )

    def _before_the_end(self, places: Int[np.ndarray, " n"]) -> int:
        """How many of some places come before a source would have to begin anew."""
        sources, counts = self._schedule.at(places)
        there = np.ones(len(places), bool)
        for k, source in enumerate(self.sources):
            of = sources == k
            there[of] = counts[of] < source.available(int(counts[of].max(initial=-1)) + 1)
        return len(places) if there.all() else int(there.argmin())

    def _at(
        self, places: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """The cache, the epoch and the index of the examples at some places of the run."""
        sources, counts = self._schedule.at(places)
        epochs, indices = np.zeros_like(counts), np.zeros_like(counts)
        for k in range(len(self.sources)):
            of = sources == k
            epochs[of], indices[of] = self.sources[k].examples(
                counts[of], seed=self.seed_of(k), shuffle=self._shuffle
            )
        return sources, epochs, indices

    def _example_lengths(
        self, k: int, epochs: Int[np.ndarray, " n"], indices: Int[np.ndarray, " n"]
    ) -> Int[np.ndarray, "n F"]:
        """Tokens of the outputs of examples of source k."""
        source = self.sources[k]
        limits = {name: self._lengths.get(name, _NO_LIMIT) for name in source.recipe.outputs}
        return source.recipe.example_lengths(
            source.split.counts(indices),
            lengths=limits,
            seed=self.seed_of(k),
            epochs=epochs,
            indices=indices,
        )

    def seed_of(self, k: int) -> int:
        """The seed of source k: equal places of two caches have different random numbers."""
        return self._seed + k * _SOURCE_SEED

    def spans(self, position: Position, num_rows: int) -> list[Span]:
        """The next `num_rows` rows; fewer at the end only."""
        found: list[Span] = []
        while num_rows:
            window = self.window(position.window)
            if not window.num_rows:
                break
            end = min(position.row + num_rows, window.num_rows)
            num_rows -= end - position.row
            found.append(Span(window, position.row, end))
            position = found[-1].after
        return found

    def batch(self, spans: list[Span], *, first: int, num_rows: int) -> dict[str, np.ndarray]:
        """Rows [first, first + num_rows) of those in `spans`; padding where there are no more."""
        examples: list[dict[str, np.ndarray]] = []
        read, placed = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        before = -first  # the row of the batch at which the span begins
        for span in spans:
            target = span.window.rows - span.start + before
            inside = (span.window.rows >= span.start) & (span.window.rows < span.end)
            chosen = np.flatnonzero(inside & (target >= 0) & (target < num_rows))
            window = span.window
            examples += self._read(
                window.sources[chosen], window.epochs[chosen], window.indices[chosen]
            )
            placed.append(target[chosen])
            read.append(window.sources[chosen])
            before += span.end - span.start
        rows = np.concatenate(placed)
        made = self._layout.lay_out(
            examples,
            rows,
            num_rows=num_rows,
            lengths=self._lengths,
            pack=self._data.pack,
            tokens=self._tokens,
        )
        return self._with_numbers(made, np.concatenate(read), rows, num_rows=num_rows)

    def _with_numbers(
        self,
        made: dict[str, np.ndarray],
        sources: Int[np.ndarray, " n"],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
    ) -> dict[str, np.ndarray]:
        """Rows with the features that are numbers of their caches; those of padding are 0."""
        for name, numbers in self._numbers.items():
            made[name] = np.zeros(num_rows, np.int32)
            made[name][rows] = numbers[sources]
        return made

    def rows(
        self, numbers: Int[np.ndarray, " n"], *, num_rows: int, lengths: Mapping[str, int]
    ) -> dict[str, np.ndarray]:
        """A row of each of some examples, by their numbers in the run."""
        return self._laid_out(self._at(numbers), num_rows=num_rows, lengths=lengths)

    def rows_of(
        self,
        k: int,
        indices: Int[np.ndarray, " n"],
        *,
        epoch: int,
        num_rows: int,
        lengths: Mapping[str, int],
    ) -> dict[str, np.ndarray]:
        """A row of each of some examples of source k."""
        where = np.full_like(indices, k), np.full_like(indices, epoch), indices
        return self._laid_out(where, num_rows=num_rows, lengths=lengths)

    def _laid_out(
        self,
        where: tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
    ) -> dict[str, np.ndarray]:
        rows = np.arange(len(where[0]))
        made = self._layout.lay_out(
            self._read(*where),
            rows,
            num_rows=num_rows,
            lengths=lengths,
            pack=False,
            tokens=self._tokens,
        )
        return self._with_numbers(made, where[0], rows, num_rows=num_rows)

    def longest_of_all(self, k: int) -> Int[np.ndarray, " _"]:
        """The `Layout.longest_stored` of all examples of source k.

        Of rows of one text it follows from the lengths of what is stored. Of others the cache says
        it, or, one of an earlier version, is read through once.
        """
        source = self.sources[k]
        if source.recipe.corruption:
            raise InputError(
                f"{source.name} is corrupted anew in each epoch, and so has no lengths to make a "
                "schedule of: use data.batches Bucketed"
            )
        assert source.size is not None
        assert not isinstance(source.split, Running)
        indices = np.arange(source.size)
        if not self._layout.joined:
            column = [*source.recipe.outputs].index(self._layout.features[0])
            return self._example_lengths(k, np.zeros_like(indices), indices)[:, column]
        counts = source.split.counts(indices)
        lengths = {name: counts[:, i] for i, name in enumerate(source.recipe.stored)}
        if (known := source.split.longest()) is not None:
            return self._layout.longest_stored(known[: source.size], lengths)
        _logger.info("%s is read once for the lengths of its texts", source.name)
        found = np.zeros(source.size, np.int64)
        for start in range(0, source.size, _READ_AT_A_TIME):
            some = source.split.read(indices[start : start + _READ_AT_A_TIME])
            for place, stored in enumerate(some, start=start):
                found[place] = longest_joined(self._layout, stored)
        return self._layout.longest_stored(found, lengths)

    def longest_texts(self, numbers: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The `Layout.longest` of some examples, by their numbers in the run.

        Of rows of one text it follows from the lengths of what is stored; of others the examples
        are read.
        """
        sources, epochs, indices = self._at(numbers)
        found = np.zeros(len(numbers), np.int64)
        if self._layout.joined:
            for start in range(0, len(numbers), _READ_AT_A_TIME):
                part = slice(start, start + _READ_AT_A_TIME)
                examples = self._read(sources[part], epochs[part], indices[part])
                found[part] = [self._layout.longest(example) for example in examples]
            return found
        for k, source in enumerate(self.sources):
            of = sources == k
            column = [*source.recipe.outputs].index(self._layout.features[0])
            found[of] = self._example_lengths(k, epochs[of], indices[of])[:, column]
        return found

    def repeated_of(self, numbers: Int[np.ndarray, " n"]) -> set[int]:
        """The caches of which some examples, by their numbers in the run, were read before."""
        sources, epochs, _ = self._at(numbers)
        return set(sources[epochs > 0].tolist())

    def _read(
        self,
        sources: Int[np.ndarray, " n"],
        epochs: Int[np.ndarray, " n"],
        indices: Int[np.ndarray, " n"],
    ) -> list[dict[str, np.ndarray]]:
        """Examples by their cache, epoch and index, corrupted and trimmed."""
        examples: list[dict[str, np.ndarray]] = [{} for _ in sources]
        for k, source in enumerate(self.sources):
            of = np.flatnonzero(sources == k)
            stored = source.split.read(indices[of])
            keys = zip(of.tolist(), stored, epochs[of].tolist(), indices[of].tolist(), strict=True)
            for place, tokens, epoch, index in keys:
                key = {"seed": self.seed_of(k), "epoch": epoch, "index": index}
                examples[place] = source.recipe.example(tokens, lengths=self._trimmed, **key)
                if self.negatives is not None:
                    examples[place]["negatives"] = self.negatives.tokens(index)
                if self._layout.draws:
                    examples[place][KEY] = np.array([*key.values()], np.int64)
        return examples

    def epochs(self, position: Position) -> list[float]:
        """How often each source was read before a position, to within a window; NaN: not known."""
        counts = self._counts(position)
        return [s.epochs_before(count) for count, s in zip(counts, self.sources, strict=True)]

    def _counts(self, position: Position) -> list[float]:
        """The examples of each source before a position, to within a window."""
        counts = [float(count) for count in self._schedule.counts(position.window * WINDOW)]
        if position.row:
            after = self._schedule.counts((position.window + 1) * WINDOW)
            share = position.row / self.window(position.window).num_rows
            counts = [a + share * (b - a) for a, b in zip(counts, after, strict=True)]
        return counts

    def repeated(self, position: Position) -> set[int]:
        """The sources of which examples were read again before a position."""
        counts = self._schedule.counts(position.window * WINDOW)
        earlier = {
            k
            for k, (source, count) in enumerate(zip(self.sources, counts, strict=True))
            if (source.epochs_before(count) > (0 if source.size is None else 1))
        }
        if not position.row:
            return earlier
        return earlier | Span(self.window(position.window), 0, position.row).repeated

    def forget(self, position: Position) -> None:
        """Lets go of what comes before a position, of sources that are read from the front."""
        if not any(isinstance(source.split, Running) for source in self.sources):
            return
        before = self._schedule.counts(position.window * WINDOW)
        waiting = np.array([n for bucket in position.waiting for n in bucket], np.int64)
        sources, counts = self._schedule.at(waiting)
        for k, source in enumerate(self.sources):
            if isinstance(source.split, Running):
                source.split.forget(before[k], but={*counts[sources == k].tolist()})


def _numbers_of(data: Data, sources: list[Source]) -> dict[str, Int[np.ndarray, " S"]]:
    """Features of rows that are a number of their cache: that of each cache."""
    directories = [source.name for source in sources]
    found: dict[str, Int[np.ndarray, " S"]] = {}
    if data.adapter_of:
        numbers = adapter_numbers(data)
        ids = []
        for directory in directories:
            named = [numbers[name] for name in names_of(directory) if name in numbers]
            if not named:
                raise InputError(
                    f"data.adapter_of has no number for {directory}; it has {', '.join(numbers)}"
                )
            ids.append(named[0])
        found[ADAPTER_IDS] = np.array(ids, np.int32)
    if alone := own_negative_caches(data):
        found[OWN_NEGATIVES] = np.array(
            [path.rstrip("/") in alone for path in directories], np.int32
        )
    return found


def _layout_of(data: Data, sources: list[Source]) -> Layout:
    """The layout of the caches' examples."""
    first, *others = sources
    layout = data.layout.of_task(first.recipe.outputs)
    if data.adapter_of:  # several tasks, some of which may have more
        every: dict[str, None] = {}
        for source in sources:
            data.layout.of_task(source.recipe.outputs)
            every |= dict.fromkeys(source.recipe.outputs)
        return data.layout.of_task(tuple(every))
    for source in others:
        if data.layout.of_task(source.recipe.outputs) != layout:
            raise InputError(
                f"the caches {first.name} and {source.name} have different features, as one of an "
                "earlier version without scores: write it again"
            )
    return layout


def truncated(data: Data, sources: list[Source]) -> list[Source]:
    """The caches of training examples, of which the first alone are read."""
    for name, number in truncation_of(data).items():
        if len(sources) > 1:
            raise InputError(
                f"data.{name} leaves the first of one task's data, and data.cache mixes several: "
                "give one, or unset it"
            )
        (source,) = sources
        first = _documents(source, number) if name == "first_documents" else _tokens(source, number)
        return [dataclasses.replace(source, size=first)]
    return sources


def _documents(source: Source, number: int) -> int:
    assert source.cache is not None
    assert source.size is not None
    index = source.cache.index
    if index.documents == number:
        return source.size
    if index.recipe.corruption or index.recipe.lengths is not None or index.baked is not None:
        raise InputError(
            f"cache {source.cache.directory} does not say which of its examples are of the first "
            f"{number} documents: write one of them with t5x-lite cache ... --data.first-documents "
            f"{number}, or set --data.first-tokens"
        )
    there = source.size
    if number > there:
        _logger.warning("data.first_documents is %d, and there are %d", number, there)
    return min(number, there)


def _tokens(source: Source, number: int) -> int:
    assert source.cache is not None
    assert isinstance(source.split, Split)
    first = source.split.first_with(number, floats=source.recipe.floats)
    if not first:
        raise InputError(
            f"data.first_tokens {number} is less than the first example of cache "
            f"{source.cache.directory} has"
        )
    there = source.cache.index.splits["train"].tokens
    if first == source.split.size and number >= there + _longest(source):
        _logger.warning("data.first_tokens is %d, and the cache has %d", number, there)
    return first


def _longest(source: Source) -> int:
    """Tokens of the longest of some examples: a cache that was cut off lacks fewer."""
    some = np.arange(min(source.size or 0, 1000))
    return int(source.split.counts(some).sum(1).max())
