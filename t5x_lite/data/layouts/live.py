"""Layouts: how a task's "inputs" and "targets" become the rows that a model reads.

"seq2seq" is seqio's EncDecFeatureConverter. Packed, with lengths 10 and 7:

    {"inputs": [7 8 5 1], "targets": [3 9 1]}, {"inputs": [8 4 9 3 1], "targets": [4 1]}

    encoder_input_tokens   7 8 5 1 8 4 9 3 1 0     decoder_target_tokens  3 9 1 4 1 0 0
    encoder_segment_ids    1 1 1 1 2 2 2 2 2 0     decoder_input_tokens   0 3 9 0 4 0 0
    encoder_positions      0 1 2 3 0 1 2 3 4 0     decoder_loss_weights   1 1 1 1 1 0 0
                                                   decoder_segment_ids    1 1 1 2 2 0 0
                                                   decoder_positions      0 1 2 0 1 0 0

"prefix_lm" is seqio's PrefixLMFeatureConverter, for a decoder alone: targets follow their inputs in
a row of inputs_length + targets_length tokens. `decoder_causal_attention` is 1 where a prefix
language model reads the inputs, the 0 at their start included; a causal one ignores it. The same
examples with lengths 8 and 7:

    decoder_target_tokens     7 8 5 1 3 9 1 8 4 9 3 1 4 1 0
    decoder_input_tokens      0 7 8 5 1 3 9 0 8 4 9 3 1 4 0
    decoder_loss_weights      0 0 0 0 1 1 1 0 0 0 0 0 1 1 0
    decoder_causal_attention  1 1 1 1 1 0 0 1 1 1 1 1 1 0 0
    decoder_segment_ids       1 1 1 1 1 1 1 2 2 2 2 2 2 2 0
    decoder_positions         0 1 2 3 4 5 6 0 1 2 3 4 5 6 0

"concat_lm" has the same rows for a causal language model that learns the inputs too: its loss
weights are 1 on both, and there is no `decoder_causal_attention`, which would show the model what
it shall predict. "lm" is seqio's LMFeatureConverter: rows of targets_length tokens of a task that
has targets only; inputs_length means nothing to it.

"encoder" is for an encoder alone, of a task that has inputs only: documents, or pieces of such,
each of them [CLS] ... [SEP]. Those that share a row do not see each other. Nothing is masked yet:
masks are drawn on the device, among the tokens that have a word's number. With [CLS] 2, [SEP] 3,
padding 0, and 7 a piece that goes on with a word:

    {"inputs": [2 5 7 6 3]}, {"inputs": [2 4 3]}

    encoder_input_tokens   2 5 7 6 3 2 4 3 0 0
    encoder_segment_ids    1 1 1 1 1 2 2 2 0 0
    encoder_positions      0 1 2 3 4 0 1 2 0 0
    encoder_word_ids       0 1 1 2 0 0 3 0 0 0

Its rows have all of these without packing, too, in one segment each. It is not seqio's, for which
id 0 is always padding (RoBERTa's [CLS] is 0): rows.py makes it, of 256 examples at a time.

"pairs" is for an encoder that compares a query with passages, of a task that has a "query" and its
"passages", one behind the other: first the one that answers it, then others that do not. Each is
[CLS] ... [SEP]. Of 1 + data.negatives passages those that are missing are padding, and take no part
in a loss. With query and passages of 4 and 3 tokens at most and one negative:

    {"query": [2 5 6 3], "passages": [2 5 3 2 4 3]}, {"query": [2 4 3], "passages": [2 4 3]}

    query_tokens          [2 5 6 3]            [2 4 3 0]            [B, _]
    query_segment_ids     [1 1 1 1]            [1 1 1 0]
    passage_tokens        [[2 5 3] [2 4 3]]    [[2 4 3] [0 0 0]]    [B, 1 + negatives, _]
    passage_segment_ids   [[1 1 1] [1 1 1]]    [[1 1 1] [0 0 0]]

"labelled" is for a head on an encoder, of a task that has "inputs", [CLS] a [SEP] or [CLS] a [SEP]
b [SEP], and "labels" (`data.labels`: 0 is none). One example a row:

    {"inputs": [2 5 3 6 4 3], "labels": [1 0]}

    encoder_input_tokens  2 5 3 6 4 3 0        labels  1 0
    encoder_segment_ids   1 1 1 1 1 1 0
    encoder_token_types   0 0 0 1 1 1 0
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.data.config import check_features, check_layout
from t5x_lite.data.layouts import packing, rows
from t5x_lite.data.quiet_tensorflow import seqio, tf
from t5x_lite.data.tasks import stages
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens

Convert = Callable[[tf.data.Dataset, Mapping[str, int]], tf.data.Dataset]

LAYOUTS: dict[str, Callable[..., seqio.FeatureConverter]] = {
    "seq2seq": seqio.EncDecFeatureConverter,
    "lm": seqio.LMFeatureConverter,
    "prefix_lm": seqio.PrefixLMFeatureConverter,
    "concat_lm": partial(seqio.PrefixLMFeatureConverter, loss_on_targets_only=False),
}
"""seqio's; "encoder", "pairs" and "labelled" are our own."""
_PACKED_AT_A_TIME = 256
_LAID_OUT_AT_A_TIME = 32


