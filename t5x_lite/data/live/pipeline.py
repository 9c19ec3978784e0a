"""From a task's name to batches: the only way from text to a training step.

    vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    batches = train_batches(data, vocabulary, seed=0)
    batch = next(batches)                # {"encoder_input_tokens": int32 [B, inputs_length], ...}
    position = batches.state()           # bytes for the checkpoint: after the batch just handed out
    train_batches(data, vocabulary, seed=0).restore(position)     # goes on with the next one

The way of an example: task (source, preprocessors, trim, shuffle; all seqio's) -> layout (pack or
pad) -> batch. Equal configs and seeds give equal batches, in this process or another.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from t5x_lite.data.config import Data, TaskArguments, lengths_of, trimmed_lengths
from t5x_lite.data.elements import as_numpy, deterministic
from t5x_lite.data.live import epochs
from t5x_lite.data.live import rows as live
from t5x_lite.data.live.batches import Batches
from t5x_lite.data.positions import identity_of, share_of_batch
from t5x_lite.data.quiet_tensorflow import seqio, tf
from t5x_lite.data.tasks import stages
from t5x_lite.data.tasks.names import find_task, other_tasks
from t5x_lite.data.tasks.shuffling import Passes, in_passes
from t5x_lite.errors import InputError
from t5x_lite.vocabulary import unknown_tokens
from t5x_lite.vocabulary.loading import Vocabulary

_T = TypeVar("_T")
_PROCESS_SEED = 1 << 32


# Tasks.


def load_task(data: Data, vocabulary: Vocabulary, *, seed: int = 0) -> seqio.Task:
    """Builds the task that data.task names, "module:function".

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      seed: of the randomness that belongs to single examples.

    Raises:
      InputError: if there is no such module or function, or it is no task function; the message
        offers the nearest one.
    """
    function = find_task(data.task)
    arguments = TaskArguments(
        vocabulary=vocabulary,
        directory=data.directory,
        inputs_length=data.inputs_length,
        targets_length=data.targets_length,
        seed=seed,
        columns=data.columns,
        layout=data.layout,
    )
    try:
        task = function(arguments)
    except (AttributeError, TypeError) as error:  # as of a function that is none of a task
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"data.task {data.task!r} failed ({what}); a task function takes TaskArguments and "
            f"returns a seqio.Task{other_tasks(data.task)}"
        ) from error
    if not isinstance(task, seqio.Task):
        raise InputError(
            f"data.task {data.task!r} must return a seqio.Task, got {type(task).__name__}"
            f"{other_tasks(data.task)}"
        )
    return task


def task_metrics(task: seqio.Task) -> tuple[Callable[..., Any], list[Callable[..., Any]]]:
    """What turns predicted text into a metric.

    Returns:
      (postprocess, metric_fns): `postprocess(text, example=, is_target=)` gives what the metrics
      compare; each metric function is (targets, predictions) -> {name: value}.
    """
    return task.postprocess_fn, list(task.predict_metric_fns)


def task_labels(task: seqio.Task) -> tuple[str, ...] | None:
    """The texts of which a task's answer is always one, to choose among by rank classification.

    A task says them by the attribute `labels` of its postprocess_fn: `postprocess.ClassIndex` has
    it, and so may any callable of a user's own.

    Returns:
      The labels, in the order of the class indices; None where any text may be the answer.
    """
    labels = getattr(task.postprocessor, "labels", None)
    return None if labels is None else tuple(labels)


# Training.


def train_batches(
    data: Data,
    vocabulary: Vocabulary,
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
    share = share_of_batch(data, process_count)
    # Each process numbers its own examples: their random numbers must differ all the same.
    task = load_task(data, vocabulary, seed=seed + process_index * _PROCESS_SEED)
    shard = seqio.ShardInfo(process_index, process_count) if process_count > 1 else None
    tells = vocabulary if process_index == 0 else None
    look_at(data, task, tells, name=task.name, shard_info=shard)
    passes = training_passes(data, task, seed=seed)
    examples = training_examples(data, epochs.counting(task), passes, seed=seed, shard_info=shard)
    spec: Any = examples.element_spec
    counted = epochs.FIELD in spec
    rows = laid_out(data, vocabulary, examples)
    identity = {
        **identity_of(data, seed=seed),
        "task": data.task,
        "vocabulary": vocabulary.digest,
        "shuffle_buffer": data.shuffle_buffer,
        "size": passes and passes.size,
        "process_index": process_index,
        "process_count": process_count,
    }
    dataset = rows.batch(share, drop_remainder=True).prefetch(1)
    shown_name = data.task if process_index == 0 else None
    return Batches(dataset, identity=identity, epoch=0 if counted else None, tells=shown_name)


def look_at(
    data: Data,
    task: seqio.Task,
    vocabulary: Vocabulary | None,
    *,
    name: str,
    split: str = "train",
    shard_info: Any = None,
) -> None:
    """Looks at the first examples of a task: a split without any would be repeated for ever.

    Args:
      data: the data config.
      task: its task.
      vocabulary: where it cannot spell them, a warning says so; None for no warning.
      name: the task's, for the warning.
      split: one of the task's splits.
      shard_info: the part of the examples that is read.

    Raises:
      InputError: there is no such split, or no example in it.
    """
    examples = _examples(data, task, split=split, shard_info=shard_info)
    if vocabulary is not None:
        unknown_tokens.tell(name, examples, vocabulary)


def training_passes(data: Data, task: seqio.Task, *, seed: int) -> Passes | None:
    """In which order a task's training examples come at each pass; None is that of its source."""
    source = task.source
    if not data.shuffle or not isinstance(source, stages.Source):
        return None
    return source.passes("train", seed=seed)


