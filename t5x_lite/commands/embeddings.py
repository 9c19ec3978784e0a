"""Commands that make vectors of texts: embed."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import (
    ALL_MODULES,
    Count,
    Directory,
    File,
    LongInputs,
    Modules,
    OptionalCount,
    OptionalDirectory,
    OptionalPooling,
    OptionalStep,
    OptionalText,
    at_least,
)
from t5x_lite.files import LONGEST_LINE
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed:
    """Turn texts into vectors by an encoder: text or JSON lines to .npy or .parquet.

    All devices share a batch. The output appears when it is whole.

    Attributes:
      checkpoint: a work directory or a step directory.
      input: a file of texts, one a line, or of JSON lines {"text"}, with "title" and "_id" if they
        have them, as BEIR's corpus.jsonl; - is standard input.
      output: FILE.npy, float32 [N, D] in the order of the input, or FILE.parquet, columns id and
        vector (needs pyarrow); it is replaced if it is there.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone; where it was, if
        not given.
      adapters: the modules in use.
      format: of the input; auto is jsonl of files that are named so.
      pooling: the state of [CLS], or the mean of all; if not given, what the checkpoint says, or
        else mean, with a warning.
      normalize: whether vectors have length 1; if not given, what the checkpoint says, or else
        True.
      prefix: what every text begins with, such as "query: "; if not given, the checkpoint's prompt.
      prompt: the name of the checkpoint's prompt, such as query or document; if not given, its
        default one, if it has one.
      batch_size: texts encoded at once.
      inputs_length: tokens of a text at most; what the model was trained with if not given.
      long_inputs: whether longer texts are cut, with a warning, or refused.
      longest_line: bytes of a line at most; a longer one is refused before it is in memory.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    checkpoint: Directory
    input: File
    output: File
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    format: Literal["auto", "text", "jsonl"] = "auto"
    pooling: OptionalPooling = None
    normalize: bool | None = None
    prefix: OptionalText = None
    prompt: OptionalText = None
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    long_inputs: LongInputs = "cut"
    longest_line: Count = LONGEST_LINE
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})
        at_least(
            1,
            {
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--longest-line": self.longest_line,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.embedding.embed."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.run.embedding import embed

        with trusting_checkpoints(self.trust_project), base_at(self.base):
            embed(
                self.checkpoint,
                step=self.step,
                use=self.adapters.use,
                input=self.input,
                output=self.output,
                format=self.format,
                pooling=self.pooling,
                normalize=self.normalize,
                prefix=self.prefix,
                prompt=self.prompt,
                batch_size=self.batch_size,
                inputs_length=self.inputs_length,
                long_inputs=self.long_inputs,
                longest_line=self.longest_line,
            )
