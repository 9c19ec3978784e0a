import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.metrics.benchmarks import interval
from t5x_lite.metrics.classification import accuracy
from t5x_lite.metrics.text import multirc_exact_match


def test_what_never_varies_has_no_width():
    got = interval(accuracy, [1, 1, 1], [1, 1, 1], samples=20)
    assert got == {"accuracy": (1.0, 1.0)}
    assert interval(accuracy, [1], [0], samples=5) == {"accuracy": (0.0, 0.0)}


def test_equal_seeds_are_equal():
    targets, predictions = [0, 1] * 20, [0, 1, 1, 1] * 10
    first = interval(accuracy, targets, predictions, samples=50, seed=1)
    assert first == interval(accuracy, targets, predictions, samples=50, seed=1)
    assert first != interval(accuracy, targets, predictions, samples=50, seed=2)


@pytest.mark.slow
def test_the_width_is_that_of_a_binomial_proportion():
    # 300 of 400 right: the standard error is sqrt(0.75 * 0.25 / 400) = 0.0217.
    low, high = interval(accuracy, [1] * 400, [1] * 300 + [0] * 100, samples=1000)["accuracy"]
    assert low == pytest.approx(0.75 - 1.96 * 0.0217, abs=0.006)
    assert high == pytest.approx(0.75 + 1.96 * 0.0217, abs=0.006)


@given(st.lists(st.booleans(), min_size=1, max_size=20), st.floats(0.1, 0.99))
def test_a_wider_level_holds_a_narrower_one(right, level):
    targets = [1] * len(right)
    predictions = [int(value) for value in right]
    wide = interval(accuracy, targets, predictions, samples=30, level=0.995)["accuracy"]
    narrow = interval(accuracy, targets, predictions, samples=30, level=level)["accuracy"]
    assert 0 <= wide[0] <= narrow[0] <= narrow[1] <= wide[1] <= 1


def test_groups_are_drawn_whole():
    # Two questions of two answers, one of them right: every sample has 0, 1/2 or 1; a sample of
    # single answers could break a question up.
    targets = [{"group": q, "value": 1} for q in (0, 0, 1, 1)]
    predictions = [{"group": q, "value": q} for q in (0, 0, 1, 1)]
    values = set()
    for seed in range(20):
        got = interval(multirc_exact_match, targets, predictions, samples=1, seed=seed)
        values.add(got["exact_match"][0])
    assert values == {0.0, 0.5, 1.0}


@pytest.mark.parametrize(("samples", "level"), [(0, 0.9), (1, 0.0), (1, 1.0)])
def test_refuses_what_is_no_sample_and_no_level(samples, level):
    with pytest.raises(ValueError, match="samples must be at least 1"):
        interval(accuracy, [1], [1], samples=samples, level=level)
    with pytest.raises(ValueError, match="empty"):
        interval(accuracy, [], [])
