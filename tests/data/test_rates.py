import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.core.errors import InputError
from t5x_lite.data.mixing import (
    CACHE_PERIOD,
    Mixing,
    cache_rates,
    rate_num_examples,
    rate_unsupervised,
)


def test_rate_num_examples_limits_before_it_takes_the_root():
    assert rate_num_examples(392_702) == 392_702.0
    assert rate_num_examples(392_702, maximum=2**16) == 65_536.0
    assert rate_num_examples(250, maximum=2**16) == 250.0
    assert rate_num_examples(392_702, maximum=2**16, temperature=2.0) == 256.0
    assert rate_num_examples(8_000, temperature=3.0) == pytest.approx(20.0)
    assert rate_num_examples(100, scale=3.0, maximum=200) == 200.0
    assert rate_num_examples(100, maximum=0) == 100.0  # as in seqio, 0 is no limit


def test_rate_unsupervised_is_a_constant():
    assert rate_unsupervised() == 1_000_000.0
    assert rate_unsupervised(710_000) == 710_000.0


@given(
    st.integers(1, 10**9),
    st.none() | st.integers(1, 10**7),
    st.floats(0.5, 8.0),
    st.floats(0.01, 10.0),
)
def test_equal_to_seqio_s_formula(examples, maximum, temperature, scale):
    # seqio.mixing_rate_num_examples, without its task.
    expected = examples * scale
    if maximum:
        expected = min(expected, maximum)
    if temperature != 1.0:
        expected = expected ** (1.0 / temperature)
    got = rate_num_examples(examples, maximum=maximum, temperature=temperature, scale=scale)
    assert got == expected


def test_mixing_makes_rates():
    assert Mixing().rate(250) == 250.0
    assert Mixing(by="equal").rate(250) == 1.0
    assert Mixing(maximum=100, temperature=2.0).rate(250) == 10.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maximum": 0}, "data.mixing.maximum must be at least 1: got 0"),
        ({"unlabelled": 0}, "data.mixing.unlabelled must be at least 1: got 0"),
        ({"by": "equal", "unlabelled": 9}, "unset data.mixing.unlabelled"),
        ({"temperature": 0.0}, "temperature must be above 0: got 0.0"),
        ({"temperature": math.inf}, "temperature must be finite: got inf"),
        ({"by": "equal", "maximum": 8}, "have no effect with data.mixing.by equal"),
        ({"by": "equal", "temperature": 2.0}, "have no effect with data.mixing.by equal"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Mixing(**settings)


def test_cache_rates():
    assert cache_rates([8551, 250]) == [9716, 284]
    assert cache_rates([1.0, 1.0, 1.0]) == [3334, 3333, 3333]
    assert cache_rates([1e9, 1.0]) == [9999, 1]
    assert cache_rates([1e9, 1.0, 1.0]) == [9998, 1, 1]
    assert cache_rates([5.0]) == [10_000]


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=40))
def test_cache_rates_are_near(rates):
    found = cache_rates(rates)
    assert sum(found) == CACHE_PERIOD
    assert min(found) >= 1
    for rate, whole in zip(rates, found, strict=True):
        # Each may give one place to every cache that must have one and is due less.
        assert abs(whole - rate / sum(rates) * CACHE_PERIOD) <= 1 + len(rates)
