"""From a task's name to batches: the only way from text to a training step.

    vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    batches = train_batches(data, vocabulary, seed=0)
    batch = next(batches)                # {"encoder_input_tokens": int32 [B, inputs_length], ...}
    position = batches.state()           # bytes for the checkpoint: after the batch just handed out
    train_batches(data, vocabulary, seed=0).restore(position)     # goes on with the next one

The way of an example: task (source, preprocessors, trim, shuffle; all seqio's) -> layout (pack or
pad) -> batch. Equal configs and seeds give equal batches, in this process or another.
"""

import hashlib
import itertools
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from t5x_lite.data import stages
from t5x_lite.data.config import Data, TaskArguments
from t5x_lite.data.layouts import feature_converter
from t5x_lite.data.quiet_tensorflow import seqio, tf
from t5x_lite.data.task_names import find_task
from t5x_lite.data.vocabulary import SentencePiece
from t5x_lite.errors import InputError

_T = TypeVar("_T")
_MAGIC = b"t5x_lite iterator 1\n"
_PROCESS_SEED = 1 << 32


# Tasks.


def load_task(data: Data, vocabulary: SentencePiece, *, seed: int = 0) -> seqio.Task:
    """Builds the task that data.task names, "module:function".

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      seed: of the randomness that belongs to single examples.

    Raises:
      InputError: if there is no such module or function (with the nearest name), or it is no task.
    """
    function = find_task(data.task)
    task = function(
        TaskArguments(
            vocabulary=vocabulary,
            directory=data.directory,
            inputs_length=data.inputs_length,
            targets_length=data.targets_length,
            seed=seed,
        )
    )
    if not isinstance(task, seqio.Task):
        raise InputError(
            f"data.task {data.task!r} must return a seqio.Task, got {type(task).__name__}"
        )
    return task


def task_metrics(task: seqio.Task) -> tuple[Callable[..., Any], list[Callable[..., Any]]]:
    """What turns predicted text into a metric.

    Returns:
      (postprocess, metric_fns): `postprocess(text, example=, is_target=)` gives what the metrics
      compare; each metric function is (targets, predictions) -> {name: value}.
    """
    return task.postprocess_fn, list(task.predict_metric_fns)


# Training batches.


class Batches(Iterator[dict[str, np.ndarray]]):
    """An endless iterator of batches whose position can be saved.

    Nothing is prefetched in Python: what tf.data holds in its buffers is part of the saved state,
    so the position is that after the last batch which next() handed out.
    """

    def __init__(self, dataset: tf.data.Dataset, *, identity: dict[str, Any]):
        """Starts at the first batch.

        Args:
          dataset: batches as dicts of tensors.
          identity: what must be equal for a saved position to fit, as JSON.
        """
        self._identity = json.loads(json.dumps(identity))
        self._iterator = iter(dataset)
        self._checkpoint = tf.train.Checkpoint(iterator=self._iterator)

    def __next__(self) -> dict[str, np.ndarray]:
        try:
            batch = next(self._iterator)
        except tf.errors.OpError as error:
            raise stages.input_error(error) from error
        return {name: value.numpy() for name, value in batch.items()}

    def state(self) -> bytes:
        """The position after the last batch that next() handed out."""
        with tempfile.TemporaryDirectory() as directory:
            self._checkpoint.write(f"{directory}/position")
            files = {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}
        sizes = {name: len(content) for name, content in files.items()}
        header = json.dumps({"identity": self._identity, "files": sizes}).encode() + b"\n"
        body = zlib.compress(header + b"".join(files.values()), level=1)
        return _MAGIC + hashlib.sha256(body).digest() + body

    def restore(self, state: bytes) -> None:
        """Goes to a position that `state` gave, in this process or another.

        Raises:
          InputError: if the state is damaged, or is that of other data (which ones is said).
        """
        files = self._unpack(state)
        with tempfile.TemporaryDirectory() as directory:
            for name, content in files.items():
                Path(directory, name).write_bytes(content)
            try:
                self._checkpoint.read(f"{directory}/position").assert_consumed()
            except (tf.errors.OpError, AssertionError) as error:
                raise InputError(
                    f"the saved data position does not fit this task: {str(error).splitlines()[0]}"
                ) from error

    def _unpack(self, state: bytes) -> dict[str, bytes]:
        """The checkpoint files in a state, after checking that it is whole and ours."""
        start = len(_MAGIC) + hashlib.sha256().digest_size
        digest, body = state[len(_MAGIC) : start], state[start:]
        if not state.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
            raise InputError("the saved data position is damaged: restore an older checkpoint")
        header, _, content = zlib.decompress(body).partition(b"\n")
        saved = json.loads(header)
        different = [
            f"{name} {saved['identity'].get(name)!r} (now {self._identity.get(name)!r})"
            for name in sorted({*saved["identity"], *self._identity})
            if saved["identity"].get(name) != self._identity.get(name)
        ]
        if different:
            raise InputError(f"the saved data position is of other data: {', '.join(different)}")
        files = {}
        for name, size in saved["files"].items():
            files[name], content = content[:size], content[size:]
        return files


