"""`t5x-lite index build`, `index search` and `index bench`: approximate search by faiss."""

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.files import write_atomically
from t5x_lite.progress import print_result
from t5x_lite.records.run_files import RunFormat, SameIds, check_tag, write_run
from t5x_lite.records.vector_shards import VectorShards
from t5x_lite.retrieval.exact_runs import rankings_of, search_shards
from t5x_lite.retrieval.faiss_index import FaissIndex, Settings, build, usual_kind
from t5x_lite.retrieval.search import Best
from t5x_lite.run.searching import QueryEncoder, read_queries

_logger = logging.getLogger(__name__)


def build_index(
    vectors: Sequence[str],
    *,
    ids: Sequence[str] = (),
    output: str,
    kind: str | None = None,
    settings: Settings | None = None,
) -> None:
    """Writes an index of files of vectors.

    Args:
      vectors: files of the corpus, .npy or .parquet.
      ids: files of the passages that they were made of; without them .npy has numbers.
      output: the directory of the index.
      kind: as the factory of faiss names it; None is IVF with about 4 sqrt(N) lists.
      settings: how it is made.

    Raises:
      InputError: as `retrieval.faiss_index.build`.
    """
    shards = VectorShards.open(vectors, ids=ids)
    name = kind or usual_kind(len(shards))
    build(output, shards, name, settings=settings)
    record = FaissIndex.open(output).settings
    size = (Path(output) / "index.faiss").stat().st_size
    _logger.info(
        "%s: %s of %d vectors, %d bytes, %.1f s",
        output,
        name,
        len(shards),
        size,
        record["seconds"],
    )


def search_index(
    index: str,
    *,
    queries: str,
    query_ids: Sequence[str] = (),
    encoder: QueryEncoder | None = None,
    output: str,
    depth: int = 1000,
    nprobe: int | None = None,
    ef_search: int | None = None,
    threads: int = 1,
    same_ids: SameIds = "keep",
    format: RunFormat | None = None,
    tag: str = "faiss",
) -> None:
    """Writes what an index finds for each query, as a run.

    Args:
      index: what `build_index` wrote.
      queries: texts, with an encoder; else vectors.
      query_ids: as of `run.searching.search`.
      encoder: of queries that are texts.
      output: the run.
      depth: documents of a query at most.
      nprobe: lists of IVF that are searched.
      ef_search: candidates of HNSW.
      threads: of faiss.
      same_ids: whether a document that has a query's id is in that query's ranking.
      format: of the run; None is what its name says.
      tag: TREC's name of the run.

    Raises:
      InputError: a file is wrong, or faiss is missing.
    """
    check_tag(tag)
    opened = FaissIndex.open(index)
    asked = read_queries(queries, ids=query_ids, encoder=encoder)
    drops = same_ids == "drop"
    best = opened.search(
        asked.vectors, depth=depth + drops, nprobe=nprobe, ef_search=ef_search, threads=threads
    )
    if drops:
        best = _without_own(best, asked.ids, opened, depth=depth)
    write_run(output, rankings_of(best, asked.ids, opened.name), format=format, tag=tag)


def _without_own(best: Best, names: Sequence[str], index: FaissIndex, *, depth: int) -> Best:
    """The best without the document of each query's own name."""
    rows, scores = best.rows.copy(), best.scores.copy()
    for place, name in enumerate(names):
        own = [i for i, row in enumerate(rows[place]) if row >= 0 and index.name(int(row)) == name]
        for column in own:
            rows[place] = np.append(np.delete(rows[place], column), -1)
            scores[place] = np.append(np.delete(scores[place], column), -np.inf)
    return Best(scores[:, :depth], rows[:, :depth], best.seen)


def bench_index(
    indexes: Sequence[str],
    vectors: Sequence[str],
    *,
    queries: str,
    depth: int = 10,
    nprobe: Sequence[int] = (1, 4, 16, 64),
    ef_search: Sequence[int] = (16, 64, 128, 256),
    threads: int = 1,
    output: str | None = None,
) -> list[dict[str, Any]]:
    """Measures indexes beside exact search: recall, bytes, seconds to build, queries a second.

    Args:
      indexes: what `build_index` wrote, of the same vectors.
      vectors: files of the corpus.
      queries: a file of vectors.
      depth: documents of a query; recall@depth is the share of the exact ones that are found.
      nprobe: lists of IVF that are searched, a line each.
      ef_search: candidates of HNSW, a line each.
      threads: of faiss.
      output: the file that gets the lines as JSON; None prints them alone.

    Returns:
      The lines, one of each index and setting; the first is exact search.

    Raises:
      InputError: a file is wrong, or faiss is missing.
    """
    shards = VectorShards.open(vectors)
    asked = read_queries(queries).vectors
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
        kind = index.settings["kind"]
        tried = {"nprobe": nprobe} if kind.startswith("IVF") else {}
        tried |= {"ef_search": ef_search} if "HNSW" in kind and not tried else {}
        (name, values), *_ = [*tried.items(), ("", (None,))]
        for value in values:
            how = {name: value} if name else {}
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
                    "bytes": (Path(path) / "index.faiss").stat().st_size,
                    "build_seconds": index.settings["seconds"],
                    "queries_per_second": len(asked) / seconds,
                }
            )
    print_result(lines, lines)
    if output is not None:
        write_atomically(output, "".join(json.dumps(line) + "\n" for line in lines).encode())
        _logger.info("wrote %s", output)
    return lines


def recall(found: Best, exact: Best) -> float:
    """The share of the exact results that are among those of an index."""
    hits = sum(
        len(set(ours.tolist()) & set(theirs[theirs >= 0].tolist()))
        for ours, theirs in zip(found.rows, exact.rows, strict=True)
    )
    return hits / max(1, int((exact.rows >= 0).sum()))


def _timed(search: Any) -> tuple[Best, float]:
    """What a search finds, and the seconds of a second call: the first compiles, and reads."""
    search()
    start = time.perf_counter()
    best = search()
    return best, time.perf_counter() - start
