"""Layouts over tf.data: a task's dataset becomes one of rows.

Rows of text to text are made by seqio's feature converters, those of encoders by the layout itself,
of up to 256 examples at a time. What rows are, with pictures, stands in the layouts' own files.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.data.layouts import packing
from t5x_lite.data.layouts.base import KEY, Layout
from t5x_lite.data.live import epochs
from t5x_lite.data.quiet_tensorflow import seqio, tf
from t5x_lite.data.tasks import stages
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens

_PACKED_AT_A_TIME = 256
_LAID_OUT_AT_A_TIME = 32


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
    layout = layout.of_task(features)
    if layout.draws and KEY not in there:
        raise InputError(
            f"data.layout {layout.name} draws for each example, and the task does not number them: "
            "put stages.number, seqio.CacheDatasetPlaceholder(), stages.count_epochs and "
            "partial(stages.keyed, seed=arguments.seed) behind its tokenisation"
        )
    converter = layout.converter(seqio, pack=pack)
    if epochs.FIELD in there:
        told = epochs.bounded if converter is None else epochs.mark
        dataset = dataset.map(tf.autograph.experimental.do_not_convert(told))
    if converter is None:
        names = (*layout.shown(features), *((KEY,) if layout.draws else ()))
        return _own_rows(dataset, layout, names, lengths=lengths, pack=pack, tokens=tokens)
    return converter(dataset, {name: lengths[name] for name in layout.features})


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

    def flat(block):
        found = {name: block[name] for name in (epochs.FIELD,) if counted}
        for name in names:
            feature: Any = block[name]
            if isinstance(feature, tf.Tensor):  # all of one length
                ragged: Any = tf.RaggedTensor
                feature = ragged.from_tensor(feature)
            found |= {name: feature.flat_values, f"{name}_ends": feature.row_limits()}
        return found

    def laid_out(block):
        columns = [np.split(block[name], block[f"{name}_ends"][:-1]) for name in names]
        examples = [dict(zip(names, parts, strict=True)) for parts in zip(*columns, strict=True)]
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

    none = np.zeros(0, np.int64)
    row = layout.lay_out([], none, num_rows=1, lengths=lengths, pack=pack)
    spec = {name: tf.TensorSpec([None, *v.shape[1:]], v.dtype) for name, v in row.items()}
    chosen = (*names, *((epochs.FIELD,) if counted else ()))
    examples = dataset.map(lambda example: {name: example[name] for name in chosen})
    blocks = examples.ragged_batch(_PACKED_AT_A_TIME if pack else _LAID_OUT_AT_A_TIME)
    return stages.map_numpy(blocks.map(flat), laid_out, spec).unbatch()
