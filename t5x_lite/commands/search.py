"""Commands that search and evaluate the results: search, index, bm25, fuse, evaluate-run."""

import hashlib
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from t5x_lite.commands.command import command
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    SHARED,
    Count,
    Directories,
    Directory,
    File,
    Files,
    Natural,
    Number,
    Numbers,
    OptionalDirectory,
    OptionalFile,
    OptionalPositive,
    OptionalText,
    Positive,
    Positives,
    Text,
    Texts,
)
from t5x_lite.core.options import AtLeast, Formerly, In, OptionError
from t5x_lite.retrieval.mining import QueryEncoder

if TYPE_CHECKING:
    from t5x_lite.core.workers import Row
    from t5x_lite.data.formats.pairs import Passage
    from t5x_lite.data.formats.rankings import Ranked, Ranking
    from t5x_lite.metrics.runs import Judgements, Place
    from t5x_lite.report.compare import Measured
    from t5x_lite.retrieval.bm25 import BM25
    from t5x_lite.retrieval.exact import Best
    from t5x_lite.retrieval.faiss_index import FaissIndex

RunFormat = Literal["trec", "marco", "jsonl"] | None
SameIds = Literal["keep", "drop"]
Encoder = Annotated[QueryEncoder, SHARED]
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
CURVE_CUTS = (1, 2, 3, 5, 10, 20, 30, 50, 70, 100)
"""Ranks K at which the curves of metrics on the report page have points."""
_VECTORS = QueryEncoder()
"""Query encoder for query files that already contain vectors."""
_CHUNK = 64

_logger = logging.getLogger(__name__)


@command
def search(
    vectors: Files,
    *,
    ids: Files = (),
    queries: File,
    query_ids: Files = (),
    output: File,
    encoder: Encoder = _VECTORS,
    depth: Positive = 1000,
    rescore: Files = (),
    rescore_factor: Positive = 4,
    same_ids: SameIds = "keep",
    format: RunFormat = None,
    tag: Text = "t5x_lite",
    shard: Annotated[OptionalText, Formerly("part")] = None,
) -> None:
    r"""Find the nearest vectors of a corpus for each query, by exact search.

    The corpus is divided among all devices and may be larger than memory. Documents with equal
    scores keep the order of the corpus. If the command is killed, run it again to resume.

    Example:
        t5x-lite search --vectors corpus.npy --queries queries.jsonl --checkpoint work/encoder \
            --output run.trec

    Args:
      vectors: vector files of the corpus (.npy or .parquet), as `t5x-lite embed` writes them.
      ids: source of the document ids for .npy files: the files that `t5x-lite embed` read to make
        --vectors; default: row numbers from 0.
      queries: query file: texts if --checkpoint is given, otherwise vectors (.npy or .parquet).
      query_ids: source of the query ids for a .npy file: the files that `t5x-lite embed` read to
        make --queries; default: row numbers from 0.
      output: run file to write, with the ranked documents of each query.
      encoder: encoder of query texts, set by options such as --checkpoint, --pooling and
        --batch-size.
      depth: maximum number of documents per query.
      rescore: more precise vector files of the same documents, in the order of --vectors, to rerank
        the found documents, such as float32 if --vectors are int8; default: no reranking.
      rescore_factor: number of candidates that --rescore reranks per returned document.
      same_ids: treatment of documents with the same id as the query: "keep" keeps them in the
        results, "drop" removes them, as BEIR's evaluation does.
      format: format of the output: trec, marco (the three columns of MS MARCO) or jsonl; default:
        marco for an output name ending in .tsv, jsonl for .jsonl, otherwise trec.
      tag: name of the run, written to the last column of the TREC format.
      shard: shard of the corpus to search, as I/N, such as 2/8 for the second of 8 shards, to
        divide a corpus among N hosts; `t5x-lite fuse --method merge` combines the runs; default:
        the complete corpus.
    """
    from t5x_lite.core.jobs import is_resumable
    from t5x_lite.core.sharding import MeshConfig, make_mesh
    from t5x_lite.data.formats.pairs import Share
    from t5x_lite.data.formats.rankings import check_tag, write_run
    from t5x_lite.data.formats.vectors import VectorShards, identity_of
    from t5x_lite.retrieval.exact import rankings_of, rescored, search_shards

    share = None if shard is None else Share.of_text(shard)
    check_tag(tag)
    shards = VectorShards.open(vectors, ids=ids)
    full = VectorShards.open(rescore) if rescore else None
    asked = encoder.read(queries, ids=query_ids)
    _logger.info("searching for %d queries in %d documents", len(asked.ids), len(shards))
    searched = depth if full is None else depth * rescore_factor
    names = asked.ids if same_ids == "drop" else None
    state = f"{output}.partial.npz" if is_resumable(output) else None
    best = search_shards(
        shards,
        asked.vectors,
        depth=min(searched, len(shards)),
        names=names,
        mesh=make_mesh(MeshConfig()),
        part=share,
        state=state,
        identity={
            **identity_of(vectors),
            "queries": hashlib.sha256(asked.vectors.tobytes()).hexdigest(),
            "depth": searched,
            "same_ids": same_ids,
            **({"part": share} if share else {}),
            # Names decide what is in a ranking only where equal ones are dropped.
            **({"names": [asked.ids, [*map(os.path.abspath, ids)]]} if names else {}),
        },
    )
    if full is not None:
        best = rescored(best, asked.vectors, full, depth=min(depth, len(shards)))
    write_run(output, rankings_of(best, asked.ids, shards.name), format=format, tag=tag)
    if state is not None:
        Path(state).unlink(missing_ok=True)


