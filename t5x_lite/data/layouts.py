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
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from t5x_lite.data.config import check_inputs, check_layout
from t5x_lite.data.quiet_tensorflow import seqio, tf

Convert = Callable[[tf.data.Dataset, Mapping[str, int]], tf.data.Dataset]

LAYOUTS: dict[str, Callable[..., seqio.FeatureConverter]] = {
    "seq2seq": seqio.EncDecFeatureConverter,
    "lm": seqio.LMFeatureConverter,
    "prefix_lm": seqio.PrefixLMFeatureConverter,
    "concat_lm": partial(seqio.PrefixLMFeatureConverter, loss_on_targets_only=False),
}


def feature_converter(layout: str, *, pack: bool) -> Convert:
    """The conversion of task features to model features.

    Args:
      layout: a name in `LAYOUTS`.
      pack: whether several examples share a row.

    Returns:
      A function of a task's dataset and of {"inputs", "targets"}: their lengths. It raises
      InputError where the layout does not fit the task.

    Raises:
      InputError: if there is no such layout.
    """
    check_layout(layout)

    def convert(dataset: tf.data.Dataset, lengths: Mapping[str, int]) -> tf.data.Dataset:
        converter = LAYOUTS[layout](pack=pack)
        features: Any = converter.TASK_FEATURES
        there: Any = dataset.element_spec
        check_inputs(layout, there="inputs" in there)
        rows = converter(dataset, {name: lengths[name] for name in features})
        return rows.map(_without_prefix) if layout == "concat_lm" else rows

    return convert


def _without_prefix(row: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {name: value for name, value in row.items() if name != "decoder_causal_attention"}
