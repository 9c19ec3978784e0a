"""Training and evaluation batches of a data config, with a data position for checkpoints.

    batches = train_batches(data, vocabulary, seed=0)
    batch = next(batches)                # {"encoder_input_tokens": int32 [B, inputs_length], ...}
    position = batches.state()           # bytes for the checkpoint: after the batch just handed out
    train_batches(data, vocabulary, seed=0).restore(position)     # resumes with the next batch

The data are either offline caches (`data.cache`), which are read without TensorFlow and seqio, or a
task or mixture that is tokenized while it is read (`data.reading`). Both are mixed, corrupted and
batched by the same `stream.Stream`.

A position contains the index of a window of examples and the index of a row in this window
(`stream`). With batches of several shapes it also contains the examples that wait for a batch
(`scheduled`), and for a streamed task the examples that were read ahead. Each process builds its
own rows of every global batch, so batches and positions do not depend on the number of processes. A
process reads only the examples of its rows from a cache, but tokenizes all examples of a task.
"""

import itertools
import json
import logging
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.workers import Prefetch
from t5x_lite.data import config
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.refreshes import Refreshes
from t5x_lite.data.config import Data, lengths_of, words_of_inputs
from t5x_lite.data.mixing import Epoch, Mixing, UnknownSize, split_rate
from t5x_lite.data.mixtures import find_mixture
from t5x_lite.data.scheduled import Grouped, Made, OneShape, Scheduled, mixed_sources
from t5x_lite.data.sources import (
    FORMER,
    FROM_CACHE,
    ON_THE_FLY,
    Running,
    Source,
    check_identity,
    former_identity,
    identity_of,
    seal,
    share_of_batch,
    truncated,
    unseal,
)
from t5x_lite.data.stream import WINDOW, Position, Stream
from t5x_lite.data.vocabularies.encoder_tokens import tokens_for
from t5x_lite.data.vocabularies.loading import Vocabulary, load_vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)

_WINDOWS = 256
"""Maximum number of windows (blocks of examples) from which the length of an epoch is estimated."""

# Training.


class Batches(Iterator[dict[str, np.ndarray]]):
    """Endless iterator over the training batches of one process."""

    def __init__(
        self,
        batches: OneShape | Grouped | Scheduled,
        *,
        part: int,
        parts: int,
        identity: dict[str, Any],
        kind: bytes = FROM_CACHE,
        refreshes: Refreshes | None = None,
    ):
        self._kind = kind
        self._made, self._stream = batches, batches.stream
        self._part, self._parts = part, parts
        self._tells = part == 0
        self._identity = json.loads(json.dumps(identity))
        self._refreshes = refreshes
        self._go_to(Position())

    def _go_to(self, position: Position, *, number: int = 0) -> None:
        self._number, self._left = number, 0
        self._position, self._epoch = position, max(self._made.epochs(position))
        self._repeating = self._made.repeated(position)
        self._ahead = Prefetch(self._batches(position))

    def _batches(self, position: Position) -> Iterator[tuple[Made, float]]:
        while (made := self._made.make(position, part=self._part, parts=self._parts)) is not None:
            position = made.position
            yield made, max(self._made.epochs(position))

    def _begin_period(self, refreshes: Refreshes) -> None:
        """Switch to new hard negatives."""
        self._ahead.close()
        self._stream.negatives = refreshes.negatives(self._number)
        self._left = refreshes.left(self._number)
        self._position = self._made.regrouped(self._position)
        batches = itertools.islice(self._batches(self._position), self._left)
        self._ahead = Prefetch(batches)

    def __next__(self) -> dict[str, np.ndarray]:
        if self._refreshes is not None and not self._left:
            self._begin_period(self._refreshes)
        made, self._epoch = next(self._ahead)
        self._position = made.position
        self._number, self._left = self._number + 1, self._left - 1
        for k in sorted(made.repeated - self._repeating):
            self._repeating.add(k)
            if self._tells:
                name = self._stream.sources[k].name
                _logger.warning("epoch 2 of %s begins: the training examples are repeated", name)
        self._stream.forget(self._position)
        return made.batch

    @property
    def size(self) -> int | None:
        """The number of examples in an epoch, or None if a task is streamed."""
        sizes = [source.size for source in self._stream.sources]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def epoch(self) -> float | None:
        """The number of passes over the data; for a mixture, of its most repeated task or cache.

        None if unknown. For a streamed task, only complete passes are counted.
        """
        return None if math.isnan(self._epoch) else self._epoch

    def state(self) -> bytes:
        """Return the data position after the last returned batch; it is equal in all processes."""
        node = {
            "identity": self._identity,
            "window": self._position.window,
            "row": self._position.row,
            **({"waiting": self._position.waiting} if self._position.waiting else {}),
        }
        if self._refreshes is not None:
            node |= {"number": self._number, "refreshes": self._refreshes.used}
        if self._kind == FROM_CACHE:
            return seal(FROM_CACHE, json.dumps(node).encode())
        saved = [running.state() for running in self._running]
        node["running"] = [len(state) for state in saved]
        content = json.dumps(node).encode() + b"\n" + b"".join(saved)
        return seal(self._kind, zlib.compress(content, level=1))

    def restore(self, state: bytes) -> None:
        """Continue from a data position that `state` returned; the number of processes may change.

        If an earlier version of t5x-lite saved the position of a streamed task, the batches start
        at the beginning, with a warning.
        """
        if self._kind == ON_THE_FLY and state.startswith(FORMER):
            check_identity(*former_identity(state, self._identity))
            if not self._tells:
                return
            _logger.warning(
                "the saved data position is from an earlier version of t5x-lite, which ordered "
                "the data differently; the data start from the beginning, in the new order"
            )
            return
        body = unseal(self._kind, state)
        content = b""
        if self._kind == ON_THE_FLY:
            body, _, content = zlib.decompress(body).partition(b"\n")
        saved = json.loads(body)
        check_identity(saved["identity"], self._identity)
        self._ahead.close()
        for running, size in zip(self._running, saved.get("running", ()), strict=True):
            running.restore(content[:size])
            content = content[size:]
        waiting = tuple(map(tuple, saved.get("waiting", ())))
        if self._refreshes is not None:
            self._refreshes.used = dict(saved["refreshes"])
        position = Position(saved["window"], saved["row"], waiting)
        self._go_to(position, number=saved.get("number", 0))

    def close(self) -> None:
        """Stop the prefetching thread; `restore` starts it again, except for streamed tasks."""
        self._ahead.close()
        for running in self._running:
            running.close()

    @property
    def _running(self) -> list[Running]:
        splits = [source.split for source in self._stream.sources]
        return [split for split in splits if isinstance(split, Running)]