@command
def index_build(
    vectors: Files,
    *,
    ids: Files = (),
    output: Directory,
    kind: OptionalText = None,
    train_vectors: OptionalPositive = None,
    ef_construction: Positive = 200,
    seed: Count = 0,
    threads: Positive = 1,
) -> None:
    """Build a faiss index of vectors for approximate search (needs the extra "index").

    The output directory appears when the index is complete.

    Example:
        t5x-lite index build --vectors corpus.npy --output corpus.hnsw --kind HNSW32,Flat

    Args:
      vectors: vector files of the corpus (.npy or .parquet), as `t5x-lite embed` writes them.
      ids: source of the document ids for .npy files: the files that `t5x-lite embed` read to make
        --vectors; default: row numbers from 0.
      output: output directory of the index.
      kind: faiss name of the index type: Flat (exact), IVFn,Flat (n lists), IVFn,PQm (m bytes per
        vector), PQm, or HNSWm,Flat (m neighbors per node); default: IVF with about 4 sqrt(N) lists
        for N vectors.
      train_vectors: number of vectors to train IVF lists and PQ codes on; default: 64 per list, at
        least 65536.
      ef_construction: number of candidates from which HNSW chooses the neighbors of a node.
      seed: random seed of the sample of training vectors.
      threads: number of CPU threads for faiss; HNSW indexes are reproducible only with 1 thread.

    Raises:
      InputError: if a file is invalid, faiss is missing, or the index cannot be built
        (`retrieval.faiss_index.build`).
    """
    from t5x_lite.data.formats.vectors import VectorShards
    from t5x_lite.retrieval.faiss_index import FaissIndex, Settings, build, usual_kind

    shards = VectorShards.open(vectors, ids=ids)
    name = kind or usual_kind(len(shards))
    settings = Settings(
        train_vectors=train_vectors, ef_construction=ef_construction, seed=seed, threads=threads
    )
    build(output, shards, name, settings=settings)
    seconds, size = FaissIndex.open(output).settings["seconds"], _bytes(output)
    _logger.info(
        "%s: built a %s index of %d vectors, with %d bytes, in %.1f s",
        output,
        name,
        len(shards),
        size,
        seconds,
    )


