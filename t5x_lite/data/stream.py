"""Training rows at any data position, from caches and tasks, in memory or streamed.

    stream = Stream(data, sources, seed=0, shuffle=True, repeat=True)
    spans = stream.spans(Position(), 4)
    stream.batch(spans, first=2, num_rows=2)     # the last two of the first four rows
    stream.spans(spans[-1].after, 4)             # the next four

`mixing.Schedule` computes the source of the run's example number g. Caches, and tasks with tokens
in memory (`Held`), have random access: the epoch and index of the example are computed by
`mixing.order`. The examples of a streamed task (`Running`) are read in their order. Examples that
were read but not yet used are kept, and are part of a saved position. In all cases corruption
depends only on (seed, epoch, index), and the layout builds the rows.

A window is 1024 consecutive examples. They are packed into rows by their lengths only, before they
are corrupted.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache.refreshes import Negatives
from t5x_lite.data.config import (
    Data,
    adapter_numbers,
    lengths_of,
    names_of,
    own_negative_caches,
    trimmed_lengths,
)
from t5x_lite.data.mixing import Schedule
from t5x_lite.data.sources import Running, Source
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
"""Number of consecutive examples that are packed together."""
_SOURCE_SEED = 1 << 48
_READ_AT_A_TIME = 64
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive training examples, and the rows into which they are packed.

    Attributes:
      number: index of the window.
      sources: int64 [examples], index of the task or cache of each example.
      epochs: int64 [examples], number of earlier passes over the example's task or cache.
      indices: int64 [examples], index of each example in its task or cache.
      rows: int64 [examples], row of each example.
      num_rows: number of rows.
    """

    number: int
    sources: Int[np.ndarray, " n"]
    epochs: Int[np.ndarray, " n"]
    indices: Int[np.ndarray, " n"]
    rows: Int[np.ndarray, " n"]
    num_rows: int


@dataclass(frozen=True)
class Position:
    """Position in the training data, from which reading can resume.

    Attributes:
      window: index of a window, which is a block of consecutive examples.
      row: index of the next row in the window.
      waiting: with batches of several shapes, the numbers of earlier examples that wait for a full
        batch, by shape.
    """

    window: int = 0
    row: int = 0
    waiting: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Span:
    """Consecutive rows of packed examples, from `start` to `end`, excluding `end`."""

    window: Window
    start: int
    end: int

    @property
    def after(self) -> Position:
        """The data position after the last row."""
        if self.end < self.window.num_rows:
            return Position(self.window.number, self.end)
        return Position(self.window.number + 1)

    @property
    def repeated(self) -> set[int]:
        """The indices of the tasks or caches with repeated examples in these rows."""
        window = self.window
        inside = (window.rows >= self.start) & (window.rows < self.end)
        return set(window.sources[inside & (window.epochs > 0)].tolist())


