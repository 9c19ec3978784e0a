"""Batches from offline caches, with neither TensorFlow nor seqio: the twin of `live.pipeline`.

    data = Data(cache="caches/prose", vocabulary="caches/prose/vocabulary")
    batches = train_batches(data, vocabulary, seed=0)
    batch = next(batches)                # {"encoder_input_tokens": int32 [B, inputs_length], ...}
    position = batches.state()           # a few numbers, the same on every host
    train_batches(data, vocabulary, seed=0).restore(position)     # goes on with the next one

A position is the number of a window of examples and of a row in it (`stream`), and with batches of
several shapes which examples wait (`grouped`). Each process takes its own rows of every global
batch and reads only the examples of those, so the batches are the same whatever the number of
processes.
"""

import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.grouped import Grouped, Made, OneShape
from t5x_lite.data.cache.mixture import mixed_sources
from t5x_lite.data.cache.stream import WINDOW, Position, Source, Stream
from t5x_lite.data.config import Data, lengths_of
from t5x_lite.data.mixtures import find_mixture
from t5x_lite.data.positions import (
    FROM_CACHE,
    check_identity,
    identity_of,
    seal,
    share_of_batch,
    unseal,
)
from t5x_lite.errors import InputError
from t5x_lite.records.prefetch import Prefetch
from t5x_lite.vocabulary.loading import Vocabulary

_logger = logging.getLogger(__name__)


# Training.


class CachedBatches(Iterator[dict[str, np.ndarray]]):
    """An endless iterator of one process's rows of every global batch, made ahead in a thread."""

    def __init__(
        self, batches: OneShape | Grouped, *, part: int, parts: int, identity: dict[str, Any]
    ):
        """Starts at the first batch.

        Args:
          batches: the global ones.
          part: which of their parts this process gets; the first one tells what there is to tell.
          parts: how many there are.
          identity: what must be equal for a saved position to fit, as JSON.
        """
        self._made, self._stream = batches, batches.stream
        self._part, self._parts = part, parts
        self._tells = part == 0
        self._identity = json.loads(json.dumps(identity))
        self._go_to(Position())

    def _go_to(self, position: Position) -> None:
        self._position, self._epoch = position, max(self._stream.epochs(position))
        self._repeating = self._stream.repeated(position)
        self._ahead = Prefetch(self._batches(position))

    def _batches(self, position: Position) -> Iterator[tuple[Made, float]]:
        """Batches from a position on, with the epoch after each."""
        while (made := self._made.make(position, part=self._part, parts=self._parts)) is not None:
            position = made.position
            yield made, max(self._stream.epochs(position))

    def __next__(self) -> dict[str, np.ndarray]:
        made, self._epoch = next(self._ahead)
        self._position = made.position
        for k in sorted(made.repeated - self._repeating):
            self._repeating.add(k)
            if self._tells:
                directory = self._stream.sources[k].cache.directory
                _logger.warning("epoch 2 begins: the data repeats (%s)", directory)
        return made.batch

    @property
    def epoch(self) -> float:
        """How often the data were read; of a mixture, the cache that was read most often."""
        return self._epoch

    def state(self) -> bytes:
        """The position after the last batch that next() handed out, the same in every process."""
        node = {
            "identity": self._identity,
            "window": self._position.window,
            "row": self._position.row,
            **({"waiting": self._position.waiting} if self._position.waiting else {}),
        }
        return seal(FROM_CACHE, json.dumps(node).encode())

    def restore(self, state: bytes) -> None:
        """Goes to a position that `state` gave, in any process of any number of processes.

        Raises:
          InputError: if the state is damaged, or is that of other data (which ones is said).
        """
        saved = json.loads(unseal(FROM_CACHE, state))
        check_identity(saved["identity"], self._identity)
        self.close()
        waiting = tuple(map(tuple, saved.get("waiting", ())))
        self._go_to(Position(saved["window"], saved["row"], waiting))

    def close(self) -> None:
        """Ends the thread; nothing more is handed out before `restore`."""
        self._ahead.close()


def train_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> CachedBatches:
    """Training batches, repeated for ever, as `pipeline.train_batches` makes them of a task.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      seed: of order and corruption.
      process_index: this process, which gets its rows of every global batch.
      process_count: processes in all; each gets batch_size / process_count rows.

    Returns:
      Batches of int32 arrays [rows, length] under seqio's names.

    Raises:
      InputError: if the batch cannot be divided, or a cache is damaged, of another vocabulary or
        task, or made for other lengths.
    """
    share_of_batch(data, process_count)
    sources = open_sources(data, vocabulary, split="train")
    stream = Stream(
        data,
        sources,
        seed=seed,
        shuffle=data.shuffle,
        repeat=True,
        tokens=data.layout.encoder_tokens(vocabulary),
    )
    identity = {
        **identity_of(data, seed=seed),
        "cache": [[source.cache.digest, str(source.rate)] for source in sources],
        "packing": f"first fit in {WINDOW}",
    }
    return CachedBatches(
        _global_batches(stream, data), part=process_index, parts=process_count, identity=identity
    )


