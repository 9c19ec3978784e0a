"""Passes over the data of a task, each in a new order that a saved iterator can resume.

    passes = Passes(lambda epoch: parts_of(files, Shuffle(seed=0, epoch=epoch)), size="24 bytes")
    endless(passes, task.preprocess_precache, seed=0, epoch="epoch")

A shuffle buffer only mixes nearby examples: a file sorted by label yields one label first. So the
parts of files that do not fit into memory are permuted in each pass (`mixing.order`). The order
depends only on the seed and the epoch, and tf.data saves the epoch.
"""

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import size_of
from t5x_lite.data.formats.lines import is_compressed
from t5x_lite.data.mixing import order

IN_MEMORY_BYTES = 1 << 26
"""Maximum bytes (64 MiB) of files that are tokenized at the start and fully permuted."""
_EXPANSION = 8
"""Typical maximum ratio of text to file size, for compressed files."""
_PLACES = 1024

Dataset = Any
"""tf.data.Dataset; TensorFlow is imported when it is used."""


class Shuffle(NamedTuple):
    """Order of one pass over the data, determined by seed and epoch.

    Attributes:
      seed: seed of the run.
      epoch: number of the pass, a tf.Tensor int64 [].
    """

    seed: int
    epoch: Any


@dataclass(frozen=True)
class Passes:
    """Passes over the examples of a split, each in a new order.

    Attributes:
      of_epoch: function from the number of a pass, a tf.Tensor int64 [], to its examples.
      size: size and checksum of the files (`sizes_of`), which determine the order together with
        seed and epoch; None if unknown.
    """

    of_epoch: Callable[[Any], Dataset]
    size: str | None


def endless(
    passes: Passes, preprocess: Callable[..., Dataset], *, seed: int, epoch: str
) -> Dataset:
    """Return an infinite dataset of passes in sequence, each preprocessed separately.

    `preprocess` is called while tf.data traces a function. It cannot iterate over the dataset or
    read its length as a number.

    Args:
      passes: passes of a source.
      preprocess: function from the examples of a pass and the seed to a dataset.
      seed: seed of the preprocessing.
      epoch: name of the added feature with the number of the pass.
    """
    from t5x_lite.data.elements import tf

    # Preprocessors run as plain Python in a graph. Functions that they map use AutoGraph as usual.
    autograph = tf.__internal__.autograph
    status = autograph.control_status_ctx()
    of_epoch, converted = (
        autograph.tf_convert(function, status, convert_by_default=False)
        for function in (passes.of_epoch, preprocess)
    )

    @tf.autograph.experimental.do_not_convert
    def one_pass(number: Any) -> Dataset:
        examples = converted(of_epoch(number), seed)
        return examples.map(lambda example: {**example, epoch: number})

    return tf.data.Dataset.range(tf.int64.max).flat_map(one_pass)


def permuted_range(size: int, shuffle: Shuffle) -> Dataset:
    """Return a dataset of the numbers from 0 to size - 1, int64, in the order of a pass."""
    return _blocks(size, shuffle).unbatch()


def _blocks(size: int, shuffle: Shuffle) -> Dataset:
    from t5x_lite.data.elements import tf

    def ordered(places: np.ndarray, epoch: np.integer) -> np.ndarray:
        return order(places, np.full_like(places, epoch), size=size, seed=shuffle.seed)

    @tf.autograph.experimental.do_not_convert
    def of(places: Any) -> Any:
        found = tf.numpy_function(ordered, [places, shuffle.epoch], tf.int64, stateful=False)
        return tf.ensure_shape(found, [None])

    return tf.data.Dataset.range(size).batch(_PLACES).map(of)


def can_be_permuted(dataset: Dataset) -> bool:
    """Return True if a dataset can be read in any order, for example from tensors in memory."""
    from t5x_lite.data.elements import tf

    if int(dataset.cardinality()) < 1:
        return False
    try:
        tf.data.experimental.at(dataset, 0)
    except tf.errors.UnimplementedError:
        return False
    return True


def sizes_of(files: Sequence[Any]) -> str | None:
    """Return total size and checksum of files as a text, such as "512 bytes (5f0c2a9b)".

    Return None if the size of a file is unknown: the file is neither local nor in a bucket.
    """
    try:
        sizes = [size_of(file) for file in files]
    except (OSError, TypeError, InputError):
        return None
    each = [f"{os.path.basename(file)} {size}" for file, size in zip(files, sizes, strict=True)]
    return f"{sum(sizes)} bytes ({zlib.crc32(chr(10).join(each).encode()):08x})"


def fit_in_memory(files: Sequence[Any]) -> bool:
    """Return True if the text of files fits into `IN_MEMORY_BYTES`.

    Compressed files and Parquet count eight times their size. The result is False if the size of a
    file is unknown: the file is neither local nor in a bucket.
    """
    try:
        sizes = [size_of(file) for file in files]
    except (OSError, TypeError, InputError):
        return False
    compact = [is_compressed(str(file)) or str(file).endswith(".parquet") for file in files]
    factors = [_EXPANSION if one else 1 for one in compact]
    return sum(s * f for s, f in zip(sizes, factors, strict=True)) <= IN_MEMORY_BYTES
