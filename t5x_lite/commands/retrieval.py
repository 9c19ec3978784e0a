"""Commands that find documents and measure what was found: search, bm25, fuse, evaluate-run."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import tyro

from t5x_lite.commands.options import (
    ALL_MODULES,
    Count,
    Directory,
    File,
    Files,
    Modules,
    Number,
    OptionalCount,
    OptionalDirectory,
    OptionalFile,
    OptionalPooling,
    OptionalStep,
    OptionalText,
    Text,
    Texts,
    at_least,
)
from t5x_lite.options import OptionError
from t5x_lite.project import trusting_checkpoints

Numbers = Annotated[tuple[float, ...], tyro.conf.arg(metavar="X [X ...]")]
Counts = Annotated[tuple[int, ...], tyro.conf.arg(metavar="N [N ...]")]
RunFormat = Literal["trec", "marco", "jsonl"] | None
SameIds = Literal["keep", "drop"]
METRICS = (
    "ndcg@10",
    "mrr@10",
    "mrr@100",
    "map",
    "recall@10",
    "recall@20",
    "recall@100",
    "recall@1000",
    "capped_recall@100",
    "hole@10",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Find the nearest vectors of a corpus for queries, exactly.

    All devices share the corpus, which may be larger than memory. Of equal scores the document that
    stands first in the corpus is first. A killed command goes on.

    Attributes:
      vectors: of the corpus: .npy or .parquet files that embed wrote, in order.
      ids: files of the texts that .npy files were made of, in order; without them a document's id
        is its number, from 0.
      queries: a file of texts, with --checkpoint; else of vectors.
      query_ids: as --ids, of queries that are vectors.
      output: the run.
      checkpoint: encodes queries that are texts.
      step: the step to take from a work directory, or best; the newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone.
      adapters: the modules in use.
      pooling: the state of [CLS], or the mean of all; if not given, what the checkpoint says.
      normalize: whether vectors have length 1; if not given, what the checkpoint says.
      prefix: what every query begins with; if not given, the checkpoint's prompt.
      prompt: the name of that; query, if the checkpoint has one of that name.
      batch_size: queries encoded at once.
      inputs_length: tokens of a query at most; what the model was trained with if not given.
      depth: documents of a query at most.
      same_ids: whether a document that has a query's id stays in that query's ranking, or is left
        out, as BEIR does.
      format: trec, marco (MS MARCO's three columns) or jsonl; if not given, what the name says:
        .tsv is marco, .jsonl jsonl, and others trec.
      tag: TREC's name of the run.
      part: I/N, such as 2/8: the I-th of N parts of the corpus alone, for so many hosts. fuse makes
        one run of theirs by --method merge.
      trust_project: as for embed.
    """

    vectors: Files
    ids: Files = ()
    queries: File
    query_ids: Files = ()
    output: File
    checkpoint: OptionalDirectory = None
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    pooling: OptionalPooling = None
    normalize: bool | None = None
    prefix: OptionalText = None
    prompt: OptionalText = None
    batch_size: Count = 32
    inputs_length: OptionalCount = None
    depth: Count = 1000
    same_ids: SameIds = "keep"
    format: RunFormat = None
    tag: Text = "t5x_lite"
    part: OptionalText = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})
        numbers = {"--batch-size": self.batch_size, "--inputs-length": self.inputs_length}
        at_least(1, {**numbers, "--depth": self.depth})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.searching.search."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.records.shares import Share
        from t5x_lite.run.searching import QueryEncoder, search

        part = None if self.part is None else Share.of_text(self.part)
        encoder = None
        if self.checkpoint is not None:
            encoder = QueryEncoder(
                self.checkpoint,
                step=self.step,
                use=self.adapters.use,
                pooling=self.pooling,
                normalize=self.normalize,
                prefix=self.prefix,
                prompt=self.prompt,
                batch_size=self.batch_size,
                inputs_length=self.inputs_length,
            )
        with trusting_checkpoints(self.trust_project), base_at(self.base):
            search(
                self.vectors,
                ids=self.ids,
                queries=self.queries,
                query_ids=self.query_ids,
                encoder=encoder,
                output=self.output,
                depth=self.depth,
                same_ids=self.same_ids,
                format=self.format,
                tag=self.tag,
                part=part,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BM25Build:
    """Index the terms of passages for BM25.

    Memory holds the terms and one block of postings. The directory appears when it is whole; a
    killed command goes on.

    Attributes:
      input: files of passages: BEIR's corpus.jsonl, MS MARCO's collection.tsv, DPR's psgs_w100.tsv,
        or a text a line. Title and text are one field.
      output: the directory of the index.
      analyzer: english (words, stop words off, Porter's stems), standard (words), whitespace, cjk
        (pairs of characters), vocabulary:FILE, the pieces of a vocabulary, or a language of
        Snowball, such as german (words and stems; extra "stemmers").
    """

    input: Files
    output: Directory
    analyzer: Text = "english"
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.lexical.build_bm25."""
        from t5x_lite.run.lexical import build_bm25

        build_bm25(self.input, output=self.output, analyzer=self.analyzer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BM25Search:
    """Find the best documents of an index for queries by BM25, with Lucene's formula.

    Documents of equal scores stand in the order of their ids. A killed command goes on.

    Attributes:
      index: the directory that bm25 build wrote.
      queries: a file of texts: queries.jsonl, queries.tsv, or one a line.
      output: the run.
      depth: documents of a query at most.
      k1: how fast repetitions stop to count.
      b: how much long documents are discounted, from 0 to 1.
      lengths: exact, or as Lucene keeps them, in one byte.
      same_ids: as for search.
      format: as for search.
      tag: TREC's name of the run.
    """

    index: Directory
    queries: File
    output: File
    depth: Count = 1000
    k1: Number = 0.9
    b: Number = 0.4
    lengths: Literal["exact", "lucene"] = "exact"
    same_ids: SameIds = "keep"
    format: RunFormat = None
    tag: Text = "bm25"
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(1, {"--depth": self.depth})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.lexical.search_bm25."""
        from t5x_lite.run.lexical import search_bm25

        search_bm25(
            self.index,
            queries=self.queries,
            output=self.output,
            depth=self.depth,
            k1=self.k1,
            b=self.b,
            lengths=self.lengths,
            same_ids=self.same_ids,
            format=self.format,
            tag=self.tag,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fuse:
    """Make one run of several: reciprocal ranks, or a weighted sum of scores.

    Attributes:
      runs: the runs.
      output: the fused run.
      method: rrf (1 / (60 + rank)), sum (scores as they are), min-max (scores from 0 to 1 in each
        query), or merge (the runs are of parts of one corpus, in its order, as search --part makes
        them: the documents of all by their scores).
      weights: of the runs, as many; 1 for each if not given.
      depth: documents of each ranking that count.
      k: documents of a fused ranking at most.
      rrf_k: what is added to a rank by rrf.
      format: as for search.
      tag: TREC's name of the run.
    """

    runs: Files
    output: File
    method: Literal["rrf", "sum", "min-max", "merge"] = "rrf"
    weights: Numbers = ()
    depth: Count = 1000
    k: Count = 1000
    rrf_k: Count = 60
    format: RunFormat = None
    tag: Text = "fused"
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(1, {"--depth": self.depth, "--k": self.k})
        at_least(0, {"--rrf-k": self.rrf_k})
        if not self.runs:
            raise OptionError("--runs needs at least one file")

    def run(self, _: Sequence[str]) -> None:
        """Calls run.run_measuring.fuse."""
        from t5x_lite.run.run_measuring import fuse

        fuse(
            self.runs,
            output=self.output,
            method=self.method,
            weights=self.weights,
            depth=self.depth,
            k=self.k,
            rrf_k=self.rrf_k,
            format=self.format,
            tag=self.tag,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateRun:
    """Measure runs against judgements or answers, and compare them.

    Prints the means as JSON, and for several runs the p-values of the differences from the first,
    by a paired randomisation test.

    Attributes:
      runs: TREC's, MS MARCO's or JSON runs.
      qrels: TREC's four columns, MS MARCO's two, or BEIR's three with their header.
      metrics: such as ndcg@10, map, mrr@100, recall@1000, capped_recall@100, precision@5, hole@10,
        and mrr_marco, which goes by the rank column.
      answers: in place of qrels: the share of questions that have an answer in the first passages.
        JSON lines {"_id", "answers"}, or DPR's question TAB ['answer'].
      corpus: the passages of the runs, for the answers.
      cuts: how many first passages may hold the answer.
      output: the directory that gets metrics.json, the values of each query and report.html;
        nothing is written if not given.
      seed: of the test's draws.
    """

    runs: Files
    qrels: OptionalFile = None
    metrics: Texts = METRICS
    answers: OptionalFile = None
    corpus: Files = ()
    cuts: Counts = (5, 20, 100)
    output: OptionalDirectory = None
    seed: Count = 0
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.runs:
            raise OptionError("--runs needs at least one file")
        if not self.metrics or not self.cuts or min(self.cuts) < 1:
            raise OptionError("--metrics and --cuts need at least one, and cuts are from 1 on")

    def run(self, _: Sequence[str]) -> None:
        """Calls run.run_measuring.evaluate_run."""
        from t5x_lite.run.run_measuring import evaluate_run

        evaluate_run(
            self.runs,
            qrels=self.qrels,
            metrics=self.metrics,
            answers=self.answers,
            corpus=self.corpus,
            cuts=self.cuts,
            output=self.output,
            seed=self.seed,
        )