@command
def index_search(
    index: Directory,
    *,
    queries: File,
    query_ids: Files = (),
    output: File,
    encoder: Encoder = _VECTORS,
    depth: Positive = 1000,
    rescore: Files = (),
    rescore_factor: Positive = 4,
    nprobe: OptionalPositive = None,
    ef_search: OptionalPositive = None,
    threads: Positive = 1,
    same_ids: SameIds = "keep",
    format: RunFormat = None,
    tag: Text = "faiss",
) -> None:
    """Find the nearest vectors of a faiss index for each query, by approximate search.

    Example:
        t5x-lite index search --index corpus.hnsw --queries queries.npy --output run.trec

    Args:
      index: index directory as written by `t5x-lite index build`.
      queries: query file: texts if --checkpoint is given, otherwise vectors (.npy or .parquet).
      query_ids: source of the query ids for a .npy file: the files that `t5x-lite embed` read to
        make --queries; default: row numbers from 0.
      output: run file to write, with the ranked documents of each query.
      encoder: encoder of query texts, set by options such as --checkpoint, --pooling and
        --batch-size.
      depth: maximum number of documents per query.
      rescore: more precise vector files of the indexed documents, in the same order, to rerank the
        found documents, such as float32 if the index is compressed (SQ8, PQ); default: no
        reranking.
      rescore_factor: number of candidates that --rescore reranks per returned document.
      nprobe: number of lists of an IVF index to search per query; default: 1/64 of the lists.
      ef_search: number of candidates that an HNSW index considers per query; default: 128.
      threads: number of CPU threads for faiss.
      same_ids: treatment of documents with the same id as the query: "keep" keeps them in the
        results, "drop" removes them, as BEIR's evaluation does.
      format: format of the output: trec, marco (the three columns of MS MARCO) or jsonl; default:
        marco for an output name ending in .tsv, jsonl for .jsonl, otherwise trec.
      tag: name of the run, written to the last column of the TREC format.
    """
    from t5x_lite.data.formats.rankings import check_tag, write_run
    from t5x_lite.data.formats.vectors import VectorShards
    from t5x_lite.retrieval.exact import rankings_of, rescored
    from t5x_lite.retrieval.faiss_index import FaissIndex

    check_tag(tag)
    full = VectorShards.open(rescore) if rescore else None
    opened = FaissIndex.open(index)
    asked = encoder.read(queries, ids=query_ids)
    drops = same_ids == "drop"
    best = opened.search(
        asked.vectors,
        depth=(depth if full is None else depth * rescore_factor) + drops,
        nprobe=nprobe,
        ef_search=ef_search,
        threads=threads,
    )
    if full is not None:
        best = rescored(best, asked.vectors, full, depth=depth + drops)
    if drops:
        best = _without_own(best, asked.ids, opened, depth=depth)
    write_run(output, rankings_of(best, asked.ids, opened.name), format=format, tag=tag)


def _without_own(best: "Best", names: Sequence[str], index: "FaissIndex", *, depth: int) -> "Best":
    """Remove from each query's results the document that has the query's id."""
    import numpy as np

    rows, scores = best.rows.copy(), best.scores.copy()
    for place, name in enumerate(names):
        own = [i for i, row in enumerate(rows[place]) if row >= 0 and index.name(int(row)) == name]
        for column in own:
            rows[place] = np.append(np.delete(rows[place], column), -1)
            scores[place] = np.append(np.delete(scores[place], column), -np.inf)
    return best._replace(scores=scores[:, :depth], rows=rows[:, :depth])


