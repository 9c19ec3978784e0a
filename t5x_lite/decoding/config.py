"""Configuration of text generation: greedy decoding, sampling, or beam search.

Decoding()                                            greedy
Decoding(temperature=0.8, top_p=0.95, num_return=5)   five samples
Decoding(num_beams=4)                                 beam search as in T5X
Decoding(num_beams=4, length_rule="hf", num_return=4) beam search as in transformers, best four
"""

import dataclasses
import math
from typing import Annotated, Literal

from t5x_lite.core.devices import LARGEST
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import Count, In, Whole, check_bounds

LengthRule = Literal["t5x", "hf"]
EarlyStopping = bool | Literal["never"]

MIN_TEMPERATURE = 1e-6
"""Minimum temperature; with a lower temperature, divided logits may exceed float32."""
NUM_SEEDS = 2**32
"""Number of valid random seeds, because JAX keys keep 32 bits of a seed."""

DEFAULT_PENALTY: dict[LengthRule, float] = {"t5x": 0.6, "hf": 1.0}


_WHOLE = ("max_decode_length", "num_beams", "num_return", "top_k", "min_length",
          "no_repeat_ngram", "eos_id")  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoding:
    """Configuration of text generation; all lengths exclude the prompt.

    Attributes:
      max_decode_length: maximum number of new tokens, including EOS.
      num_beams: number of beams; 1 for greedy decoding or sampling.
      length_rule: length normalization of beam search, "t5x" or "hf" (see
        `t5x_lite.decoding.beam`).
      length_penalty: exponent of the length normalization; None is 0.6 for "t5x" and 1.0 for "hf".
      early_stopping: stopping rule of beam search with length_rule "hf", as in transformers: True
        stops at num_beams finished outputs, False if the best live beam would score worse than all
        finished outputs if it ended now, "never" if it could not score better by max_decode_length.
      num_return: number of outputs for each input, best first.
      temperature: sampling temperature, at least 1e-6; 0 for greedy decoding.
      top_k: number of likeliest tokens to sample from; 0 for all tokens.
      top_p: total probability of the likeliest tokens to sample from (nucleus sampling).
      min_p: minimum probability of sampled tokens, as a fraction of the likeliest token's
        probability.
      seed: random seed for sampling, in [0, 2**32).
      min_length: minimum number of new tokens, without EOS.
      no_repeat_ngram: size n of n-grams that must not repeat within an output and its prompt; 0
        disables the constraint. N-grams of the input are not counted.
      eos_id: id of the token that ends an output.
      max_length: former name of max_decode_length; rejected with an error.
    """

    max_decode_length: Count = 64
    num_beams: Count = 1
    length_rule: LengthRule = "t5x"
    length_penalty: float | None = None
    early_stopping: EarlyStopping = False
    num_return: Count = 1
    temperature: float = 0.0
    top_k: Whole = 0
    top_p: Annotated[float, In(0, 1, "(]")] = 1.0
    min_p: Annotated[float, In(0, 1, "[]")] = 0.0
    seed: int = 0
    min_length: Whole = 0
    no_repeat_ngram: Whole = 0
    eos_id: Whole = 1
    max_length: dataclasses.InitVar[int | None] = None

    def __post_init__(self, max_length: int | None) -> None:
        if max_length is not None:
            raise InputError("max_length has been renamed; use max_decode_length")
        check_bounds(self)
        for name in _WHOLE:
            if getattr(self, name) > LARGEST:
                raise InputError(
                    f"{name} must be at most {LARGEST:,}, got {shown(getattr(self, name))}"
                )
        if not 0 <= self.seed < NUM_SEEDS:
            raise InputError(f"seed must be from 0 to {NUM_SEEDS - 1}, got {self.seed}")
        sampled = self.temperature != 0.0
        if sampled and not MIN_TEMPERATURE <= self.temperature < math.inf:
            raise InputError(
                f"temperature must be 0, or finite and at least {MIN_TEMPERATURE:g}, got "
                f"{self.temperature}"
            )
        if not math.isfinite(self.penalty):
            raise InputError(f"length_penalty must be finite, got {self.length_penalty}")
        if self.min_length > self.max_decode_length:
            raise InputError(
                f"min_length {self.min_length} is above max_decode_length "
                f"{self.max_decode_length}; lower min_length or raise max_decode_length"
            )
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        samples = self.temperature > 0.0
        if samples and self.num_beams > 1:
            raise InputError(
                f"beam search does not support sampling, got num_beams {self.num_beams} and "
                f"temperature {self.temperature}; set num_beams to 1 or temperature to 0"
            )
        if not samples and (self.top_k, self.top_p, self.min_p) != (0, 1.0, 0.0):
            raise InputError(
                "top_k, top_p and min_p need sampling; set temperature above 0 (1 keeps the "
                "model's probabilities)"
            )
        if not samples and self.num_return > self.num_beams:
            raise InputError(
                f"num_return {self.num_return} is above num_beams {self.num_beams}; raise "
                "num_beams, or set temperature above 0 to sample"
            )
        if self.early_stopping is not False and self.length_rule != "hf":
            raise InputError(
                'early_stopping needs length_rule "hf"; set it, or unset early_stopping'
            )

    @property
    def penalty(self) -> float:
        """Length penalty, or its default for the length rule."""
        given = self.length_penalty
        return DEFAULT_PENALTY[self.length_rule] if given is None else given
