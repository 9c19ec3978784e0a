"""Exact search by weights of terms: postings of each token, in memory.

    index = TermIndex([{5: 0.7, 9: 0.4}, {9: 0.2}])         # token -> weight, of each document
    index.scores({9: 0.5})                                  # float32 [0.2, 0.1]

A score is the sum over common tokens of the products of weights, in float32 as they were written.
(FlagEmbedding searches by Lucene's impacts, whole numbers of a hundredth.)
"""

from collections.abc import Iterable, Mapping

import numpy as np
from jaxtyping import Float, Int


class TermIndex:
    """The postings of documents.

    Args:
      documents: token -> weight, of each.
    """

    def __init__(self, documents: Iterable[Mapping[int, float]]):
        tokens: list[np.ndarray] = []
        weights: list[np.ndarray] = []
        lengths: list[int] = []
        for document in documents:
            tokens.append(np.fromiter(document.keys(), np.int64, len(document)))
            weights.append(np.fromiter(document.values(), np.float32, len(document)))
            lengths.append(len(document))
        self.size = len(lengths)
        of_all = np.concatenate([np.zeros(0, np.int64), *tokens])
        numbers = np.repeat(np.arange(self.size, dtype=np.int64), lengths)
        order = np.argsort(of_all, kind="stable")  # documents rise within a token
        self._tokens, starts = np.unique(of_all[order], return_index=True)
        self._bounds = np.append(starts, len(order))
        self._numbers = numbers[order]
        self._weights = np.concatenate([np.zeros(0, np.float32), *weights])[order]

    def scores(self, query: Mapping[int, float]) -> Float[np.ndarray, " N"]:
        """The score of each document.

        Args:
          query: token -> weight.
        """
        found = np.zeros(self.size, np.float32)
        for token, weight in sorted(query.items()):
            place = int(np.searchsorted(self._tokens, token))
            if place < len(self._tokens) and self._tokens[place] == token:
                here = slice(self._bounds[place], self._bounds[place + 1])
                found[self._numbers[here]] += np.float32(weight) * self._weights[here]
        return found


def best(scores: Float[np.ndarray, " N"], depth: int) -> Int[np.ndarray, " k"]:
    """The numbers of the largest scores, falling; of equal ones the lower number first."""
    if depth < len(scores):
        least = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        some = np.flatnonzero(scores >= least)
    else:
        some = np.arange(len(scores))
    return some[np.argsort(-scores[some], kind="stable")][:depth]