@command
def index_bench(
    indexes: Directories,
    vectors: Files,
    *,
    queries: File,
    depth: Positive = 10,
    nprobe: Positives = (1, 4, 16, 64),
    ef_search: Positives = (16, 64, 128, 256),
    threads: Positive = 1,
    output: OptionalFile = None,
) -> list[dict[str, Any]]:
    r"""Compare faiss indexes with exact search: recall, bytes, build time, queries per second.

    The command prints one JSON line for each index and setting; the first line is exact search by
    JAX.

    Example:
        t5x-lite index bench --indexes corpus.hnsw corpus.ivf --vectors corpus.npy \
            --queries queries.npy

    Args:
      indexes: index directories as written by `t5x-lite index build`, all of the same vectors.
      vectors: vector files (.npy or .parquet) that the indexes were built from, in order.
      queries: file with the query vectors (.npy or .parquet).
      depth: value of K in recall@K, the fraction of the exact top K that an index finds.
      nprobe: numbers of IVF lists to search per query; each number gives a result line.
      ef_search: numbers of HNSW candidates per query; each number gives a result line.
      threads: number of CPU threads for faiss.
      output: file for the printed result lines (JSON); default: only print the lines.

    Returns:
      The result lines.
    """
    from t5x_lite.core.files import write_atomically
    from t5x_lite.core.workers import print_result
    from t5x_lite.data.formats.vectors import VectorShards
    from t5x_lite.retrieval.exact import search_shards
    from t5x_lite.retrieval.faiss_index import FaissIndex

    if not nprobe or not ef_search:
        raise OptionError("--nprobe and --ef-search need at least one number each")
    shards, asked = VectorShards.open(vectors), _VECTORS.read(queries).vectors
    exact, seconds = _timed(lambda: search_shards(shards, asked, depth=depth))
    lines: list[dict[str, Any]] = [
        {
            "index": "exact",
            "recall": 1.0,
            "bytes": 4 * shards.size * len(shards),
            "build_seconds": 0.0,
            "queries_per_second": len(asked) / seconds,
        }
    ]
    for path in indexes:
        index = FaissIndex.open(path)
        kind, settings = index.settings["kind"], [{}]
        if kind.startswith("IVF"):
            settings = [{"nprobe": value} for value in nprobe]
        elif "HNSW" in kind:
            settings = [{"ef_search": value} for value in ef_search]
        for how in settings:
            found, seconds = _timed(
                lambda index=index, how=how: index.search(
                    asked, depth=depth, threads=threads, **how
                )
            )
            lines.append(
                {
                    "index": kind,
                    **how,
                    "recall": recall(found, exact),
                    "bytes": _bytes(path),
                    "build_seconds": index.settings["seconds"],
                    "queries_per_second": len(asked) / seconds,
                }
            )
    print_result(lines, lines)
    if output is not None:
        write_atomically(output, "".join(json.dumps(line) + "\n" for line in lines).encode())
        _logger.info("wrote %s", output)
    return lines


def recall(found: "Best", exact: "Best") -> float:
    """Return the fraction of the results of an exact search that an approximate search found."""
    hits = sum(
        len(set(ours.tolist()) & set(theirs[theirs >= 0].tolist()))
        for ours, theirs in zip(found.rows, exact.rows, strict=True)
    )
    return hits / max(1, int((exact.rows >= 0).sum()))


def _bytes(index: str) -> int:
    return (Path(index) / "index.faiss").stat().st_size


def _timed(find: Any) -> tuple["Best", float]:
    """Call a search twice; return its results and the seconds of the second call."""
    find()
    start = time.perf_counter()
    best = find()
    return best, time.perf_counter() - start


@command
def bm25_build(input: Files, *, output: Directory, analyzer: Text = "english") -> None:
    """Build an inverted index of passages for BM25.

    Only the terms and one block of postings are in memory. The output directory appears when the
    index is complete. If the command is killed, run it again to resume.

    Example:
        t5x-lite bm25 build --input corpus.jsonl --output corpus.bm25 --analyzer english

    Args:
      input: passage files: BEIR's corpus.jsonl, MS MARCO's collection.tsv, DPR's psgs_w100.tsv, or
        text files with one passage per line. Title and text are indexed as one field.
      output: output directory of the index.
      analyzer: splitting of text into terms: english (words without stop words, stemmed by Porter's
        algorithm), standard (words), whitespace, cjk (character bigrams), vocabulary:FILE (tokens
        of a vocabulary), or a Snowball language such as german (stemmed words; needs the extra
        "stemmers").
    """
    from t5x_lite.data.formats.pairs import read_passages
    from t5x_lite.retrieval.bm25 import InvertedIndex, build

    identity = {
        "inputs": [os.path.abspath(path) for path in input],
        "sizes": [os.path.getsize(path) if os.path.isfile(path) else 0 for path in input],
    }
    texts = ((passage.id, passage.whole) for path in input for passage in read_passages(path))
    build(output, texts, analyzer=analyzer, identity=identity)
    found = InvertedIndex.open(output).settings
    counts = [found[name] for name in ("documents", "terms", "postings")]
    _logger.info("%s: indexed %d documents, with %d terms and %d postings", output, *counts)


