"""Commands that use a checkpoint on a file: predict, score."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import at_least, some_directory
from t5x_lite.files import LONGEST_LINE
from t5x_lite.option_types import (
    ALL_MODULES,
    Count,
    DirectoryTuple,
    File,
    LongInputs,
    Modules,
    Number,
    OptionalCount,
    OptionalDirectory,
    OptionalFile,
    OptionalNumber,
    OptionalStep,
    OptionalText,
    Text,
)
from t5x_lite.options import OptionError
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict:
    """Answer inputs: JSON lines {"inputs"} to {"inputs", "prediction"}.

    An encoder answers by its head. A classifier reads {"inputs"}, or {"inputs", "second"} for a
    pair, a tagger {"inputs"}, multiple choice {"inputs", "choices"}, and extractive question
    answering {"question", "context"}.

    A model that writes text is greedy, unless --num-beams or --temperature say otherwise; it reads
    an empty input as the end-of-sequence token alone. The same command resumes after a kill; an
    output that exists is replaced when the new one is whole.

    Attributes:
      checkpoint: a work directory or a step directory; several are an ensemble, which averages
        their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: directory of the base, for a checkpoint that holds its trained part alone; if not given,
        the one it was trained from.
      adapters: the modules in use.
      prompt: beginning of every prediction; a line's own "prompt" replaces it.
      batch_size: inputs decoded at once.
      inputs_length: tokens of an input at most, and of a prompt, which is refused if it is longer;
        the config's data.inputs_length if not given.
      long_inputs: whether longer inputs are cut, with a warning, or refused.
      longest_line: bytes of a line at most; a longer one is refused before it is in memory.
      max_decode_length: tokens of a prediction at most, those of its prompt not counted.
      num_beams: width of the beam search; 1 is none.
      length_rule: rule that compares beams of different lengths: T5X's or transformers'.
      length_penalty: exponent of that rule; 0.6 for t5x and 1.0 for hf if not given.
      early_stopping: for the rule hf, whether the search stops at num_beams outputs (True), when no
        beam seems better (False), or when none could become better (never).
      num_return: predictions of each input; above 1 a line gets "predictions", best first.
      temperature: samples, from the logits divided by it, from 1e-6 on; 0 takes the likeliest
        token.
      top_k: samples among the K likeliest tokens; 0 is all.
      top_p: nucleus sampling: keeps the smallest set of tokens whose probability reaches X; 1 keeps
        all.
      min_p: samples among tokens at least X times as probable as the likeliest.
      seed: random seed for sampling, below 2**32; a line's result depends only on the seed and its
        line number, or on the line's own "seed".
      min_length: tokens of a prediction at least.
      no_repeat_ngram: no sequence of N tokens comes twice in a prediction and its prompt; the input
        does not count; 0 allows repeats.
      head: name of the head that answers, for an encoder with several.
      probabilities: lists the probability of each label, or of each choice.
      threshold: least probability of a label, for labels that do not exclude each other; 0.5 if
        not given.
      doc_stride: tokens that two windows of a long text share; if not given, 128 for a context, and
        a tagger cuts long texts.
      longest_answer: maximum tokens of an answer in a context; 15 if not given.
      impossible_answers: admits the answer "", as for SQuAD 2.0.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    checkpoint: DirectoryTuple
    input: File
    output: File
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    prompt: Text = ""
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    long_inputs: LongInputs = "cut"
    longest_line: Count = LONGEST_LINE
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
    head: OptionalText = None
    probabilities: bool = False
    threshold: OptionalNumber = None
    doc_stride: OptionalCount = None
    longest_answer: OptionalCount = None
    impossible_answers: bool = False
    trust_project: bool = False
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
                "--doc-stride": self.doc_stride,
            },
        )
        check_threshold(self.threshold)
        at_least(
            1,
            {
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--longest-line": self.longest_line,
                "--max-decode-length": self.max_decode_length,
                "--num-beams": self.num_beams,
                "--num-return": self.num_return,
                "--longest-answer": self.longest_answer,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.answering.predict."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.decoding.config import Decoding
        from t5x_lite.inference.answers import Asked
        from t5x_lite.run.answering import predict

        asked = Asked(**{name: getattr(self, name) for name in SAME_IN_ASKED})
        decoding = Decoding(**{name: getattr(self, name) for name in _SAME_IN_DECODING})
        with trusting_checkpoints(self.trust_project), base_at(self.base):
            predict(
                self.checkpoint,
                step=self.step,
                use=self.adapters.use,
                input=self.input,
                output=self.output,
                prompt=self.prompt,
                batch_size=self.batch_size,
                inputs_length=self.inputs_length,
                long_inputs=self.long_inputs,
                longest_line=self.longest_line,
                decoding=decoding,
                head=self.head,
                asked=asked,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Log-likelihood of targets: JSON lines {"inputs", "targets"} get "log_likelihood".

    The log-likelihood is a sum over the targets' tokens and their end; "num_tokens" counts them. An
    empty string is encoded as the end-of-sequence token alone. The same command resumes after a
    kill; an output that exists is replaced when the new one is whole.

    Attributes:
      checkpoint: a work directory or a step directory; several are an ensemble, which averages
        their logits.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: directory of the base, for a checkpoint that holds its trained part alone; if not given,
        the one it was trained from.
      adapters: the modules in use.
      candidates: a file with one candidate a line: lines {"inputs"} get "prediction", the likeliest
        of them, and "scores", the log-likelihood of each.
      batch_size: examples scored at once.
      inputs_length: tokens of an input at most; the config's data.inputs_length if not given.
      targets_length: tokens of a target at most, its end included; no limit if not given. The
        log-likelihood of one that is cut is that of its beginning.
      long_inputs: whether longer inputs and targets are cut, with a warning, or refused.
      longest_line: bytes of a line at most; a longer one is refused before it is in memory.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    checkpoint: DirectoryTuple
    input: File
    output: File
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    candidates: OptionalFile = None
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    targets_length: OptionalCount = None
    long_inputs: LongInputs = "cut"
    longest_line: Count = LONGEST_LINE
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        some_directory(self.checkpoint)
        at_least(0, {"--step": self.step})
        at_least(
            1,
            {
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--longest-line": self.longest_line,
                "--targets-length": self.targets_length,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.answering.score."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.run.answering import score

        with trusting_checkpoints(self.trust_project), base_at(self.base):
            score(
                self.checkpoint,
                step=self.step,
                use=self.adapters.use,
                input=self.input,
                output=self.output,
                candidates=self.candidates,
                batch_size=self.batch_size,
                inputs_length=self.inputs_length,
                targets_length=self.targets_length,
                long_inputs=self.long_inputs,
                longest_line=self.longest_line,
            )


_SAME_IN_DECODING = (
    "max_decode_length", "num_beams", "length_rule", "length_penalty", "early_stopping",
    "num_return", "temperature", "top_k", "top_p", "min_p", "seed", "min_length",
    "no_repeat_ngram",
)  # fmt: skip
"""Fields of Predict that `decoding.config.Decoding` has under the same name."""

SAME_IN_ASKED = (
    "probabilities", "threshold", "doc_stride", "longest_answer", "impossible_answers",
)  # fmt: skip
"""Fields of Predict that `inference.answers.Asked` has under the same name."""


def check_threshold(threshold: float | None) -> None:
    """Raise OptionError unless a threshold is a probability."""
    if threshold is not None and not 0.0 <= threshold <= 1.0:
        raise OptionError(f"--threshold must be from 0 to 1, got {threshold}")
