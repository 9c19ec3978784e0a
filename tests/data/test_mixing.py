from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.core.errors import InputError
from t5x_lite.data.mixing import Schedule, parse_sources


def test_one_cache_needs_no_rate():
    assert parse_sources("caches/prose") == [("caches/prose", 1)]
    assert parse_sources(("caches/prose",)) == [("caches/prose", 1)]
    assert parse_sources("caches/prose=2") == [("caches/prose", 1)]


def test_rates_are_shares_of_their_sum():
    assert parse_sources(("a=0.7", "b=.3")) == [("a", Fraction(7, 10)), ("b", Fraction(3, 10))]
    assert parse_sources(("a=2", "b=1")) == [("a", Fraction(2, 3)), ("b", Fraction(1, 3))]


def test_a_directory_whose_name_ends_in_a_number(tmp_path):
    directory = tmp_path / "rate=0.1"
    assert parse_sources(str(directory)) == [(str(tmp_path / "rate"), 1)]
    directory.mkdir()
    assert parse_sources(str(directory)) == [(str(directory), 1)]
    assert parse_sources((f"{directory}=1", "b=1"))[0] == (str(directory), Fraction(1, 2))


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (("a", "b=0.5"), "'a' has no rate; write each of several caches as DIRECTORY=RATE"),
        (("a=x", "b=0.5"), "'a=x' has no rate"),
        (("a=0", "b=1"), "the rate of a must be more than 0"),
        (("a=1", "a=1"), "names the cache a twice"),
        ((), "must name directories"),
        (("",), "must name directories"),
    ],
)
def test_what_is_no_mixture_is_refused(cache, message):
    with pytest.raises(InputError, match=message):
        parse_sources(cache)


def rates(*weights):
    return [Fraction(weight, sum(weights)) for weight in weights]


def test_the_order_of_three_to_one():
    sources, numbers = Schedule(rates(3, 1)).at(np.arange(6))
    assert sources.tolist() == [0, 0, 1, 0, 0, 0]
    assert numbers.tolist() == [0, 1, 0, 2, 3, 4]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_every_beginning_has_the_rates_to_less_than_one_example(weights):
    schedule = Schedule(rates(*weights))
    places = np.arange(2 * schedule.period + 3)
    sources, numbers = schedule.at(places)
    for source, rate in enumerate(rates(*weights)):
        of = sources == source
        assert numbers[of].tolist() == list(range(of.sum()))
        given_before = np.concatenate([[0], of.cumsum()])
        assert np.abs(given_before - np.arange(len(places) + 1) * float(rate)).max() < 1 - 1e-9
        assert schedule.counts(len(places))[source] == of.sum()


def test_places_far_off_are_arithmetic():
    schedule = Schedule(rates(7, 3))
    sources, numbers = schedule.at(np.array([10**15, 10**15 + 1]))
    assert numbers.tolist() == [7 * 10**14, 3 * 10**14]
    assert sources.tolist() == [0, 1]


def test_rates_of_no_common_denominator_are_refused():
    with pytest.raises(InputError, match="common denominator 364868892000, above the"):
        Schedule([Fraction(1, 364868892000), Fraction(364868891999, 364868892000)])
