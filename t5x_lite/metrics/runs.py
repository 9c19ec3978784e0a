"""Retrieval metrics with any cutoff: nDCG, MAP, MRR, recall, and MS MARCO's version of MRR.

    per_query({"q": {"a": 2, "b": 0}}, {"q": [("b", 1), ("a", 2)]}, ["ndcg@10", "mrr@10"])
    # {"q": {"ndcg@10": 0.630..., "mrr@10": 0.5}}

    ndcg@k            DCG@k / DCG@k of the ideal ranking; DCG = sum of score / log2(1 + rank)
    map, map@k        mean over the relevant documents of the precision at the rank of each
    mrr@k             1 / rank of the first relevant document, 0 if none is among the first k
    recall@k          fraction of the relevant documents among the first k
    capped_recall@k   relevant documents among the first k / min(relevant documents, k)
    precision@k       fraction of the first k that is relevant
    hole@k            fraction of the first k without a judgment
    mrr_marco         mrr@10 by the rank column, over the queries in the qrels

A document is relevant if its relevance score is above 0. Means are over all queries of the qrels;
the metrics of a query without a ranking are 0. Ranks are positions in the ranking, so documents
with equal scores keep their order. Only mrr_marco uses the ranks in the file, as MS MARCO's script
does, and every judged document is relevant in it.

`by_trec_eval` computes the metrics of BEIR by trec_eval (pytrec_eval; Van Gysel and de Rijke 2018,
arXiv:1805.01597), from ranks, not scores, so documents with equal scores keep their order.

Sources: Jaervelin and Kekaelaeinen 2002; Thakur et al. 2021, arXiv:2104.08663;
microsoft/MSMARCO-Passage-Ranking ms_marco_eval.py.
"""

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from t5x_lite.core.errors import InputError, install_command

Place: TypeAlias = tuple[str, int]
"""Type of an entry of a ranking: document and rank."""
Judgements: TypeAlias = Mapping[str, Mapping[str, int]]

DEFAULT = (
    "ndcg@10",
    "mrr@10",
    "mrr@100",
    "map",
    "recall@10",
    "recall@20",
    "recall@100",
    "recall@1000",
    "capped_recall@100",
    "hole@10",
)
_NAME = re.compile(r"(ndcg|map|mrr|recall|capped_recall|precision|hole)@([1-9]\d*)")
_UNBOUNDED = 1 << 62