@command
def bm25_search(
    index: Directory,
    *,
    queries: File,
    output: File,
    depth: Positive = 1000,
    k1: Annotated[Number, AtLeast(0)] = 0.9,
    b: Annotated[Number, In(0, 1, "[]")] = 0.4,
    lengths: Literal["exact", "lucene"] = "exact",
    same_ids: SameIds = "keep",
    format: RunFormat = None,
    tag: Text = "bm25",
) -> None:
    """Rank the documents of a BM25 index for each query, by Lucene's formula.

    Documents with equal scores are sorted by id. If the command is killed, run it again to resume.

    Example:
        t5x-lite bm25 search --index corpus.bm25 --queries queries.jsonl --output bm25.trec

    Args:
      index: index directory as written by `t5x-lite bm25 build`.
      queries: query file: queries.jsonl as in BEIR, queries.tsv as in MS MARCO, or a text file with
        one query per line.
      output: run file to write, with the ranked documents of each query.
      depth: maximum number of documents per query.
      k1: BM25 parameter k1, which sets the saturation of term frequencies.
      b: BM25 parameter b, the strength of length normalization, from 0 to 1.
      lengths: document lengths used by BM25: "exact" lengths, or "lucene" for lengths rounded to
        fit one byte.
      same_ids: treatment of documents with the same id as the query: "keep" keeps them in the
        results, "drop" removes them, as BEIR's evaluation does.
      format: format of the output: trec, marco (the three columns of MS MARCO) or jsonl; default:
        marco for an output name ending in .tsv, jsonl for .jsonl, otherwise trec.
      tag: name of the run, written to the last column of the TREC format.
    """
    from t5x_lite.core.workers import counting
    from t5x_lite.data.formats.lines import count_lines
    from t5x_lite.data.formats.rankings import run_writer
    from t5x_lite.retrieval.bm25 import BM25, InvertedIndex

    bm25 = BM25(InvertedIndex.open(index), k1=k1, b=b, lengths=lengths)
    identity = {
        "index": os.path.abspath(index),
        "queries": os.path.abspath(queries),
        "settings": [depth, k1, b, lengths, same_ids, tag],
    }
    with (
        run_writer(output, identity=identity, chunk=_CHUNK, format=format, tag=tag) as file,
        counting(
            "searching", unit="queries", total=count_lines(queries), done=file.done
        ) as advance,
    ):
        passages = itertools.islice(_distinct(queries), file.done, None)
        while some := list(itertools.islice(passages, _CHUNK)):
            file.write([_ranking(bm25, one, depth=depth, same_ids=same_ids) for one in some])
            advance(len(some))
        if not file.done:
            raise InputError(f"query file {queries} contains no query")


def _ranking(bm25: "BM25", query: "Passage", *, depth: int, same_ids: SameIds) -> "Ranking":
    from t5x_lite.data.formats.rankings import Ranking, ranked

    drops = same_ids == "drop"
    found = bm25.search(query.whole, depth=depth + drops)
    kept = [pair for pair in found if not (drops and pair[0] == query.id)]
    return Ranking(query.id, ranked(kept[:depth]))


def _distinct(path: str) -> Iterator["Passage"]:
    from t5x_lite.data.formats.pairs import read_passages

    seen: set[str] = set()
    for passage in read_passages(path):
        if passage.id in seen:
            raise InputError(f"{passage.where}: two passages have the id {passage.id!r}")
        seen.add(passage.id)
        yield passage


@command
def fuse(
    runs: Files,
    *,
    output: File,
    method: Literal["rrf", "sum", "min-max", "merge"] = "rrf",
    weights: Numbers = (),
    depth: Positive = 1000,
    k: Positive = 1000,
    rrf_k: Natural = 60,
    format: RunFormat = None,
    tag: Text = "fused",
) -> None:
    """Combine several runs into one, by reciprocal ranks or by a weighted sum of scores.

    Example:
        t5x-lite fuse --runs dense.trec bm25.trec --output fused.trec

    Args:
      runs: run files to combine.
      output: fused run file to write.
      method: rule that combines runs: rrf (sum of 1 / (K + rank), with K from --rrf-k), sum (sum of
        scores), min-max (sum of scores that are rescaled to 0 to 1 per query), or merge (all
        documents sorted by score, for runs of `t5x-lite search --shard` in order).
      weights: weights of the runs in the sum, one number per run; default: 1 for each run.
      depth: number of top documents per query to use from each input run.
      k: maximum number of documents per query in the fused run.
      rrf_k: constant K that --method rrf adds to the ranks.
      format: format of the output: trec, marco (the three columns of MS MARCO) or jsonl; default:
        marco for an output name ending in .tsv, jsonl for .jsonl, otherwise trec.
      tag: name of the run, written to the last column of the TREC format.

    Raises:
      InputError: if a run is invalid, or lacks the scores that the method needs.
    """
    from t5x_lite.data.formats.rankings import write_run
    from t5x_lite.retrieval import fusion

    if not runs:
        raise OptionError("--runs needs at least one file")
    read = [_rankings(path) for path in runs]
    rankings = list(
        fusion.fuse(read, method=method, weights=weights, depth=depth, k=k, rrf_k=rrf_k)
    )
    write_run(output, rankings, format=format, tag=tag)
    _logger.info(
        "wrote %s: %d queries from %d runs, combined by method %s",
        output,
        len(rankings),
        len(runs),
        method,
    )


