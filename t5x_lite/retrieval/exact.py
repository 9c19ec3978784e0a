"""Exact search of vectors for queries, on devices or CPU, in a corpus of any size.

    search = ExactSearch(queries, depth=2)              # float32 [Q, D]
    search.add(vectors, ["a", "b", "c"])                # float32 [n, D]; called for each chunk
    search.results()                                    # [[("b", 0.9), ("c", 0.7)], ...]

Memory contains only the best documents of each query so far and one chunk of documents, so the
corpus may be larger than memory. Documents with equal scores keep the order of the corpus,
independently of chunks and devices.

To find the best `depth` of n scores, the scores are divided into groups of G neighbors. All of the
best scores are in the `depth` groups with the largest maxima (the first group, on ties), because
each of these groups has a document that is better than all documents of other groups. Therefore n/G
maxima and depth*G scores are sorted instead of n scores.

A killed command resumes the exact search of a corpus in files:

    best = search_shards(shards, queries, depth=1000, state="run.trec.partial.npz", identity={...})
    rankings_of(best, ["q1", "q2"], shards.name)       # input of `data.formats.rankings`

The corpus is memory-mapped and processed block by block; memory contains two blocks and the best
documents of each query so far. The best documents are saved every minute with the identity of the
search.

On a CPU, NumPy finds the best scores of a chunk in three passes:

    least   for each query, the k-th largest maximum of groups of documents: at least k
            documents score this or more, so the best k are among them
    some    documents with at least this score, and more than the k-th best score so far
    best    these documents and the best so far, sorted; on ties, the earlier document first

Sorting a complete chunk by XLA takes three times as long as the matrix product
(docs/benchmarks.md).
"""

import concurrent.futures
import contextlib
import functools
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import open_atomically
from t5x_lite.core.jobs import check_same
from t5x_lite.core.sharding import data_parallelism, jit_rows
from t5x_lite.core.trees import Array
from t5x_lite.core.workers import Prefetch, counting
from t5x_lite.data.formats.pairs import Share
from t5x_lite.data.formats.rankings import Ranking, ranked
from t5x_lite.data.formats.vectors import Block, VectorShards

_logger = logging.getLogger(__name__)

_WIDTH = 16
"""Maximum number of documents in a group."""


