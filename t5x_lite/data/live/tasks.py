"""One task: made from its name, looked at, and read as a dataset of examples.

    task = load_task(data, vocabulary, seed=0)          # a seqio.Task
    examples = training_examples(data, task, training_passes(data, task, seed=0), seed=0)

The way of an example is seqio's: source, preprocessors, trim, shuffle.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from t5x_lite.data.config import Data, TaskArguments, trimmed_lengths, wording_of
from t5x_lite.data.elements import as_numpy, deterministic
from t5x_lite.data.live.augmented import augmented
from t5x_lite.data.quiet_tensorflow import seqio, tf
from t5x_lite.data.tasks import stages
from t5x_lite.data.tasks.names import find_task, other_tasks
from t5x_lite.data.tasks.shuffling import Passes, in_passes
from t5x_lite.data.tasks.wording import is_marked
from t5x_lite.errors import InputError
from t5x_lite.vocabulary import unknown_tokens
from t5x_lite.vocabulary.loading import Vocabulary

_T = TypeVar("_T")


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
    ending = _ending(data, vocabulary)
    arguments = TaskArguments(
        vocabulary=vocabulary,
        directory=data.directory,
        # A task leaves room for EOS.
        inputs_length=data.inputs_length - len(ending[1:]),
        targets_length=data.targets_length,
        seed=seed,
        columns=data.columns,
        layout=data.layout,
        final_sentinel=data.final_sentinel,
        template=data.template,
        prefix=data.prefix,
        languages=data.languages,
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
    if data.languages and not getattr(task.source, "language", ""):
        raise InputError(
            f"data.languages is of unlabelled text, and data.task {data.task!r} has none: unset it"
        )
    words = wording_of(data)
    if words and not is_marked(task):
        raise InputError(
            f"data.{' and data.'.join(words)} cannot be set: data.task {data.task!r} makes its "
            f"rows of data.layout {data.layout.name} of no template"
        )
    if data.augment.run:
        task = augmented(
            task,
            data.augment,
            vocabulary=vocabulary,
            length=data.inputs_length - len(ending[1:]),
            is_encoder="labels" in data.layout.features,
        )
    both = {"inputs", "targets"} <= {*task.output_features}
    return stages.ended_by(task, ending) if ending and both else task


def _ending(data: Data, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The words of the layout that stand in the place of EOS behind inputs, in tokens, or none.

    Raises:
      InputError: there is no room for them.
    """
    ending = data.layout.ending(vocabulary, length=data.inputs_length)
    return () if ending == (vocabulary.eos_id,) else ending


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
    examples = examples_of(data, task, split=split, shard_info=shard_info)
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


def not_empty(examples: Iterator[_T], data: Data, *, split: str) -> Iterator[_T]:
    """The same iterator, after its first element has been seen to exist."""
    for first in examples:
        return itertools.chain([first], examples)
    where = f" in {data.directory}" if data.directory else ""
    hint = (
        ""
        if split == "train"
        else (
            "; --evaluation.split chooses another, and --evaluation.loss False trains without one"
        )
    )
    raise InputError(f"data.task {data.task!r} found no example for split {split!r}{where}{hint}")


def examples_of(
    data: Data, task: seqio.Task, *, split: str, shard_info: Any = None
) -> Iterator[dict[str, Any]]:
    """The task's own examples in order, once, as NumPy values; at least one."""
    check_split(data, task, split=split)
    dataset = _dataset(data, task, split=split, shuffle=False, shard_info=shard_info)
    return not_empty(as_numpy(deterministic(dataset)), data, split=split)


def _dataset(data: Data, task: seqio.Task, *, split: str, **options) -> tf.data.Dataset:
    """The task's examples, trimmed."""
    return task.get_dataset(
        sequence_length=trimmed_lengths(data), split=split, try_in_mem_cache=False, **options
    )
