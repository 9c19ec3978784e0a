from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.formats.rankings import Ranking, ranked
from t5x_lite.retrieval.fusion import reranked


def shown(ranking):
    return [(one.document, one.score) for one in ranking.documents]


def test_the_first_places_change_and_the_rest_stays_below_them():
    first = Ranking("q", ranked([("a", 9.0), ("b", 8.0), ("c", 7.0), ("d", 6.0)]))
    assert shown(reranked(first, [0.5, 2.5])) == [("b", 2.5), ("a", 0.5), ("c", -0.5), ("d", -1.5)]
    assert shown(reranked(first, [1.0, 1.0, 2.0])) == [
        ("c", 2.0), ("a", 1.0), ("b", 1.0), ("d", 0.0),
    ]  # fmt: skip
    assert reranked(Ranking("q", []), []) == Ranking("q", [])
    assert [one.rank for one in reranked(first, [1.0]).documents] == [1, 2, 3, 4]


@given(st.integers(0, 6), st.lists(st.floats(-5, 5), max_size=6))
def test_a_permutation_of_the_first_depth(more, scores):
    names = [str(i) for i in range(len(scores) + more)]
    found = reranked(Ranking("q", ranked([(name, 0.0) for name in names])), scores)
    documents = [one.document for one in found.documents]
    assert sorted(documents[: len(scores)]) == sorted(names[: len(scores)])
    assert documents[len(scores) :] == names[len(scores) :]
    new = [one.score for one in found.documents]
    assert new == sorted(new, reverse=True)


def test_a_perfect_scorer_puts_what_is_relevant_first():
    first = Ranking("q", ranked([(str(i), 10.0 - i) for i in range(10)]))
    relevant = {"3", "7", "9"}
    scores = [float(one.document in relevant) for one in first.documents[:8]]
    documents = [one.document for one in reranked(first, scores).documents]
    assert documents[:2] == ["3", "7"]  # the third is below the depth
    assert documents[-1] == "9"
