"""The best scores of a chunk of documents on a CPU, by NumPy, in three passes over them.

    least   of each query the k-th largest of the maxima of groups of documents: k documents have as
            much at least, so the best k are among those that do
    some    the documents that have as much, and more than the k-th of the best so far
    best    of these and the best so far, sorted; of equal ones the earlier first

XLA's sort of a whole chunk takes three times as long as the product (docs/benchmarks.md).
"""

import concurrent.futures
import os

import numpy as np
from jaxtyping import Float, Int

_WIDTH = 16
"""Documents of a group at most."""


def better(
    scores: Float[np.ndarray, "Q depth"],
    rows: Int[np.ndarray, "Q depth"],
    product: Float[np.ndarray, "Q n"],
    *,
    own: Int[np.ndarray, " Q"],
    count: int,
    first: int,
) -> tuple[Float[np.ndarray, "Q depth"], Int[np.ndarray, "Q depth"]]:
    """The best so far and of a chunk: falling scores, and the numbers of the documents.

    Args:
      scores: of the best so far, falling; -inf where there are fewer.
      rows: their numbers; -1 where there are fewer.
      product: of queries and documents; it is changed.
      own: of each query the place in the chunk of a document that is passed over, or below 0.
      count: documents of the chunk; what is behind them is none.
      first: the number of the first one.
    """
    num = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parts = [part for part in np.array_split(np.arange(len(product)), num) if len(part)]

    def of(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = slice(part[0], part[-1] + 1)
        return _better(scores[some], rows[some], product[some, :count], own[some], first)

    with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
        found = list(pool.map(of, parts))
    return np.concatenate([s for s, _ in found]), np.concatenate([r for _, r in found])


def _better(
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
    """Of each query the depth-th largest of the maxima of groups of documents."""
    num, size = product.shape
    width = max(1, min(_WIDTH, size // (2 * depth)))
    groups = size // width
    # A group's documents are far apart: so a maximum runs along contiguous numbers.
    maxima = product[:, : width * groups].reshape(num, width, groups).max(axis=1)
    place = groups - depth
    return np.partition(maxima, place, axis=1)[:, place]


def _first_of_equal(query: np.ndarray, is_least: np.ndarray, depth: int) -> np.ndarray:
    """What is above the least of its query, and the first `depth` that are equal to it."""
    before = np.cumsum(is_least) - is_least
    starts = np.searchsorted(query, query)  # of each the first of its query
    return ~is_least | (before - before[starts] < depth) if len(query) else is_least


def _nth(query: np.ndarray, num: int) -> np.ndarray:
    """Of sorted numbers of queries, how many of the same stand before each."""
    counts = np.bincount(query, minlength=num)
    return np.arange(len(query)) - (np.cumsum(counts) - counts)[query]
