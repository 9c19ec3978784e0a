"""Rows of an encoder-decoder: those of seqio's EncDecFeatureConverter.

Packed, with lengths 10 and 7:

    {"inputs": [7 8 5 1], "targets": [3 9 1]}, {"inputs": [8 4 9 3 1], "targets": [4 1]}

    encoder_input_tokens   7 8 5 1 8 4 9 3 1 0     decoder_target_tokens  3 9 1 4 1 0 0
    encoder_segment_ids    1 1 1 1 2 2 2 2 2 0     decoder_input_tokens   0 3 9 0 4 0 0
    encoder_positions      0 1 2 3 0 1 2 3 4 0     decoder_loss_weights   1 1 1 1 1 0 0
                                                   decoder_segment_ids    1 1 1 2 2 0 0
                                                   decoder_positions      0 1 2 0 1 0 0
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.data.layouts.base import Example, Layout
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2Seq(Layout):
    """Inputs for an encoder, and targets for a decoder."""

    name: ClassVar[str] = "seq2seq"
    task: ClassVar[str] = "tasks.text:span_corruption"
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    def lay_out(
        self,
        examples: Sequence[Example],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
        pack: bool,
        tokens: EncoderTokens | None = None,
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        """See `Layout.lay_out`."""
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        inputs, targets = ([e[name] for e in ordered] for name in self.features)
        return stream.encoder(inputs, lengths["inputs"]) | stream.decoder(
            targets, lengths["targets"]
        )

    def converter(self, seqio: Any, *, pack: bool) -> Any:
        """See `Layout.converter`."""
        return seqio.EncDecFeatureConverter(pack=pack)