class Stream:
    """Training rows of a run, which can be read from any data position.

    Attributes:
      sources: tasks or caches of the mixture.
      negatives: hard negatives found during training; None to use hard negatives from the cache.
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
        """Return a window of consecutive examples and their rows; empty after the last example."""
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
        sources, counts = self._schedule.at(places)
        there = np.ones(len(places), bool)
        for k, source in enumerate(self.sources):
            of = sources == k
            there[of] = counts[of] < source.available(int(counts[of].max(initial=-1)) + 1)
        return len(places) if there.all() else int(there.argmin())

    def _at(
        self, places: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
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
        """Return the random seed of a task or cache of the mixture; all seeds differ."""
        return self._seed + k * _SOURCE_SEED

    def spans(self, position: Position, num_rows: int) -> list[Span]:
        """Return the next `num_rows` rows after a data position; fewer only at the end of data."""
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
        """Return `num_rows` rows of spans, from row `first` on, as a batch padded at its end."""
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
        for name, numbers in self._numbers.items():
            made[name] = np.zeros(num_rows, np.int32)
            made[name][rows] = numbers[sources]
        return made

    def rows(
        self, numbers: Int[np.ndarray, " n"], *, num_rows: int, lengths: Mapping[str, int]
    ) -> dict[str, np.ndarray]:
        """Return rows with one example each, given numbers of examples in the training order."""
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
        """Return rows with one example each, given indices of examples in one task or cache."""
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
        """Return the number of tokens of the longest text of each example of one cache."""
        source = self.sources[k]
        if source.recipe.corruption:
            raise InputError(
                f"{source.name} is corrupted differently in each epoch, so its lengths change "
                "and data.batches Scheduled cannot be used; use data.batches Bucketed"
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
        _logger.info("reading all examples of %s once for the lengths of their texts", source.name)
        found = np.zeros(source.size, np.int64)
        for start in range(0, source.size, _READ_AT_A_TIME):
            some = source.split.read(indices[start : start + _READ_AT_A_TIME])
            for place, stored in enumerate(some, start=start):
                found[place] = longest_joined(self._layout, stored)
        return self._layout.longest_stored(found, lengths)

    def longest_texts(self, numbers: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the number of tokens of the longest text of each of the given examples."""
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
        sources, epochs, _ = self._at(numbers)
        return set(sources[epochs > 0].tolist())

    def _read(
        self,
        sources: Int[np.ndarray, " n"],
        epochs: Int[np.ndarray, " n"],
        indices: Int[np.ndarray, " n"],
    ) -> list[dict[str, np.ndarray]]:
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
        """Return the number of passes over each task or cache before a position; NaN if unknown."""
        counts = self._counts(position)
        return [s.epochs_before(count) for count, s in zip(counts, self.sources, strict=True)]

    def _counts(self, position: Position) -> list[float]:
        counts = [float(count) for count in self._schedule.counts(position.window * WINDOW)]
        if position.row:
            after = self._schedule.counts((position.window + 1) * WINDOW)
            share = position.row / self.window(position.window).num_rows
            counts = [a + share * (b - a) for a, b in zip(counts, after, strict=True)]
        return counts

    def repeated(self, position: Position) -> set[int]:
        """Return the indices of the tasks or caches with repeated examples before a position."""
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
        """Delete the examples of streamed tasks that are not needed after a data position."""
        if not any(isinstance(source.split, Running) for source in self.sources):
            return
        before = self._schedule.counts(position.window * WINDOW)
        waiting = np.array([n for bucket in position.waiting for n in bucket], np.int64)
        sources, counts = self._schedule.at(waiting)
        for k, source in enumerate(self.sources):
            if isinstance(source.split, Running):
                source.split.forget(before[k], but={*counts[sources == k].tolist()})


def _numbers_of(data: Data, sources: list[Source]) -> dict[str, Int[np.ndarray, " S"]]:
    directories = [source.name for source in sources]
    found: dict[str, Int[np.ndarray, " S"]] = {}
    if data.adapter_of:
        numbers = adapter_numbers(data)
        ids = []
        for directory in directories:
            named = [numbers[name] for name in names_of(directory) if name in numbers]
            if not named:
                raise InputError(
                    f"data.adapter_of has no number for the cache {directory}, only for "
                    f"{', '.join(numbers)}"
                )
            ids.append(named[0])
        found[ADAPTER_IDS] = np.array(ids, np.int32)
    if alone := own_negative_caches(data):
        found[OWN_NEGATIVES] = np.array(
            [path.rstrip("/") in alone for path in directories], np.int32
        )
    return found


def _layout_of(data: Data, sources: list[Source]) -> Layout:
    first, *others = sources
    layout = data.layout.of_task(first.recipe.outputs)
    if data.adapter_of:  # several tasks, some with additional features
        every: dict[str, None] = {}
        for source in sources:
            data.layout.of_task(source.recipe.outputs)
            every |= dict.fromkeys(source.recipe.outputs)
        return data.layout.of_task(tuple(every))
    for source in others:
        if data.layout.of_task(source.recipe.outputs) != layout:
            raise InputError(
                f"the caches {first.name} and {source.name} have different features; write a "
                "cache of an earlier version of t5x-lite again, because it may lack scores"
            )
    return layout
