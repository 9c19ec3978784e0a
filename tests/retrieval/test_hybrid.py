"""Rankings by several heads, beside loops over all documents."""

import numpy as np
import pytest

from t5x_lite.config.evaluation import NAMES, Ways
from t5x_lite.core.errors import InputError
from t5x_lite.inference.pairs import late_score
from t5x_lite.retrieval.fusion import Finder

RNG = np.random.default_rng(0)


class Corpus:
    """Twelve documents in memory."""

    def __init__(self, *, lacks=""):
        self.ids = [f"d{i}" for i in range(12)]
        self.dense = RNG.normal(size=(12, 4)).astype(np.float32)
        self._terms = [{t: float(RNG.random()) for t in (i % 3, 5 + i)} for i in range(12)]
        self._vectors = [RNG.normal(size=(1 + i % 4, 3)).astype(np.float32) for i in range(12)]
        self._lacks = lacks

    def has(self, way):
        return way != self._lacks

    def terms(self):
        return self._terms

    def vectors(self, number):
        return self._vectors[number]


def test_rankings_are_those_of_loops():
    corpus = Corpus()
    ways = Ways(weights=(1.0, 0.3, 2.0), pair_weights=(0.2, 0.8), depth=5, rerank=3)
    dense = RNG.normal(size=4).astype(np.float32)
    terms, vectors = {0: 0.5, 7: 2.0, 99: 1.0}, RNG.normal(size=(3, 3)).astype(np.float32)
    found = Finder(corpus, ways).rank(dense, terms, vectors)
    assert tuple(found) == NAMES
    own = {
        "dense": corpus.dense @ dense,
        "lexical": np.array(
            [sum(w * d.get(t, 0) for t, w in terms.items()) for d in corpus.terms()]
        ),
        "multi_vector": np.array([late_score(vectors, corpus.vectors(i)) for i in range(12)]),
    }

    def first(scores, count, among=range(12)):
        return sorted(among, key=lambda i: (-scores[i], i))[:count]

    for name in ("dense", "lexical"):
        assert [i for i, _ in found[name]] == first(own[name], 5)
        np.testing.assert_allclose([s for _, s in found[name]], own[name][first(own[name], 5)])
    either = {*first(own["dense"], 5), *first(own["lexical"], 5)}
    both = 0.2 * own["dense"] + 0.8 * own["lexical"]
    assert [i for i, _ in found["dense_lexical"]] == first(both, 5, sorted(either))
    again, rest = first(own["dense"], 3), first(own["dense"], 5)[3:]
    every = own["dense"] + 0.3 * own["lexical"] + 2 * own["multi_vector"]
    for name, scores in (("multi_vector", own["multi_vector"]), ("all", every)):
        assert [i for i, _ in found[name]] == [*first(scores, 3, again), *rest]
        assert all(a[1] >= b[1] for a, b in zip(found[name], found[name][1:], strict=False))
        assert found[name][0][1] == pytest.approx(max(scores[again]), rel=1e-5)


def test_only_what_is_needed():
    ways = Ways(names=("lexical",))
    assert ways.heads == ("lexical",)
    found = Finder(Corpus(lacks="dense"), ways).rank(None, {0: 1.0}, None)
    assert tuple(found) == ("lexical",)
    assert Ways(names=("all",)).heads == ("dense", "lexical", "multi_vector")
    assert Ways(names=("multi_vector",)).heads == ("dense", "multi_vector")


def test_a_score_of_late_interaction():
    query, passage = np.array([[1.0, 0], [0, 1]]), np.array([[0.5, -1], [0.25, -2]])
    assert late_score(query, passage) == pytest.approx((0.5 - 1) / 2)
    assert late_score(query[:0], passage) == late_score(query, passage[:0]) == 0.0


def test_what_cannot_be():
    with pytest.raises(
        InputError, match=r"no output of the head 'lexical'; encode the corpus by .* --heads"
    ):
        Finder(Corpus(lacks="lexical"), Ways())
    with pytest.raises(InputError, match=r"ways must be among dense, .* got 'sparse'"):
        Ways(names=("sparse",))
    with pytest.raises(InputError, match="weights must be at least 0"):
        Ways(weights=(1.0, -1.0, 1.0))
    with pytest.raises(InputError, match="depth must be at least 1: got 0"):
        Ways(depth=0)
