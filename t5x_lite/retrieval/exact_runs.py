"""The exact search of a corpus in files, which a killed command goes on with.

    best = search_shards(shards, queries, depth=1000, state="run.trec.partial.npz", identity={...})
    rankings_of(best, ["q1", "q2"], shards.name)       # what `records.run_files` writes

The corpus is mapped and goes through the device a block at a time: the best so far of each query
and two blocks are in memory. They are saved every minute with what makes the search the same.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.files import open_atomically
from t5x_lite.progress import counting
from t5x_lite.records.prefetch import Prefetch
from t5x_lite.records.run_files import Ranking, ranked
from t5x_lite.records.shares import Share
from t5x_lite.records.vector_shards import Block, VectorShards
from t5x_lite.retrieval.search import Best, ExactSearch

SAVE_SECONDS = 60.0
_BLOCK_BYTES = 64 << 20
"""Of the vectors of a block, about."""
_SCORE_BYTES = 128 << 20
"""Of the scores of a block for the queries that are compared at once, about."""

_logger = logging.getLogger(__name__)


def search_shards(
    shards: VectorShards,
    queries: Float[np.ndarray, "Q D"],
    *,
    depth: int,
    names: Sequence[str | None] | None = None,
    mesh: Mesh | None = None,
    part: Share | None = None,
    state: str | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Best:
    """The best vectors of a corpus for each query, by number.

    Args:
      shards: the corpus.
      queries: their vectors.
      depth: documents of a query at most.
      names: of the queries: the document of a query's own name is passed over; None, for one or
        for all, passes over nothing.
      mesh: whose devices share the corpus.
      part: of the corpus, in whole blocks, which is searched alone.
      state: the file that holds the best so far; None saves none. It stays at the end.
      identity: what makes two searches the same, as JSON.

    Raises:
      InputError: vectors and queries have other sizes, a vector is not finite, or the state is of
        another search.
    """
    if queries.shape[1] != shards.size:
        raise InputError(
            f"the vectors of the queries have {queries.shape[1]} numbers, and those of the corpus "
            f"{shards.size}: one encoder must have made both"
        )
    rows = block_rows(shards.size, queries=len(queries))
    first, last = 0, len(shards)
    if part is not None:
        first, last = part.bounds(last, whole=rows, what="vectors")
    start = None if state is None else _saved(state, identity or {})
    if start is not None:
        first = start.seen
        _logger.info("going on after %d of %d documents", first, len(shards))
    search = ExactSearch(
        queries,
        depth=depth,
        names=names,
        mesh=mesh,
        start=start,
        first=first,
        chunk=min(rows, len(shards)),
        keeps_names=False,
    )
    saved = time.monotonic()
    with (
        contextlib.closing(_ahead(shards, rows=rows, first=first, end=last)) as blocks,
        counting("searching", unit="documents", total=last, done=first) as advance,
    ):
        for block in blocks:
            end = block.first + len(block.vectors)
            own = None if names is None else shards.names(block.first, end)
            _add(search, block, own)
            advance(len(block.vectors))
            if time.monotonic() - saved >= SAVE_SECONDS:
                if state is not None:
                    _save(state, search.best(), identity or {})
                saved = time.monotonic()
    return search.best()


def _ahead(shards: VectorShards, *, rows: int, first: int, end: int) -> Prefetch[Block]:
    return Prefetch(shards.blocks(rows=rows, first=first, end=end), depth=1)


def _add(search: ExactSearch, block: Block, names: Sequence[str] | None) -> None:
    try:
        search.add(block.vectors, names)
    except InputError as error:
        raise InputError(f"vectors from number {block.first} on: {error}") from error


def block_rows(size: int, *, queries: int) -> int:
    """Documents of a block.

    Args:
      size: D, numbers of a vector.
      queries: how many there are.
    """
    rows = min(_BLOCK_BYTES // (4 * size), _SCORE_BYTES // (4 * min(1024, max(1, queries))))
    return max(1024, rows // 1024 * 1024)


def rankings_of(
    best: Best, queries: Sequence[str], name: Callable[[int], str]
) -> Iterator[Ranking]:
    """The rankings that a search found.

    Args:
      best: of the queries.
      queries: their ids.
      name: the id of a document by its number.
    """
    for query, scores, rows in zip(queries, best.scores, best.rows, strict=True):
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        yield Ranking(query, ranked((name(row), score) for row, score in pairs if row >= 0))


def _save(path: str, best: Best, identity: Mapping[str, Any]) -> None:
    with open_atomically(path) as file:
        np.savez(
            file,
            scores=best.scores,
            rows=best.rows,
            seen=np.int64(best.seen),
            identity=np.array(json.dumps(identity)),
        )


def _saved(path: str, identity: Mapping[str, Any]) -> Best | None:
    """What another process had found; None where it saved nothing.

    Raises:
      InputError: the file is of another search.
    """
    if not Path(path).exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as saved:
            known = json.loads(str(saved["identity"]))
            best = Best(saved["scores"], saved["rows"], int(saved["seen"]))
    except Exception as error:
        raise InputError(f"{path}: not the state of a search: delete it") from error
    asked = json.loads(json.dumps(identity))
    if known != asked:
        other = [key for key in {**known, **asked} if known.get(key) != asked.get(key)]
        raise InputError(
            f"{path} holds the state of another search (other {', '.join(other)}): give that one "
            "again, delete the file, or give another output"
        )
    return best
