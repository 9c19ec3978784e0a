"""Rankings against literals that are computed by hand from the published definitions."""

import math
import sys

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.metrics import runs


def found(judgements, *documents):
    return runs.by_trec_eval({"q": judgements}, {"q": list(documents)})["q"]


def values(ndcg, mrr, recall):
    numbers = (ndcg, mrr, recall)
    return dict(zip(runs.BEIR_METRICS, map(pytest.approx, numbers), strict=True))


def test_gains_are_the_scores_and_are_discounted_by_rank():
    # Found at ranks 2 and 4: 3 / log2(3) + 1 / log2(5), of at best 3 / log2(2) + 1 / log2(3).
    got = found({"a": 3, "b": 1, "c": 0}, "x", "a", "c", "b")
    ndcg = (3 / math.log2(3) + 1 / math.log2(5)) / (3 + 1 / math.log2(3))
    assert got == values(ndcg, 1 / 2, 1.0)


def test_the_best_order_has_1():
    assert found({"a": 1, "b": 2, "c": -1}, "b", "a", "c") == values(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (10, (1 / math.log2(11), 1 / 10, 1.0)),
        (11, (0.0, 0.0, 1.0)),
        (100, (0.0, 0.0, 1.0)),
        (101, (0.0, 0.0, 0.0)),
    ],
)
def test_where_the_metrics_end(rank, expected):
    others = [f"x{i}" for i in range(150)]
    assert found({"a": 1}, *others[: rank - 1], "a", *others[rank:]) == values(*expected)


def test_recall_is_of_all_that_are_relevant():
    assert found({"a": 1, "b": 1, "c": 2, "d": 0}, "d", "a")["recall_at_100"] == pytest.approx(
        1 / 3
    )


def test_a_query_without_a_relevant_document_counts():
    judgements = {"q": {"a": 1}, "none": {"a": 0}}
    got = runs.means(
        runs.by_trec_eval(judgements, {"q": ["a"], "none": ["a", "b"], "other": ["c"]})
    )
    assert got == values(0.5, 0.5, 0.5)
    assert runs.by_trec_eval({"q": {"a": 1}}, {"q": []})["q"] == values(0.0, 0.0, 0.0)


def test_what_is_wrong():
    with pytest.raises(ValueError, match="at least one query"):
        runs.by_trec_eval({}, {})
    with pytest.raises(ValueError, match="the query 'q' has no ranking"):
        runs.by_trec_eval({"q": {"a": 1}}, {})
    with pytest.raises(ValueError, match="the ranking of the query 'q' contains a document twice"):
        runs.by_trec_eval({"q": {"a": 1}}, {"q": ["a", "a"]})


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    with pytest.raises(InputError, match="need pytrec-eval-terrier"):
        runs.check_trec_eval()
