"""Rankings by three heads, alone and together, as BGE-M3's paper has them.

    ways = Ways(weights=(1.0, 0.3, 1.0), pair_weights=(1.0, 0.3))
    finder = Finder(corpus, ways)
    finder.rank(dense, terms, vectors)                 # {"dense": [(number, score), ...], ...}

| ranking | candidates | score |
|---|---|---|
| dense, lexical | all documents | of the head |
| dense_lexical | the first 1000 of both | w1 dense + w2 lexical |
| multi_vector | the first 200 of dense | of the head |
| all | the first 200 of dense | w1 dense + w2 lexical + w3 multi_vector |

A document that one head did not return has that head's score all the same; in the reference it is
0. Behind the documents that are scored again the rest of the first ranking follows, in its order.
The weights for passages are 1, .3, 1 (MIRACL, MKQA), and for long documents .15, .5, .35, of the
pair .2, .8 (MLDR, NarrativeQA; Chen et al. 2024, arXiv:2402.03216v4).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from t5x_lite.config.evaluation import Ways
from t5x_lite.errors import InputError
from t5x_lite.inference.pairs import late_score
from t5x_lite.retrieval.sparse import TermIndex, best

Scored = list[tuple[int, float]]
"""Numbers of documents with their scores, best first."""


@runtime_checkable
class Corpus(Protocol):
    """What heads made of documents: `records.m3_files.M3Texts`."""

    ids: list[str]
    dense: np.ndarray | None

    def has(self, way: str) -> bool:
        """Whether a head was asked."""
        ...

    def terms(self) -> Iterable[Mapping[int, float]]:
        """Of each document."""
        ...

    def vectors(self, number: int) -> np.ndarray:
        """Of a document's tokens."""
        ...


class Finder:
    """Ranks the documents of a corpus for a query.

    Args:
      corpus: its heads' files.
      ways: how.

    Raises:
      InputError: the corpus lacks what a head made.
    """

    def __init__(self, corpus: Corpus, ways: Ways):
        self._corpus, self._ways = corpus, ways
        for head in ways.heads:
            if not corpus.has(head):
                raise InputError(
                    f"the corpus has nothing of the head {head!r}: embed it with --heads "
                    f"{' '.join(ways.heads)}"
                )
        self._terms = TermIndex(corpus.terms()) if "lexical" in ways.heads else None

    def rank(
        self,
        dense: Float[np.ndarray, " D"] | None,
        terms: Mapping[int, float] | None,
        vectors: Float[np.ndarray, "S K"] | None,
    ) -> dict[str, Scored]:
        """The rankings of one query, by name.

        Args:
          dense: the query's vector.
          terms: its weights by token.
          vectors: of its tokens.
        """
        ways, scores = self._ways, {}
        if "dense" in ways.heads:
            assert self._corpus.dense is not None
            scores["dense"] = np.asarray(self._corpus.dense @ dense, np.float32)
        if self._terms is not None:
            assert terms is not None
            scores["lexical"] = self._terms.scores(terms)
        firsts = {name: best(x, ways.depth).tolist() for name, x in scores.items()}
        found = {n: _scored(firsts[n], scores[n][firsts[n]]) for n in scores if n in ways.names}
        if "dense_lexical" in ways.names:
            either = np.union1d(firsts["dense"], firsts["lexical"])
            one, two = ways.pair_weights
            sums = one * scores["dense"][either] + two * scores["lexical"][either]
            found["dense_lexical"] = _scored(either, sums)[: ways.depth]
        if {"multi_vector", "all"} & set(ways.names):
            assert vectors is not None
            some = np.array(firsts["dense"][: ways.rerank], np.int64)
            late = np.array([late_score(vectors, self._corpus.vectors(i)) for i in some.tolist()])
            rest = firsts["dense"][ways.rerank :]
            if "multi_vector" in ways.names:
                found["multi_vector"] = _with_rest(_scored(some, late), rest)
            if "all" in ways.names:
                each = (scores["dense"][some], scores["lexical"][some], late)
                sums = sum(w * x for w, x in zip(ways.weights, each, strict=True))
                found["all"] = _with_rest(_scored(some, np.asarray(sums)), rest)
        return {name: found[name] for name in ways.names}


def _scored(numbers: Sequence[int] | np.ndarray, scores: np.ndarray) -> Scored:
    """Best first; of equal scores the one that was first stays first."""
    those = np.asarray(numbers)
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    return [(int(those[i]), float(scores[i])) for i in order]


def _with_rest(first: Scored, rest: Sequence[int]) -> Scored:
    """The rest below the lowest of the new scores, by one a place."""
    lowest = first[-1][1] if first else 0.0
    return [*first, *((number, lowest - place) for place, number in enumerate(rest, 1))]
