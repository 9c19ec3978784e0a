"""Rankings of a corpus by several heads, held in memory: what `evaluation.retrieval.ways` asks for.

    encode = functools.partial(embedder.several, params)    # of rows, what heads make of them
    rank_all(HeadCorpus(encode, chunks), encode(queries), Ways(), num=len(queries))
    # {"dense": [[(document, score), ...] of each query], "lexical": ..., ...}

The vectors of all tokens of a corpus are kept where "multi_vector" or "all" is asked: a document
has hundreds of kilobytes of them. `embed --heads` and `hybrid` do the same by files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.config.evaluation import Ways
from t5x_lite.evaluate.head_vectors import Several
from t5x_lite.retrieval.hybrid import Finder


class Chunk(NamedTuple):
    """Documents that are encoded together.

    Attributes:
      ids: their names.
      rows: int32 tokens of each.
    """

    ids: list[str]
    rows: list[np.ndarray]


class HeadCorpus:
    """What heads make of documents: a `retrieval.hybrid.Corpus` in memory.

    Args:
      encode: what all heads that are needed make of rows.
      chunks: of documents.

    Raises:
      InputError: a vector is not finite.
    """

    def __init__(self, encode: Callable[[list[np.ndarray]], Several], chunks: Iterable[Chunk]):
        self.ids: list[str] = []
        dense: list[np.ndarray] = []
        self._terms: list[dict[int, float]] | None = None
        self._vectors: list[np.ndarray] | None = None
        for chunk in chunks:
            found = encode(chunk.rows)
            self.ids += chunk.ids
            if found.dense is not None:
                dense.append(found.dense)
            if found.terms is not None:
                self._terms = [*(self._terms or []), *found.terms]
            if found.vectors is not None:
                self._vectors = [*(self._vectors or []), *found.vectors]
        self.dense: np.ndarray | None = np.concatenate(dense) if dense else None

    def has(self, way: str) -> bool:
        """Whether a head was asked."""
        made = {"dense": self.dense, "lexical": self._terms, "multi_vector": self._vectors}
        return made[way] is not None

    def terms(self) -> Iterator[Mapping[int, float]]:
        """Of each document."""
        return iter(self._terms or [])

    def vectors(self, number: int) -> np.ndarray:
        """Of a document's tokens."""
        assert self._vectors is not None
        return self._vectors[number]


def rank_all(
    corpus: HeadCorpus, queries: Several, ways: Ways, *, num: int
) -> dict[str, list[list[tuple[str, float]]]]:
    """The rankings of all queries, by way: documents with their scores, best first.

    Args:
      corpus: of the documents.
      queries: what the heads made of the queries.
      ways: how documents are ranked.
      num: queries.
    """
    finder = Finder(corpus, ways)
    made: dict[str, list[list[tuple[str, float]]]] = {name: [] for name in ways.names}
    for number in range(num):
        rankings = finder.rank(
            _of(queries.dense, number), _of(queries.terms, number), _of(queries.vectors, number)
        )
        for name, scored in rankings.items():
            made[name].append([(corpus.ids[document], score) for document, score in scored])
    return made


def _of(made: Sequence[Any] | np.ndarray | None, number: int) -> Any:
    return None if made is None else made[number]
