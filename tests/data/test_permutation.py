import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.mixing import order


def whole(size, *, epoch=0, seed=7):
    return order(np.arange(size), np.full(size, epoch), size=size, seed=seed).tolist()


def test_the_order_of_a_seed_stays_as_it_is():
    """Saved positions mean nothing if it changes."""
    assert whole(5) == [4, 3, 1, 2, 0]
    assert whole(5, epoch=1) == [2, 3, 0, 1, 4]


@given(st.integers(1, 600), st.integers(0, 3), st.integers(0, 2**64))
def test_every_example_stands_once_in_an_epoch(size, epoch, seed):
    assert sorted(whole(size, epoch=epoch, seed=seed)) == list(range(size))


def test_places_of_any_epochs_may_be_asked_for_at_once():
    found = order(np.array([3, 3, 0]), np.array([1, 0, 1]), size=5, seed=7)
    assert found.tolist() == [whole(5, epoch=1)[3], whole(5)[3], whole(5, epoch=1)[0]]
    assert found.dtype == np.int64


def test_neighbours_are_far_apart_and_epochs_differ():
    first, second = np.array(whole(10_000)), np.array(whole(10_000, epoch=1))
    assert abs(np.corrcoef(first, np.arange(10_000))[0, 1]) < 0.03
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03


@pytest.mark.parametrize("seed", range(3))
def test_more_examples_than_fit_in_32_bits(seed):
    found = order(np.arange(1000), np.zeros(1000, np.int64), size=10**12, seed=seed)
    assert len(set(found.tolist())) == 1000
    assert 0 <= found.min() < 5e10
    assert 9.5e11 < found.max() < 10**12
