"""evaluate-suite and evaluate-sts: an encoder on all sets of a benchmark, and on pairs."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import tyro

from t5x_lite.commands.options import at_least
from t5x_lite.option_types import (
    ALL_MODULES,
    Count,
    Directory,
    FileTuple,
    Modules,
    OptionalCount,
    OptionalDirectory,
    OptionalFile,
    OptionalPooling,
    OptionalStep,
    OptionalText,
)
from t5x_lite.options import OptionError
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSuite:
    """Measure a retriever on all sets of BEIR, MIRACL or another suite that a directory has.

    Prints the metrics of each set and their mean, and names the sets that are missing. A killed
    command goes on with the next set.

    Attributes:
      suite: whose layout, metrics and rules: BEIR leaves out documents of a query's own id, and the
        others do not.
      directory: that holds the sets, as they are released.
      output: the directory that gets the runs, metrics.json and report.html.
      checkpoint: encodes queries and documents; or give --bm25 or --runs.
      bm25: the analyzer of a BM25 index, in place of a checkpoint.
      runs: a directory of runs, SET.trec, .tsv or .jsonl, in place of both.
      step: the step to take from a work directory, or best; the newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone.
      adapters: the modules in use.
      pooling: the state of [CLS], or the mean of all; if not given, what the checkpoint says.
      normalize: whether vectors have length 1; if not given, what the checkpoint says.
      query_prefix: what every query begins with; if not given, the checkpoint's prompt.
      document_prefix: what every document begins with; if not given, the checkpoint's prompt.
      batch_size: texts encoded at once.
      query_length: tokens of a query at most; what the model was trained with if not given.
      document_length: tokens of a document at most; what the model was trained with if not given.
      depth: documents of a query at most.
      trust_project: as for embed.
    """

    suite: Annotated[
        Literal["beir", "miracl", "mldr", "mkqa", "mrtydi", "narrativeqa"], tyro.conf.Positional
    ]
    directory: Directory
    output: Directory
    checkpoint: OptionalDirectory = None
    bm25: OptionalText = None
    runs: OptionalDirectory = None
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    pooling: OptionalPooling = None
    normalize: bool | None = None
    query_prefix: OptionalText = None
    document_prefix: OptionalText = None
    batch_size: Count = 32
    query_length: OptionalCount = None
    document_length: OptionalCount = None
    depth: Count = 1000
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})
        lengths = {"--query-length": self.query_length, "--document-length": self.document_length}
        at_least(1, {"--batch-size": self.batch_size, "--depth": self.depth, **lengths})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.suites.evaluate_suite."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.inference.queries import QueryEncoder
        from t5x_lite.run.suites import evaluate_suite

        encoder = None
        if self.checkpoint is not None:
            encoder = QueryEncoder(
                self.checkpoint,
                step=self.step,
                adapters=self.adapters,
                pooling=self.pooling,
                normalize=self.normalize,
                prefix=self.query_prefix,
                batch_size=self.batch_size,
                inputs_length=self.query_length,
            )
        with trusting_checkpoints(self.trust_project), base_at(self.base):
            evaluate_suite(
                self.suite,
                self.directory,
                output=self.output,
                encoder=encoder,
                analyzer=self.bm25,
                runs=self.runs,
                document_prefix=self.document_prefix,
                document_length=self.document_length,
                depth=self.depth,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSTS:
    """Correlate the cosines of sentence pairs with people's scores: Spearman's and Pearson's.

    Attributes:
      input: tables with the columns sentence1, sentence2 and score in the first line, as GLUE's
        STS-B, or JSON lines with these fields; or triplets, *.csv with Sentence1, Sentence2 and
        Sentence3, or JSON lines with anchor, positive and negative.
      checkpoint: a work directory or a step directory.
      output: a file for what is printed.
      step: the step to take from a work directory, or best; the newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone.
      adapters: the modules in use.
      pooling: the state of [CLS], or the mean of all; if not given, what the checkpoint says.
      prefix: what every sentence begins with; if not given, the checkpoint's prompt.
      prompt: the name of that.
      batch_size: sentences encoded at once.
      inputs_length: tokens of a sentence at most; what the model was trained with if not given.
      trust_project: as for embed.
    """

    input: FileTuple
    checkpoint: Directory
    output: OptionalFile = None
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    pooling: OptionalPooling = None
    prefix: OptionalText = None
    prompt: OptionalText = None
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})
        numbers = {"--batch-size": self.batch_size, "--inputs-length": self.inputs_length}
        at_least(1, numbers)
        if not self.input:
            raise OptionError("--input needs at least one file")

    def run(self, _: Sequence[str]) -> None:
        """Calls run.sts.evaluate_sts."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.inference.queries import QueryEncoder
        from t5x_lite.run.sts import evaluate_sts

        encoder = QueryEncoder(
            self.checkpoint,
            step=self.step,
            adapters=self.adapters,
            pooling=self.pooling,
            prefix=self.prefix,
            prompt=self.prompt,
            batch_size=self.batch_size,
            inputs_length=self.inputs_length,
        )
        with trusting_checkpoints(self.trust_project), base_at(self.base):
            evaluate_sts(self.input, encoder=encoder, output=self.output)
