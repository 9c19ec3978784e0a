"""How often a task's data were read, told by the batches themselves.

    counted = counting(task)                # the same examples, with the epoch of each as a feature
    dataset = counted.get_dataset(..., num_epochs=None)
    ...                                     # layout (`live.rows`), batches
    batch, epoch = unmark(batch)            # 0 while the data are read for the first time

seqio repeats a task's data after its CacheDatasetPlaceholder and does not say so. What comes out
of shuffling, packing and saved buffers is no longer in step with what was read, so the epoch goes
with each example as a feature. Rows have no place for it: seqio's feature converters hand tokens on
and nothing else, and a row more of numbers would make what earlier versions saved of tf.data
another program's (docs/adr/0020). So the tokens of rows carry it in bits that no vocabulary
reaches, from the layout to the batch; layouts see plain tokens. Token 17 of an example in its third
epoch:

    17 + (2 << 24)
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

FIELD = "epoch_of_example"
_BITS = 24
_PLAIN = (1 << _BITS) - 1
_MOST = (1 << (31 - _BITS)) - 1
"""The last epoch that is told: the 128th and all later ones are one."""


def counting(task: Any) -> Any:
    """The task with `FIELD` in its examples, int64: how often the data were read before.

    An example is without it where a preprocessor drops what it does not know, or where the task's
    raw examples have no names.

    Args:
      task: a seqio.Task; it stays as it is.
    """

    def precache(dataset: Any, seed: int | None = None) -> Any:
        return _first_marked(task.preprocess_precache(dataset, seed))

    def postcache(dataset: Any, sequence_length: Any, seed: int | None = None) -> Any:
        return task.preprocess_postcache(_counted(dataset), sequence_length, seed)

    # Steps of their own in the task's list would shift the seeds that seqio gives to the others.
    counted = copy.copy(task)
    counted.preprocess_precache, counted.preprocess_postcache = precache, postcache
    return counted


def _first_marked(dataset: Any) -> Any:
    """Of one pass: `FIELD` is 1 in the first example, 0 in the others."""
    from t5x_lite.data.quiet_tensorflow import tf

    if not isinstance(dataset.element_spec, Mapping):
        return dataset
    return dataset.enumerate().map(
        lambda index, example: {**example, FIELD: tf.cast(tf.equal(index, 0), tf.int64)}
    )


def _counted(dataset: Any) -> Any:
    """Of passes that were marked so, one after the other: `FIELD` is the number of the pass."""
    from t5x_lite.data.quiet_tensorflow import tf

    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or FIELD not in spec:
        return dataset

    def step(epoch, example):
        epoch += example[FIELD]
        return epoch, {**example, FIELD: epoch}

    return dataset.scan(tf.constant(-1, tf.int64), step)


def bounded(example: Mapping[str, Any]) -> dict[str, Any]:
    """The example with a `FIELD` that bits of tokens hold: late epochs are one."""
    from t5x_lite.data.quiet_tensorflow import tf

    return {**example, FIELD: tf.minimum(example[FIELD], _MOST)}


def mark(example: Mapping[str, Any]) -> dict[str, Any]:
    """The example's features without `FIELD`, which their tokens carry; padding stays 0."""
    from t5x_lite.data.quiet_tensorflow import tf

    epoch = tf.cast(tf.minimum(example[FIELD], _MOST), tf.int32) * (1 << _BITS)
    return {
        name: tf.where(tf.equal(value, 0), value, value + epoch)
        if value.dtype == tf.int32 and value.shape.rank == 1
        else value
        for name, value in example.items()
        if name != FIELD
    }


def mark_rows(
    rows: Mapping[str, np.ndarray], epochs: np.ndarray, of: np.ndarray
) -> dict[str, np.ndarray]:
    """Rows whose tokens carry the latest epoch of their examples.

    Args:
      rows: features of rows.
      epochs: int64 [n], of each example, as `bounded` gives them.
      of: int64 [n], the row of each.
    """
    latest = np.zeros(len(next(iter(rows.values()))), np.int64)
    np.maximum.at(latest, of, epochs)
    marks = (latest << _BITS).astype(np.int32)
    return {
        name: value + marks.reshape(-1, *(1,) * (value.ndim - 1))
        if name.endswith("_tokens")
        else value
        for name, value in rows.items()
    }


def unmark(batch: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
    """The batch without the marks, and the latest epoch among its examples."""
    tokens = [name for name in batch if name.endswith("_tokens")]
    epoch = max((int(batch[name].max(initial=0)) >> _BITS for name in tokens), default=0)
    plain = {name: batch[name] & _PLAIN for name in tokens}
    return {**batch, **plain}, epoch
