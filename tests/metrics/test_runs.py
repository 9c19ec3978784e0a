"""Metrics of runs: by hand, by trec_eval, and MS MARCO's script written out again."""

import math
import random

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.metrics.runs import DEFAULT, means, metric, per_query

SCORES = {"a": 3, "b": 0, "c": 1, "d": 2}


def value(name, documents, scores=SCORES):
    return metric(name)(scores, [(document, i) for i, document in enumerate(documents, start=1)])


@pytest.mark.parametrize(
    ("name", "documents", "expected"),
    [
        ("ndcg@10", "adc", 1.0),
        ("ndcg@2", "bc", (1 / math.log2(3)) / (3 + 2 / math.log2(3))),
        ("map", "xabd", (1 / 2 + 2 / 4) / 3),
        ("map@2", "xabd", 1 / 6),
        ("mrr@10", "xba", 1 / 3),
        ("mrr@2", "xba", 0.0),
        ("recall@2", "abcd", 1 / 3),
        ("capped_recall@2", "abcd", 1 / 2),
        ("capped_recall@9", "abcd", 1.0),
        ("precision@10", "abcd", 0.3),
        ("hole@10", "axyb", 0.5),
        ("hole@2", "abxy", 0.0),
        ("hole@10", "", 0.0),
        ("ndcg@10", "", 0.0),
        ("mrr_marco", "xb", 0.5),
    ],
)
def test_by_hand(name, documents, expected):
    assert value(name, documents) == pytest.approx(expected)


def test_nothing_relevant_is_0():
    for name in DEFAULT[:-1]:
        assert value(name, "ab", {"a": 0}) == 0.0


def test_marcos_script_goes_by_the_rank_column():
    places = [("x", 1), ("a", 7), ("c", 11)]
    assert metric("mrr_marco")({"a": 1}, places) == 1 / 7
    assert metric("mrr_marco")({"c": 1}, places) == 0.0
    assert metric("mrr@10")({"a": 1}, places) == 1 / 2


def marco_script(qrels, run):
    """ms_marco_eval.py: the mean over the queries of the qrels."""
    total = 0.0
    for query, listed in qrels.items():
        if query not in run:
            continue
        ranks = [0] * 1000
        for document, rank in run[query]:
            ranks[rank - 1] = document
        for i in range(10):
            if ranks[i] in listed:
                total += 1 / (i + 1)
                break
    return total / len(qrels)


def random_case(seed):
    rng = random.Random(seed)
    documents = [f"d{i}" for i in range(40)]
    qrels = {
        f"q{i}": {d: rng.randint(0, 3) for d in rng.sample(documents, rng.randint(1, 12))}
        for i in range(12)
    }
    run = {}
    for query in [*list(qrels)[: 8 + seed % 3], "not judged"]:
        ranks = sorted(rng.sample(range(1, 60), 25))
        run[query] = list(zip(rng.sample(documents, 25), ranks, strict=True))
    return qrels, run


@pytest.mark.parametrize("seed", range(4))
def test_as_marcos_script(seed):
    qrels, run = random_case(seed)
    listed = {query: dict.fromkeys(scores, 1) for query, scores in qrels.items()}
    found = means(per_query(listed, run, ["mrr_marco"]))["mrr_marco"]
    assert found == pytest.approx(marco_script(listed, run))


@pytest.mark.parametrize("seed", range(4))
def test_as_trec_eval(seed):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    qrels, run = random_case(seed)
    names = {"ndcg@10": "ndcg_cut_10", "map": "map", "recall@10": "recall_10",
             "recall@20": "recall_20", "precision@10": "P_10", "mrr@1000": "recip_rank",
             "map@20": "map_cut_20", "ndcg@5": "ndcg_cut_5"}  # fmt: skip
    found = per_query(qrels, run, list(names))
    by_rank = {q: {d: -float(r) for d, r in places} for q, places in run.items() if q in qrels}
    measures = {"ndcg_cut.5,10", "map", "recall.10,20", "P.10", "recip_rank", "map_cut.20"}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(by_rank)
    for query, values in found.items():
        for ours, other in names.items():
            expected = theirs[query][other] if query in theirs else 0.0
            assert values[ours] == pytest.approx(expected, abs=1e-6), (query, ours)


@pytest.mark.parametrize("name", ["ndcg", "ndcg@0", "dcg@10", "mrr@", "recall@x", "map@"])
def test_a_metric_that_is_none(name):
    with pytest.raises(InputError, match="unknown metric"):
        metric(name)


def test_a_document_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        per_query({"q": {"a": 1}}, {"q": [("a", 1), ("a", 2)]}, ["map"])
