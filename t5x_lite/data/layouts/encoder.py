"""Rows of an encoder alone, of a task that has inputs only: documents, or pieces of such.

Each is [CLS] ... [SEP]. Those that share a row do not see each other. Nothing is masked yet: masks
are drawn on the device, among the tokens that have a word's number. With [CLS] 2, [SEP] 3, padding
0, and 7 a piece that goes on with a word:

    {"inputs": [2 5 7 6 3]}, {"inputs": [2 4 3]}

    encoder_input_tokens   2 5 7 6 3 2 4 3 0 0
    encoder_segment_ids    1 1 1 1 1 2 2 2 0 0
    encoder_positions      0 1 2 3 4 0 1 2 0 0
    encoder_word_ids       0 1 1 2 0 0 3 0 0 0

The rows have all of these without packing, too, in one segment each. They are not seqio's, for
which id 0 is always padding (RoBERTa's [CLS] is 0).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.data.layouts.base import Example, Layout
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder(Layout):
    """Documents for an encoder that learns from masks."""

    name: ClassVar[str] = "encoder"
    task: ClassVar[str] = "tasks.encoder:documents"
    features: ClassVar[tuple[str, ...]] = ("inputs",)
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"

    def lay_out(
        self,
        examples: Sequence[Example],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
        pack: bool,
        tokens: EncoderTokens | None = None,
    ) -> dict[str, Int32[np.ndarray, "B S"]]:
        """See `Layout.lay_out`; without `tokens` the rows have no words."""
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        return stream.encoder_alone([e["inputs"] for e in ordered], lengths["inputs"], tokens)
