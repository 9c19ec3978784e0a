import numpy as np
import pytest

from t5x_lite.adapters.delta import count_of, largest
from t5x_lite.core.errors import InputError


def chosen(arrays, k):
    lazy = {path: lambda x=x: np.asarray(x, np.float32) for path, x in arrays.items()}
    return {path: places.tolist() for path, _, places in largest(lazy, k) if places.size}


def test_ties_go_by_path_and_then_by_place():
    arrays = {"b": [1.0, -3.0, 1.0], "a": [[1.0, 0.5], [-1.0, 2.0]]}
    assert chosen(arrays, 2) == {"b": [1], "a": [3]}
    assert chosen(arrays, 3) == {"b": [1], "a": [0, 3]}
    assert chosen(arrays, 5) == {"b": [0, 1], "a": [0, 2, 3]}
    assert chosen(arrays, 7) == {"b": [0, 1, 2], "a": [0, 1, 2, 3]}
    assert chosen(arrays, 0) == {}


@pytest.mark.parametrize("k", [1, 40, 311, 400])
def test_as_sorting(k):
    rng = np.random.default_rng(k)
    arrays = {name: np.round(rng.standard_normal(100), 1) for name in "dbca"}
    every = [
        (-abs(np.float32(x)), path, i) for path, xs in arrays.items() for i, x in enumerate(xs)
    ]
    expected = {}
    for _, path, i in sorted(every)[:k]:
        expected.setdefault(path, []).append(i)
    assert chosen(arrays, k) == {path: sorted(places) for path, places in expected.items()}


def test_how_many():
    assert count_of(1000, density=0.0125) == 12
    assert count_of(10, k=10) == 10
    for options, reason in (
        ({}, "exactly one of k"),
        ({"k": 1, "density": 0.5}, "exactly one of k"),
        ({"density": 1.5}, "from 0 to 1, got 1.5"),
        ({"k": 11}, "from 0 to the number of entries .10., got 11"),
    ):
        with pytest.raises(InputError, match=reason):
            count_of(10, **options)
