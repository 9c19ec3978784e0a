"""Sources of a run's examples, and saved positions in the data.

Saved data positions: bytes with a checksum, and the settings that a position depends on.

Sources of training examples: caches, tasks in memory and streamed tasks.

    held = Held(("inputs", "targets"), examples)         # tokens in memory: any example can be read
    held.read(np.array([17, 3]))
    running = Running(feed, ("inputs", "targets"))       # read from the front, kept while needed
    source = Source(name="tasks.glue:rte", recipe=recipe, split=held, rate=Fraction(1), size=2490)

`truncated` limits a cache to its first documents or tokens (Raffel et al. 2020, table 9):

    data = Data(cache="caches/c4", first_tokens=2**23, ...)
    (source,) = truncated(data, open_sources(data, vocabulary, split="train"))
    source.size                                          # 16416 examples of 511 tokens

The examples of a cache have the same order as the examples of the task, so the same examples are
used with and without a cache (`data.loading`). Every epoch permutes the examples completely.
"""

import bisect
import dataclasses
import hashlib
import io
import json
import logging
import math
import threading
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache.files import Cache, Split
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.config import (
    Data,
    own_negative_caches,
    rows_named,
    shapes_of,
    truncation_of,
    wording_of,
)
from t5x_lite.data.mixing import order

_logger = logging.getLogger(__name__)


ON_THE_FLY = b"t5x_lite iterator 3\n"
FORMER = (b"t5x_lite iterator 1\n", b"t5x_lite iterator 2\n")
"""First bytes of data positions that earlier versions saved for streamed tasks."""
FORMER_LAYOUTS = {"pairs": "groups"}
"""Current name of each layout that positions of earlier versions have under another name."""
FROM_CACHE = b"t5x_lite cache position 1\n"

_SAYS = {
    ON_THE_FLY: "from a task without a cache; unset data.cache or start a new run",
    **dict.fromkeys(FORMER, "from a task without a cache; unset data.cache or start a new run"),
    FROM_CACHE: "from a cache; set data.cache or start a new run",
}


def seal(kind: bytes, body: bytes) -> bytes:
    """Return a data position as bytes, with a checksum."""
    return kind + hashlib.sha256(body).digest() + body


def unseal(kind: bytes, state: bytes) -> bytes:
    """Return the data position that `seal` stored as bytes; raise InputError if it is damaged."""
    for other, says in _SAYS.items():
        if other != kind and state.startswith(other):
            raise InputError(f"the saved data position cannot be restored, because it is {says}")
    start = len(kind) + hashlib.sha256().digest_size
    digest, body = state[len(kind) : start], state[start:]
    if not state.startswith(kind) or hashlib.sha256(body).digest() != digest:
        raise InputError("the saved data position is damaged; restore an older checkpoint")
    return body


def share_of_batch(data: Data, process_count: int) -> int:
    """Return the number of batch rows per process; raise InputError if the number is not whole."""
    for shape in shapes_of(data):
        if shape.batch_size % process_count:
            raise InputError(
                f"{rows_named(data, shape)} cannot be divided among {process_count} processes"
            )
    return data.batch_size // process_count


def identity_of(data: Data, *, seed: int) -> dict[str, Any]:
    """Return the config's settings that must not change when a saved data position is restored."""
    names = ("batch_size", "inputs_length", "targets_length", "pack", "shuffle")
    own = {name: getattr(data, name) for name in names}
    if data.final_sentinel:  # positions of earlier versions lack this entry
        own["final_sentinel"] = True
    if data.adapter_of:
        own["adapter_of"] = list(data.adapter_of)
    if alone := own_negative_caches(data):
        own["own_negatives"] = alone
    own |= truncation_of(data) | wording_of(data)
    return {
        **data.layout.identity(),
        **own,
        **data.batches.identity(),
        **data.refresh.identity(),
        **data.augment.identity(),
        "seed": seed,
    }


