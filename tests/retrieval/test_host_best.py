"""The best of chunks by NumPy: as a stable sort of all scores has them, ties among them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_lite.retrieval.exact import better


def found(product, sizes, *, depth, own=None):
    """The best of all columns, searched in chunks that are filled up to the largest."""
    num = len(product)
    scores = np.full((num, depth), -np.inf, np.float32)
    rows = np.full((num, depth), -1, np.int32)
    first = 0
    for size in sizes:
        chunk = np.full((num, max(sizes)), 99, np.float32)  # what is behind them is none
        chunk[:, :size] = product[:, first : first + size]
        inside = np.full(num, -1, np.int32) if own is None else own - first
        inside = np.where((inside >= 0) & (inside < size), inside, -1).astype(np.int32)
        scores, rows = better(scores, rows, chunk, own=inside, count=size, first=first)
        first += size
    return scores, rows


def expected(product, *, depth, own=None):
    product = product.copy()
    if own is not None:
        product[np.arange(len(product)), own] = -np.inf
    order = np.argsort(-product, axis=1, kind="stable")[:, :depth]
    scores = np.take_along_axis(product, order, axis=1)
    return scores, np.where(scores == -np.inf, -1, order)


@pytest.mark.parametrize("spread", [1, 3, 1000])
@pytest.mark.parametrize("sizes", [(5000,), (2048, 2048, 904), (1, 4999)])
def test_as_a_stable_sort_has_them(spread, sizes):
    """Of equal scores, of few different ones, and of many."""
    rng = np.random.default_rng(0)
    product = rng.integers(0, spread, (7, 5000)).astype(np.float32)
    own = rng.integers(0, 5000, 7)
    for depth in (1, 10, 100):
        for passed in (None, own):
            ours = found(product, sizes, depth=depth, own=passed)
            for one, other in zip(ours, expected(product, depth=depth, own=passed), strict=True):
                np.testing.assert_array_equal(one, other)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
)
def test_small_ones(num, sizes, depth, seed):
    rng = np.random.default_rng(seed)
    product = rng.integers(-2, 3, (num, sum(sizes))).astype(np.float32)
    scores, rows = found(product, sizes, depth=depth)
    theirs = expected(product, depth=depth)
    width = theirs[0].shape[1]
    np.testing.assert_array_equal(scores[:, :width], theirs[0])
    np.testing.assert_array_equal(rows[:, :width], theirs[1])
    assert (rows[:, width:] == -1).all()
    assert (scores[:, width:] == -np.inf).all()