def per_query(
    judgements: Judgements, rankings: Mapping[str, Sequence[Place]], metrics: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the values of some metrics for each query that has relevance judgments.

    Args:
      judgements: relevance judgments: query -> document -> score.
      rankings: query -> (document, rank) pairs, best first; a query may be missing.
      metrics: names of the metrics, such as "ndcg@10".

    Raises:
      InputError: if a metric is unknown.
      ValueError: if a ranking contains a document twice.
    """
    functions = {name: metric(name) for name in metrics}
    found: dict[str, dict[str, float]] = {}
    for query, scores in judgements.items():
        places = rankings.get(query, ())
        if len({document for document, _ in places}) < len(places):
            raise ValueError(f"the ranking of the query {query!r} contains a document twice")
        found[query] = {name: function(scores, places) for name, function in functions.items()}
    return found


def means(by_query: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the queries."""
    names = next(iter(by_query.values()), {})
    return {
        name: math.fsum(one[name] for one in by_query.values()) / len(by_query) for name in names
    }


def metric(name: str) -> Callable[[Mapping[str, int], Sequence[Place]], float]:
    """Return the function that computes a metric from relevance scores and a ranking.

    Raises:
      InputError: if the name is unknown.
    """
    if name == "mrr_marco":
        return _mrr_marco
    kind, cut = (name, _UNBOUNDED)
    if match := _NAME.fullmatch(name):
        kind, cut = match.group(1), int(match.group(2))
    if kind not in _METRICS or (cut == _UNBOUNDED and kind != "map"):
        raise InputError(
            f"unknown metric {name!r}; the metrics are map, mrr_marco, and ndcg@K, map@K, mrr@K, "
            "recall@K, capped_recall@K, precision@K and hole@K with any number K, such as ndcg@10"
        )
    function = _METRICS[kind]
    return lambda scores, places: function(scores, [document for document, _ in places], cut)


def _relevant(scores: Mapping[str, int]) -> int:
    return sum(score > 0 for score in scores.values())


def _hits(scores: Mapping[str, int], documents: Sequence[str], cut: int) -> list[bool]:
    return [scores.get(document, 0) > 0 for document in documents[:cut]]


def _ndcg(scores: Mapping[str, int], documents: Sequence[str], cut: int) -> float:
    gains = [max(0, scores.get(document, 0)) for document in documents[:cut]]
    best = sorted((score for score in scores.values() if score > 0), reverse=True)[:cut]
    return _dcg(gains) / _dcg(best) if best else 0.0


def _dcg(gains: Sequence[int]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def _map(scores: Mapping[str, int], documents: Sequence[str], cut: int) -> float:
    relevant, hits, total = _relevant(scores), 0, 0.0
    for rank, hit in enumerate(_hits(scores, documents, cut), start=1):
        if hit:
            hits += 1
            total += hits / rank
    return total / relevant if relevant else 0.0


def _mrr(scores: Mapping[str, int], documents: Sequence[str], cut: int) -> float:
    hits = _hits(scores, documents, cut)
    return 1 / (hits.index(True) + 1) if any(hits) else 0.0


def _mrr_marco(scores: Mapping[str, int], places: Sequence[Place]) -> float:
    ranks = [rank for document, rank in places if document in scores and rank <= 10]
    return 1 / min(ranks) if ranks else 0.0


def _recall(scores: Mapping[str, int], documents: Sequence[str], cut: int) -> float:
    relevant = _relevant(scores)
    return sum(_hits(scores, documents, cut)) / relevant if relevant else 0.0


def _capped_recall(scores: Mapping[str, int], documents: Sequence[str], cut: int) -> float:
    most = min(_relevant(scores), cut)
    return sum(_hits(scores, documents, cut)) / most if most else 0.0


def _precision(scores: Mapping[str, int], documents: Sequence[str], cut: int) -> float:
    return sum(_hits(scores, documents, cut)) / cut


def _hole(scores: Mapping[str, int], documents: Sequence[str], cut: int) -> float:
    first = documents[:cut]
    return sum(document not in scores for document in first) / len(first) if first else 0.0


_METRICS: dict[str, Callable[[Mapping[str, int], Sequence[str], int], float]] = {
    "ndcg": _ndcg,
    "map": _map,
    "mrr": _mrr,
    "recall": _recall,
    "capped_recall": _capped_recall,
    "precision": _precision,
    "hole": _hole,
}


BEIR_METRICS = ("ndcg_at_10", "mrr_at_10", "recall_at_100")


def by_trec_eval(
    judgements: Judgements, rankings: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """Return {"ndcg_at_10", "mrr_at_10", "recall_at_100"} for each query.

    Args:
      judgements: relevance judgments of at least one query: query -> document -> score.
      rankings: documents for each query of `judgements`, best first, without duplicates.

    Raises:
      ValueError: if `judgements` is empty, or a ranking is missing or has a duplicate document.
      InputError: if pytrec_eval is not installed.
    """
    if not judgements:
        raise ValueError("retrieval metrics need at least one query with judgments")
    for query in judgements:
        if query not in rankings:
            raise ValueError(f"the query {query!r} has no ranking")
        if len(set(rankings[query])) < len(rankings[query]):
            raise ValueError(f"the ranking of the query {query!r} contains a document twice")
    relevance = {
        query: {document: max(0, score) for document, score in scores.items()}
        for query, scores in judgements.items()
    }
    whole = _evaluate(relevance, rankings, {"ndcg_cut.10", "recall.100"})
    first = _evaluate(
        relevance, {q: ranking[:10] for q, ranking in rankings.items()}, {"recip_rank"}
    )
    return {
        query: {
            "ndcg_at_10": whole[query]["ndcg_cut_10"],
            "mrr_at_10": first[query]["recip_rank"],
            "recall_at_100": whole[query]["recall_100"],
        }
        for query in judgements
    }


def check_trec_eval() -> None:
    """Raise InputError if pytrec_eval is not installed."""
    _library()


def _evaluate(
    relevance: dict[str, dict[str, int]], rankings: Mapping[str, Sequence[str]], measures: set[str]
) -> dict[str, dict[str, float]]:
    runs = {
        query: {document: float(-rank) for rank, document in enumerate(rankings[query])}
        for query in relevance
    }
    found = _library().RelevanceEvaluator(relevance, measures).evaluate(runs)
    return {query: found.get(query, dict.fromkeys(_KEYS, 0.0)) for query in relevance}


_KEYS = ("ndcg_cut_10", "recall_100", "recip_rank")


def _library() -> Any:
    try:
        return importlib.import_module("pytrec_eval")
    except ImportError as error:
        raise InputError(
            "retrieval metrics need pytrec-eval-terrier, which is not installed; run "
            f"{install_command('metrics')}"
        ) from error
