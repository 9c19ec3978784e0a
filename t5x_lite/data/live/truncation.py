"""The first documents or tokens of a task, to be repeated (Raffel et al. 2020, table 9).

    data = Data(task="tasks.c4:iid_15_u_u", first_tokens=2**23, ...)
    task = truncated(data, load_task(data, vocabulary, seed=0), seed=0)

Documents are the raw examples of the source. Tokens are counted before corruption: of the examples
at the task's CacheDatasetPlaceholder those are taken, from the first on, that together have no more
of them. A cache of the task begins with the same examples. Other splits than "train" stay whole.

What is left is read at the start where it has `shuffling.IN_MEMORY_BYTES` at most, and permuted as
a whole at each pass. More comes in its own order, which is the same at each pass, through the
shuffle buffer.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.data import elements
from t5x_lite.data.config import Data
from t5x_lite.data.quiet_tensorflow import seqio, tf
from t5x_lite.data.tasks import shuffling, stages
from t5x_lite.errors import InputError

_logger = logging.getLogger(__name__)

Dataset = tf.data.Dataset


def truncated(data: Data, task: seqio.Task, *, seed: int) -> seqio.Task:
    """The task with the training examples that data.first_documents or data.first_tokens leaves.

    Args:
      data: the data config; where it sets neither, the task stays as it is.
      task: its task.
      seed: of randomness before the placeholder, where tokens are counted.

    Raises:
      InputError: tokens are counted, and the task does not say where; or its files are wrong.
    """
    if "train" not in task.splits:
        return task
    if data.first_documents is not None:
        return _first_documents(task, data.first_documents)
    if data.first_tokens is not None:
        return _first_tokens(data, task, data.first_tokens, seed=seed)
    return task


def _first_documents(task: seqio.Task, number: int) -> seqio.Task:
    source = task.source

    @functools.cache
    def train() -> Dataset:
        return _held(source.get_dataset("train", shuffle=False).take(number), at_least=number)

    def dataset_of(split: str) -> Dataset:
        return train() if split == "train" else source.get_dataset(split, shuffle=False)

    found = stages.source(task.splits, dataset_of)
    if isinstance(source, stages.Source):
        found.one_to_one, found.counts = source.one_to_one, source.counts
    return task.replace(source=found)


def _first_tokens(data: Data, task: seqio.Task, number: int, *, seed: int) -> seqio.Task:
    steps = list(task.preprocessors)
    places = [i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]

    def stored(split: str) -> Dataset:
        raw = task.source.get_dataset(split, shuffle=False)
        return task.preprocess_precache(raw, seed=seed)

    spec: Any = stored("train").element_spec
    names = _counted_names(task, spec) if places else []
    if not names:
        raise InputError(
            f"data.first_tokens counts tokens at a CacheDatasetPlaceholder, and data.task "
            f"{data.task!r} has none after its tokenization: put one there, or set "
            "--data.first-documents"
        )

    @functools.cache
    def train() -> Dataset:
        return _held(_no_more_tokens(unnumbered("train"), names, number), none=_no_example(number))

    def unnumbered(split: str) -> Dataset:
        return stored(split).map(lambda example: {k: example[k] for k in example if k != "index"})

    def dataset_of(split: str) -> Dataset:
        return train() if split == "train" else unnumbered(split)

    # An index is a place in a pass: what is permuted is numbered behind it.
    numbered = [stages.number] if "index" in spec else []
    return task.replace(
        source=stages.source(task.splits, dataset_of, one_to_one=True),
        preprocessors=[*numbered, *steps[places[0] :]],
    )


def _counted_names(task: seqio.Task, spec: Any) -> list[str]:
    """The features of tokens of an example at the placeholder."""
    known = ("tokens", *task.output_features)
    return [
        name
        for name, one in (spec.items() if isinstance(spec, Mapping) else ())
        if name in known and one.dtype.is_integer and one.shape.rank == 1
    ]


def _no_more_tokens(dataset: Dataset, names: Sequence[str], number: int) -> Dataset:
    """The first examples that together have so many tokens at most."""

    @tf.autograph.experimental.do_not_convert
    def step(before: Any, example: Any) -> Any:
        tokens = tf.add_n([tf.size(example[name], tf.int64) for name in names])
        return before + tokens, (before + tokens, example)

    counted: Any = dataset.scan(tf.constant(0, tf.int64), step)
    return counted.take_while(lambda total, _: total <= number).map(lambda _, example: example)


def _no_example(number: int) -> str:
    return f"data.first_tokens {number} is less than the first training example has"


def _held(dataset: Dataset, *, at_least: int = 1, none: str = "") -> Dataset:
    """The same examples, read into memory so that they can be permuted, unless they are too large.

    Args:
      dataset: the examples, in their order.
      at_least: of fewer it is told.
      none: what is wrong where there is none; "" leaves that to others.

    Raises:
      InputError: there is none, or one cannot be read.
    """
    spec: Any = dataset.element_spec
    if shuffling.can_be_permuted(dataset):
        _tell_of_few(int(dataset.cardinality()), at_least)
        return dataset
    if not isinstance(spec, Mapping) or any(
        not isinstance(one, tf.TensorSpec) or one.shape.rank not in (0, 1) for one in spec.values()
    ):
        return dataset
    found, size = [], 0
    for example in elements.as_numpy(elements.deterministic(dataset)):
        found.append(example)
        size += sum(len(v) if isinstance(v, bytes) else v.nbytes for v in example.values())
        if size > shuffling.IN_MEMORY_BYTES:
            return dataset
    if none and not found:
        raise InputError(none)
    _tell_of_few(len(found), at_least)
    features = {name: _feature(one, [e[name] for e in found]) for name, one in spec.items()}

    @tf.autograph.experimental.do_not_convert
    def example_at(place: Any) -> dict[str, Any]:
        return {name: feature(place) for name, feature in features.items()}

    return Dataset.range(len(found)).map(example_at)


def _feature(spec: Any, values: Sequence[Any]) -> Callable[[Any], Any]:
    """From a place to the value of a feature there: a scalar, or a sequence of any length."""
    if spec.shape.rank == 0:
        column = tf.constant(values, spec.dtype, shape=[len(values)])
        return lambda place: column[place]
    ends = tf.constant(np.cumsum([0, *map(len, values)]), tf.int64)
    flat = tf.constant(
        np.concatenate([*values, np.zeros(0, spec.dtype.as_numpy_dtype)]), spec.dtype
    )
    return lambda place: tf.ensure_shape(flat[ends[place] : ends[place + 1]], spec.shape)


def _tell_of_few(number: int, at_least: int) -> None:
    if number < at_least:
        _logger.warning("data.first_documents is %d, and there are %d", at_least, number)
