"""Which entries are chosen: exactly K, ties by path and index, in rounds, of groups."""

import numpy as np
import pytest

from t5x_lite.adapters.sparse import choose, kept, numbers_of, share
from t5x_lite.core.errors import InputError

SCORES = {"b": np.array([1.0, 5.0, 1.0, 0.0], np.float32), "a": np.ones((1, 3), np.float32)}
LAZY = {path: lambda path=path: SCORES[path] for path in SCORES}


def lists(places):
    return {path: indices.tolist() for path, indices in places.items()}


def test_ties_never_make_more_than_k():
    """A threshold at the K-th score takes all five entries of score 1."""
    assert lists(choose(LAZY, 1)) == {"b": [1]}
    assert lists(choose(LAZY, 3)) == {"a": [0, 1], "b": [1]}
    assert lists(choose(LAZY, 5)) == {"a": [0, 1, 2], "b": [0, 1]}
    assert lists(choose(LAZY, {"a": 1, "b": 2})) == {"a": [0], "b": [0, 1]}


def test_rounds_choose_more_and_keep_what_they_have():
    numbers = numbers_of({"a": 3, "b": 4}, 0.6, scope="global")
    assert numbers == 4
    assert share(numbers, 1, 2) == 2
    first = choose(LAZY, share(numbers, 1, 2))
    assert lists(first) == {"a": [0], "b": [1]}
    later = {path: lambda path=path: np.flip(SCORES[path]) for path in SCORES}
    both = choose(later, numbers, taken=first)
    assert lists(both) == {"a": [0, 1], "b": [1, 2]}
    assert lists(choose(LAZY, 3, taken={"b": np.array([3])})) == {"a": [0], "b": [1, 3]}
    each = numbers_of({"a": 3, "b": 4}, 0.6, scope="per_tensor")
    assert each == {"a": 2, "b": 2}
    assert share(each, 1, 2) == {"a": 1, "b": 1}
    with pytest.raises(InputError, match=r"density 0.01 of 7 entries selects no entry"):
        numbers_of({"a": 3, "b": 4}, 0.01, scope="global")


def test_masks_fall_within_what_was_left():
    first = kept(LAZY, 4 / 7, scope="global")
    assert {path: mask.astype(int).tolist() for path, mask in first.items()} == {
        "a": [[1, 1, 1]],
        "b": [0, 1, 0, 0],
    }
    high = {"a": LAZY["a"], "b": lambda: np.array([9.0, 0.0, 9.0, 9.0], np.float32)}
    then = kept(high, 3 / 7, scope="global", before=first)
    assert then["b"].tolist() == [False] * 4  # what was dropped does not come back
    whole = {"w": lambda: np.array([[1.0, 4.0], [2.0, 2.0], [0.0, 4.0]], np.float32)}
    rows = kept(whole, 0.34, scope="global", structure="rows")["w"]
    assert rows.tolist() == [[True, True], [False, False], [False, False]]
    columns = kept(whole, 0.5, scope="per_tensor", structure="columns")["w"]
    assert columns.tolist() == [[False, True]] * 3
