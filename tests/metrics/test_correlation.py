import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.metrics.classification import pearson, spearman

PAIRS = st.lists(
    st.tuples(st.integers(-4, 4).map(float), st.floats(-1e3, 1e3, width=32)),
    min_size=3,
    max_size=40,
)


def test_pearson():
    assert pearson([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == {"pearson_corrcoef": pytest.approx(1.0)}
    # Deviations (-1, 0, 1) and (-2, -1, 3): 5 / sqrt(2 * 14).
    got = pearson([1.0, 2.0, 3.0], [0.0, 1.0, 5.0])
    assert got == {"pearson_corrcoef": pytest.approx(5 / math.sqrt(28))}


def test_spearman_is_of_ranks():
    got = spearman([1.0, 2.0, 3.0, 4.0], [1.0, 8.0, 27.0, 64.0])
    assert got == {"spearman_corrcoef": pytest.approx(1.0)}
    # Ranks (1, 2, 3) and (1.5, 1.5, 3): (0.5 + 1) / sqrt(2 * 1.5).
    got = spearman([1.0, 2.0, 3.0], [4.0, 4.0, 9.0])
    assert got == {"spearman_corrcoef": pytest.approx(1.5 / math.sqrt(3))}


def test_a_constant_and_a_single_example_correlate_with_nothing():
    for metric in (pearson, spearman):
        assert set(metric([1.0, 2.0, 3.0], [-1.0, -1.0, -1.0]).values()) == {0.0}
        assert set(metric([2.0, 2.0], [1.0, 3.0]).values()) == {0.0}
        assert set(metric([2.0], [1.0]).values()) == {0.0}


def test_what_is_no_finite_number_counts_as_t5_s_invalid():
    for metric in (pearson, spearman):
        targets = [1.0, 4.0, 5.0]
        bad = [math.nan, math.inf, 5.0]
        assert metric(targets, bad) == metric(targets, [-1.0, -1.0, 5.0])
    with pytest.raises(ValueError, match="finite"):
        pearson([math.nan, 1.0], [1.0, 2.0])


@given(PAIRS)
def test_values_near_each_other_give_finite_numbers(pairs):
    targets, predictions = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    for metric in (pearson, spearman):
        assert -1.0 <= next(iter(metric(targets, predictions).values())) <= 1.0


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_the_scale_does_not_matter(scale):
    got = pearson([1.0, 2.0, 3.0], [scale, 2 * scale, 4 * scale])["pearson_corrcoef"]
    assert math.isclose(got, 3 / math.sqrt(2 * 14 / 3))


@pytest.mark.parametrize("metric", [pearson, spearman])
def test_refuses_nothing_and_unequal_lengths(metric):
    with pytest.raises(ValueError, match="empty"):
        metric([], [])
    with pytest.raises(ValueError, match="there are 2 targets and 1 predictions"):
        metric([0.0, 1.0], [0.0])