def _rankings(path: str) -> dict[str, list["Ranked"]]:
    from t5x_lite.data.formats.rankings import read_run

    return {ranking.query: ranking.documents for ranking in read_run(path)}


@command
def evaluate_run(
    runs: Files,
    *,
    qrels: OptionalFile = None,
    metrics: Texts = METRICS,
    answers: OptionalFile = None,
    corpus: Files = (),
    cuts: Positives = (5, 20, 100),
    output: OptionalDirectory = None,
    queries: OptionalFile = None,
    examples: Positive = 20,
    seed: Count = 0,
) -> dict[str, Any]:
    """Evaluate runs with relevance judgments or answer strings, and compare the runs.

    The command prints the mean of each metric as JSON. For several runs, it also prints the p-value
    of each difference from the first run, by a paired randomization test. With --queries it also
    writes examples.jsonl: the queries that fail, or change most from the first run, with the ranks
    of their relevant documents.

    Example:
        t5x-lite evaluate-run --runs dense.trec bm25.trec --qrels qrels/test.tsv

    Args:
      runs: run files in TREC or MS MARCO format, or as JSON lines.
      qrels: file with relevance judgments, with TREC's four columns, MS MARCO's two columns, or
        BEIR's three columns and a header.
      metrics: names of metrics, such as ndcg@10, map, mrr@100, recall@1000, capped_recall@100,
        precision@5, hole@10, or mrr_marco (mrr@10 by the ranks in the run file).
      answers: file with the answer strings of each question, instead of --qrels: JSON lines {"_id",
        "answers"}, or DPR's question TAB ['answer']. The metric is the fraction of questions with
        an answer in the top passages.
      corpus: files with the texts of the ranked passages, to search --answers in, or to show in
        examples.jsonl.
      cuts: numbers K of top passages to search --answers in, such as 20 for the metric top@20.
      output: directory for metrics.json, metrics per query and report.html; default: no files.
      queries: file with the query texts, to list queries that fail or change most between runs, in
        examples.jsonl and report.html; needs --qrels and --output; default: no lists.
      examples: maximum number of queries in each list of examples.jsonl, chosen by the first of
        --metrics.
      seed: random seed of the paired randomization test between runs.

    Returns:
      The printed values: mean metrics by run, and p-values of the differences from the first run.

    Raises:
      InputError: if a file is invalid, or not exactly one of qrels and answers is given.
    """
    from t5x_lite.core.workers import print_result
    from t5x_lite.data.formats.rankings import read_qrels

    if not runs:
        raise OptionError("--runs needs at least one file")
    if not metrics or not cuts:
        raise OptionError("--metrics and --cuts need at least one value")
    if (qrels is None) == (answers is None):
        raise InputError(
            "`t5x-lite evaluate-run` requires either --qrels, or both --answers and --corpus"
        )
    if queries is not None and (qrels is None or output is None):
        raise InputError(
            "--queries requires --qrels and --output, because it writes examples.jsonl to --output"
        )
    names, shown = run_names(runs), None
    if qrels is not None:
        judged = read_qrels(qrels)
        texts = None if queries is None else _query_texts(queries, judged)
        places = {name: _judged(path, judged) for name, path in names.items()}
        measured = [_measured(name, one, judged, metrics) for name, one in places.items()]
        if texts is not None:
            shown = _examples(measured, places, judged, texts, corpus=corpus, count=examples)
    else:
        measured = _answered(names, str(answers), corpus, cuts)
    result = _compared(measured, seed=seed)
    if output is not None:
        source = qrels or str(answers)
        _write_results(output, measured, result, source=source, examples=shown)
    print_result(result, _rows(result))
    if output is not None:
        _logger.info(
            "wrote the metrics to %s/metrics.json, and a report to %s/report.html", output, output
        )
    return result


