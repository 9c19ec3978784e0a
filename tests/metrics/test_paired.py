import numpy as np
import pytest

from t5x_lite.metrics.benchmarks import randomisation_test


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([0.5, 0.2], [0.5, 0.2], 1.0),
        ([1.0], [0.0], 1.0),
        ([1.0, 1.0], [0.0, 0.0], 0.5),
        ([1.0, 1.0, 1.0, 0.3], [0.0, 0.0, 0.0, 0.3], 0.25),
        ([1.0, 0.0], [0.0, 1.0], 1.0),
        ([0.1] * 10, [0.3] * 10, 2 / 1024),
    ],
)
def test_all_exchanges(first, second, expected):
    assert randomisation_test(first, second) == pytest.approx(expected)
    assert randomisation_test(second, first) == pytest.approx(expected)


def test_draws_are_near_what_all_exchanges_give(monkeypatch):
    rng = np.random.default_rng(0)
    first, second = rng.random(14).tolist(), (rng.random(14) - 0.2).tolist()
    exact = randomisation_test(first, second)
    monkeypatch.setattr("t5x_lite.metrics.benchmarks._ALL_EXCHANGES", 0)
    drawn = [randomisation_test(first, second, draws=20_000, seed=seed) for seed in (0, 0, 1)]
    assert drawn == pytest.approx([exact] * 3, abs=0.01)
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_is_no_pair():
    with pytest.raises(ValueError, match="1 and 2"):
        randomisation_test([1.0], [1.0, 2.0])
