"""Checks of numbers and of choices."""

import pytest

from t5x_lite.config.checks import at_least, one_of
from t5x_lite.errors import InputError


def test_at_least():
    at_least(1, {"steps": 1, "keep": None})
    for value in (0, -1, True, 1.5, "2"):
        with pytest.raises(InputError, match=r"^steps must be a whole number of at least 1, got"):
            at_least(1, {"steps": value})


def test_one_of():
    one_of(("max", "min"), {"mode": "min"})
    with pytest.raises(InputError, match=r"^mode must be max or min, got 'mid'$"):
        one_of(("max", "min"), {"mode": "mid"})