def former_identity(
    state: bytes, current: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings saved by an older t5x-lite version, and the same settings of this run."""
    kind = next(kind for kind in FORMER if state.startswith(kind))
    header, _, _ = zlib.decompress(unseal(kind, state)).partition(b"\n")
    saved = json.loads(header)["identity"]
    if "layout" in saved:
        saved["layout"] = FORMER_LAYOUTS.get(saved["layout"], saved["layout"])
    both = [name for name in saved if name in current and name not in ("members", "size", "sizes")]
    return {name: saved[name] for name in both}, {name: current[name] for name in both}


def check_identity(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise InputError if settings changed after a data position was saved."""
    names = sorted({*saved, *current})
    differing = [name for name in names if saved.get(name) != current.get(name)]
    different = [f"{name} {saved.get(name)!r} (now {current.get(name)!r})" for name in differing]
    if different:
        raise InputError(
            f"the saved data position belongs to data with other settings: {', '.join(different)}"
        )


@runtime_checkable
class Examples(Protocol):
    """Protocol of stored examples with random access by index."""

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        """Return the number of tokens of each stored feature of the examples with these indices."""
        ...

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        """Return the stored features of the examples with these indices, int32."""
        ...

    def longest(self) -> Int[np.ndarray, " n"] | None:
        """Return the length of each example's longest text in tokens, or None if not stored."""
        ...


class Held:
    """Tokenized examples in memory, with random access by index.

    Attributes:
      size: number of examples.
      digest: SHA-256 of the tokens and of the lengths.
    """

    def __init__(self, features: Sequence[str], examples: Iterable[Sequence[np.ndarray]]):
        """Store examples, given the names of the features and the arrays of each example."""
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
        return self._lengths[indices]

    def longest(self) -> None:
        """Return None, because the lengths of single texts are unknown."""

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        found = []
        for index in indices.tolist():
            counts = self._lengths[index]
            tokens = self._tokens[self._ends[index] - counts.sum() : self._ends[index]]
            parts = np.split(tokens, counts.cumsum()[:-1])
            found.append(dict(zip(self._features, parts, strict=True)))
        return found


@runtime_checkable
class Feed(Protocol):
    """Protocol of a sequential reader of a task's examples, with a position that can be saved."""

    def __next__(self) -> "tuple[list[list[np.ndarray]], Int[np.ndarray, ' n'] | None]":
        """Return the features of the next examples, and the pass of each; None if unknown."""
        ...

    def state(self) -> bytes:
        """Return the current position, which `restore` accepts."""
        ...

    def restore(self, state: bytes) -> None:
        """Continue from a position that `state` returned."""
        ...

    def close(self) -> None:
        """Release prefetched data."""
        ...


class Shuffled:
    """Shuffle buffer, which returns a random one of its examples and then adds the next example."""

    def __init__(self, feed: Feed, *, size: int, seed: int):
        self._feed, self._size, self._seed = feed, size, seed
        self._waiting: list[tuple[list[np.ndarray], int]] = []
        self._number, self._told = 0, True

    def __next__(self) -> tuple[list[list[np.ndarray]], Int[np.ndarray, " n"] | None]:
        given: list[tuple[list[np.ndarray], int]] = []
        while not given:
            examples, epochs = next(self._feed)
            self._told = epochs is not None
            numbers = [0] * len(examples) if epochs is None else epochs.tolist()
            draws = np.random.default_rng([self._seed, self._number])
            places = draws.integers(0, self._size, len(examples)).tolist()
            self._number += 1
            for place, one in zip(places, zip(examples, numbers, strict=True), strict=True):
                if len(self._waiting) < self._size:
                    self._waiting.append(one)
                else:
                    given.append(self._waiting[place])
                    self._waiting[place] = one
        found = [example for example, _ in given]
        return found, np.array([epoch for _, epoch in given]) if self._told else None

    def state(self) -> bytes:
        examples = [example for example, _ in self._waiting]
        buffer = io.BytesIO()
        np.savez(
            buffer,
            **_packed(examples),
            epochs=np.array([epoch for _, epoch in self._waiting], np.int64),
            number=np.array(self._number),
            feed=np.frombuffer(self._feed.state(), np.uint8),
        )
        return buffer.getvalue()

    def restore(self, state: bytes) -> None:
        with np.load(io.BytesIO(state), allow_pickle=False) as saved:
            examples = _unpacked(saved)
            self._waiting = list(zip(examples, saved["epochs"].tolist(), strict=True))
            self._number = int(saved["number"])
            self._feed.restore(saved["feed"].tobytes())

    def close(self) -> None:
        self._feed.close()


def _packed(examples: Sequence[Sequence[np.ndarray]]) -> dict[str, Any]:
    parts = [part for example in examples for part in example]
    return {
        "width": np.array(len(examples[0]) if examples else 1),
        "lengths": np.array([len(part) for part in parts], np.int64),
        "tokens": np.concatenate([np.zeros(0, np.int32), *parts]).astype(np.int32),
    }


def _unpacked(saved: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
    width, lengths = int(saved["width"]), saved["lengths"]
    parts = np.split(saved["tokens"], lengths.cumsum()[:-1])
    return [parts[first : first + width] for first in range(0, len(lengths), width)]


class Running:
    """Examples of a streamed task, which are read in order and kept while training may need them.

    Examples are numbered in the order of reading, across epochs. Reading and saving may run in
    different threads.
    """

    def __init__(self, feed: Feed, features: Sequence[str], *, identity: str | None = None):
        """Create a store of examples, which is empty until examples are needed.

        Args:
          feed: reader of the examples.
          features: names of the stored features.
          identity: description of the data, such as file names and sizes; None if unknown.
        """
        self.identity = identity
        self._feed, self._features = feed, tuple(features)
        self._lock = threading.Lock()
        self._kept: dict[int, list[np.ndarray]] = {}
        self._epochs: dict[int, int] = {}
        self._read, self._is_over = 0, False
        self._passes = [(0, 0.0)]  # (first number, number of epochs begun before it)

    def available(self, count: int) -> int:
        """Read ahead up to `count` examples, and return the number of examples read so far."""
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
        """Return the number of complete passes over the data before each of the given examples."""
        self.available(int(numbers.max(initial=-1)) + 1)
        return np.array([self._epochs[number] for number in numbers.tolist()], np.int64)

    def epochs_before(self, count: int) -> float:
        """Return the number of passes in the first `count` examples of a task; NaN if unknown."""
        place = bisect.bisect_right(self._passes, (max(0, count - 1), math.inf)) - 1
        return self._passes[place][1]

    def counts(self, indices: Int[np.ndarray, " n"]) -> Int[np.ndarray, "n F"]:
        lengths = [[len(part) for part in self._kept[number]] for number in indices.tolist()]
        return np.array(lengths, np.int64).reshape(len(indices), len(self._features))

    def read(self, indices: Int[np.ndarray, " n"]) -> list[dict[str, np.ndarray]]:
        found = [self._kept[number] for number in indices.tolist()]
        return [dict(zip(self._features, parts, strict=True)) for parts in found]

    def longest(self) -> None:
        """Return None, because the lengths of single texts are unknown."""

    def forget(self, before: int, *, but: Collection[int] = ()) -> None:
        """Delete the examples with numbers below `before`, except the examples in `but`."""
        with self._lock:
            for number in [n for n in self._kept if n < before and n not in but]:
                del self._kept[number], self._epochs[number]
            past = bisect.bisect_right(self._passes, (max(0, before - 1), math.inf)) - 1
            del self._passes[:past]

    def state(self) -> bytes:
        """Return the kept examples and the current position, as accepted by `restore`."""
        with self._lock:
            numbers = sorted(self._kept)
            buffer = io.BytesIO()
            np.savez(
                buffer,
                numbers=np.array(numbers, np.int64),
                epochs=np.array([self._epochs[number] for number in numbers], np.int64),
                **_packed([self._kept[number] for number in numbers]),
                passes=np.array(self._passes, np.float64),
                read=np.array(self._read),
                feed=np.frombuffer(self._feed.state(), np.uint8),
            )
            return buffer.getvalue()

    def restore(self, state: bytes) -> None:
        """Continue from a position that `state` returned."""
        with self._lock, np.load(io.BytesIO(state), allow_pickle=False) as saved:
            numbers = saved["numbers"].tolist()
            self._kept = dict(zip(numbers, _unpacked(saved), strict=True))
            self._epochs = dict(zip(numbers, saved["epochs"].tolist(), strict=True))
            self._passes = [(int(first), epoch) for first, epoch in saved["passes"].tolist()]
            self._read, self._is_over = int(saved["read"]), False
            self._feed.restore(saved["feed"].tobytes())

    def close(self) -> None:
        """Release prefetched data."""
        self._feed.close()


@dataclass(frozen=True, kw_only=True)
class Source:
    """One cache or task from which training reads examples, with its sampling rate.

    Attributes:
      name: name for messages: the cache's directory, or the task's name.
      recipe: description of how stored features become examples.
      split: tokenized examples of the split.
      rate: fraction of the mixture's examples that come from this source.
      size: number of examples in an epoch; None if the task is streamed.
      cache: the cache; None for a task.
    """

    name: str
    recipe: Recipe
    split: Examples
    rate: Fraction
    size: int | None
    cache: Cache | None = None

    @classmethod
    def of_cache(cls, cache: Cache, split: str, *, rate: Fraction) -> "Source":
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
        """Return the epoch and the index of each example, given its number in the training order.

        Args:
          counts: numbers of the examples in the order of training, across epochs.
          seed: random seed of the order.
          shuffle: True to permute each epoch.
        """
        if isinstance(self.split, Running):
            return self.split.epochs(counts), counts
        assert self.size is not None
        epochs, places = np.divmod(counts, self.size)
        if not shuffle:
            return epochs, places
        return epochs, order(places, epochs, size=self.size, seed=seed)

    @property
    def identity(self) -> str | None:
        """Description that differs if the task's data differ; None if unknown."""
        if isinstance(self.split, Held):
            return f"{self.split.size} examples ({self.split.digest[:16]})"
        return self.split.identity if isinstance(self.split, Running) else None

    def available(self, count: int) -> int:
        """Return the number of examples available in one pass, up to `count`."""
        if isinstance(self.split, Running):
            return self.split.available(count)
        assert self.size is not None
        return min(count, self.size)

    def epochs_before(self, count: float | int) -> float:
        """Return the number of passes in the first `count` examples of a task; NaN if unknown."""
        if isinstance(self.split, Running):
            return self.split.epochs_before(math.ceil(count))
        assert self.size is not None
        return count / self.size


def truncated(data: Data, sources: list[Source]) -> list[Source]:
    """Limit a cache to its first examples if data.first_documents or data.first_tokens is set."""
    for name, number in truncation_of(data).items():
        if len(sources) > 1:
            raise InputError(
                f"data.{name} limits one task to its first examples, but data.cache names "
                f"several caches; give one cache, or unset data.{name}"
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
            f"cache {source.cache.directory} does not record the first {number} documents of the "
            "task; write a cache of these documents with `t5x-lite cache ... "
            f"--data.first-documents {number}`, or set --data.first-tokens"
        )
    there = source.size
    if number > there:
        _logger.warning(
            "data.first_documents is %d, but the cache has only %d documents", number, there
        )
    return min(number, there)


def _tokens(source: Source, number: int) -> int:
    assert source.cache is not None
    assert isinstance(source.split, Split)
    first = source.split.first_with(number, floats=source.recipe.floats)
    if not first:
        raise InputError(
            f"data.first_tokens {number} is less than the number of tokens of the first example "
            f"of cache {source.cache.directory}"
        )
    there = source.cache.index.splits["train"].tokens
    if first == source.split.size and number >= there + _longest(source):
        _logger.warning("data.first_tokens is %d, but the cache has only %d tokens", number, there)
    return first


def _longest(source: Source) -> int:
    some = np.arange(min(source.size or 0, 1000))
    return int(source.split.counts(some).sum(1).max())