def feature_converter(layout: str, *, pack: bool, tokens: EncoderTokens | None = None) -> Convert:
    """The conversion of task features to model features.

    Args:
      layout: a name in `config.LAYOUT_NAMES`.
      pack: whether several examples share a row.
      tokens: the vocabulary's, for "encoder", "pairs" and "labelled".

    Returns:
      A function of a task's dataset and of {"inputs", "targets"}: their lengths. It raises
      InputError where the layout does not fit the task.

    Raises:
      InputError: if there is no such layout.
    """
    check_layout(layout)

    def convert(dataset: tf.data.Dataset, lengths: Mapping[str, int]) -> tf.data.Dataset:
        there: Any = dataset.element_spec
        check_features(layout, there)
        if layout not in LAYOUTS:
            return _own_rows(dataset, lengths, layout=layout, pack=pack, tokens=tokens)
        converter = LAYOUTS[layout](pack=pack)
        features: Any = converter.TASK_FEATURES
        found = converter(dataset, {name: lengths[name] for name in features})
        return found.map(_without_prefix) if layout == "concat_lm" else found

    return convert


def _own_rows(
    dataset: tf.data.Dataset,
    lengths: Mapping[str, int],
    *,
    layout: str,
    pack: bool,
    tokens: EncoderTokens | None,
) -> tf.data.Dataset:
    """Rows by blocks of examples, of which each block is a pure function."""
    names = rows.features(layout)

    def flat(block):
        found = {}
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
            sizes = np.array([[len(part) for part in e.values()] for e in examples])
            capacity = rows.capacity(layout, lengths)
            taken = packing.first_fit(rows.packed_lengths(layout, sizes), capacity=capacity)
        return rows.lay_out(
            examples,
            taken,
            num_rows=int(taken.max()) + 1,
            layout=layout,
            lengths=lengths,
            pack=pack,
            tokens=tokens,
        )

    none = np.zeros(0, np.int64)
    row = rows.lay_out([], none, num_rows=1, layout=layout, lengths=lengths, pack=pack)
    spec = {name: tf.TensorSpec([None, *v.shape[1:]], tf.int32) for name, v in row.items()}
    examples = dataset.map(lambda example: {name: example[name] for name in names})
    blocks = examples.ragged_batch(_PACKED_AT_A_TIME if pack else _LAID_OUT_AT_A_TIME)
    return stages.map_numpy(blocks.map(flat), laid_out, spec).unbatch()


def _without_prefix(row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: value for name, value in row.items() if name != "decoder_causal_attention"}