def train_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Batches:
    """Return an endless iterator over the training batches of a data config."""
    share_of_batch(data, process_count)
    sources = training_sources(data, vocabulary, seed=seed, tells=process_index == 0)
    stream = _training_stream(data, vocabulary, sources, seed=seed)
    batches = _global_batches(stream, data)
    if isinstance(data.batches, config.Scheduled):
        batches = Scheduled(stream, data, seed=seed, natural=_is_natural(data))
        if process_index == 0:
            for line in batches.report():
                _logger.info("%s", line)
    return Batches(
        batches,
        part=process_index,
        parts=process_count,
        identity={
            **identity_of(data, seed=seed),
            **_identity(data, vocabulary, sources),
            "packing": f"first fit in {WINDOW}",
        },
        kind=FROM_CACHE if data.cache else ON_THE_FLY,
        refreshes=_refreshes(data, sources),
    )


def _training_stream(
    data: Data, vocabulary: Vocabulary, sources: list[Source], *, seed: int
) -> Stream:
    tokens = tokens_for(data.layout, vocabulary)
    return Stream(data, sources, seed=seed, shuffle=data.shuffle, repeat=True, tokens=tokens)


def training_sources(
    data: Data, vocabulary: Vocabulary, *, seed: int, tells: bool = False
) -> list[Source]:
    """Return the sources of training examples: the caches in data.cache or tasks in data.task."""
    if data.cache:
        return truncated(data, open_sources(data, vocabulary, split="train"))
    if data.refresh.period:
        raise InputError(
            "data.refresh needs a cache; write a cache with `t5x-lite cache` and give --data.cache"
        )
    from t5x_lite.data import reading  # imported here, because TensorFlow takes seconds

    sources = reading.training_sources(data, vocabulary, seed=seed, tells=tells)
    if isinstance(data.batches, config.Scheduled) and any(s.size is None for s in sources):
        raise InputError(
            "data.batches Scheduled needs the lengths of all examples, which a streamed task "
            "does not have; write a cache with `t5x-lite cache` and give --data.cache, or use "
            "Bucketed"
        )
    return sources


