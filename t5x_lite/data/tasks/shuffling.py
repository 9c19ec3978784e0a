"""Passes over the data of a task, each in an order of its own, which a saved iterator goes on with.

    passes = Passes(lambda epoch: permuted(held, 3, Shuffle(seed=0, epoch=epoch)), size=3)
    in_passes(task, passes).get_dataset(...)       # "b", "a", "c", then perhaps "c", "a", "b", ...

A shuffle buffer mixes neighbours alone: of a file that is sorted by label it gives one label first.
Here each pass is a permutation (`permutation.order`), of all examples in memory or of the parts of
larger files. It is a function of the seed and of the epoch and of nothing else, and the epoch is
what tf.data saves: stages before seqio's repeat read ahead, and a state of their own that says what
the next pass is would be lost where they have read the last example and have not given it yet.
"""

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import size_of
from t5x_lite.data.formats.lines import is_compressed
from t5x_lite.data.mixing import order

IN_MEMORY_BYTES = 1 << 26
"""Files of no more bytes than these, 64 MiB, are held in memory and permuted as a whole."""
_EXPANSION = 8
"""Bytes of text in a byte of a compressed file, at most as a rule."""
_PLACES = 1024

Dataset = Any
"""tf.data.Dataset; TensorFlow is imported when it is used."""


class Shuffle(NamedTuple):
    """The seed and the epoch, which decide the order of one pass.

    Attributes:
      seed: the seed of the run.
      epoch: the number of the pass: int64 [], a tf.Tensor.
    """

    seed: int
    epoch: Any


@dataclass(frozen=True)
class Passes:
    """The examples of a split in an order of their own at each pass.

    Attributes:
      of_epoch: from the number of a pass, a tf.Tensor int64 [], to its examples.
      size: what the order depends on beside the seed and the epoch: how many examples, or which
        files of what sizes (`sizes_of`); None where that is not known.
      needs_buffer: whether a shuffle buffer is to be behind them, as several examples are made of
        one, or as neighbours stay together.
    """

    of_epoch: Callable[[Any], Dataset]
    size: int | str | None
    needs_buffer: bool = True


def in_passes(task: Any, passes: Passes, *, shard_info: Any = None) -> Any:
    """The task, whose examples are those of one pass after the other, for ever.

    What stands before the task's placeholder is built while tf.data traces a function: it cannot
    iterate over the dataset or ask for its length as a number.

    Args:
      task: a seqio.Task; it stays as it is.
      passes: what its source gives.
      shard_info: the part of the examples of each pass that is read; all by default.
    """
    from t5x_lite.data.elements import seqio, tf

    def epochs(split: str, shuffle_files: bool, seed: int | None = None) -> Dataset:
        return tf.data.Dataset.range(tf.int64.max)

    # The stages are plain Python in a graph; what they map is converted by AutoGraph as ever.
    autograph = tf.__internal__.autograph
    status = autograph.control_status_ctx()
    of_epoch, preprocess = (
        autograph.tf_convert(function, status, convert_by_default=False)
        for function in (passes.of_epoch, task.preprocess_precache)
    )

    def precache(numbers: Dataset, seed: int | None = None) -> Dataset:
        @tf.autograph.experimental.do_not_convert
        def one_pass(epoch: Any) -> Dataset:
            examples = of_epoch(epoch)
            if shard_info is not None:
                examples = examples.shard(shard_info.num_shards, shard_info.index)
            return preprocess(examples, seed)

        return numbers.flat_map(one_pass)

    made = task.replace(source=seqio.FunctionDataSource(epochs, splits=task.splits))
    made.preprocess_precache, made.preprocess_postcache = precache, task.preprocess_postcache
    return made


def permuted_range(size: int, shuffle: Shuffle) -> Dataset:
    """The numbers from 0 to size - 1, int64, in the order of a pass."""
    return _blocks(size, shuffle).unbatch()


def _blocks(size: int, shuffle: Shuffle) -> Dataset:
    """The same numbers, many at a time: int64 [_]."""
    from t5x_lite.data.elements import tf

    def ordered(places: np.ndarray, epoch: np.integer) -> np.ndarray:
        return order(places, np.full_like(places, epoch), size=size, seed=shuffle.seed)

    @tf.autograph.experimental.do_not_convert
    def of(places: Any) -> Any:
        found = tf.numpy_function(ordered, [places, shuffle.epoch], tf.int64, stateful=False)
        return tf.ensure_shape(found, [None])

    return tf.data.Dataset.range(size).batch(_PLACES).map(of)


def can_be_permuted(dataset: Dataset) -> bool:
    """Whether its examples can be read in any order, as those of tensors and of maps of them."""
    from t5x_lite.data.elements import tf

    if int(dataset.cardinality()) < 1:
        return False
    try:
        tf.data.experimental.at(dataset, 0)
    except tf.errors.UnimplementedError:
        return False
    return True


