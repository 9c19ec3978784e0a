import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.rankings import Ranked, ranked
from t5x_lite.retrieval.fusion import fuse

DENSE = {"q": ranked([("a", 9.0), ("b", 5.0), ("c", 1.0)]), "r": ranked([("x", 2.0), ("y", 2.0)])}
LEXICAL = {"q": ranked([("b", 4.0), ("d", 2.0)]), "s": ranked([("z", 1.0)])}


def found(runs=(DENSE, LEXICAL), **options):
    return {
        one.query: [(document, score) for document, score, _ in one.documents]
        for one in fuse(runs, **options)
    }


def test_reciprocal_ranks():
    assert found() == {
        "q": [
            ("b", pytest.approx(1 / 61 + 1 / 62)),
            ("a", 1 / 61),
            ("d", 1 / 62),
            ("c", 1 / 63),
        ],
        "r": [("x", 1 / 61), ("y", 1 / 62)],
        "s": [("z", 1 / 61)],
    }
    assert found(rrf_k=0)["q"][0] == ("b", 1.5)


def test_sums_of_scores():
    assert found(method="sum", weights=[1.0, 0.5])["q"] == [
        ("a", 9.0),
        ("b", 7.0),
        ("c", 1.0),
        ("d", 1.0),
    ]


def test_scores_between_0_and_1():
    fused = found(method="min-max", weights=[1.0, 2.0])
    assert fused["q"] == [("b", 2.5), ("a", 1.0), ("c", 0.0), ("d", 0.0)]
    assert fused["r"] == [("x", 1.0), ("y", 1.0)]
    assert fused["s"] == [("z", 2.0)]


def test_depth_and_k():
    assert found(method="sum", depth=1)["q"] == [("a", 9.0), ("b", 4.0)]
    assert found(method="sum", k=1)["q"] == [("a", 9.0)]


def test_places_are_numbered():
    first = next(iter(fuse([DENSE], method="sum")))
    assert first.documents[2] == Ranked("c", 1.0, 3)


def test_runs_of_parts_of_a_corpus_are_merged():
    """By score, and of equal ones in the order of the runs, where others sort by name."""
    parts = (
        {"q": ranked([("z", 9.0), ("y", 4.0)]), "r": ranked([("x", 2.0)])},
        {"q": ranked([("b", 9.0), ("a", 4.0)])},
    )
    merged = found(parts, method="merge")
    assert merged == {"q": [("z", 9.0), ("b", 9.0), ("y", 4.0), ("a", 4.0)], "r": [("x", 2.0)]}
    assert found(parts, method="merge", k=3)["q"] == merged["q"][:3]
    with pytest.raises(InputError, match="query 'q': document 'b' is in two runs"):
        found(method="merge")
    with pytest.raises(InputError, match="remove --weights"):
        found(parts, method="merge", weights=[1.0, 2.0])


def test_what_does_not_go_together():
    with pytest.raises(InputError, match="2 runs and 1 weights"):
        found(weights=[1.0])
    marco = {"q": [Ranked("a", None, 1)]}
    with pytest.raises(InputError, match="set --method rrf"):
        found([marco], method="sum")
    assert found([marco])["q"] == [("a", 1 / 61)]
