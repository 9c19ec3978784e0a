"""Commands of cross-encoders: rerank and score-pairs."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import at_least
from t5x_lite.option_types import (
    ALL_MODULES,
    Count,
    Directory,
    File,
    Modules,
    OptionalCount,
    OptionalDirectory,
    OptionalFile,
    OptionalStep,
    Text,
    TextTuple,
    Three,
)
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rerank:
    """Put the first places of a run in the order of a cross-encoder: a run in, a run out.

    The same command again goes on where it was killed.

    Attributes:
      checkpoint: a work directory or a step directory of a cross-encoder.
      input: rankings of the first stage, in TREC's form, in MS MARCO's, or JSON lines {"query",
        "documents", "scores"}; - is standard input.
      output: the new run; .tsv is MS MARCO's form, .jsonl JSON lines, and all else TREC's.
      beir: a directory with corpus.jsonl and queries.jsonl, whose texts are scored.
      queries: in place of it, queries with ids: JSON lines {"_id", "text"}, or id TAB text.
      passages: in place of it, passages with ids, and titles if they have them: JSON lines, MS
        MARCO's collection.tsv, DPR's psgs_w100.tsv.
      depth: documents of a query that are scored; the others keep their order below them.
      sigmoid: writes probabilities in place of logits.
      format: of the output, if its name does not say it.
      tag: TREC's name of the run.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone; where it was, if
        not given.
      adapters: the modules in use.
      batch_size: pairs scored at once.
      inputs_length: tokens of query and passage together; what the model was trained with if not
        given. The passage alone is cut.
      query_length: tokens of a query at most; what the model was trained with if not given.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    checkpoint: Directory
    input: File
    output: File
    beir: OptionalDirectory = None
    queries: OptionalFile = None
    passages: OptionalFile = None
    depth: Count = 100
    sigmoid: bool = False
    format: Literal["trec", "marco", "jsonl"] | None = None
    tag: Text = "t5x_lite"
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    query_length: OptionalCount = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})
        at_least(
            1,
            {
                "--depth": self.depth,
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--query-length": self.query_length,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.reranking.rerank."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.run.reranking import rerank

        with trusting_checkpoints(self.trust_project), base_at(self.base):
            rerank(
                self.checkpoint,
                input=self.input,
                output=self.output,
                beir=self.beir,
                queries=self.queries,
                passages=self.passages,
                depth=self.depth,
                sigmoid=self.sigmoid,
                format=self.format,
                tag=self.tag,
                step=self.step,
                use=self.adapters.use,
                batch_size=self.batch_size,
                inputs_length=self.inputs_length,
                query_length=self.query_length,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScorePairs:
    """Write scores beside the passages of a file of pairs, to distil from.

    They are a cross-encoder's, or those of the heads of a BGE-M3. The same command again goes on
    where it was killed.

    Attributes:
      checkpoint: a work directory or a step directory of a cross-encoder, or with --heads of a
        BGE-M3.
      input: JSON lines {"query", "pos", "neg"}; - is standard input.
      output: the same with "pos_scores" and "neg_scores"; - is standard output.
      negatives_top: of so many negatives of a query, the first, there are scores, and null of the
        others; of all if not given.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone; where it was, if
        not given.
      adapters: the modules in use.
      batch_size: pairs scored at once; with --heads texts.
      inputs_length: tokens of query and passage together, or with --heads of a passage; what the
        model was trained with if not given. The passage alone is cut.
      query_length: tokens of a query at most; what the model was trained with if not given.
      heads: the heads of a BGE-M3 that score: some of dense, lexical and multi_vector.
      weights: of the dense, the lexical and the multi-vector score, whose weighted mean over the
        heads is written.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    checkpoint: Directory
    input: File
    output: File
    negatives_top: OptionalCount = None
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    query_length: OptionalCount = None
    heads: TextTuple = ()
    weights: Three = (1.0, 1.0, 1.0)
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})
        at_least(
            1,
            {
                "--negatives-top": self.negatives_top,
                "--batch-size": self.batch_size,
                "--inputs-length": self.inputs_length,
                "--query-length": self.query_length,
            },
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.pair_scoring.score_pairs."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.run.pair_scoring import score_pairs

        with trusting_checkpoints(self.trust_project), base_at(self.base):
            score_pairs(
                self.checkpoint,
                input=self.input,
                output=self.output,
                negatives_top=self.negatives_top,
                step=self.step,
                use=self.adapters.use,
                batch_size=self.batch_size,
                inputs_length=self.inputs_length,
                query_length=self.query_length,
                heads=self.heads,
                weights=self.weights,
            )
