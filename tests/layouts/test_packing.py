import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.layouts.base import first_fit


def test_an_example_goes_to_the_first_row_with_room():
    assert first_fit(np.array([[4, 3], [9, 2], [5, 2]]), capacity=(10, 7)).tolist() == [0, 1, 0]
    assert first_fit(np.array([[4], [7], [5], [1], [3]]), capacity=(10,)).tolist() == [
        0, 1, 0, 0, 1,
    ]  # fmt: skip


def test_every_feature_must_fit():
    assert first_fit(np.array([[1, 5], [1, 5], [1, 2]]), capacity=(10, 7)).tolist() == [0, 1, 0]


def test_a_row_that_is_full_takes_nothing_more():
    assert first_fit(np.array([[7], [7], [7]]), capacity=(7,)).tolist() == [0, 1, 2]


def test_no_examples():
    assert first_fit(np.zeros((0, 2), np.int64), capacity=(3, 3)).tolist() == []


def test_an_example_that_no_row_holds_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        first_fit(np.array([[3, 1], [11, 1]]), capacity=(10, 7))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=60))
def test_against_the_rule_written_out(lengths):
    expected, free = [], []
    for a, b in lengths:
        row = next((i for i, (x, y) in enumerate(free) if x >= a and y >= b), len(free))
        if row == len(free):
            free.append([9, 6])
        free[row] = [free[row][0] - a, free[row][1] - b]
        expected.append(row)
    assert first_fit(np.array(lengths), capacity=(9, 6)).tolist() == expected