def _rows(result: Mapping[str, Any]) -> list["Row"]:
    rows: list[Row] = []
    for name, means in result["runs"].items():
        rows.append({"run": name, "queries": result["queries"], **means})
        if name in result.get("p_values", {}):
            first = next(iter(result["runs"]))
            rows.append({"run": f"  p-value against {first}", **result["p_values"][name]})
    return rows


def run_names(runs: Sequence[str]) -> dict[str, str]:
    """Return the path of each run by name: its file name, or the path if file names are equal."""
    stems = [Path(path).name.removesuffix(".gz").rsplit(".", 1)[0] for path in runs]
    names = stems if len(set(stems)) == len(stems) else list(runs)
    if len(set(names)) < len(names):
        raise InputError("--runs has the same file twice; give each run once")
    return dict(zip(names, runs, strict=True))


def _compared(measured: Sequence["Measured"], *, seed: int = 0) -> dict[str, Any]:
    from t5x_lite.metrics.benchmarks import randomisation_test

    first, *others = measured
    result: dict[str, Any] = {
        "queries": len(first.by_query),
        "runs": {one.name: one.means for one in measured},
    }
    if others:
        result["p_values"] = {
            one.name: {
                metric: randomisation_test(
                    [values[metric] for values in first.by_query.values()],
                    [one.by_query[query][metric] for query in first.by_query],
                    seed=seed,
                )
                for metric in first.means
            }
            for one in others
        }
    return result


def _write_results(
    output: str,
    measured: Sequence["Measured"],
    result: Mapping[str, Any],
    *,
    source: str,
    examples: Sequence[Mapping[str, Any]] | None,
) -> None:
    from t5x_lite.core.files import made_directory, write_atomically
    from t5x_lite.core.jobs import encode
    from t5x_lite.report.compare import write_retrieval_page as write_page

    directory = Path(output)
    try:
        with made_directory(directory):
            for one in measured:
                lines = ({"query": query, **values} for query, values in one.by_query.items())
                name = one.name.replace("/", "_")
                write_atomically(directory / f"{name}.queries.jsonl", encode(lines))
            content = json.dumps(result, indent=1).encode() + b"\n"
            write_atomically(directory / "metrics.json", content)
            if examples is not None:
                write_atomically(directory / "examples.jsonl", encode(examples))
    except OSError as error:
        raise InputError(f"output {output} cannot be written ({error.strerror})") from error
    write_page(directory / "report.html", measured, result, source=source, examples=examples or ())


def _query_texts(path: str, judged: "Judgements") -> dict[str, str]:
    from t5x_lite.data.formats.pairs import read_passages

    texts = {one.id: one.whole for one in read_passages(path) if one.id in judged}
    if missing := [query for query in judged if query not in texts]:
        raise InputError(
            f"--queries must contain all queries of --qrels, but {len(missing)} are missing, such "
            f"as {missing[0]!r}"
        )
    return texts


