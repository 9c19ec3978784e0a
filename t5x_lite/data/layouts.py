"""Layouts: how a task's "inputs" and "targets" become the rows that a model reads.

"seq2seq" is seqio's EncDecFeatureConverter. Packed, with lengths 10 and 7:

    {"inputs": [7 8 5 1], "targets": [3 9 1]}, {"inputs": [8 4 9 3 1], "targets": [4 1]}

    encoder_input_tokens   7 8 5 1 8 4 9 3 1 0     decoder_target_tokens  3 9 1 4 1 0 0
    encoder_segment_ids    1 1 1 1 2 2 2 2 2 0     decoder_input_tokens   0 3 9 0 4 0 0
    encoder_positions      0 1 2 3 0 1 2 3 4 0     decoder_loss_weights   1 1 1 1 1 0 0
                                                   decoder_segment_ids    1 1 1 2 2 0 0
                                                   decoder_positions      0 1 2 0 1 0 0
"""

import difflib

from t5x_lite.data.quiet_tensorflow import seqio
from t5x_lite.errors import InputError

LAYOUTS = {"seq2seq": seqio.EncDecFeatureConverter}


def feature_converter(layout: str, *, pack: bool) -> seqio.FeatureConverter:
    """The converter from task features to model features.

    Args:
      layout: a name in `LAYOUTS`.
      pack: whether several examples share a row.

    Raises:
      InputError: if there is no such layout.
    """
    if layout not in LAYOUTS:
        near = difflib.get_close_matches(layout, LAYOUTS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(LAYOUTS)}"
        raise InputError(f"unknown data.layout {layout!r}: {hint}")
    return LAYOUTS[layout](pack=pack)
