"""Retrieval metrics nDCG@10, MRR@10 and Recall@100, as in BEIR and trec_eval.

    retrieval({"q": {"a": 2, "b": 0}}, {"q": ["b", "a"]})
    # {"ndcg_at_10": 0.630..., "mrr_at_10": 0.5, "recall_at_100": 1.0}

    nDCG@10      DCG@10 / DCG@10 of the ideal ranking; DCG = sum of score / log2(1 + rank)
    MRR@10       1 / rank of the first relevant document, 0 if none is among the first ten
    Recall@100   fraction of the relevant documents among the first hundred

A document is relevant if its relevance score is above 0; a document without a score is not
relevant. The metrics of a query without a relevant document are 0, as in BEIR. The values are
computed by trec_eval (pytrec_eval; Van Gysel and de Rijke 2018, arXiv:1805.01597) from ranks, not
scores, so documents with equal scores keep their order.

Sources: Thakur et al. 2021, arXiv:2104.08663; Jaervelin and Kekaelaeinen 2002.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.core.errors import InputError, install_command

NAMES = ("ndcg_at_10", "mrr_at_10", "recall_at_100")

Judgements = Mapping[str, Mapping[str, int]]
"""Type of relevance judgments: query -> document -> relevance score."""


def retrieval(judgements: Judgements, rankings: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the mean nDCG@10, MRR@10 and recall@100 over queries with relevance judgments.

    Args:
      judgements: relevance judgments of at least one query: query -> document -> score.
      rankings: documents for each query of `judgements`, best first, without duplicates.

    Raises:
      ValueError: if `judgements` is empty, or a ranking is missing or has a duplicate document.
      InputError: if pytrec_eval is not installed.
    """
    return means(per_query(judgements, rankings))


def means(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over all queries, from the result of `per_query`."""
    return {name: sum(one[name] for one in found.values()) / len(found) for name in NAMES}


def per_query(
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


def check_installed() -> None:
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