def _global_batches(stream: Stream, data: Data) -> OneShape | Grouped:
    if data.batches.buckets():
        return Grouped(stream, data)
    return OneShape(stream, batch_size=data.batch_size)


def open_sources(data: Data, vocabulary: Vocabulary, *, split: str) -> list[Source]:
    """Opens the caches that data.cache names.

    Args:
      data: the data config.
      vocabulary: of inputs and targets; it must be the caches'.
      split: the split to read.

    Raises:
      InputError: see `train_batches`.
    """
    found = []
    for directory, rate in mixed_sources(data):
        cache = Cache(directory)
        _check(cache, data, vocabulary)
        found.append(Source(cache=cache, split=cache.split(split), rate=rate))
    tasks = [source.cache.index.task for source in found]
    if data.task and data.task not in tasks and not _are_members(data, tasks):
        raise InputError(
            f"data.task is {data.task!r}, and data.cache was made of {', '.join(tasks)}: change "
            'one of them, or set data.task to ""'
        )
    return found


def _are_members(data: Data, tasks: Sequence[str]) -> bool:
    """Whether data.task is a mixture, and the caches were made of tasks of it."""
    mixture = find_mixture(data)
    return mixture is not None and set(tasks) <= {member.task for member in mixture.members}


def _check(cache: Cache, data: Data, vocabulary: Vocabulary) -> None:
    """Refuses a cache that does not go together with a config."""
    where, index = cache.directory, cache.index
    if index.vocabulary["digest"] != vocabulary.digest:
        raise InputError(
            f"cache {where} was made with another vocabulary than {data.vocabulary}: use "
            f"--data.vocabulary {where / 'vocabulary'} --data.extra-ids "
            f"{index.vocabulary['extra_ids']}"
        )
    if "passages" in index.recipe.outputs:
        raise InputError(
            f"cache {where} was written by an earlier version, with the same negatives in every "
            "epoch: write it anew"
        )
    data.layout.check(index.recipe.outputs)
    try:
        data.layout.check_fixed(index.recipe.fixed)
    except InputError as error:
        raise InputError(f"cache {where} {error}") from error
    for name, length in (index.recipe.lengths or {}).items():
        now = lengths_of(data)[name]
        if now == length:
            continue
        side = {"query": "inputs", "positives": "targets", "negatives": "targets"}.get(name, name)
        raise InputError(
            f"cache {where} was made for data.{side}_length {length}, and it is {now}: set "
            f"--data.{side}-length {length}, or write another cache"
        )


# Evaluation.


def has_task_metrics(data: Data) -> bool:
    """Whether data.task has metrics of its own, as its cache says, without importing the task.

    Args:
      data: the data config, with a cache.

    Raises:
      InputError: a cache is damaged.
    """
    caches = [Cache(directory) for directory, _ in mixed_sources(data)]
    if not data.task or data.task in [c.index.task for c in caches]:
        return any(c.index.has_metrics for c in caches if c.index.task == data.task)
    return find_mixture(data) is not None and any(c.index.has_metrics for c in caches)


def eval_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    split: str = "validation",
    max_batches: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Batches for a held-out loss: one pass in order, the same in every run whatever its seed.

    The last batch, of each shape, is filled up with rows of padding, whose loss weights are 0. A
    mixture is mixed at its rates, and ends where a cache would begin anew.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      split: a split of the caches.
      max_batches: stop after so many; None reads all.

    Returns:
      Batches of int32 arrays [batch_size, length] under seqio's names.

    Raises:
      InputError: as `train_batches`, and if there is no such split.
    """
    sources = open_sources(data, vocabulary, split=split)
    tokens = data.layout.encoder_tokens(vocabulary)
    stream = Stream(data, sources, seed=0, shuffle=False, repeat=False, tokens=tokens)
    return itertools.islice(_one_pass(_global_batches(stream, data)), max_batches)


def _one_pass(batches: OneShape | Grouped) -> Iterator[dict[str, np.ndarray]]:
    position = Position()
    while (made := batches.make(position, part=0, parts=1)) is not None:
        yield made.batch
        position = made.position