def training_examples(
    data: Data,
    task: seqio.Task,
    passes: Passes | None,
    *,
    seed: int,
    shard_info: Any = None,
) -> tf.data.Dataset:
    """The task's examples for training, trimmed, for ever.

    Args:
      data: the data config; it says whether and through how large a buffer they are shuffled.
      task: the task.
      passes: its `training_passes`.
      seed: the seed of the shuffle buffer.
      shard_info: the part of the examples that is read; all by default.
    """
    shuffle = data.shuffle
    if passes is not None:
        task = in_passes(task, passes, shard_info=shard_info)
        shuffle, shard_info = passes.needs_buffer, None
    return _dataset(
        data,
        task,
        split="train",
        shuffle=shuffle,
        shuffle_buffer_size=data.shuffle_buffer,
        seed=seed,
        shard_info=shard_info,
        num_epochs=None,
    )


def held_out_examples(data: Data, task: seqio.Task, *, split: str) -> tf.data.Dataset:
    """The task's examples of a split, trimmed, once and in order."""
    return _dataset(data, task, split=split, shuffle=False)


def check_split(data: Data, task: seqio.Task, *, split: str) -> None:
    """Refuses a split that a task lacks."""
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


def _examples(
    data: Data, task: seqio.Task, *, split: str, shard_info: Any = None
) -> Iterator[dict[str, Any]]:
    """The task's own examples in order, once, as NumPy values; at least one."""
    check_split(data, task, split=split)
    dataset = _dataset(data, task, split=split, shuffle=False, shard_info=shard_info)
    return _not_empty(as_numpy(deterministic(dataset)), data, split=split)


def _dataset(data: Data, task: seqio.Task, *, split: str, **options) -> tf.data.Dataset:
    """The task's examples, trimmed."""
    return task.get_dataset(
        sequence_length=trimmed_lengths(data), split=split, try_in_mem_cache=False, **options
    )


def laid_out(data: Data, vocabulary: Vocabulary, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Examples as rows of model features, not yet batched."""
    tokens = data.layout.encoder_tokens(vocabulary)
    lengths = lengths_of(data)
    return deterministic(
        live.rows(examples, data.layout, lengths=lengths, pack=data.pack, tokens=tokens)
    )


# Evaluation.


def eval_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    split: str = "validation",
    max_batches: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Batches for a held-out loss: one pass in order, the same in every run whatever its seed.

    The last batch is filled up with rows of padding, whose loss weights are 0.

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
    check_split(data, task, split=split)
    rows = laid_out(data, vocabulary, held_out_examples(data, task, split=split))
    found = padded(as_numpy(rows.batch(data.batch_size)), data, vocabulary)
    batches = _not_empty(found, data, split=split)
    return itertools.islice(batches, max_batches)


def padded(
    batches: Iterator[dict[str, np.ndarray]], data: Data, vocabulary: Vocabulary
) -> Iterator[dict[str, np.ndarray]]:
    """The same batches, the last one filled up with rows of padding."""
    tokens = data.layout.encoder_tokens(vocabulary)
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


def _example(task: seqio.Task, vocabulary: Vocabulary, fields: dict[str, Any]) -> Example:
    raw: dict[str, Any] = {k: v.decode() if isinstance(v, bytes) else v for k, v in fields.items()}
    targets_text = _text("targets", raw, vocabulary)
    return Example(
        inputs_text=_text("inputs", raw, vocabulary),
        targets_text=targets_text,
        inputs=raw["inputs"] if "inputs" in raw else np.zeros(0, np.int32),
        target=task.postprocess_fn(targets_text, example=raw, is_target=True)
        if task.postprocessor
        else targets_text,
        raw=raw,
    )


def _text(name: str, raw: dict[str, Any], vocabulary: Vocabulary) -> str:
    """A feature's text; "" of one that the task lacks, as a language model's has no inputs."""
    if f"{name}_pretokenized" in raw:
        return raw[f"{name}_pretokenized"]
    return vocabulary.decode(raw[name].tolist()) if name in raw else ""
