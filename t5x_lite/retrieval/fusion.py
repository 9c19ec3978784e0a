"""Combination of rankings: fusion of runs, BGE-M3's hybrid ranking, reranking.

    fused = fuse([dense, lexical], method="rrf", depth=100)             # query -> Ranking
    fuse([dense, lexical], method="min-max", weights=[1.0, 0.3], depth=100)

    sum       weighted sum of unchanged scores; a document that is missing in a ranking scores 0
    min-max   weighted sum of scores scaled to 0 (last) to 1 (first) for each query; if all
              scores are equal, 1
    rrf       weighted sum of 1 / (60 + rank) (Cormack et al. 2009)
    merge     for runs on the shards of one corpus, in order: all documents sorted by score

Documents with equal sums are sorted by id, and for `merge` by the order of the runs, as in a search
of the complete corpus. Queries keep the order of the first run.

The BGE-M3 paper ranks by three heads, separately and in weighted sums:

    ways = Ways(weights=(1.0, 0.3, 1.0), pair_weights=(1.0, 0.3))
    finder = Finder(corpus, ways)
    finder.rank(dense, terms, vectors)                 # {"dense": [(number, score), ...], ...}

| ranking | candidates | score |
|---|---|---|
| dense, lexical | all documents | score of the head |
| dense_lexical | the first 1000 of both | w1 dense + w2 lexical |
| multi_vector | the first 200 of dense | score of the head |
| all | the first 200 of dense | w1 dense + w2 lexical + w3 multi_vector |

All candidates get the scores of all heads in the sum; in BGE-M3's published code, a document that a
head did not return scores 0 for the head. Documents that are not rescored follow in their former
order. The weights for passages are 1, .3, 1 (MIRACL, MKQA). The weights for long documents are .15,
.5, .35, and .2, .8 for dense_lexical (MLDR, NarrativeQA; Chen et al. 2024, arXiv:2402.03216v4).

`TermIndex` scores documents exactly by lexical weights, with all postings in memory:

    index = TermIndex([{5: 0.7, 9: 0.4}, {9: 0.2}])         # token -> weight, of each document
    index.scores({9: 0.5})                                  # float32 [0.2, 0.1]

A score is the sum of the products of weights over common tokens, in float32. (FlagEmbedding rounds
weights to hundredths for Lucene.)

`reranked` sorts the first documents of a ranking by new scores:

    reranked(Ranking("q", ranked([("a", 9.0), ("b", 8.0), ("c", 7.0)])), [0.5, 2.5])
    # b 2.5, a 0.5, c -0.5: two new scores sort the first two documents

The other documents keep their order below the lowest new score. Their scores decrease by one per
rank, so that the run is sorted by score. Documents with equal scores keep their order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from t5x_lite.config.evaluation import Ways
from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.rankings import Ranked, Ranking, ranked
from t5x_lite.inference.pairs import late_score

Method = Literal["sum", "min-max", "rrf", "merge"]
RRF_K = 60

Run = Mapping[str, Sequence[Ranked]]
"""Query id -> ranked documents of the query, best first."""


def fuse(
    runs: Sequence[Run],
    *,
    method: Method = "rrf",
    weights: Sequence[float] = (),
    depth: int = 1000,
    k: int = 1000,
    rrf_k: int = RRF_K,
) -> Iterator[Ranking]:
    """Yield one ranking per query, which combines the rankings of several retrieval runs.

    Args:
      runs: runs to combine, at least one.
      method: rule that combines scores: "rrf", "sum", "min-max" or "merge".
      weights: weights of the runs; () is 1 for each run.
      depth: number of top documents of each ranking to use.
      k: maximum number of documents of a fused ranking.
      rrf_k: constant that the method "rrf" adds to ranks.

    Raises:
      InputError: if the number of weights is not the number of runs, weights are given for "merge",
        a run has no scores (which only "rrf" accepts), or two merged runs have the same document.
    """
    weights = list(weights) or [1.0] * len(runs)
    if len(weights) != len(runs):
        raise InputError(
            f"--weights requires one number per run, but there are {len(runs)} runs and "
            f"{len(weights)} weights"
        )
    if method not in get_args(Method):
        raise InputError(f"--method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if method == "merge" and set(weights) != {1.0}:
        raise InputError(
            "--method merge does not use weights, because the scores of all runs come from one "
            "search; remove --weights"
        )
    for query in dict.fromkeys(query for run in runs for query in run):
        if method == "merge":
            yield Ranking(query, ranked(_merged(query, runs, depth)[:k]))
            continue
        sums: dict[str, float] = {}
        for run, weight in zip(runs, weights, strict=True):
            if query in run:
                for name, value in _values(query, run[query][:depth], method, rrf_k).items():
                    sums[name] = sums.get(name, 0.0) + weight * value
        best = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
        yield Ranking(query, ranked(best))


def _merged(query: str, runs: Sequence[Run], depth: int) -> list[tuple[str, float]]:
    found: dict[str, float] = {}
    for run in runs:
        values = _values(query, run.get(query, ())[:depth], "sum", RRF_K)
        if twice := found.keys() & values.keys():
            raise InputError(
                f"query {query!r}: document {min(twice)!r} is in two runs, but --method merge "
                "requires runs on different shards of a corpus; to combine runs on the same "
                "corpus, set --method rrf, sum or min-max"
            )
        found |= values
    return sorted(found.items(), key=lambda pair: -pair[1])


def _values(
    query: str, documents: Sequence[Ranked], method: Method, rrf_k: int
) -> dict[str, float]:
    if method == "rrf":
        return {one.document: 1 / (rrf_k + one.rank) for one in documents}
    scores = {one.document: one.score for one in documents if one.score is not None}
    if len(scores) < len(documents):
        raise InputError(
            f"query {query!r}: a run in MS MARCO format has no scores, but every --method except "
            "rrf requires scores; set --method rrf"
        )
    if method == "sum" or not scores:
        return scores
    low, high = min(scores.values()), max(scores.values())
    return {name: (s - low) / (high - low) if high > low else 1.0 for name, s in scores.items()}


class TermIndex:
    """Index of the lexical weights of documents, with all postings in memory.

    Args:
      documents: token id -> weight, for each document.
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
        """Return the score of each document for a query."""
        found = np.zeros(self.size, np.float32)
        for token, weight in sorted(query.items()):
            place = int(np.searchsorted(self._tokens, token))
            if place < len(self._tokens) and self._tokens[place] == token:
                here = slice(self._bounds[place], self._bounds[place + 1])
                found[self._numbers[here]] += np.float32(weight) * self._weights[here]
        return found


