"""BM25 as Lucene has it, over an inverted index.

    bm25 = BM25(InvertedIndex.open("corpus.bm25"), k1=0.9, b=0.4)
    bm25.search("wing flutter", depth=1000)         # [("d7", 14.89), ...]

    idf(t)      = ln(1 + (N - df + 0.5) / (df + 0.5))
    score(q, d) = sum over the terms of q, each as often as it stands there, of
                  idf * tf / (tf + k1 (1 - b + b * dl / avgdl))

N is the number of documents that have a term at all. The factor k1 + 1 of other versions, which
changes no ranking, is left out. Documents of equal scores stand in the order of their ids.

Source: Robertson and Zaragoza 2009; Lucene BM25Similarity; Kamphuis et al. 2020, "Which BM25 do you
mean?".
"""

import collections
from typing import Literal

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.retrieval.bm25_index import InvertedIndex

Lengths = Literal["exact", "lucene"]


class BM25:
    """A first stage.

    Args:
      index: of the corpus.
      k1: how fast repetitions stop to count; 0 counts none.
      b: how much long documents are discounted, from 0 to 1.
      lengths: "lucene" keeps the length of a document in one byte, as Lucene does.
    """

    def __init__(
        self, index: InvertedIndex, *, k1: float = 0.9, b: float = 0.4, lengths: Lengths = "exact"
    ):
        if k1 < 0 or not 0 <= b <= 1:
            raise InputError(f"BM25 needs k1 from 0 on and b from 0 to 1, got {k1} and {b}")
        self._index, self._analyze = index, index.analyzer()
        exact = np.asarray(index.lengths)
        self._documents = int((exact > 0).sum())
        mean = index.settings["total_length"] / max(1, self._documents)
        used = in_one_byte(exact) if lengths == "lucene" else exact
        self._norms = (k1 * (1 - b + b * (used / max(mean, 1e-9)))).astype(np.float32)
        self._scores = np.zeros(len(exact), np.float32)

    def search(self, query: str, *, depth: int) -> list[tuple[str, float]]:
        """The best documents that share a term with a query, and their scores, best first."""
        scores, touched = self._scores, []
        for term, times in collections.Counter(self._analyze(query)).items():
            documents, frequencies = self._index.postings(term)
            if not len(documents):
                continue
            tf = frequencies.astype(np.float32)
            weight = np.float32(times * self._idf(len(documents)))
            scores[documents] += weight * (tf / (tf + self._norms[documents]))
            touched.append(documents)
        if not touched:
            return []
        found = np.unique(np.concatenate(touched))
        best = scores[found]
        scores[found] = 0
        return self._best(found, best, depth)

    def _idf(self, df: int) -> float:
        return float(np.log1p((self._documents - df + 0.5) / (df + 0.5)))

    def _best(self, documents: np.ndarray, scores: np.ndarray, depth: int) -> list:
        """The best of some documents; those of equal scores by their ids."""
        if len(documents) > depth:
            least = np.partition(scores, len(scores) - depth)[len(scores) - depth]
            documents, scores = documents[scores >= least], scores[scores >= least]
        pairs = [
            (self._index.ids[document], score)
            for document, score in zip(documents.tolist(), scores.tolist(), strict=True)
        ]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:depth]


def in_one_byte(lengths: np.ndarray) -> np.ndarray:
    """Lengths as Lucene's norms keep them: up to 23 exact, then four digits in base 2.

    Source: Lucene SmallFloat.intToByte4.
    """
    rest = np.maximum(np.asarray(lengths, np.int64) - 24, 0)
    bits = np.frexp(rest.astype(np.float64))[1]
    shift = np.maximum(bits - 4, 0)
    return np.where(np.asarray(lengths) < 24, lengths, 24 + ((rest >> shift) << shift))