def _identity(data: Data, vocabulary: Vocabulary, sources: Sequence[Source]) -> Mapping[str, Any]:
    if data.cache:
        caches = [source.cache for source in sources if source.cache is not None]
        rates = [str(source.rate) for source in sources]
        return {"cache": [[c.digest, rate] for c, rate in zip(caches, rates, strict=True)]}
    streamed = any(source.size is None for source in sources)
    return {
        **data.layout.of_task(sources[0].recipe.outputs).identity(),
        "task": data.task,
        "vocabulary": vocabulary.digest,
        **(
            {"size": sources[0].identity}
            if len(sources) == 1
            else {
                "members": [[source.name, str(source.rate)] for source in sources],
                "sizes": [source.identity for source in sources],
            }
        ),
        **({"shuffle_buffer": data.shuffle_buffer} if streamed else {}),
    }


def _refreshes(data: Data, sources: Sequence[Source]) -> Refreshes | None:
    if not data.refresh.period:
        return None
    if len(sources) > 1:
        raise InputError(
            "data.refresh supports only one cache, but data.cache names several; write one cache "
            "with all examples"
        )
    assert sources[0].size is not None
    return Refreshes(data.refresh, num_examples=sources[0].size)


def _is_natural(data: Data) -> bool:
    texts = [data.cache] if isinstance(data.cache, str) else data.cache
    rated = any(split_rate(text)[1] is not None for text in texts)
    if data.mixing != Mixing() or find_mixture(data) is not None:
        return False
    return len(texts) == 1 or not rated


def _global_batches(stream: Stream, data: Data) -> OneShape | Grouped:
    if data.batches.buckets():
        return Grouped(stream, data)
    return OneShape(stream, batch_size=data.batch_size)


def open_sources(
    data: Data, vocabulary: Vocabulary, *, split: str, pass_over: bool = False
) -> list[Source]:
    """Open the caches in data.cache as sources of the examples of a split."""
    mixed = [(Cache(directory), rate) for directory, rate in mixed_sources(data)]
    for cache, _ in mixed:
        _check(cache, data, vocabulary)
    chosen = [pair for pair in mixed if split in pair[0].index.splits] if pass_over else mixed
    chosen = chosen or mixed
    total = sum(rate for _, rate in chosen)
    found = [Source.of_cache(cache, split, rate=rate / total) for cache, rate in chosen]
    tasks = [cache.index.task for cache, _ in mixed]
    if data.task and data.task not in tasks and not _are_members(data, tasks):
        raise InputError(
            f"data.task is {data.task!r}, but the caches in data.cache are of "
            f"{', '.join(tasks)}; change one of them, or give --data.task ''"
        )
    return found


def _are_members(data: Data, tasks: Sequence[str]) -> bool:
    mixture = find_mixture(data)
    return mixture is not None and set(tasks) <= {member.task for member in mixture.members}


def _check(cache: Cache, data: Data, vocabulary: Vocabulary) -> None:
    where, index = cache.directory, cache.index
    is_same = index.vocabulary["digest"] == vocabulary.digest
    if not is_same and isinstance(vocabulary, Tokenizer):
        own = load_vocabulary(str(where / "vocabulary"), extra_ids=index.vocabulary["extra_ids"])
        is_same = vocabulary.has_the_ids_of(own)
    if not is_same:
        raise InputError(
            f"cache {where} was written with another vocabulary than {data.vocabulary}; use "
            f"--data.vocabulary {where / 'vocabulary'} --data.extra-ids "
            f"{index.vocabulary['extra_ids']}"
        )
    if "passages" in index.recipe.outputs:
        raise InputError(
            f"cache {where} was written by an earlier version of t5x-lite and has the same "
            "negatives in every epoch; write the cache again"
        )
    data.layout.check(index.recipe.outputs)
    try:
        data.layout.check_fixed(index.recipe.fixed)
    except InputError as error:
        raise InputError(f"cache {where}: {error}") from error
    _check_final_sentinel(cache, data)
    _check_wording(cache, data)
    if index.recipe.ending:
        data.layout.ending(vocabulary, length=data.inputs_length)  # raises if it does not fit
    for name, length in (index.recipe.lengths or {}).items():
        now = lengths_of(data)[name]
        if now == length:
            continue
        side = {"query": "inputs", "positives": "targets", "negatives": "targets"}.get(name, name)
        raise InputError(
            f"cache {where} was written for data.{side}_length {length}, but data.{side}_length "
            f"is {now}; set --data.{side}-length {length}, or write another cache"
        )


