"""Commands that use a checkpoint on a file: predict, score."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import (
    Count,
    Directories,
    File,
    LongInputs,
    Number,
    OptionalCount,
    OptionalFile,
    OptionalNumber,
    Text,
    at_least,
    some_directory,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict:
    """Answer inputs: JSON lines {"inputs"} to {"inputs", "prediction"}.

    Greedy, unless --num-beams or --temperature say otherwise. An empty input is its end alone. A
    command that is killed goes on where it stopped when it is given again.

    Attributes:
      checkpoint: a work directory or a step directory; several are an ensemble, which averages
        their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory; the newest if not given.
      prompt: what every prediction begins with; a line's own "prompt" takes its place.
      batch_size: inputs decoded at once.
      inputs_length: tokens of an input at most, and of a prompt, which is refused if it is longer;
        the config's data.inputs_length if not given.
      long_inputs: whether longer inputs are cut, with a warning, or refused.
      max_decode_length: tokens of a prediction at most, those of its prompt not counted.
      num_beams: width of the beam search; 1 is none.
      length_rule: how beams of different lengths are compared: as T5X does it, or as transformers.
      length_penalty: exponent of that rule; 0.6 for t5x and 1.0 for hf if not given.
      early_stopping: of the rule hf: whether the search stops at num_beams outputs (True), when no
        beam seems better (False), or when none could become better (never).
      num_return: predictions of each input; above 1 a line gets "predictions", best first.
      temperature: samples, from the logits divided by it, from 1e-6 on; 0 takes the likeliest
        token.
      top_k: samples among so many tokens only; 0 is all.
      top_p: samples among the likeliest tokens that together are so probable.
      min_p: samples among the tokens that are so probable, relative to the likeliest.
      seed: of the samples, below 2**32; what a line gets depends on it and on the line's number
        alone, or on the line's own "seed" where it has one.
      min_length: tokens of a prediction at least.
      no_repeat_ngram: no sequence of so many tokens comes twice in a prediction, with its prompt
        but without its input; 0 allows it.
    """

    checkpoint: Directories
    input: File
    output: File
    step: OptionalCount = None
    prompt: Text = ""
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    long_inputs: LongInputs = "cut"
    max_decode_length: Count = 64
    num_beams: Count = 1
    length_rule: Literal["t5x", "hf"] = "t5x"
    length_penalty: OptionalNumber = None
    early_stopping: bool | Literal["never"] = False
    num_return: Count = 1
    temperature: Number = 0.0
    top_k: Count = 0
    top_p: Number = 1.0
    min_p: Number = 0.0
    seed: Count = 0
    min_length: Count = 0
    no_repeat_ngram: Count = 0
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        some_directory(self.checkpoint)
        at_least(
            0,
            {
                "--step": self.step,
                "--top-k": self.top_k,
                "--seed": self.seed,
                "--min-length": self.min_length,
                "--no-repeat-ngram": self.no_repeat_ngram,
            },
        )
        at_least(
            1,
            {
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--max-decode-length": self.max_decode_length,
                "--num-beams": self.num_beams,
                "--num-return": self.num_return,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.answering.predict."""
        from t5x_lite.decoding.config import Decoding
        from t5x_lite.run.answering import predict

        decoding = Decoding(
            max_length=self.max_decode_length,
            **{name: getattr(self, name) for name in _SAME_IN_DECODING},
        )
        predict(
            self.checkpoint,
            step=self.step,
            input=self.input,
            output=self.output,
            prompt=self.prompt,
            batch_size=self.batch_size,
            inputs_length=self.inputs_length,
            long_inputs=self.long_inputs,
            decoding=decoding,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Log-likelihood of targets: JSON lines {"inputs", "targets"} get "log_likelihood".

    The log-likelihood is a sum over the targets' tokens and their end; "num_tokens" counts them. An
    empty input or target is its end alone. A command that is killed goes on where it stopped when
    it is given again.

    Attributes:
      checkpoint: a work directory or a step directory; several are an ensemble, which averages
        their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory; the newest if not given.
      candidates: a file with one candidate a line: lines {"inputs"} get "prediction", the likeliest
        of them, and "scores", the log-likelihood of each.
      batch_size: examples scored at once.
      inputs_length: tokens of an input at most; the config's data.inputs_length if not given.
      targets_length: tokens of a target at most, its end included; no limit if not given. The
        log-likelihood of one that is cut is that of its beginning.
      long_inputs: whether longer inputs and targets are cut, with a warning, or refused.
    """

    checkpoint: Directories
    input: File
    output: File
    step: OptionalCount = None
    candidates: OptionalFile = None
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    targets_length: OptionalCount = None
    long_inputs: LongInputs = "cut"
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        some_directory(self.checkpoint)
        at_least(0, {"--step": self.step})
        at_least(
            1,
            {
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--targets-length": self.targets_length,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.answering.score."""
        from t5x_lite.run.answering import score

        score(
            self.checkpoint,
            step=self.step,
            input=self.input,
            output=self.output,
            candidates=self.candidates,
            batch_size=self.batch_size,
            inputs_length=self.inputs_length,
            targets_length=self.targets_length,
            long_inputs=self.long_inputs,
        )


_SAME_IN_DECODING = (
    "num_beams", "length_rule", "length_penalty", "early_stopping", "num_return", "temperature",
    "top_k", "top_p", "min_p", "seed", "min_length", "no_repeat_ngram",
)  # fmt: skip
"""Fields of Predict that `decoding.config.Decoding` has under the same name."""