def better(
    scores: Float[np.ndarray, "Q depth"],
    rows: Int[np.ndarray, "Q depth"],
    product: Float[np.ndarray, "Q n"],
    *,
    own: Int[np.ndarray, " Q"],
    count: int,
    first: int,
) -> tuple[Float[np.ndarray, "Q depth"], Int[np.ndarray, "Q depth"]]:
    """Merge the documents of a new chunk into each query's best documents so far.

    Args:
      scores: scores of the best documents so far, descending; -inf for missing documents.
      rows: document numbers of the best documents so far; -1 for missing documents.
      product: dot products of queries and the chunk's documents; this array is modified.
      own: chunk index of the document to skip for each query; negative to skip none.
      count: number of documents in the chunk; later rows are padding.
      first: document number of the chunk's first document.
    """
    num = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [part for part in np.array_split(np.arange(len(product)), num) if len(part)]

    def of(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = slice(part[0], part[-1] + 1)
        return _better_on_cpu(scores[some], rows[some], product[some, :count], own[some], first)

    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        found = list(pool.map(of, parts))
    return np.concatenate([s for s, _ in found]), np.concatenate([r for _, r in found])


def _better_on_cpu(
    scores: np.ndarray, rows: np.ndarray, product: np.ndarray, own: np.ndarray, first: int
) -> tuple[np.ndarray, np.ndarray]:
    (num, size), depth = product.shape, scores.shape[1]
    passed = np.flatnonzero(own >= 0)
    product[passed, own[passed]] = -np.inf
    # A document that is as good as the last of the best so far comes after it.
    least = np.nextafter(scores[:, -1], np.float32(np.inf))
    if size > depth:
        least = np.maximum(least, _kth_of_groups(product, depth))
    some = np.flatnonzero(product >= least[:, None])
    query, place = some // size, some % size
    values = product[query, place]
    kept = _first_of_equal(query, values == least[query], depth)
    query, place, values = query[kept], place[kept], values[kept]
    if not len(query):
        return scores, rows
    nth = _nth(query, num)
    wide = depth + int(nth.max()) + 1
    all_scores = np.full((num, wide), -np.inf, np.float32)
    all_rows = np.full((num, wide), -1, np.int32)
    all_scores[:, :depth], all_rows[:, :depth] = scores, rows
    all_scores[query, depth + nth], all_rows[query, depth + nth] = values, place + first
    order = np.argsort(-all_scores, axis=1, kind="stable")[:, :depth]
    best = np.take_along_axis(all_scores, order, axis=1)
    return best, np.take_along_axis(all_rows, order, axis=1)


def _kth_of_groups(product: np.ndarray, depth: int) -> np.ndarray:
    num, size = product.shape
    width = max(1, min(_WIDTH, size // (2 * depth)))
    groups = size // width
    # A group's documents are far apart: so a maximum runs along contiguous numbers.
    maxima = product[:, : width * groups].reshape(num, width, groups).max(axis=1)
    place = groups - depth
    return np.partition(maxima, place, axis=1)[:, place]


def _first_of_equal(query: np.ndarray, is_least: np.ndarray, depth: int) -> np.ndarray:
    before = np.cumsum(is_least) - is_least
    starts = np.searchsorted(query, query)  # index of the first entry of the same query
    return ~is_least | (before - before[starts] < depth) if len(query) else is_least


def _nth(query: np.ndarray, num: int) -> np.ndarray:
    counts = np.bincount(query, minlength=num)
    return np.arange(len(query)) - (np.cumsum(counts) - counts)[query]


_QUERIES_AT_ONCE = 1024
_NONE = -1
"""Document number that marks a missing document."""
MOST_DOCUMENTS = 2**31 - 1
"""Maximum number of documents of a search, because document numbers are int32."""


class Best(NamedTuple):
    """Best documents of each query, from which a search can resume.

    Attributes:
      scores: scores of each query's documents, descending; -inf for missing documents.
      rows: document numbers, from 0 in the order of the corpus; -1 for missing documents.
      seen: number of documents that were searched.
    """

    scores: Float[np.ndarray, "Q depth"]
    rows: Int[np.ndarray, "Q depth"]
    seen: int


class ExactSearch:
    """Exact search that keeps the best documents of each query while documents are added.

    Args:
      queries: vectors of the queries.
      depth: maximum number of documents per query.
      names: ids of the queries; a document with the id of a query is skipped for this query. None
        skips no document.
      mesh: device mesh that divides the documents; None uses the first device.
      start: best documents of an earlier search that this search resumes.
      first: document number of the first document, if `start` is not given.
      chunk: minimum number of rows of a chunk; smaller chunks are padded to the same shape.
      keeps_names: True to store document ids for `results`.
    """

    def __init__(
        self,
        queries: Float[np.ndarray, "Q D"],
        *,
        depth: int,
        names: Sequence[str | None] | None = None,
        mesh: Mesh | None = None,
        start: Best | None = None,
        first: int = 0,
        chunk: int = 0,
        keeps_names: bool = True,
    ):
        check_vectors(queries, what="a query")
        self._num, self._depth = len(queries), depth
        self._parts = 1 if mesh is None else data_parallelism(mesh)
        size = min(_QUERIES_AT_ONCE, max(1, self._num))
        self._size, rows = size, -(-max(1, self._num) // size) * size
        padded = _filled(queries, rows, value=0.0)
        begun = start or Best(
            np.full((self._num, depth), -np.inf, np.float32),
            np.full((self._num, depth), _NONE, np.int32),
            first,
        )
        scores = _filled(begun.scores, rows, value=-np.inf)
        numbers = _filled(begun.rows, rows, value=_NONE)
        blocks = [slice(first, first + size) for first in range(0, rows, size)]
        self._host_blocks = [padded[block] for block in blocks]
        self._blocks = [jnp.asarray(block) for block in self._host_blocks]
        self._scores: list[Any] = [jnp.asarray(scores[block]) for block in blocks]
        self._rows: list[Any] = [jnp.asarray(numbers[block]) for block in blocks]
        self._own = {name: row for row, name in enumerate(names or ()) if name is not None}
        self._documents: dict[int, str] = {}
        self._keeps_names = keeps_names
        self._seen, self._chunk = begun.seen, -(-chunk // self._parts) * self._parts
        # On one CPU all is NumPy's: BLAS is faster than XLA's product (docs/benchmarks.md).
        self._on_host = self._parts == 1 and jax.default_backend() == "cpu"
        self._product = np.zeros((0, 0), np.float32)
        self._better = _compiled(depth, self._parts, mesh)

    def add(
        self, vectors: Float[np.ndarray, "n D"], documents: Sequence[str] | None = None
    ) -> None:
        """Search a chunk of documents.

        Args:
          vectors: vectors of the documents.
          documents: ids of the documents, unique over all calls; None if ids are not needed.

        Raises:
          InputError: if a vector is NaN or infinite, or there are too many documents.
        """
        check_vectors(vectors, what="a document")
        if self._seen + len(vectors) > MOST_DOCUMENTS:
            raise InputError(
                f"a search supports at most {MOST_DOCUMENTS} documents, but the corpus has more; "
                "divide the corpus"
            )
        self.wait()  # until here the device was at work on the chunk before
        # One shape for all chunks but larger ones.
        self._chunk = max(self._chunk, -(-len(vectors) // self._parts) * self._parts)
        padded = _filled(vectors, self._chunk, value=0.0)
        own = self._own_rows(documents or ())
        for i, queries in enumerate(self._blocks):
            same = own[i * self._size : (i + 1) * self._size]
            if self._on_host:
                self._scores[i], self._rows[i] = better(
                    np.asarray(self._scores[i]),
                    np.asarray(self._rows[i]),
                    self._multiplied(self._host_blocks[i], padded),
                    own=same,
                    count=len(vectors),
                    first=self._seen,
                )
                continue
            counts = (np.int32(len(vectors)), np.int32(self._seen))
            held = (self._scores[i], self._rows[i], same), counts
            self._scores[i], self._rows[i] = self._better((queries, held), padded)
        if documents is not None and self._keeps_names:
            self._keep_names(documents)
        self._seen += len(vectors)

    def _multiplied(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        shape = (len(queries), len(documents))
        if self._product.shape != shape:
            self._product = np.empty(shape, np.float32)
        return np.matmul(queries, documents.T, out=self._product)

    def wait(self) -> None:
        """Wait until the device has read the added vectors."""
        jax.block_until_ready((self._scores, self._rows))

    def best(self) -> Best:
        """Return scores and document numbers of each query's best documents so far."""
        scores, rows = jax.device_get((self._scores, self._rows))
        return Best(
            np.concatenate(scores)[: self._num], np.concatenate(rows)[: self._num], self._seen
        )

    def results(self) -> list[list[tuple[str, float]]]:
        """Return (document id, score) of each query's best documents, if all documents have ids."""
        scores, rows, _ = self.best()
        return [
            [
                (self._documents[row], score)
                for row, score in zip(*pair, strict=True)
                if row != _NONE
            ]
            for pair in zip(rows.tolist(), scores.tolist(), strict=True)
        ]

    def _own_rows(self, documents: Sequence[str]) -> np.ndarray:
        own = np.full(len(self._blocks) * self._size, _NONE, np.int32)
        for place, name in enumerate(documents if self._own else ()):
            if name in self._own:
                own[self._own[name]] = place
        return own

    def _keep_names(self, documents: Sequence[str]) -> None:
        rows = jax.device_get(self._rows)
        best = {row for block in rows for row in np.unique(block).tolist() if row != _NONE}
        new = dict(enumerate(documents, start=self._seen))
        self._documents = {row: name for row, name in self._documents.items() if row in best}
        self._documents |= {row: name for row, name in new.items() if row in best}


def check_vectors(vectors: np.ndarray, *, what: str) -> None:
    """Raise InputError if a vector is NaN or infinite."""
    with np.errstate(all="ignore"):  # if squares overflow, the vectors themselves are checked
        squares = np.vdot(vectors, vectors)  # BLAS: a fifth of the time of checking all values
    if not np.isfinite(squares) and not np.isfinite(vectors).all():
        raise InputError(
            f"the vector of {what} is NaN or infinite; check the checkpoint's weights, or use "
            "float32 as the compute dtype"
        )


def _filled(array: np.ndarray, rows: int, *, value: float | int) -> np.ndarray:
    if len(array) == rows:
        return array
    filled = np.full((rows, *array.shape[1:]), value, array.dtype)
    filled[: len(array)] = array
    return filled


_Held = tuple[tuple[Array, Array, Array], tuple[Array, Array]]
"""Type of ((best scores, document numbers, document to skip), (chunk size, first document))."""


@functools.lru_cache(maxsize=32)
def _compiled(depth: int, parts: int, mesh: Mesh | None) -> Callable[..., tuple[Array, Array]]:
    return jit_rows(functools.partial(_better, depth=depth, parts=parts), mesh)


def _better(
    asked: tuple[Array, _Held], documents: Array, *, depth: int, parts: int
) -> tuple[Array, Array]:
    queries, held = asked
    shared = documents.reshape(parts, -1, documents.shape[1])
    # In float32 even if a device would round the factors: the search is exact.
    product = jnp.einsum("QD,WND->QWN", queries, shared, precision=jax.lax.Precision.HIGHEST)
    return _best_of(held, product, depth=depth, parts=parts)


def _best_of(
    held: _Held, product: Float[Array, "Q W N"], *, depth: int, parts: int
) -> tuple[Array, Array]:
    (scores, rows, own), (count, first) = held
    size = product.shape[-1]
    places = jnp.arange(parts * size, dtype=jnp.int32).reshape(parts, size)
    new = jnp.where((places < count) & (places != own[:, None, None]), product, -jnp.inf)
    best, inside = _top(new, depth)
    places = inside + jnp.arange(parts, dtype=jnp.int32)[:, None] * size
    best, places = (x.reshape(len(product), -1) for x in (best, places))
    places = jnp.where(best == -jnp.inf, _NONE, places + first)
    # Among equal elements top_k takes the lower index: earlier documents come first.
    scores, order = jax.lax.top_k(jnp.concatenate([scores, best], axis=1), depth)
    rows = jnp.take_along_axis(jnp.concatenate([rows, places], axis=1), order, axis=1)
    return scores, rows


def _top(scores: Float[Array, "Q W N"], depth: int) -> tuple[Array, Array]:
    """Return the largest scores of the last axis, descending, and their indices; ties by index."""
    size, depth = scores.shape[-1], min(depth, scores.shape[-1])
    width = 2 ** round(math.log2(max(1.0, math.sqrt(size / depth))))
    if width == 1 or size // width < depth:
        best, places = jax.lax.top_k(scores, depth)
        return best, places
    filled = jnp.pad(scores, ((0, 0), (0, 0), (0, -size % width)), constant_values=-jnp.inf)
    groups = filled.reshape(*scores.shape[:-1], -1, width)
    _, chosen = jax.lax.top_k(groups.max(axis=-1), depth)
    chosen = jnp.sort(chosen, axis=-1)  # in the documents' order, for ties
    among = jnp.take_along_axis(groups, chosen[..., None], axis=-2)
    best, places = jax.lax.top_k(among.reshape(*scores.shape[:-1], -1), depth)
    group = jnp.take_along_axis(chosen, places // width, axis=-1)
    return best, (group * width + places % width).astype(jnp.int32)


SAVE_SECONDS = 60.0
_BLOCK_BYTES = 64 << 20
"""Approximate size of a block's vectors in bytes."""
_SCORE_BYTES = 128 << 20
"""Approximate size in bytes of a block's scores for the queries that are compared at once."""


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
    """Search a corpus in vector files, and return each query's best documents.

    Args:
      shards: vector files of the corpus.
      queries: vectors of the queries.
      depth: maximum number of documents per query.
      names: ids of the queries; a document with the id of a query is skipped for this query. None
        skips no document.
      mesh: device mesh that divides the corpus.
      part: shard of the corpus to search; None searches the complete corpus.
      state: file that saves the best documents so far, for resuming; None saves nothing.
      identity: JSON values that must be unchanged to resume the search.

    Raises:
      InputError: if vectors and queries have different sizes, a vector is NaN or infinite, or the
        state file belongs to another search.
    """
    _check_sizes(queries, shards)
    rows = block_rows(shards.size, queries=len(queries))
    first, last = 0, len(shards)
    if part is not None:
        first, last = part.bounds(last, whole=rows, what="vectors")
    start = None if state is None else _saved(state, identity or {})
    if start is not None:
        first = start.seen
        _logger.info("resuming the search after %d of %d documents", first, len(shards))
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
        raise InputError(
            f"in the block of vectors that starts at number {block.first}: {error}"
        ) from error


def block_rows(size: int, *, queries: int) -> int:
    """Return the number of documents that exact search compares with the queries at once.

    Args:
      size: number of dimensions of a vector.
      queries: number of queries.
    """
    rows = min(_BLOCK_BYTES // (4 * size), _SCORE_BYTES // (4 * min(1024, max(1, queries))))
    return max(1024, rows // 1024 * 1024)


def rankings_of(
    best: Best, queries: Sequence[str], name: Callable[[int], str]
) -> Iterator[Ranking]:
    """Yield each query's ranking as document ids; `name` maps a document number to an id."""
    for query, scores, rows in zip(queries, best.scores, best.rows, strict=True):
        pairs = zip(rows.tolist(), scores.tolist(), strict=True)
        yield Ranking(query, ranked((name(row), score) for row, score in pairs if row >= 0))


def rescored(
    best: Best, queries: Float[np.ndarray, "Q D"], shards: VectorShards, *, depth: int
) -> Best:
    """Rank the results of a search again, by dot products with full-precision vectors.

    Args:
      best: results of a search in compressed vectors.
      queries: vectors of the queries.
      shards: vectors of the same corpus in full precision.
      depth: maximum number of documents per query.

    Raises:
      InputError: if queries and vectors have different sizes, or `shards` has too few vectors.
    """
    _check_sizes(queries, shards)
    if best.rows.max(initial=0) >= len(shards):
        raise InputError(
            f"--rescore has {len(shards)} vectors, but the corpus has more; give vectors of the "
            "same texts, in the same order"
        )
    scores = np.full((len(queries), depth), -np.inf, np.float32)
    numbers = np.full((len(queries), depth), _NONE, np.int32)
    for place, (query, rows) in enumerate(zip(queries, best.rows, strict=True)):
        found = np.sort(rows[rows != _NONE])  # documents with equal scores keep their order
        products = shards.take(found) @ query
        order = np.argsort(-products, kind="stable")[:depth]
        scores[place, : len(order)], numbers[place, : len(order)] = products[order], found[order]
    return Best(scores, numbers, best.seen)


def _check_sizes(queries: np.ndarray, shards: VectorShards) -> None:
    if queries.shape[1] != shards.size:
        raise InputError(
            f"query vectors have {queries.shape[1]} dimensions, but corpus vectors have "
            f"{shards.size}; encode both by the same encoder"
        )


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
    if not Path(path).exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as saved:
            known = json.loads(str(saved["identity"]))
            best = Best(saved["scores"], saved["rows"], int(saved["seen"]))
    except Exception as error:
        raise InputError(
            f"file {path} is not the saved state of a search; delete the file"
        ) from error
    check_same(
        known, identity, place=path, content="the state", output=path.removesuffix(".partial.npz")
    )
    return best