def best(scores: Float[np.ndarray, " N"], depth: int) -> Int[np.ndarray, " k"]:
    """Return the indices of the largest scores, descending; on ties, the lower index first."""
    if depth < len(scores):
        least = np.partition(scores, len(scores) - depth)[len(scores) - depth]
        some = np.flatnonzero(scores >= least)
    else:
        some = np.arange(len(scores))
    return some[np.argsort(-scores[some], kind="stable")][:depth]


Scored = list[tuple[int, float]]
"""Document numbers with their scores, best first."""


@runtime_checkable
class Corpus(Protocol):
    """Protocol of a document collection that holds the outputs of BGE-M3's heads."""

    ids: list[str]
    dense: np.ndarray | None

    def has(self, way: str) -> bool:
        """Return True if the documents have the outputs of a head, such as "lexical"."""
        ...

    def terms(self) -> Iterable[Mapping[int, float]]:
        """Return token id -> lexical weight, for each document."""
        ...

    def vectors(self, number: int) -> np.ndarray:
        """Return the token vectors of a document."""
        ...


class Finder:
    """Ranker of the documents of a corpus by the heads of a BGE-M3 model.

    Args:
      corpus: outputs of the heads for the documents.
      ways: settings of the rankings to compute.

    Raises:
      InputError: if the corpus lacks the output of a head.
    """

    def __init__(self, corpus: Corpus, ways: Ways):
        self._corpus, self._ways = corpus, ways
        for head in ways.heads:
            if not corpus.has(head):
                raise InputError(
                    f"the corpus has no output of the head {head!r}; encode the corpus by "
                    f"`t5x-lite embed --heads {' '.join(ways.heads)}`"
                )
        self._terms = TermIndex(corpus.terms()) if "lexical" in ways.heads else None

    def rank(
        self,
        dense: Float[np.ndarray, " D"] | None,
        terms: Mapping[int, float] | None,
        vectors: Float[np.ndarray, "S K"] | None,
    ) -> dict[str, Scored]:
        """Return the rankings of a query by name: lists of (document number, score)."""
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
    those = np.asarray(numbers)
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    return [(int(those[i]), float(scores[i])) for i in order]


def _with_rest(first: Scored, rest: Sequence[int]) -> Scored:
    lowest = first[-1][1] if first else 0.0
    return [*first, *((number, lowest - place) for place, number in enumerate(rest, 1))]


def reranked(ranking: Ranking, scores: Sequence[float]) -> Ranking:
    """Return a ranking with its first documents sorted by new scores.

    Args:
      ranking: ranking of the first stage.
      scores: new scores of the first documents, in their order.
    """
    names = [one.document for one in ranking.documents]
    order = np.argsort(-np.array(scores, np.float64), kind="stable").tolist()
    first = [(names[place], float(scores[place])) for place in order]
    lowest = min(scores, default=0.0)
    rest = [(name, float(lowest) - place) for place, name in enumerate(names[len(first) :], 1)]
    return Ranking(ranking.query, ranked([*first, *rest]))