def _examples(
    measured: Sequence["Measured"],
    places: Mapping[str, Mapping[str, Sequence["Place"]]],
    judged: "Judgements",
    texts: Mapping[str, str],
    *,
    corpus: Sequence[str],
    count: int,
) -> list[dict[str, Any]]:
    """Return the queries that fail in all runs, or change most from the first run."""
    from t5x_lite.data.formats.pairs import read_passages

    metric = next(iter(measured[0].means))
    values = {
        query: {one.name: one.by_query[query][metric] for one in measured} for query in judged
    }
    lists: list[tuple[dict[str, str], list[str]]] = [
        ({"list": "failed"}, [query for query in judged if not any(values[query].values())])
    ]
    for other in measured[1:]:
        gains = {query: one[other.name] - one[measured[0].name] for query, one in values.items()}
        for kind, sign in (("better", 1), ("worse", -1)):
            order = sorted(gains, key=lambda query: -sign * gains[query])
            chosen = [query for query in order if sign * gains[query] > 0]
            lists.append(({"list": kind, "run": other.name}, chosen))
    ranks = {
        name: {query: {document: i for i, (document, _) in enumerate(found, 1)}
               for query, found in one.items()}
        for name, one in places.items()
    }  # fmt: skip
    examples: list[dict[str, Any]] = []
    for kind, chosen in lists:
        for query in chosen[:count]:
            own = {name: one.get(query, {}) for name, one in ranks.items()}
            relevant = sorted((-score, name) for name, score in judged[query].items() if score > 0)
            examples.append(
                {
                    **kind,
                    "query": query,
                    "text": texts[query],
                    "metric": metric,
                    "values": values[query],
                    "relevant": [
                        {
                            "document": document,
                            "score": -score,
                            "ranks": {name: one.get(document) for name, one in own.items()},
                        }
                        for score, document in relevant
                    ],
                    "first": {
                        name: {"document": next(iter(one), None)} for name, one in own.items()
                    },
                }
            )
    documents = [one for each in examples for one in (*each["relevant"], *each["first"].values())]
    wanted = {one["document"] for one in documents}
    passages = {
        one.id: one.whole for path in corpus for one in read_passages(path) if one.id in wanted
    }
    for one in documents:
        if one["document"] in passages:
            one["text"] = passages[one["document"]]
    return examples


def _judged(path: str, judged: "Judgements") -> dict[str, list["Place"]]:
    """Return the ranked documents of a run, for queries with relevance judgments."""
    places = {
        query: [(one.document, one.rank) for one in documents]
        for query, documents in _rankings(path).items()
        if query in judged
    }
    if not places:
        raise InputError(
            f"run file {path} has none of the queries in --qrels, such as {next(iter(judged))!r}"
        )
    if missing := len(judged) - len(places):
        _logger.warning(
            "run file %s has no ranking for %d of the %d queries with relevance judgments",
            path,
            missing,
            len(judged),
        )
    return places


def _measured(
    name: str,
    places: Mapping[str, Sequence["Place"]],
    judged: "Judgements",
    metrics: Sequence[str],
) -> "Measured":
    from t5x_lite.metrics import runs as metrics_of_runs
    from t5x_lite.report.compare import Measured

    by_query = metrics_of_runs.per_query(judged, places, metrics)
    curves = {
        kind: [
            (cut, metrics_of_runs.means(metrics_of_runs.per_query(judged, places, [at]))[at])
            for cut, at in ((cut, f"{kind}@{cut}") for cut in CURVE_CUTS)
        ]
        for kind in ("ndcg", "recall")
    }
    return Measured(name, metrics_of_runs.means(by_query), by_query, curves)


def _answered(
    names: Mapping[str, str], answers: str, corpus: Sequence[str], cuts: Sequence[int]
) -> list["Measured"]:
    from t5x_lite.data.formats.pairs import read_passages
    from t5x_lite.data.formats.rankings import read_answers
    from t5x_lite.metrics import runs as metrics_of_runs
    from t5x_lite.metrics import text as answering
    from t5x_lite.report.compare import Measured

    wanted = read_answers(answers)
    most = max(cuts)
    runs = {name: _rankings(path) for name, path in names.items()}
    needed = {
        one.document
        for run in runs.values()
        for query in wanted
        for one in run.get(query, [])[:most]
    }
    texts = {
        passage.id: f"{passage.title}\n{passage.text}"
        for path in corpus
        for passage in read_passages(path)
        if passage.id in needed
    }
    if missing := needed - set(texts):
        raise InputError(
            f"--corpus must contain all passages of the runs, but {len(missing)} are missing, "
            f"such as {min(missing)!r}"
        )
    measured = []
    for name, run in runs.items():
        firsts = {
            query: answering.first_answer(
                found, (texts[one.document] for one in run.get(query, [])[:most])
            )
            for query, found in wanted.items()
        }
        by_query = {
            query: {f"top@{cut}": float(0 < first <= cut) for cut in cuts}
            for query, first in firsts.items()
        }
        means = metrics_of_runs.means(by_query)
        points = [
            (cut, math.fsum(0 < first <= cut for first in firsts.values()) / len(firsts))
            for cut in CURVE_CUTS
            if cut <= most
        ]
        measured.append(Measured(name, means, by_query, {"top": points}))
    return measured
