"""From the name of a task to batches, whose position can be saved.

From the name of a task, or of a mixture of tasks, to batches: the only way from text to a step.

    vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    batches = train_batches(data, vocabulary, seed=0)
    batch = next(batches)                # {"encoder_input_tokens": int32 [B, inputs_length], ...}
    position = batches.state()           # bytes for the checkpoint: after the batch just handed out
    train_batches(data, vocabulary, seed=0).restore(position)     # goes on with the next one

The way of an example: task (source, preprocessors, trim, shuffle; all seqio's) -> layout (pack or
pad) -> batch. Equal configs and seeds give equal batches, in this process or another.

A task is a mixture of one. Of several, each gives its own examples, tokenised, trimmed and
shuffled; for each place a task is drawn at random by its rate, and what is drawn is packed
together. It is what seqio.Mixture does (tf.data.Dataset.sample_from_datasets), so that equal seeds
draw the same.

Training batches whose position can be saved, and gone back to in another process.

    batches = Batches(dataset, identity={"task": "tasks.text:span_corruption", "seed": 0})
    batch = next(batches)                          # {"decoder_target_tokens": int32 [B, T], ...}
    position = batches.state()                     # bytes for the checkpoint: after that batch
    Batches(dataset, identity=...).restore(position)     # goes on with the next one

A position is what tf.data saves of its iterator, buffers included, in one string of bytes that says
whose it is.

Examples of a task as text, to be shown in front of its questions (`data.few_shot`).

demonstrations(data, vocabulary, split="train", pool=None)
# [Demonstration(inputs="sst2 sentence: a gem", targets="positive"), ...]
"""

import itertools
import json
import logging
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import BucketError
from t5x_lite.data import config, elements
from t5x_lite.data.config import Data, Refresh, lengths_of, shapes_of
from t5x_lite.data.elements import as_numpy, closed_at_exit, deterministic, seqio, tf
from t5x_lite.data.live import rows
from t5x_lite.data.live import rows as live
from t5x_lite.data.live.tasks import (
    Present,
    examples_of,
    held_out_examples,
    held_out_members,
    load_task,
    not_empty,
    rates_of,
    trained_members,
    training_examples,
    training_passes,
)
from t5x_lite.data.mixing import Epoch, UnknownSize
from t5x_lite.data.mixtures import find_mixture
from t5x_lite.data.positions import (
    FORMER_LAYOUTS,
    ON_THE_FLY,
    ON_THE_FLY_1,
    check_identity,
    identity_of,
    seal,
    share_of_batch,
    unseal,
)
from t5x_lite.data.preprocessors import UNKNOWN
from t5x_lite.data.tasks import stages
from t5x_lite.data.tasks.labelled import task_form
from t5x_lite.data.tasks.questions import questions
from t5x_lite.data.vocabularies.encoder_tokens import tokens_for
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts.base import KEY

_logger = logging.getLogger(__name__)


