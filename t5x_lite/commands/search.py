"""Find documents and measure what was found: search, index, bm25, fuse, evaluate-run."""

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
from t5x_lite.retrieval.queries import QueryEncoder

if TYPE_CHECKING:
    from t5x_lite.core.progress import Row
    from t5x_lite.data.formats.passages import Passage
    from t5x_lite.data.formats.rankings import Ranked, Ranking
    from t5x_lite.report.retrieval import Measured
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
"""Ranks at which the curves of the page have points."""
_VECTORS = QueryEncoder()
"""Queries are vectors."""
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
    r"""Find the nearest vectors of a corpus for queries, exactly.

    All devices share the corpus, which may be larger than memory. Documents with equal scores have
    the order of the corpus. The same command resumes after a kill.

    Example:
        t5x-lite search --vectors corpus.npy --queries queries.jsonl --checkpoint work/encoder \
            --output run.trec

    Args:
      vectors: corpus vectors: .npy or .parquet files of embed, in order.
      ids: the text files that the .npy files were encoded from, in order, to read document ids
        from; default: ids are numbers from 0.
      queries: a file of query texts with --checkpoint, otherwise a file of query vectors.
      query_ids: the text files that query vectors were encoded from, in order; they hold the query
        ids.
      output: the run file to write.
      encoder: encoder of text queries.
      depth: maximum documents per query.
      rescore: float vectors of the same corpus, in the same order, that rescore the documents found
        with binary --vectors.
      rescore_factor: number of candidates to find per document that remains after --rescore.
      same_ids: keeps documents that have the same id as the query; BEIR excludes them.
      format: trec, marco (MS MARCO's three columns) or jsonl; default: inferred from the output
        name, marco for .tsv, jsonl for .jsonl, and trec otherwise.
      tag: run name in the last column of the TREC format.
      shard: I/N, such as 2/8: searches only shard I of N, to divide a corpus among N hosts; combine
        the runs with fuse --method merge.

    Raises:
      InputError: a file is wrong, or what is there of the output is of another command.
    """
    from t5x_lite.core.jobs import is_resumable
    from t5x_lite.core.sharding import MeshConfig, make_mesh
    from t5x_lite.data.formats.passages import Share
    from t5x_lite.data.formats.rankings import check_tag, write_run
    from t5x_lite.data.formats.vectors import VectorShards, identity_of
    from t5x_lite.retrieval.exact import rankings_of, rescored, search_shards

    share = None if shard is None else Share.of_text(shard)
    check_tag(tag)
    shards = VectorShards.open(vectors, ids=ids)
    full = VectorShards.open(rescore) if rescore else None
    asked = encoder.read(queries, ids=query_ids)
    _logger.info("searching %d queries in %d documents", len(asked.ids), len(shards))
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
    """Index vectors for approximate search by faiss (extra index).

    The directory appears when it is complete.

    Example:
        t5x-lite index build --vectors corpus.npy --output corpus.hnsw --kind HNSW32,Flat

    Args:
      vectors: corpus vectors: .npy or .parquet files of embed, in order.
      ids: the text files that the .npy files were encoded from, in order, to read document ids
        from; default: ids are numbers from 0.
      output: the directory of the index.
      kind: Flat (exact), IVFn,Flat (n lists), IVFn,PQm (m bytes per vector), PQm, or HNSWm,Flat (m
        neighbors per node); default: IVF with about 4 sqrt(N) lists.
      train_vectors: number of vectors that IVF and PQ are trained on; default: 64 per list, and at
        least 65536.
      ef_construction: number of candidates from which HNSW chooses neighbors.
      seed: random seed for the sample of training vectors.
      threads: number of faiss threads; HNSW indexes are reproducible only with 1.

    Raises:
      InputError: as `retrieval.faiss_index.build`.
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
        "%s: built %s index of %d vectors, %d bytes, in %.1f s",
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
    """Find near vectors of an index for queries.

    Example:
        t5x-lite index search --index corpus.hnsw --queries queries.npy --output run.trec

    Args:
      index: index directory as written by index build.
      queries: a file of query texts with --checkpoint, otherwise a file of query vectors.
      query_ids: the text files that query vectors were encoded from, in order; they hold the query
        ids.
      output: the run file to write.
      encoder: encoder of text queries.
      depth: maximum documents per query.
      rescore: float vectors of the same corpus, in the same order, that rescore the documents found
        with a compressed index (SQ8, PQ).
      rescore_factor: number of candidates to find per document that remains after --rescore.
      nprobe: number of IVF lists to search; default: 1 in 64.
      ef_search: number of HNSW candidates; default: 128.
      threads: number of faiss threads.
      same_ids: keeps documents that have the same id as the query; BEIR excludes them.
      format: trec, marco (MS MARCO's three columns) or jsonl; default: inferred from the output
        name, marco for .tsv, jsonl for .jsonl, and trec otherwise.
      tag: run name in the last column of the TREC format.

    Raises:
      InputError: a file is wrong, or faiss is missing.
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
    """Return the best without the document of each query's own name."""
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
    r"""Measure indexes next to exact search: recall, bytes, time to build, queries a second.

    Prints a JSON line of each index and setting; the first is exact search by JAX.

    Example:
        t5x-lite index bench --indexes corpus.hnsw corpus.ivf --vectors corpus.npy \
            --queries queries.npy

    Args:
      indexes: directories as written by index build, all for the same vectors.
      vectors: corpus vectors.
      queries: a file of vectors.
      depth: rank K of recall@K, the fraction of the exact top K that an index finds.
      nprobe: numbers of IVF lists to search; each one gives a result line.
      ef_search: numbers of HNSW candidates; each one gives a result line.
      threads: number of faiss threads.
      output: file for the result lines; default: only print them.

    Returns:
      The lines.

    Raises:
      InputError: a file is wrong, or faiss is missing.
    """
    from t5x_lite.core.files import write_atomically
    from t5x_lite.core.progress import print_result
    from t5x_lite.data.formats.vectors import VectorShards
    from t5x_lite.retrieval.exact import search_shards
    from t5x_lite.retrieval.faiss_index import FaissIndex

    if not nprobe or not ef_search:
        raise OptionError("--nprobe and --ef-search need at least one number")
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
    """Return the fraction of the exact results that an index found."""
    hits = sum(
        len(set(ours.tolist()) & set(theirs[theirs >= 0].tolist()))
        for ours, theirs in zip(found.rows, exact.rows, strict=True)
    )
    return hits / max(1, int((exact.rows >= 0).sum()))


def _bytes(index: str) -> int:
    return (Path(index) / "index.faiss").stat().st_size


def _timed(find: Any) -> tuple["Best", float]:
    """Return a search's result, and the seconds of its second call: the first one compiles."""
    find()
    start = time.perf_counter()
    best = find()
    return best, time.perf_counter() - start


@command
def bm25_build(input: Files, *, output: Directory, analyzer: Text = "english") -> None:
    """Index the terms of passages for BM25.

    Memory holds the terms and one block of postings. The directory appears when it is complete; a
    killed command continues.

    Example:
        t5x-lite bm25 build --input corpus.jsonl --output corpus.bm25 --analyzer english

    Args:
      input: passage files: BEIR's corpus.jsonl, MS MARCO's collection.tsv, DPR's psgs_w100.tsv, or
        one text per line. Title and text are indexed as one field.
      output: the directory of the index.
      analyzer: english (words without stop words, stemmed by Porter's algorithm), standard (words),
        whitespace, cjk (character bigrams), vocabulary:FILE (tokens of a vocabulary), or a Snowball
        language such as german (stemmed words; needs the extra "stemmers").

    Raises:
      InputError: a file is wrong, an id comes twice, or the output is there.
    """
    from t5x_lite.data.formats.passages import read_passages
    from t5x_lite.retrieval.bm25 import InvertedIndex, build

    identity = {
        "inputs": [os.path.abspath(path) for path in input],
        "sizes": [os.path.getsize(path) if os.path.isfile(path) else 0 for path in input],
    }
    texts = ((passage.id, passage.whole) for path in input for passage in read_passages(path))
    build(output, texts, analyzer=analyzer, identity=identity)
    found = InvertedIndex.open(output).settings
    counts = [found[name] for name in ("documents", "terms", "postings")]
    _logger.info("%s: indexed %d documents with %d terms and %d postings", output, *counts)


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
    """Find the best documents of an index for queries by BM25, with Lucene's formula.

    Documents with equal scores have the order of their ids. The same command resumes after a kill.

    Example:
        t5x-lite bm25 search --index corpus.bm25 --queries queries.jsonl --output bm25.trec

    Args:
      index: index directory as written by bm25 build.
      queries: a query file: queries.jsonl, queries.tsv, or one query per line.
      output: the run file to write.
      depth: maximum documents per query.
      k1: BM25's k1, saturation of term frequency.
      b: BM25's b, length normalization, from 0 to 1.
      lengths: document lengths: exact, or rounded to one byte as in Lucene.
      same_ids: keeps documents that have the same id as the query; BEIR excludes them.
      format: trec, marco (MS MARCO's three columns) or jsonl; default: inferred from the output
        name, marco for .tsv, jsonl for .jsonl, and trec otherwise.
      tag: run name in the last column of the TREC format.

    Raises:
      InputError: the index or the queries are wrong, or what is there of the output is of another
        command.
    """
    from t5x_lite.core.progress import counting
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
            raise InputError(f"{queries}: no query")


def _ranking(bm25: "BM25", query: "Passage", *, depth: int, same_ids: SameIds) -> "Ranking":
    from t5x_lite.data.formats.rankings import Ranking, ranked

    drops = same_ids == "drop"
    found = bm25.search(query.whole, depth=depth + drops)
    kept = [pair for pair in found if not (drops and pair[0] == query.id)]
    return Ranking(query.id, ranked(kept[:depth]))


def _distinct(path: str) -> Iterator["Passage"]:
    from t5x_lite.data.formats.passages import read_passages

    seen: set[str] = set()
    for passage in read_passages(path):
        if passage.id in seen:
            raise InputError(f"{passage.where}: the id {passage.id!r} comes twice")
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
    """Combine several runs into one by reciprocal ranks or a weighted sum of scores.

    Example:
        t5x-lite fuse --runs dense.trec bm25.trec --output fused.trec

    Args:
      runs: the run files to combine.
      output: the fused run file to write.
      method: rrf (sums 1 / (60 + rank)), sum (sums scores), min-max (sums scores rescaled to 0 to 1
        per query), or merge (sorts the documents of runs over shards of one corpus, in order, as
        written by search --shard, by score).
      weights: one weight per run; default: 1.
      depth: number of top documents of each input ranking to use.
      k: maximum documents per query in the fused run.
      rrf_k: constant added to ranks by rrf.
      format: trec, marco (MS MARCO's three columns) or jsonl; default: inferred from the output
        name, marco for .tsv, jsonl for .jsonl, and trec otherwise.
      tag: run name in the last column of the TREC format.

    Raises:
      InputError: a run is wrong, or has no scores that the method needs.
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
        "wrote %s: %d queries of %d runs, fused by %s", output, len(rankings), len(runs), method
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
    seed: Count = 0,
) -> dict[str, Any]:
    """Measure runs against judgments or answers, and compare them.

    Prints the means as JSON, and for several runs the p-values of the differences from the first,
    by a paired randomization test.

    Example:
        t5x-lite evaluate-run --runs dense.trec bm25.trec --qrels qrels/test.tsv

    Args:
      runs: run files in TREC, MS MARCO or JSON lines format.
      qrels: relevance judgments with TREC's four columns, MS MARCO's two, or BEIR's three and a
        header.
      metrics: metrics such as ndcg@10, map, mrr@100, recall@1000, capped_recall@100, precision@5,
        hole@10, and mrr_marco, which uses the rank column.
      answers: answer strings, instead of qrels, to measure the fraction of questions with an answer
        in the top passages: JSON lines {"_id", "answers"}, or DPR's question TAB ['answer'].
      corpus: texts of the runs' passages, in which --answers are searched.
      cuts: values of K for answer recall in the top K passages.
      output: directory for metrics.json, the values of each query and report.html; default: write
        no files.
      seed: random seed of the significance test.

    Returns:
      What is printed: by run the means, and the p-values of the differences from the first run.

    Raises:
      InputError: a file is wrong, or neither qrels nor answers are given, or both.
    """
    from t5x_lite.core.progress import print_result
    from t5x_lite.data.formats.rankings import read_qrels

    if not runs:
        raise OptionError("--runs needs at least one file")
    if not metrics or not cuts:
        raise OptionError("--metrics and --cuts need at least one value")
    if (qrels is None) == (answers is None):
        raise InputError("give --qrels, or --answers and --corpus")
    names = run_names(runs)
    if qrels is not None:
        judged = read_qrels(qrels)
        measured = [_measured(name, path, judged, metrics) for name, path in names.items()]
    else:
        measured = _answered(names, str(answers), corpus, cuts)
    result = _compared(measured, seed=seed)
    if output is not None:
        _write_results(output, measured, result, source=qrels or str(answers))
    print_result(result, _rows(result))
    if output is not None:
        _logger.info("wrote %s/metrics.json, and a page: %s/report.html", output, output)
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
    """Return a name for each run: the name of its file, or its path if two names are equal."""
    stems = [Path(path).name.removesuffix(".gz").rsplit(".", 1)[0] for path in runs]
    names = stems if len(set(stems)) == len(stems) else list(runs)
    if len(set(names)) < len(names):
        raise InputError("one run was given twice")
    return dict(zip(names, runs, strict=True))


def _compared(measured: Sequence["Measured"], *, seed: int = 0) -> dict[str, Any]:
    from t5x_lite.metrics.statistics import randomisation_test

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
    output: str, measured: Sequence["Measured"], result: Mapping[str, Any], *, source: str
) -> None:
    from t5x_lite.core.files import made_directory, write_atomically
    from t5x_lite.core.jobs import encode
    from t5x_lite.report.retrieval import write_page

    directory = Path(output)
    try:
        with made_directory(directory):
            for one in measured:
                lines = ({"query": query, **values} for query, values in one.by_query.items())
                name = one.name.replace("/", "_")
                write_atomically(directory / f"{name}.queries.jsonl", encode(lines))
            content = json.dumps(result, indent=1).encode() + b"\n"
            write_atomically(directory / "metrics.json", content)
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror})") from error
    write_page(directory / "report.html", measured, result, source=source)


def _measured(
    name: str, path: str, judged: Mapping[str, Mapping[str, int]], metrics: Sequence[str]
) -> "Measured":
    from t5x_lite.metrics import runs as metrics_of_runs
    from t5x_lite.report.retrieval import Measured

    places = {
        query: [(one.document, one.rank) for one in documents]
        for query, documents in _rankings(path).items()
        if query in judged
    }
    if not places:
        raise InputError(f"{path}: no query of the qrels, such as {next(iter(judged))!r}")
    if missing := len(judged) - len(places):
        _logger.warning("%s: %d of %d judged queries have no ranking", path, missing, len(judged))
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
    from t5x_lite.data.formats.passages import read_passages
    from t5x_lite.data.formats.rankings import read_answers
    from t5x_lite.metrics import runs as metrics_of_runs
    from t5x_lite.metrics import text as answering
    from t5x_lite.report.retrieval import Measured

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
            f"--corpus lacks {len(missing)} passages of the runs, such as {min(missing)!r}"
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