def train_batches(
    data: Data,
    vocabulary: SentencePiece,
    *,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Batches:
    """Training batches, repeated for ever.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      seed: of shuffling and of the corruption.
      process_index: this process, which reads its own part of the examples.
      process_count: processes in all; each gets batch_size / process_count rows.

    Returns:
      Batches of int32 arrays [rows, length] under seqio's names.

    Raises:
      InputError: if the batch cannot be divided, or the task, its files or its lengths are wrong.
    """
    if data.batch_size % process_count:
        raise InputError(
            f"data.batch_size {data.batch_size} cannot be divided among {process_count} processes"
        )
    # Each process numbers its own examples: their random numbers must differ all the same.
    task = load_task(data, vocabulary, seed=seed + process_index * _PROCESS_SEED)
    _examples(data, task, split="train")  # seqio would repeat a split without examples for ever
    shard = seqio.ShardInfo(process_index, process_count) if process_count > 1 else None
    rows = _rows(
        data,
        task,
        split="train",
        shuffle=data.shuffle,
        shuffle_buffer_size=data.shuffle_buffer,
        seed=seed,
        shard_info=shard,
        num_epochs=None,
    )
    dataset = rows.batch(data.batch_size // process_count, drop_remainder=True)
    identity = {
        "task": data.task,
        "vocabulary": vocabulary.digest,
        "layout": data.layout,
        "batch_size": data.batch_size,
        "inputs_length": data.inputs_length,
        "targets_length": data.targets_length,
        "pack": data.pack,
        "shuffle": data.shuffle,
        "shuffle_buffer": data.shuffle_buffer,
        "seed": seed,
        "process_index": process_index,
        "process_count": process_count,
    }
    return Batches(dataset.prefetch(1), identity=identity)


def _lengths(data: Data) -> dict[str, int]:
    return {"inputs": data.inputs_length, "targets": data.targets_length}


def _check_split(data: Data, task: seqio.Task, *, split: str) -> None:
    if split not in task.splits:
        there = ", ".join(task.splits)
        raise InputError(f"data.task {data.task!r} has no split {split!r}: there are {there}")


def _not_empty(examples: Iterator[_T], data: Data, *, split: str) -> Iterator[_T]:
    """The same iterator, after its first element has been seen to exist."""
    for first in examples:
        return itertools.chain([first], examples)
    where = f" in {data.directory}" if data.directory else ""
    hint = "" if split == "train" else "; --evaluation.split chooses another"
    raise InputError(f"data.task {data.task!r} found no example for split {split!r}{where}{hint}")


def _examples(data: Data, task: seqio.Task, *, split: str) -> Iterator[dict[str, Any]]:
    """The task's own examples in order, once, as NumPy values; at least one."""
    _check_split(data, task, split=split)
    dataset = task.get_dataset(
        sequence_length=_lengths(data),
        split=split,
        shuffle=False,
        num_epochs=1,
        try_in_mem_cache=False,
    )
    return _not_empty(_numpy(_deterministic(dataset)), data, split=split)


def _numpy(dataset: tf.data.Dataset) -> Iterator[dict[str, Any]]:
    elements: Any = dataset.as_numpy_iterator()
    try:
        yield from elements
    except tf.errors.OpError as error:
        raise stages.input_error(error) from error


def _rows(data: Data, task: seqio.Task, *, split: str, **options) -> tf.data.Dataset:
    """The task's examples, laid out as rows of model features, not yet batched."""
    converter = feature_converter(data.layout, pack=data.pack)
    dataset = task.get_dataset(
        sequence_length=_lengths(data), split=split, try_in_mem_cache=False, **options
    )
    return _deterministic(converter(dataset, _lengths(data)))


def _deterministic(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


# Evaluation.


def eval_batches(
    data: Data,
    vocabulary: SentencePiece,
    *,
    split: str = "validation",
    max_batches: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Batches for a held-out loss: one pass in order, the same in every run whatever its seed.

    The last batch is filled up with rows of zeros, whose loss weights are 0.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      split: the task's split.
      max_batches: stop after so many; None reads the whole split.

    Returns:
      Batches of int32 arrays [batch_size, length] under seqio's names.

    Raises:
      InputError: as `train_batches`, and if there is no such split.
    """
    task = load_task(data, vocabulary)
    _check_split(data, task, split=split)
    dataset = _rows(data, task, split=split, shuffle=False, num_epochs=1).batch(data.batch_size)
    batches = _not_empty(_padded(dataset, data.batch_size), data, split=split)
    return itertools.islice(batches, max_batches)


def _padded(dataset: tf.data.Dataset, size: int) -> Iterator[dict[str, np.ndarray]]:
    for batch in _numpy(dataset):
        missing = size - len(batch["decoder_target_tokens"])
        yield {name: np.pad(value, ((0, missing), (0, 0))) for name, value in batch.items()}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One example of a task, as its metrics see it.

    Attributes:
      inputs_text: the text that the model reads.
      targets_text: the text that it should write.
      inputs: int32 [_], the tokens of inputs_text, trimmed, EOS included.
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
    vocabulary: SentencePiece,
    *,
    split: str = "validation",
    max_examples: int | None = None,
) -> list[Example]:
    """A split's examples in order, for task metrics and samples.

    Args:
      data: the data config.
      vocabulary: of inputs and targets; its decoding stands in where a task has tokens only.
      split: the task's split.
      max_examples: at most so many; None takes all.

    Raises:
      InputError: as `eval_batches`.
    """
    task = load_task(data, vocabulary)
    found = itertools.islice(_examples(data, task, split=split), max_examples)
    return [_example(task, vocabulary, fields) for fields in found]


def _example(task: seqio.Task, vocabulary: SentencePiece, fields: dict[str, Any]) -> Example:
    raw: dict[str, Any] = {k: v.decode() if isinstance(v, bytes) else v for k, v in fields.items()}
    texts = [
        raw.get(f"{name}_pretokenized") or vocabulary.decode(raw[name].tolist())
        for name in ("inputs", "targets")
    ]
    return Example(
        inputs_text=texts[0],
        targets_text=texts[1],
        inputs=raw["inputs"],
        target=task.postprocess_fn(texts[1], example=raw, is_target=True)
        if task.postprocessor
        else texts[1],
        raw=raw,
    )
