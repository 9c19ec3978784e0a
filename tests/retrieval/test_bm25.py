"""BM25 by hand, by a literal loop over the formula, and by a public implementation."""

import collections
import math
import random

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.retrieval.bm25 import BM25, InvertedIndex, build, in_one_byte


def made(tmp_path, texts, **options):
    build(str(tmp_path / "index"), texts, analyzer="whitespace", identity={})
    return BM25(InvertedIndex.open(tmp_path / "index"), **options)


def corpus(num=60, seed=0):
    rng = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(30)]
    weights = [1 / (i + 1) for i in range(30)]
    return [
        (f"d{i}", " ".join(rng.choices(vocabulary, weights, k=rng.randint(1, 60))))
        for i in range(num)
    ]


def test_golden(tmp_path):
    bm25 = made(tmp_path, [("x", "a b a"), ("y", "b c"), ("z", "a c c d")])
    found = dict(bm25.search("a c", depth=9))
    assert found == {
        "x": pytest.approx(0.324140, abs=1e-6),
        "y": pytest.approx(0.264047, abs=1e-6),
        "z": pytest.approx(0.543936, abs=1e-6),
    }
    assert [name for name, _ in bm25.search("a c", depth=2)] == ["z", "x"]


def test_terms_count_as_often_as_they_are_asked_for(tmp_path):
    bm25 = made(tmp_path, [("x", "a b a"), ("y", "b c")])
    once, twice = (dict(bm25.search(query, depth=9)) for query in ("a", "a a"))
    assert twice["x"] == pytest.approx(2 * once["x"])
    assert bm25.search("no such term", depth=9) == bm25.search("", depth=9) == []
    assert dict(bm25.search("a", depth=9)) == once


def test_equal_scores_stand_by_id(tmp_path):
    bm25 = made(tmp_path, [(name, "a") for name in ("d10", "d9", "d1", "d2")])
    assert [name for name, _ in bm25.search("a", depth=3)] == ["d1", "d10", "d2"]


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (0.0, 0.0), (2.0, 1.0)])
def test_as_the_formula_says(tmp_path, k1, b):
    texts = [*corpus(), ("empty", "")]
    bm25 = made(tmp_path, texts, k1=k1, b=b)
    tokens = {name: text.split() for name, text in texts if text}
    mean = sum(map(len, tokens.values())) / len(tokens)
    query = "w0 w3 w7 w7 w29 none"
    expected = {}
    for name, terms in tokens.items():
        tf, score = collections.Counter(terms), 0.0
        for term in query.split():
            df = sum(term in other for other in tokens.values())
            idf = math.log(1 + (len(tokens) - df + 0.5) / (df + 0.5))
            score += (
                idf * tf[term] / (tf[term] + k1 * (1 - b + b * len(terms) / mean))
                if tf[term]
                else 0
            )
        if score:
            expected[name] = score
    ranking = bm25.search(query, depth=1000)
    assert dict(ranking) == pytest.approx(expected, abs=1e-5)
    assert len(ranking) == len(expected)
    assert ranking == sorted(ranking, key=lambda pair: (-pair[1], pair[0]))
    assert bm25.search(query, depth=7) == ranking[:7]
    assert bm25.search(query, depth=1000) == ranking


@pytest.mark.parametrize("depth", [1, 3, 20, 100])
@pytest.mark.parametrize("k1", [0.9, 0.0])
def test_postings_that_change_nothing_are_not_read(tmp_path, monkeypatch, depth, k1):
    """The best documents are those of the whole ranking, bit for bit."""
    bm25 = made(tmp_path, corpus(num=800), k1=k1)
    read, check = [], InvertedIndex.check
    monkeypatch.setattr(InvertedIndex, "check", lambda *args: (read.append(1), check(*args)))
    rng, pruned = random.Random(1), 0
    for _ in range(60):
        terms = rng.sample([f"w{i}" for i in range(30)], k=rng.randint(1, 6))
        query = " ".join(terms * rng.randint(1, 2))
        read.clear()
        found = bm25.search(query, depth=depth)
        pruned += len(read) < len(terms)
        assert found == bm25.search(query, depth=10_000)[:depth]
    assert pruned > 10


def test_lengths_in_one_byte(tmp_path):
    lengths = np.array([0, 1, 23, 24, 39, 40, 41, 57, 100, 150, 1000, 8192])
    assert in_one_byte(lengths).tolist() == [0, 1, 23, 24, 39, 40, 40, 56, 96, 144, 984, 7704]
    texts = [("long", "a " * 41), ("longer", "a " * 40)]
    found = dict(made(tmp_path, texts, lengths="lucene", k1=9.0).search("a", depth=9))
    assert found["long"] > found["longer"]


@pytest.mark.parametrize(("k1", "b"), [(-0.1, 0.5), (1.0, 1.1), (1.0, -0.1)])
def test_settings_that_are_none(tmp_path, k1, b):
    with pytest.raises(InputError, match="BM25 needs"):
        made(tmp_path, corpus(), k1=k1, b=b)
