"""Passes over the data of a task, each in an order of its own, which a saved iterator goes on with.

    passes = Passes(lambda epoch: parts_of(files, Shuffle(seed=0, epoch=epoch)), size="24 bytes")
    endless(passes, task.preprocess_precache, seed=0, epoch="epoch")

A shuffle buffer mixes neighbours alone: of a file that is sorted by label it gives one label first.
So the parts of files that do not fit into memory are permuted at each pass (`permutation.order`).
The order is a function of the seed and of the epoch and of nothing else, and the epoch is what
tf.data saves.
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
"""Files of no more bytes than these, 64 MiB, are tokenized at the start and permuted as a whole."""
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
      size: what the order depends on beside the seed and the epoch: the files and their sizes
        (`sizes_of`); None where that is not known.
    """

    of_epoch: Callable[[Any], Dataset]
    size: str | None


def endless(
    passes: Passes, preprocess: Callable[..., Dataset], *, seed: int, epoch: str
) -> Dataset:
    """The examples of one pass after the other, for ever, preprocessed pass by pass.

    `preprocess` is called while tf.data traces a function: it cannot iterate over the dataset or
    ask for its length as a number.

    Args:
      passes: what a source gives.
      preprocess: of the examples of a pass and of the seed.
      seed: of the preprocessing.
      epoch: the feature that says the number of the pass.
    """
    from t5x_lite.data.elements import tf

    # The stages are plain Python in a graph; what they map is converted by AutoGraph as ever.
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
    """Return whether the examples can be read in any order, as those of tensors can."""
    from t5x_lite.data.elements import tf

    if int(dataset.cardinality()) < 1:
        return False
    try:
        tf.data.experimental.at(dataset, 0)
    except tf.errors.UnimplementedError:
        return False
    return True


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
    """Return whether files fit into `IN_MEMORY_BYTES`; compressed ones and Parquet count eightfold.

    It is False where one of them cannot be looked at, as it is no file here.
    """
    try:
        sizes = [size_of(file) for file in files]
    except (OSError, TypeError, InputError):
        return False
    compact = [is_compressed(str(file)) or str(file).endswith(".parquet") for file in files]
    factors = [_EXPANSION if one else 1 for one in compact]
    return sum(s * f for s, f in zip(sizes, factors, strict=True)) <= IN_MEMORY_BYTES
