"""The checks that commands share."""

import pytest

from t5x_lite.commands.options import at_least, some_directory
from t5x_lite.options import OptionError


def test_a_number_below_the_minimum_is_refused():
    at_least(1, {"--size": 1, "--step": None})
    with pytest.raises(OptionError, match="--size must be at least 1, got 0"):
        at_least(1, {"--step": None, "--size": 0})


def test_no_directory_is_refused():
    some_directory(("work",))
    with pytest.raises(OptionError, match="--checkpoint needs at least one directory"):
        some_directory(())