class Batches(Iterator[dict[str, np.ndarray]]):
    """An endless iterator of batches whose position can be saved.

    Nothing is prefetched in Python: what tf.data holds in its buffers is part of the saved state,
    so the position is that after the last batch which next() handed out.

    Attributes:
      epoch: how often all data were read before the latest example that was handed out; None where
        that is not known.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        identity: dict[str, Any],
        epoch: int | None = None,
        tells: str | None = None,
    ):
        """Starts at the first batch."""
        self.epoch = epoch
        self._tells = tells
        self._identity = json.loads(json.dumps(identity))
        self._iterator: Any = iter(dataset)
        self._checkpoint: Any = tf.train.Checkpoint(iterator=self._iterator)
        closed_at_exit(self)

    def close(self) -> None:
        """Lets go of what is read ahead; no batch comes after it."""
        self._iterator, self._checkpoint = iter(()), None

    def __next__(self) -> dict[str, np.ndarray]:
        try:
            batch = next(self._iterator)
        except tf.errors.OpError as error:
            found = elements.let_go(error)
            if isinstance(found, BucketError):
                self.close()
            raise found from error
        batch = {name: value.numpy() for name, value in batch.items()}
        if self.epoch is None:
            return batch
        batch, epoch = rows.unmark(batch)
        if self._tells is not None and epoch > self.epoch == 0:
            _logger.warning("epoch 2 begins: the data repeats (%s)", self._tells)
        self.epoch = max(epoch, self.epoch)
        return batch

    def state(self) -> bytes:
        """The position after the last batch that next() handed out."""
        with tempfile.TemporaryDirectory() as directory:
            self._checkpoint.write(f"{directory}/position")
            files = {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}
        sizes = {name: len(content) for name, content in files.items()}
        saved = {"identity": self._identity, "epoch": self.epoch, "files": sizes}
        header = json.dumps(saved).encode() + b"\n"
        return seal(ON_THE_FLY, zlib.compress(header + b"".join(files.values()), level=1))

    def restore(self, state: bytes) -> None:
        """Goes to a position that `state` gave, in this process or another.

        Of what an earlier version saved, in an order that is not made any more, nothing is used:
        the batches stay where they are, at their beginning, and a warning says so.
        """
        kind = ON_THE_FLY_1 if state.startswith(ON_THE_FLY_1) else ON_THE_FLY
        saved = _header(kind, state)[0]["identity"]
        layout = saved.get("layout")
        without_scores = "scores" in self._identity and "scores" not in saved
        if kind == ON_THE_FLY_1 or layout in FORMER_LAYOUTS or without_scores:
            self._stay_at_the_beginning({**saved, "layout": FORMER_LAYOUTS.get(layout, layout)})
            return
        epoch, files = self._unpack(state)
        with tempfile.TemporaryDirectory() as directory:
            for name, content in files.items():
                Path(directory, name).write_bytes(content)
            try:
                self._checkpoint.read(f"{directory}/position").assert_consumed()
            except (tf.errors.OpError, AssertionError) as error:
                raise InputError(
                    f"the saved data position does not fit this task: {str(error).splitlines()[0]}"
                ) from error
        self.epoch = epoch

    def _stay_at_the_beginning(self, saved: dict[str, Any]) -> None:
        """Of an earlier version's position, when its identity is of these data."""
        check_identity(saved, {name: self._identity.get(name) for name in saved})
        if not self._identity.get("process_index"):
            _logger.warning(
                "the position in the data was saved by an earlier version, whose order is not made "
                "any more: the data start over, in the new order"
            )

    def _unpack(self, state: bytes) -> tuple[int | None, dict[str, bytes]]:
        """The epoch and the checkpoint files in a state, which must be whole and ours."""
        saved, content = _header(ON_THE_FLY, state)
        check_identity(_with_size(saved["identity"], self._identity), self._identity)
        files = {}
        for name, size in saved["files"].items():
            files[name], content = content[:size], content[size:]
        return saved["epoch"], files


