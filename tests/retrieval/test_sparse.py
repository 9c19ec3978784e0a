import numpy as np
import pytest

from t5x_lite.retrieval.fusion import TermIndex, best


def test_scores_are_sums_over_common_tokens():
    index = TermIndex([{5: 0.7, 9: 0.4}, {}, {9: 0.2}])
    np.testing.assert_allclose(index.scores({9: 0.5, 5: 1.0, 77: 3.0}), [0.9, 0, 0.1], rtol=1e-6)
    assert index.scores({}).tolist() == [0, 0, 0]
    assert TermIndex([]).scores({1: 1.0}).tolist() == []


def test_scores_are_those_of_vectors():
    rng = np.random.default_rng(0)
    dense = rng.random((30, 40)) * (rng.random((30, 40)) < 0.3)
    documents = [{int(t): float(row[t]) for t in np.flatnonzero(row)} for row in dense]
    query = {t: float(rng.random()) for t in range(0, 40, 3)}
    expected = dense @ np.array([query.get(t, 0.0) for t in range(40)])
    np.testing.assert_allclose(TermIndex(documents).scores(query), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("depth", [1, 3, 4, 9])
def test_the_best_and_ties(depth):
    scores = np.array([1, 3, 2, 3, 2], np.float32)
    assert best(scores, depth).tolist() == [1, 3, 2, 4, 0][:depth]