def _check_final_sentinel(cache: Cache, data: Data) -> None:
    recipe = cache.index.recipe
    ends = bool(recipe.options.get("final_sentinel", False))
    if not recipe.corruption or ends == data.final_sentinel:
        return
    if data.final_sentinel and not recipe.can_end_in_sentinel:
        raise InputError(
            f"data.final_sentinel is set, but cache {cache.directory} was written with "
            f"{recipe.corruption}, which has no final sentinel; unset data.final_sentinel"
        )
    raise InputError(
        f"cache {cache.directory} was written with data.final_sentinel {ends}, but "
        f"data.final_sentinel is {data.final_sentinel}; set --data.final-sentinel {ends}, or "
        "write another cache"
    )


def _check_wording(cache: Cache, data: Data) -> None:
    here, there = words_of_inputs(data), dict(cache.index.wording)
    if (run := "augment.run") in here and run in there:
        there[run] = here[run]  # the path of a run depends on the machine
    if here == there or not (here or data.task):
        return
    name = next(name for name in (*here, *there) if here.get(name) != there.get(name))
    was, now = (repr(words[name]) if name in words else "unset" for words in (there, here))
    remedy = f"set --data.{name} {was}" if name in there else f"leave data.{name} unset"
    raise InputError(
        f"cache {cache.directory} was written with data.{name} {was}, but data.{name} is {now}; "
        f"{remedy}, or write another cache"
    )


def epoch_of(data: Data, vocabulary: Vocabulary, *, seed: int) -> Epoch:
    """Return the number of examples and of batches in one pass over the training data.

    For packed rows and for batches of several shapes, the number of batches is estimated from the
    lengths of examples that are evenly spread over the epoch.

    Raises:
      UnknownSize: if a task is streamed.
    """
    one_a_row = not data.pack and not data.batches.buckets()
    if one_a_row and not data.cache:
        from t5x_lite.data import reading

        total = reading.num_examples(data, vocabulary, seed=seed)
        return Epoch(total, total / data.batch_size)
    sources = training_sources(data, vocabulary, seed=seed)
    sizes = [source.size for source in sources]
    if None in sizes:
        what = "data.pack True" if data.pack else "batches of several shapes"
        raise UnknownSize(
            f"the number of steps per epoch is unknown with {what}, because a streamed task does "
            "not give its number of rows; write a cache with `t5x-lite cache` and give "
            "--data.cache, or give --steps"
        )
    total = sum(size or 0 for size in sizes)
    stream = _training_stream(data, vocabulary, sources, seed=seed)
    if isinstance(data.batches, config.Scheduled):
        groups = Scheduled(stream, data, seed=seed, natural=_is_natural(data)).groups
        return Epoch(total, float(sum(Fraction(group.full) * group.repeats for group in groups)))
    if one_a_row:
        return Epoch(total, total / data.batch_size)
    windows = -(-total // WINDOW)
    looked_at = np.unique(np.linspace(0, windows - 1, min(windows, _WINDOWS)).round().astype(int))
    grouped = Grouped(stream, data) if data.batches.buckets() else None
    num_examples, num_batches = 0, 0.0
    for number in looked_at.tolist():
        window = stream.window(number)
        num_examples += len(window.sources)
        if grouped is None:
            num_batches += window.num_rows / data.batch_size
        else:
            num_batches += grouped.share_of_batches(number)
    return Epoch(total, num_batches * total / num_examples)


# Evaluation.


def has_task_metrics(data: Data) -> bool:
    """Return True if the task in data.task computes metrics, as recorded in its caches."""
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
    """Return the batches of one ordered pass over a split, for computing an evaluation loss.

    The last batch of each shape is filled with padding rows, which have loss weights of 0. Tasks of
    a mixture are mixed at the mixture's rates until the first task has no more examples. Caches and
    tasks without the split or without data are skipped.
    """
    if data.cache:
        sources = open_sources(data, vocabulary, split=split, pass_over=True)
    else:
        from t5x_lite.data import reading  # imported here, because TensorFlow takes seconds

        sources = reading.held_out_sources(data, vocabulary, split=split)
    tokens = tokens_for(data.layout, vocabulary)
    stream = Stream(data, sources, seed=0, shuffle=False, repeat=False, tokens=tokens)
    return itertools.islice(_one_pass(_global_batches(stream, data)), max_batches)


def _one_pass(batches: OneShape | Grouped) -> Iterator[dict[str, np.ndarray]]:
    position = Position()
    while (made := batches.make(position, part=0, parts=1)) is not None:
        yield made.batch
        position = made.position
