"""Language modelling with a decoder alone (Raffel et al. 2020, section 3.2.1).

The targets are the text itself, or inputs and targets one after the other; the layout's loss
weights say whether the inputs count. Which architecture it is, a causal or a prefix language
model, is the model's choice (`LMConfig.prefix`).
"""

import dataclasses
from typing import ClassVar

from t5x_lite.data.layouts import LM, ConcatLM, Layout, PrefixLM
from t5x_lite.objectives.likelihood import Likelihood


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModel(Likelihood):
    """Cross-entropy of the next token; its fields are those of `Likelihood`."""

    layouts: ClassVar[tuple[type[Layout], ...]] = (LM, PrefixLM, ConcatLM)
    reads: ClassVar[tuple[str, ...]] = ("decoder_input_tokens",)
    reads_if_there: ClassVar[tuple[str, ...]] = ("decoder_segment_ids", "decoder_causal_attention")
