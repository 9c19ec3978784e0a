"""One ranking of several.

    fused = fuse([dense, lexical], method="rrf", depth=100)             # query -> Ranking
    fuse([dense, lexical], method="min-max", weights=[1.0, 0.3], depth=100)

    sum       weighted sum of the scores as they are; a document that one ranking lacks has 0 there
    min-max   the same of scores that are 0 for the last and 1 for the first of each query; where
              all are equal, 1
    rrf       weighted sum of 1 / (60 + rank) (Cormack et al. 2009)
    merge     runs of parts of one corpus, in its order: the documents of all, by their scores

Documents of equal sums stand in the order of their ids, but those that are merged in that of the
runs, as in a search of the whole corpus. Queries stand in the order of the first run.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

from t5x_lite.errors import InputError
from t5x_lite.records.run_files import Ranked, Ranking, ranked

Method = Literal["sum", "min-max", "rrf", "merge"]
RRF_K = 60

Run = Mapping[str, Sequence[Ranked]]
"""Query -> its documents, best first."""


def fuse(
    runs: Sequence[Run],
    *,
    method: Method = "rrf",
    weights: Sequence[float] = (),
    depth: int = 1000,
    k: int = 1000,
    rrf_k: int = RRF_K,
) -> Iterator[Ranking]:
    """The rankings of all queries that one of the runs has.

    Args:
      runs: at least one.
      method: how scores are added.
      weights: of the runs; none is 1 for each.
      depth: documents of each ranking that count.
      k: documents of a fused ranking at most.
      rrf_k: what is added to a rank by "rrf".

    Raises:
      InputError: the weights are not as many as the runs, or there are some and runs are merged; a
        run has no scores, which all methods but "rrf" need; or two that are merged have one
        document.
    """
    weights = list(weights) or [1.0] * len(runs)
    if len(weights) != len(runs):
        raise InputError(f"there are {len(runs)} runs and {len(weights)} weights")
    if method not in get_args(Method):
        raise InputError(f"the method is one of {', '.join(get_args(Method))}: got {method!r}")
    if method == "merge" and set(weights) != {1.0}:
        raise InputError("the scores of runs that are merged are those of one search: no weights")
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
    """The documents of all runs by falling score, of equal ones those of the first run first."""
    found: dict[str, float] = {}
    for run in runs:
        values = _values(query, run.get(query, ())[:depth], "sum", RRF_K)
        if twice := found.keys() & values.keys():
            raise InputError(
                f"the query {query!r}: document {min(twice)!r} is in two runs, and runs that are "
                "merged are of parts of a corpus: rrf, sum and min-max fuse runs of one corpus"
            )
        found |= values
    return sorted(found.items(), key=lambda pair: -pair[1])


def _values(
    query: str, documents: Sequence[Ranked], method: Method, rrf_k: int
) -> dict[str, float]:
    """What each document of a ranking brings to the sum."""
    if method == "rrf":
        return {one.document: 1 / (rrf_k + one.rank) for one in documents}
    scores = {one.document: one.score for one in documents if one.score is not None}
    if len(scores) < len(documents):
        raise InputError(
            f"the query {query!r}: a run in MS MARCO's form has no scores; method rrf needs none"
        )
    if method == "sum" or not scores:
        return scores
    low, high = min(scores.values()), max(scores.values())
    return {name: (s - low) / (high - low) if high > low else 1.0 for name, s in scores.items()}