def _with_size(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """An identity with the size of files, which earlier versions did not know of a bucket's."""
    if saved.get("size", 0) is None and isinstance(current.get("size"), str):
        return {**saved, "size": current["size"]}
    return saved


def _header(kind: bytes, state: bytes) -> tuple[dict[str, Any], bytes]:
    """What a state says of itself, and the files behind it."""
    header, _, content = zlib.decompress(unseal(kind, state)).partition(b"\n")
    return json.loads(header), content


_EVAL_SEED = 42
"""seqio's, where nothing is shuffled."""
_PROCESS_SEED = 1 << 32


# Training.


def train_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Batches:
    """Training batches, repeated for ever."""
    _check_needs_no_cache(data.batches, data.refresh)
    share_of_batch(data, process_count)
    # All processes have batches of the same shape at the same step: where there are several shapes,
    # each reads all examples, and lays out its own rows.
    first, readers = (0, 1) if data.batches.buckets() else (process_index, process_count)
    shard = seqio.ShardInfo(first, readers) if readers > 1 else None
    is_one = find_mixture(data) is None
    trained = trained_members(
        data,
        vocabulary,
        # Each process numbers its own examples: their random numbers must differ all the same.
        seed=seed + first * _PROCESS_SEED,
        shard_info=shard,
        tells=process_index == 0,
    )
    rates = rates_of(data, trained, anew=True, tells=process_index == 0)
    passes = [training_passes(data, one.task, seed=seed) for one in trained]

    def examples(place: int) -> tf.data.Dataset:
        task = trained[place].task
        # How often the data were read is told of one task alone.
        counted = rows.counting(task) if is_one else task
        return training_examples(data, counted, passes[place], seed=seed, shard_info=shard)

    drawn = _drawn(data, trained, rates, draw_seed=seed, examples=examples)
    features = tuple(trained[0].task.output_features)
    sizes = [found and found.size for found in passes]
    members = [[one.member.named_task, rate] for one, rate in zip(trained, rates, strict=True)]
    identity = {
        **identity_of(data, seed=seed),
        **data.layout.of_task(features).identity(),
        "task": data.task,
        "vocabulary": vocabulary.digest,
        "shuffle_buffer": data.shuffle_buffer,
        **({"size": sizes[0]} if is_one else {"members": members, "sizes": sizes}),
        "process_index": process_index,
        "process_count": process_count,
    }
    spec: Any = drawn.element_spec
    counted = rows.FIELD in spec
    dataset = batched(
        data, vocabulary, drawn, features=features, part=(process_index, process_count)
    )
    shown_name = data.task if process_index == 0 else None
    epoch = 0 if counted else None
    return Batches(dataset.prefetch(1), identity=identity, epoch=epoch, tells=shown_name)


def _check_needs_no_cache(batches: config.Batches, refresh: Refresh) -> None:
    """Refuses what is read of caches alone."""
    if isinstance(batches, config.Scheduled):
        raise InputError(
            "data.batches Scheduled knows the lengths of all examples, which caches alone have: "
            "write one with `t5x-lite cache` and give --data.cache, or use Bucketed"
        )
    if refresh.period:
        raise InputError(
            "data.refresh numbers the examples of a cache: write one with `t5x-lite cache` and "
            "give --data.cache"
        )


def _drawn(
    data: Data,
    tasks: Sequence[Present],
    rates: Sequence[float],
    *,
    draw_seed: int,
    examples: Callable[[int], tf.data.Dataset],
) -> tf.data.Dataset:
    """The examples of a task, or those of the tasks of a mixture, drawn by their rates."""
    if find_mixture(data) is None:
        return examples(0)
    features = {tuple(one.task.output_features) for one in tasks}
    if len(features) > 1:
        raise InputError(
            f"the tasks of the mixture {data.task!r} have different features: "
            f"{' and '.join(sorted(map(str, features)))}"
        )
    (names,) = features
    if data.layout.draws:
        names = (*names, KEY)

    def of(place: int) -> tf.data.Dataset:
        return examples(place).map(lambda example: {name: example[name] for name in names})

    # In seqio's order, so that a seed draws what it draws there.
    places = sorted(range(len(tasks)), key=lambda place: tasks[place].task.name)
    return tf.data.Dataset.sample_from_datasets(
        [of(place) for place in places],
        weights=[rates[place] for place in places],
        seed=draw_seed,
        stop_on_empty_dataset=True,
    )


def epoch_of(data: Data, vocabulary: Vocabulary, *, seed: int) -> Epoch:
    """A pass over all training examples of a task, or of the tasks of a mixture."""
    cache = "write a cache with `t5x-lite cache` and give --data.cache"
    if data.batches.buckets():
        raise UnknownSize(f"batches of several shapes have no number without a cache; {cache}")
    if data.pack:
        raise UnknownSize(
            f"data.pack True puts an unknown number of examples in a row; {cache}, set --data.pack "
            "False, or give --steps"
        )
    total = 0
    for one in trained_members(data, vocabulary, seed=seed):
        found = _num_examples(one.data, one.task, seed=seed)
        if found is None:
            raise UnknownSize(
                f"{one.member.task} is a stream of unknown size, so an epoch has no number of "
                f"steps; {cache}, or give --steps"
            )
        total += found
    return Epoch(total, total / data.batch_size)


def _num_examples(data: Data, task: Any, *, seed: int) -> int | None:
    """The training examples of a task; None of a stream."""
    source = task.source
    if not isinstance(source, stages.Source):
        return None
    passes = source.passes("train", seed=seed)
    is_held = passes is not None and isinstance(passes.size, int)
    if passes is not None and is_held and not passes.needs_buffer:
        return int(passes.size or 0)
    if not (is_held or source.one_to_one):
        return None
    _logger.info("counting the training examples of %s", data.task)
    examples = examples_of(data, task, split="train") if is_held else _raw(source)
    return sum(1 for _ in examples)


def _raw(source: Any) -> Iterator[Any]:
    """The examples of a source, in order, once."""
    return iter(source.get_dataset("train", shuffle=False))


def laid_out(
    data: Data, vocabulary: Vocabulary, examples: tf.data.Dataset, *, features: Collection[str]
) -> tf.data.Dataset:
    """Examples of a task with these output features as rows of a model's, not yet batched."""
    rows = live.rows(
        examples,
        data.layout,
        features=features,
        lengths=lengths_of(data),
        pack=data.pack,
        tokens=tokens_for(data.layout, vocabulary),
    )
    return deterministic(rows)


def batched(
    data: Data,
    vocabulary: Vocabulary,
    examples: tf.data.Dataset,
    *,
    features: Collection[str],
    part: tuple[int, int],
) -> tf.data.Dataset:
    """Batches of one process, of examples of a task with these output features."""
    if not data.batches.buckets():
        rows = laid_out(data, vocabulary, examples, features=features)
        return rows.batch(data.batch_size // part[1], drop_remainder=True)
    batches = live.grouped(
        examples,
        data.layout,
        features=features,
        shapes=shapes_of(data),
        part=part,
        tokens=tokens_for(data.layout, vocabulary),
    )
    return deterministic(batches)


# Evaluation.


def eval_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    split: str = "validation",
    max_batches: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Batches for a held-out loss: one pass in order, the same in every run whatever its seed.

    A mixture is drawn at the rates of training. Tasks of it that are not there, or lack the split,
    are passed over, and the batches end where a task would begin anew. The last batch, of each
    shape, is filled up with rows of padding, whose loss weights are 0.
    """
    chosen, rates = held_out_members(data, vocabulary, split=split)
    drawn = _drawn(
        data,
        chosen,
        rates,
        draw_seed=_EVAL_SEED,
        examples=lambda place: held_out_examples(data, chosen[place].task, split=split),
    )
    features = tuple(chosen[0].task.output_features)
    if data.batches.buckets():
        batches = as_numpy(batched(data, vocabulary, drawn, features=features, part=(0, 1)))
    else:
        rows = laid_out(data, vocabulary, drawn, features=features).batch(data.batch_size)
        batches = padded(as_numpy(rows), data, vocabulary)
    return itertools.islice(not_empty(batches, data, split=split), max_batches)


def padded(
    batches: Iterator[dict[str, np.ndarray]], data: Data, vocabulary: Vocabulary
) -> Iterator[dict[str, np.ndarray]]:
    """The same batches, the last one filled up with rows of padding."""
    tokens = tokens_for(data.layout, vocabulary)
    pad_id = 0 if tokens is None else tokens.pad_id
    for batch in batches:
        missing = data.batch_size - len(next(iter(batch.values())))
        yield {
            name: np.pad(
                value,
                ((0, missing), *((0, 0),) * (value.ndim - 1)),
                constant_values=pad_id if name.endswith("_tokens") else _padding(value),
            )
            for name, value in batch.items()
        }


def _padding(values: np.ndarray) -> float | int:
    """What stands in a row of padding: NaN is no score."""
    return np.nan if np.issubdtype(values.dtype, np.floating) else 0


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example of a task, as its metrics see it.

    Attributes:
      inputs_text: the text that the model reads; "" where the task has targets only.
      targets_text: the text that it should write.
      inputs: int32 [_], the tokens of inputs_text, trimmed, EOS included; [0] where there are none.
        Of a task of choices or of candidates all its texts, one behind the other, and of `Windows`
        all windows.
      target: the postprocessed target, what the metrics compare.
      raw: all fields of the example; text as str.
    """

    inputs_text: str
    targets_text: str
    inputs: np.ndarray
    target: Any
    raw: dict[str, Any]


def eval_examples(
    data: Data,
    vocabulary: Vocabulary,
    *,
    split: str = "validation",
    max_examples: int | None = None,
) -> list[Example]:
    """A split's examples in order, for task metrics and samples; of candidates, their questions."""
    task = load_task(data, vocabulary)
    found = data.layout.whole(examples_of(data, task, split=split))
    form = task_form(task)
    if form is not None and form.candidates:
        found = questions(found)
    return [_example(task, vocabulary, fields) for fields in itertools.islice(found, max_examples)]


def _example(task: seqio.Task, vocabulary: Vocabulary, fields: dict[str, Any]) -> Example:
    raw: dict[str, Any] = {k: v.decode() if isinstance(v, bytes) else v for k, v in fields.items()}
    targets_text = text_of("targets", raw, vocabulary)
    return Example(
        inputs_text=text_of("inputs", raw, vocabulary),
        targets_text=targets_text,
        inputs=raw.get("inputs", raw.get("choices", np.zeros(0, np.int32))),
        target=task.postprocess_fn(targets_text, example=raw, is_target=True)
        if task.postprocessor
        else targets_text,
        raw=raw,
    )


def text_of(name: str, raw: dict[str, Any], vocabulary: Vocabulary) -> str:
    """A feature's text; "" of one that the task lacks, as a language model's has no inputs."""
    if f"{name}_pretokenized" in raw:
        return raw[f"{name}_pretokenized"]
    return vocabulary.decode(raw[name].tolist()) if name in raw else ""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An example with its answer, whole, as the task writes both."""

    inputs: str
    targets: str


def demonstrations(
    data: Data, vocabulary: Vocabulary, *, split: str, pool: int | None
) -> list[Demonstration]:
    """The examples of a split with different inputs and known answers, in the split's order."""
    task = load_task(data, vocabulary)
    examples = examples_of(data, task, split=split)
    found: dict[str, Demonstration] = {}
    for fields in itertools.islice(examples, pool):
        raw: dict[str, Any] = {
            k: v.decode() if isinstance(v, bytes) else v for k, v in fields.items()
        }
        inputs, targets = (text_of(name, raw, vocabulary) for name in ("inputs", "targets"))
        if targets != UNKNOWN:
            found.setdefault(inputs, Demonstration(inputs, targets))
    if not found:
        raise InputError(f"data.task {data.task!r} has no labels in split {split!r} to be shown")
    if pool is not None and next(examples, None) is not None:
        _logger.info(
            "examples of %s are drawn from the first %s of its split %s; "
            "--evaluation.few-shot.pool changes it",
            task.name,
            f"{pool:,}",
            split,
        )
    return list(found.values())
