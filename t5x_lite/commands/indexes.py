"""Commands of approximate search: index build, index search, index bench."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

import tyro

from t5x_lite.commands.options import (
    ALL_MODULES,
    Count,
    Directories,
    Directory,
    File,
    Files,
    Modules,
    OptionalCount,
    OptionalDirectory,
    OptionalFile,
    OptionalPooling,
    OptionalStep,
    OptionalText,
    Text,
    at_least,
)
from t5x_lite.commands.retrieval import RunFormat, SameIds
from t5x_lite.options import OptionError
from t5x_lite.project import trusting_checkpoints

Counts = Annotated[tuple[int, ...], tyro.conf.arg(metavar="N [N ...]")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexBuild:
    """Index vectors for approximate search by faiss (extra index).

    The directory appears when it is whole.

    Attributes:
      vectors: of the corpus: .npy or .parquet files that embed wrote, in order.
      ids: files of the texts that .npy files were made of; without them ids are numbers.
      output: the directory of the index.
      kind: Flat (exact), IVFn,Flat (n lists), IVFn,PQm (m bytes of a vector), PQm, or HNSWm,Flat (a
        graph of m neighbours); if not given, IVF with about 4 sqrt(N) lists.
      train_vectors: that IVF and PQ are trained on; if not given, 64 of each list, and at least
        65536.
      ef_construction: candidates that HNSW chooses neighbours from.
      seed: of the vectors for training.
      threads: of faiss; with more than one, graphs differ from run to run.
    """

    vectors: Files
    ids: Files = ()
    output: Directory
    kind: OptionalText = None
    train_vectors: OptionalCount = None
    ef_construction: Count = 200
    seed: Count = 0
    threads: Count = 1
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        numbers = {"--train-vectors": self.train_vectors, "--threads": self.threads}
        at_least(1, {**numbers, "--ef-construction": self.ef_construction})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.indexing.build_index."""
        from t5x_lite.retrieval.faiss_index import Settings
        from t5x_lite.run.indexing import build_index

        build_index(
            self.vectors,
            ids=self.ids,
            output=self.output,
            kind=self.kind,
            settings=Settings(
                train_vectors=self.train_vectors,
                ef_construction=self.ef_construction,
                seed=self.seed,
                threads=self.threads,
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexSearch:
    """Find near vectors of an index for queries.

    Attributes:
      index: the directory that index build wrote.
      queries: a file of texts, with --checkpoint; else of vectors.
      query_ids: files of the texts that queries as .npy were made of.
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
      nprobe: lists of IVF that are searched; 1 in 64 if not given.
      ef_search: candidates of HNSW; 128 if not given.
      threads: of faiss.
      same_ids: as for search.
      format: as for search.
      tag: TREC's name of the run.
      trust_project: as for embed.
    """

    index: Directory
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
    nprobe: OptionalCount = None
    ef_search: OptionalCount = None
    threads: Count = 1
    same_ids: SameIds = "keep"
    format: RunFormat = None
    tag: Text = "faiss"
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})
        numbers = {"--batch-size": self.batch_size, "--inputs-length": self.inputs_length}
        numbers |= {"--depth": self.depth, "--nprobe": self.nprobe, "--ef-search": self.ef_search}
        at_least(1, {**numbers, "--threads": self.threads})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.indexing.search_index."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.run.indexing import search_index
        from t5x_lite.run.searching import QueryEncoder

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
            search_index(
                self.index,
                queries=self.queries,
                query_ids=self.query_ids,
                encoder=encoder,
                output=self.output,
                depth=self.depth,
                nprobe=self.nprobe,
                ef_search=self.ef_search,
                threads=self.threads,
                same_ids=self.same_ids,
                format=self.format,
                tag=self.tag,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexBench:
    """Measure indexes beside exact search: recall, bytes, time to build, queries a second.

    Prints a JSON line of each index and setting; the first is exact search by JAX.

    Attributes:
      indexes: directories that index build wrote, of the same vectors.
      vectors: of the corpus.
      queries: a file of vectors.
      depth: recall@depth is the share of the exact results that are found.
      nprobe: lists of IVF that are searched, a line each.
      ef_search: candidates of HNSW, a line each.
      threads: of faiss.
      output: a file for the lines; if not given, they are printed alone.
    """

    indexes: Directories
    vectors: Files
    queries: File
    depth: Count = 10
    nprobe: Counts = (1, 4, 16, 64)
    ef_search: Counts = (16, 64, 128, 256)
    threads: Count = 1
    output: OptionalFile = None
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(1, {"--depth": self.depth, "--threads": self.threads})
        if not self.nprobe or not self.ef_search or min(*self.nprobe, *self.ef_search) < 1:
            raise OptionError("--nprobe and --ef-search need numbers from 1 on")

    def run(self, _: Sequence[str]) -> None:
        """Calls run.indexing.bench_index."""
        from t5x_lite.run.indexing import bench_index

        bench_index(
            self.indexes,
            self.vectors,
            queries=self.queries,
            depth=self.depth,
            nprobe=self.nprobe,
            ef_search=self.ef_search,
            threads=self.threads,
            output=self.output,
        )
