"""Layouts over tf.data: a task's dataset becomes one of rows.

Rows of text to text are made by seqio's feature converters, those of encoders by the layout itself,
of up to 256 examples at a time. Rows that are grouped by length (`data.shapes`) are made a batch at
a time; the examples that wait for theirs are a part of what tf.data saves. What rows are, with
pictures, stands in the layouts' own files.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.data.config import Data, lengths_of
from t5x_lite.data.layouts import packing
from t5x_lite.data.layouts.base import KEY, Layout
from t5x_lite.data.live import epochs
from t5x_lite.data.quiet_tensorflow import seqio, tf
from t5x_lite.data.shapes import bucket_of
from t5x_lite.data.tasks import stages
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens

_PACKED_AT_A_TIME = 256
_LAID_OUT_AT_A_TIME = 32
_BUCKET = "bucket_of_example"


def rows(
    dataset: tf.data.Dataset,
    layout: Layout,
    *,
    features: Collection[str],
    lengths: Mapping[str, int],
    pack: bool,
    tokens: EncoderTokens | None = None,
) -> tf.data.Dataset:
    """Examples as rows of model features.

    Args:
      dataset: a task's examples, trimmed; where they have `epochs.FIELD`, the rows' tokens are
        marked with it.
      layout: of the rows.
      features: the task's output features, of which some are shown.
      lengths: its `Layout.lengths`.
      pack: whether several examples share a row.
      tokens: the vocabulary's, of a layout of an encoder.

    Raises:
      InputError: the layout does not fit the task.
    """
    there: Any = dataset.element_spec
    layout = _of_task(layout, features, there)
    converter = layout.converter(seqio, pack=pack)
    if epochs.FIELD in there:
        told = epochs.bounded if converter is None else epochs.mark
        dataset = dataset.map(tf.autograph.experimental.do_not_convert(told))
    if converter is None:
        names = _names(layout, features)
        return _own_rows(dataset, layout, names, lengths=lengths, pack=pack, tokens=tokens)
    return converter(dataset, {name: lengths[name] for name in layout.features})


def grouped(
    dataset: tf.data.Dataset,
    layout: Layout,
    *,
    features: Collection[str],
    shapes: Sequence[Data],
    part: tuple[int, int] = (0, 1),
    tokens: EncoderTokens | None = None,
) -> tf.data.Dataset:
    """Examples as batches of several shapes, grouped by length as `data.shapes` says.

    Where the examples end, each bucket's rest is a batch that is filled up with rows of padding.

    Args:
      dataset: as in `rows`.
      layout: of the rows; one that has `Layout.grouped`.
      features: the task's output features, of which some are shown.
      shapes: from `shapes_of`.
      part: which part of each batch's rows, and of how many.
      tokens: the vocabulary's, of a layout of an encoder.

    Raises:
      InputError: the layout does not fit the task.
    """
    there: Any = dataset.element_spec
    layout = _of_task(layout, features, there)
    counted = epochs.FIELD in there
    if counted:
        dataset = dataset.map(tf.autograph.experimental.do_not_convert(epochs.bounded))
    names = _names(layout, features)
    chosen = (*names, *((epochs.FIELD,) if counted else ()))
    buckets = tuple((getattr(shape, layout.grouped), shape.batch_size) for shape in shapes)
    sizes = tf.constant([rows for _, rows in buckets], tf.int64)
    flat = _flat(there, names)

    def measured(example):
        length = np.array([layout.longest({name: example[name] for name in names})])
        return {**example, _BUCKET: bucket_of(length, buckets)[0]}

    def batch_of(bucket, examples):
        return examples.ragged_batch(tf.gather(sizes, bucket)).map(
            lambda block: {**flat(block), _BUCKET: block[_BUCKET]}
        )

    def laid_out(block):
        shape = shapes[block[_BUCKET][0]]
        share = shape.batch_size // part[1]
        own = slice(part[0] * share, (part[0] + 1) * share)
        examples = _examples(block, names)[own]
        taken = np.arange(len(examples))
        made = layout.lay_out(
            examples,
            taken,
            num_rows=share,
            lengths=lengths_of(shape),
            pack=False,
            tokens=tokens,
        )
        return epochs.mark_rows(made, block[epochs.FIELD][own], taken) if counted else made

    examples = dataset.map(lambda example: {name: example[name] for name in chosen})
    plain: Any = examples.element_spec
    spec = {**plain, _BUCKET: tf.TensorSpec([], tf.int64)}
    batches = stages.map_numpy(examples, measured, spec).group_by_window(
        key_func=lambda example: example[_BUCKET],
        reduce_func=batch_of,
        window_size_func=lambda bucket: tf.gather(sizes, bucket),
    )
    specs = [_row_spec(layout, lengths_of(shape), pack=False) for shape in shapes]
    return stages.map_numpy(batches, laid_out, {name: _common(name, specs) for name in specs[0]})


def _of_task(layout: Layout, features: Collection[str], there: Collection[str]) -> Layout:
    """The layout of a task's examples.

    Raises:
      InputError: it does not fit the task.
    """
    layout = layout.of_task(features)
    if layout.draws and KEY not in there:
        raise InputError(
            f"data.layout {layout.name} draws for each example, and the task does not number them: "
            "put stages.number, seqio.CacheDatasetPlaceholder(), stages.count_epochs and "
            "partial(stages.keyed, seed=arguments.seed) after its tokenization"
        )
    return layout


def _names(layout: Layout, features: Collection[str]) -> tuple[str, ...]:
    """The fields of an example that its row is made of."""
    return (*layout.shown(features), *((KEY,) if layout.draws else ()))


def _row_spec(
    layout: Layout, lengths: Mapping[str, int], *, pack: bool
) -> dict[str, tf.TensorSpec]:
    """Rows [_, ...] of a layout."""
    none = np.zeros(0, np.int64)
    row = layout.lay_out([], none, num_rows=1, lengths=lengths, pack=pack)
    return {name: tf.TensorSpec([None, *v.shape[1:]], v.dtype) for name, v in row.items()}


def _common(name: str, specs: Sequence[Mapping[str, tf.TensorSpec]]) -> tf.TensorSpec:
    """A feature of several shapes: the sizes in which they differ are not said."""
    sizes = zip(*(spec[name].shape for spec in specs), strict=True)
    shape = [size[0] if len({*size}) == 1 else None for size in sizes]
    return tf.TensorSpec(shape, specs[0][name].dtype)


def _flat(there: Any, names: Sequence[str]) -> Any:
    """A function of a ragged block of examples: flat values, and where each example ends."""

    def flat(block):
        found = {name: block[name] for name in (epochs.FIELD,) if epochs.FIELD in there}
        for name in names:
            feature: Any = block[name]
            if isinstance(feature, tf.Tensor):  # all of one length
                ragged: Any = tf.RaggedTensor
                feature = ragged.from_tensor(feature)
            found |= {name: feature.flat_values, f"{name}_ends": feature.row_limits()}
        return found

    return flat


def _examples(block: Mapping[str, np.ndarray], names: Sequence[str]) -> list[dict[str, np.ndarray]]:
    """The examples of a flat block."""
    columns = [np.split(block[name], block[f"{name}_ends"][:-1]) for name in names]
    return [dict(zip(names, parts, strict=True)) for parts in zip(*columns, strict=True)]


def _own_rows(
    dataset: tf.data.Dataset,
    layout: Layout,
    names: Sequence[str],
    *,
    lengths: Mapping[str, int],
    pack: bool,
    tokens: EncoderTokens | None,
) -> tf.data.Dataset:
    """Rows by blocks of examples, of which each block is a pure function."""
    there: Any = dataset.element_spec
    counted = epochs.FIELD in there

    def laid_out(block):
        examples = _examples(block, names)
        taken = np.arange(len(examples))
        if pack:
            sizes = np.array(
                [[len(example[name]) for name in layout.features] for example in examples]
            )
            capacity = layout.capacity(lengths)
            taken = packing.first_fit(layout.packed_lengths(sizes), capacity=capacity)
        made = layout.lay_out(
            examples,
            taken,
            num_rows=int(taken.max()) + 1,
            lengths=lengths,
            pack=pack,
            tokens=tokens,
        )
        return epochs.mark_rows(made, block[epochs.FIELD], taken) if counted else made

    chosen = (*names, *((epochs.FIELD,) if counted else ()))
    examples = dataset.map(lambda example: {name: example[name] for name in chosen})
    blocks = examples.ragged_batch(_PACKED_AT_A_TIME if pack else _LAID_OUT_AT_A_TIME)
    spec = _row_spec(layout, lengths, pack=pack)
    return stages.map_numpy(blocks.map(_flat(there, names)), laid_out, spec).unbatch()
