"""Commands that make vectors of texts: embed."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import at_least
from t5x_lite.files import LONGEST_LINE
from t5x_lite.option_types import (
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
    Text,
    TextTuple,
)
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed:
    """Turn texts into vectors by an encoder: text, JSON lines or tables to .npy or .parquet.

    All devices share a batch. The output appears when it is whole.

    Attributes:
      checkpoint: a work directory or a step directory.
      input: a file of texts, one a line; of JSON lines {"text"}, with "title" and "_id" if they
        have them, as BEIR's corpus.jsonl; or of passages with tabs, as MS MARCO's collection.tsv
        and DPR's psgs_w100.tsv; Parquet or Arrow; a directory or a pattern; hf://NAME or
        tfds://NAME; - is standard input.
      output: FILE.npy, float32 [N, D] in the order of the input, or FILE.parquet, columns id and
        vector (needs pyarrow); it is replaced if it is there.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: directory of the base, for a checkpoint that holds its trained part alone; if not given,
        the one it was trained from.
      adapters: the modules in use.
      format: format of the input; auto goes by the file's name.
      pooling: the state of [CLS], or the mean of all; if not given, the checkpoint's, or else mean,
        with a warning.
      normalize: whether vectors have length 1; if not given, the checkpoint's choice, or else True.
      prefix: text put before every text, such as "query: "; if not given, the checkpoint's prompt.
      prompt: the name of the checkpoint's prompt, such as query or document; if not given, its
        default one, if it has one.
      role: what the texts are: a retriever with two encoders, or with two projections, has one for
        passages.
      batch_size: texts encoded at once.
      inputs_length: tokens of a text at most; the model's training length if not given.
      long_inputs: whether longer texts are cut, with a warning, or refused.
      longest_line: bytes of a line at most; a longer one is refused before it is in memory.
      bag_top: of DupMAE, so many largest entries of the bag of words, the highest logits of the
        masked language model over a text's tokens, stand behind the state of [CLS]; the vector has
        as many more numbers as the vocabulary tokens, the others 0. 0 is no bag.
      heads: what is written of a text: dense, lexical (weights of its tokens) and multi_vector
        (vectors of its tokens), in one pass. Of dense alone output is a file, else a new directory
        with ids.txt, dense.npy, lexical.jsonl and multi_vector.npy, which hybrid reads.
      mcls: a [CLS] stands before each of so many tokens of a text, and the vector is the mean of
        their states: BGE-M3's way with long texts, 256 there; one [CLS] if not given.
      vector_numbers: of the vectors of tokens: float16, int8 with a scale of each, or float32.
      part: I/N, such as 2/8: the I-th of N parts of the texts alone, for so many hosts. The files
        of all parts, in order, are what search takes as --vectors.
      compute_dtype: of the encoder's activations; if not given, that of the checkpoint's run.
      text: column of the text of JSON and of tables, or columns in braces; the title stands before
        "{text}".
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    checkpoint: Directory
    input: File
    output: File
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    format: Literal["auto", "text", "jsonl", "tsv"] = "auto"
    pooling: OptionalPooling = None
    normalize: bool | None = None
    prefix: OptionalText = None
    prompt: OptionalText = None
    role: Literal["query", "passage"] = "query"
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    long_inputs: LongInputs = "cut"
    longest_line: Count = LONGEST_LINE
    bag_top: Count = 0
    heads: TextTuple = ("dense",)
    mcls: OptionalCount = None
    vector_numbers: Literal["float16", "int8", "float32"] = "float16"
    part: OptionalText = None
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    text: Text = "{text}"
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step, "--bag-top": self.bag_top})
        at_least(
            1,
            {
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--longest-line": self.longest_line,
                "--mcls": self.mcls,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.embedding.embed."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.records.shares import Share
        from t5x_lite.run.embedding import embed

        part = None if self.part is None else Share.of_text(self.part)

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
                role=self.role,
                batch_size=self.batch_size,
                inputs_length=self.inputs_length,
                long_inputs=self.long_inputs,
                longest_line=self.longest_line,
                bag_top=self.bag_top,
                heads=self.heads,
                mcls=self.mcls,
                numbers=self.vector_numbers,
                part=part,
                compute_dtype=self.compute_dtype,
                text=self.text,
            )
