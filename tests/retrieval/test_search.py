"""Exact search: the order, ties, and that chunks change nothing."""

import jax
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.retrieval import exact as searching
from t5x_lite.retrieval.exact import ExactSearch

QUERIES = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
DOCUMENTS = np.array([[1, 2], [3, 0], [1, 2], [0, 5], [2, 1]], np.float32)
NAMES = ["a", "b", "c", "d", "e"]


def found(*sizes, depth=3, **options):
    search = ExactSearch(QUERIES, depth=depth, **options)
    first = 0
    for size in sizes:
        search.add(DOCUMENTS[first : first + size], NAMES[first : first + size])
        first += size
    return search.results()


EXPECTED = [
    [("b", 3.0), ("e", 2.0), ("a", 1.0)],
    [("d", 5.0), ("a", 2.0), ("c", 2.0)],
    [("d", 5.0), ("a", 3.0), ("b", 3.0)],
]


@pytest.mark.parametrize("sizes", [(5,), (1, 1, 1, 1, 1), (2, 3), (4, 1)])
def test_the_best_of_all_and_of_equal_ones_the_first(sizes):
    assert found(*sizes) == EXPECTED


@pytest.mark.parametrize("sizes", [(5,), (2, 3)])
def test_the_devices_product_finds_the_same(sizes, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert found(*sizes) == EXPECTED


def test_on_a_mesh_and_in_blocks_of_queries(monkeypatch):
    monkeypatch.setattr(searching, "_QUERIES_AT_ONCE", 2)
    assert found(3, 2, mesh=make_mesh(MeshConfig())) == EXPECTED


def test_fewer_documents_than_are_asked_for():
    assert found(2, depth=9)[0] == [("b", 3.0), ("a", 1.0)]
    assert found() == [[], [], []]


def test_the_document_of_a_querys_own_name_is_passed_over():
    got = found(2, 3, names=["b", "x", "d"])
    assert [[name for name, _ in one] for one in got] == [list("eac"), list("dac"), list("abc")]


def test_only_the_names_of_the_best_are_kept():
    search = ExactSearch(QUERIES[:1], depth=2)
    for i in range(50):
        search.add(np.array([[i, 0]], np.float32), [str(i)])
        assert len(search._documents) <= 2
    assert search.results() == [[("49", 49.0), ("48", 48.0)]]


def test_large_numbers_are_taken():
    search = ExactSearch(QUERIES[:1], depth=1)
    search.add(np.array([[1e30, 1e30]], np.float32), ["a"])
    assert search.results()[0][0][0] == "a"


def test_numbers_that_are_none_are_refused():
    broken = np.array([[np.nan, 0]], np.float32)
    with pytest.raises(InputError, match="the vector of a query is NaN or infinite"):
        ExactSearch(broken, depth=1)
    with pytest.raises(InputError, match="the vector of a document is NaN or infinite"):
        ExactSearch(QUERIES, depth=1).add(broken, ["a"])


@pytest.mark.parametrize("depth", [1, 7, 100])
def test_groups_find_what_sorting_all_finds(depth):
    """Whole numbers, so that many scores are equal and all are exact."""
    rng = np.random.default_rng(depth)
    queries = rng.integers(-2, 3, (5, 4)).astype(np.float32)
    documents = rng.integers(-2, 3, (3001, 4)).astype(np.float32)
    search = ExactSearch(queries, depth=depth, keeps_names=False)
    for first in range(0, 3001, 1200):
        search.add(documents[first : first + 1200])
    best = search.best()
    scores = queries @ documents.T
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    np.testing.assert_array_equal(best.rows, expected)
    np.testing.assert_array_equal(best.scores, np.take_along_axis(scores, expected, axis=1))
    assert best.seen == 3001


def test_a_search_goes_on_from_the_best_of_another():
    search = ExactSearch(QUERIES, depth=3)
    search.add(DOCUMENTS[:2])
    other = ExactSearch(QUERIES, depth=3, start=search.best(), keeps_names=False)
    other.add(DOCUMENTS[2:])
    rows = [[NAMES.index(name) for name, _ in one] for one in EXPECTED]
    assert other.best().rows.tolist() == rows
    assert other.best().seen == 5
