"""Exact search: the documents of a stream that have the largest dot products with each query.

    search = ExactSearch(queries, depth=2)              # float32 [Q, D]
    search.add(vectors, ["a", "b", "c"])                # float32 [n, D], as often as there are more
    search.results()                                    # [[("b", 0.9), ("c", 0.7)], ...]

What is held is the best so far, of each query, and one chunk of documents: the corpus may be larger
than any memory. Of equal scores the document that came first is the better one, however the
documents were divided into chunks.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.sharding import jit_rows, rounded_rows
from t5x_lite.types import Array

_QUERIES_AT_ONCE = 1024
_NONE = -1
"""The number of a document that is none."""


class ExactSearch:
    """The best documents of queries.

    Args:
      queries: their vectors.
      depth: documents of a query at most.
      names: of the queries; a document of the query's own name is passed over. None, for a query or
        for all, passes over nothing.
      mesh: whose devices share the queries; None is the first device.
    """

    def __init__(
        self,
        queries: Float[np.ndarray, "Q D"],
        *,
        depth: int,
        names: Sequence[str | None] | None = None,
        mesh: Mesh | None = None,
    ):
        check_vectors(queries, what="a query")
        self._num = len(queries)
        size = rounded_rows(min(_QUERIES_AT_ONCE, max(1, self._num)), mesh)
        rows = -(-max(1, self._num) // size) * size
        padded = np.zeros((rows, queries.shape[1]), np.float32)
        padded[: self._num] = queries
        self._blocks = [padded[start : start + size] for start in range(0, rows, size)]
        self._scores = [np.full((size, depth), -np.inf, np.float32) for _ in self._blocks]
        self._rows = [np.full((size, depth), _NONE, np.int32) for _ in self._blocks]
        self._own = {name: row for row, name in enumerate(names or ()) if name is not None}
        self._documents: dict[int, str] = {}
        self._seen, self._chunk = 0, 0
        self._better = jit_rows(functools.partial(_better, depth=depth), mesh)

    def add(self, vectors: Float[np.ndarray, "n D"], documents: Sequence[str]) -> None:
        """Searches some documents.

        Args:
          vectors: of the documents.
          documents: their names, all different over all calls.

        Raises:
          InputError: a vector is not finite.
        """
        check_vectors(vectors, what="a document")
        # One shape for all chunks but larger ones.
        self._chunk = max(self._chunk, len(vectors))
        padded = np.zeros((self._chunk, vectors.shape[1]), np.float32)
        padded[: len(vectors)] = vectors
        chunk = (padded, np.int32(len(vectors)), np.int32(self._seen))
        own = self._own_rows(documents)
        size = len(self._blocks[0])
        for i, queries in enumerate(self._blocks):
            same = own[i * size : (i + 1) * size]
            best = self._better(chunk, queries, self._scores[i], self._rows[i], same)
            self._scores[i], self._rows[i] = map(np.asarray, jax.device_get(best))
        self._keep_names(documents)
        self._seen += len(vectors)

    def results(self) -> list[list[tuple[str, float]]]:
        """(document, score) of each query, best first."""
        scores = np.concatenate(self._scores)[: self._num].tolist()
        rows = np.concatenate(self._rows)[: self._num].tolist()
        return [
            [
                (self._documents[row], score)
                for row, score in zip(*pair, strict=True)
                if row != _NONE
            ]
            for pair in zip(rows, scores, strict=True)
        ]

    def _own_rows(self, documents: Sequence[str]) -> np.ndarray:
        """int32 [rows]: of each query its own document's place among these, or none."""
        found = np.full(len(self._blocks) * len(self._blocks[0]), _NONE, np.int32)
        for place, name in enumerate(documents if self._own else ()):
            if name in self._own:
                found[self._own[name]] = place
        return found

    def _keep_names(self, documents: Sequence[str]) -> None:
        """The names of what is among the best now, and of nothing else."""
        best = {row for rows in self._rows for row in np.unique(rows).tolist() if row != _NONE}
        new = dict(enumerate(documents, start=self._seen))
        self._documents = {row: name for row, name in self._documents.items() if row in best}
        self._documents |= {row: name for row, name in new.items() if row in best}


def check_vectors(vectors: np.ndarray, *, what: str) -> None:
    """Refuses vectors that cannot be compared.

    Raises:
      InputError: one is not finite.
    """
    if not np.isfinite(vectors).all():
        raise InputError(
            f"the vector of {what} is not finite: the checkpoint's weights are broken, or the "
            "compute dtype is too narrow for them"
        )


def _better(
    chunk: tuple[Array, Array, Array],
    queries: Array,
    scores: Array,
    rows: Array,
    own: Array,
    *,
    depth: int,
) -> tuple[Array, Array]:
    """The best of those so far and of a chunk: scores [Q, depth] and numbers of documents.

    Args:
      chunk: the documents' vectors [n, D], how many of them there are, and the first one's number.
      queries: [Q, D].
      scores: of the best so far, falling.
      rows: their numbers.
      own: of each query a place in the chunk that is passed over.
      depth: how many.
    """
    documents, count, first = chunk
    # In float32 also where a device would round the factors: the search is exact.
    found = jnp.einsum("QD,ND->QN", queries, documents, precision=jax.lax.Precision.HIGHEST)
    places = jnp.arange(len(documents), dtype=jnp.int32)
    found = jnp.where((places < count) & (places != own[:, None]), found, -jnp.inf)
    # Of equal elements top_k takes the one with the lower index: earlier documents stand first.
    found, places = jax.lax.top_k(found, min(depth, len(documents)))
    places = jnp.where(found == -jnp.inf, _NONE, places + first)
    scores, order = jax.lax.top_k(jnp.concatenate([scores, found], axis=1), depth)
    rows = jnp.take_along_axis(jnp.concatenate([rows, places], axis=1), order, axis=1)
    return scores, rows
