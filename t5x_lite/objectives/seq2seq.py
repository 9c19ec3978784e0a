"""Text to text: the likelihood of the targets given the inputs (Raffel et al. 2020).

Span corruption and every fine-tuning task are this objective; what differs is the data.
"""

import dataclasses
from typing import ClassVar

from t5x_lite.data import layouts
from t5x_lite.data.layouts import Layout
from t5x_lite.objectives.likelihood import Likelihood


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2Seq(Likelihood):
    """Cross-entropy of the targets of an encoder-decoder; its fields are those of `Likelihood`."""

    layouts: ClassVar[tuple[type[Layout], ...]] = (layouts.Seq2Seq,)
    reads: ClassVar[tuple[str, ...]] = ("encoder_input_tokens", "decoder_input_tokens")
    reads_if_there: ClassVar[tuple[str, ...]] = ("encoder_segment_ids", "decoder_segment_ids")