def permuted(dataset: Dataset, size: int, shuffle: Shuffle) -> Dataset:
    """The examples of a dataset in the order of a pass.

    Args:
      dataset: one that `can_be_permuted`.
      size: how many examples it has.
      shuffle: the pass.
    """
    from t5x_lite.data.elements import tf

    @tf.autograph.experimental.do_not_convert
    def example(number: Any) -> Any:
        return tf.data.experimental.at(dataset, number)

    return permuted_range(size, shuffle).map(example)


def passes_of_rows(
    columns: Mapping[str, Any], *, seed: int, counts: np.ndarray | None = None
) -> Passes:
    """The rows of columns in an order of their own at each pass.

    Args:
      columns: tensors [n].
      seed: of the orders.
      counts: number of examples that a task makes of each row, int64 [n]. A row that makes several
        is given once for each, with "place", the number of the example from 0. None is not known.
    """
    size = len(next(iter(columns.values())))
    if counts is None or np.all(counts == 1):
        return Passes(
            lambda epoch: permuted_rows(columns, size, Shuffle(seed, epoch)),
            size=size,
            needs_buffer=counts is None,
        )
    rows = np.repeat(np.arange(size, dtype=np.int64), counts)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Passes(
        lambda epoch: permuted_rows(
            columns, len(rows), Shuffle(seed, epoch), rows=rows, more={"place": places}
        ),
        size=len(rows),
        needs_buffer=False,
    )


def permuted_rows(
    columns: Mapping[str, Any],
    size: int,
    shuffle: Shuffle,
    *,
    rows: np.ndarray | None = None,
    more: Mapping[str, np.ndarray] | None = None,
) -> Dataset:
    """The rows of columns in the order of a pass.

    Args:
      columns: tensors [n].
      size: number of rows that are given.
      shuffle: the pass.
      rows: int64 [size], the row of the columns that each number stands for; None is itself.
      more: further columns [size], by these numbers.
    """
    from t5x_lite.data.elements import tf

    @tf.autograph.experimental.do_not_convert
    def chosen(numbers: Any) -> dict[str, Any]:
        own = numbers if rows is None else tf.gather(rows, numbers)
        found = {name: tf.gather(column, own) for name, column in columns.items()}
        return found | {name: tf.gather(column, numbers) for name, column in (more or {}).items()}

    return _blocks(size, shuffle).map(chosen).unbatch()


def sizes_of(files: Sequence[Any]) -> str | None:
    """The bytes of files, and a checksum of their names and sizes in order: "512 bytes (5f0c2a9b)".

    Returns:
      None where one of them cannot be looked at, as it is no file here.
    """
    try:
        sizes = [size_of(file) for file in files]
    except (OSError, TypeError, InputError):
        return None
    each = [f"{os.path.basename(file)} {size}" for file, size in zip(files, sizes, strict=True)]
    return f"{sum(sizes)} bytes ({zlib.crc32(chr(10).join(each).encode()):08x})"


def fit_in_memory(files: Sequence[Any]) -> bool:
    """Whether files have `IN_MEMORY_BYTES` at most; compressed ones and Parquet count eightfold.

    It is False where one of them cannot be looked at, as it is no file here.
    """
    try:
        sizes = [size_of(file) for file in files]
    except (OSError, TypeError, InputError):
        return False
    compact = [is_compressed(str(file)) or str(file).endswith(".parquet") for file in files]
    factors = [_EXPANSION if one else 1 for one in compact]
    return sum(s * f for s, f in zip(sizes, factors, strict=True)) <= IN_MEMORY_BYTES


def are_rows(dataset: Dataset) -> bool:
    """Whether its examples are flat dicts of scalars, as `columns_of` takes them."""
    from t5x_lite.data.elements import tf

    spec = dataset.element_spec
    return isinstance(spec, Mapping) and all(
        isinstance(one, tf.TensorSpec) and one.shape.rank == 0 for one in spec.values()
    )


def columns_of(dataset: Dataset) -> dict[str, Any]:
    """The examples, read now: for each of their features a tensor [n].

    Args:
      dataset: one whose examples `are_rows`.

    Raises:
      InputError: one of them cannot be read.
    """
    from t5x_lite.data.elements import as_numpy, deterministic, tf

    columns: dict[str, list[Any]] = {name: [] for name in dataset.element_spec}
    for batch in as_numpy(deterministic(dataset.batch(_PLACES))):
        for name, values in columns.items():
            values.extend(batch[name])
    return {
        name: tf.constant(values, dataset.element_spec[name].dtype, shape=[len(values)])
        for name, values in columns.items()
    }
