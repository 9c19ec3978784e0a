import math

import pytest

from t5x_lite.config.evaluation import EarlyStopping, Patience
from t5x_lite.core.errors import InputError


def exhausted_after(values, **fields):
    """How many evaluations end the run; None where they do not."""
    patience = Patience(EarlyStopping(metric="validation/loss", **fields))
    for number, value in enumerate(values, 1):
        patience.add({"validation/loss": value, "validation/other": 0.0})
        if patience.exhausted:
            return number
    return None


@pytest.mark.parametrize(
    ("values", "fields", "expected"),
    [
        ([3.0, 2.0, 2.5, 2.25], {"patience": 2}, 4),
        ([3.0, 2.0, 2.5, 1.5, 2.0, 2.0], {"patience": 2}, 6),
        ([3.0, 2.0, 2.5, 1.5, 2.0], {"patience": 2}, None),
        ([1.0, 1.0], {"patience": 1}, 2),
        ([1.0, 2.0, 3.0], {"patience": 1}, 2),
        ([1.0, 2.0, 3.0, 2.0], {"patience": 1, "mode": "max"}, 4),
        ([3.0, 2.9, 2.8, 2.6], {"patience": 2, "min_delta": 0.25}, 3),
        ([3.0, 2.9, 2.7, 2.6], {"patience": 2, "min_delta": 0.25}, None),
        ([math.nan, 1.0, math.nan, math.nan], {"patience": 2}, 4),
        ([1.0, -math.inf, math.inf], {"patience": 2}, 3),
    ],
)
def test_exhausted_after(values, fields, expected):
    assert exhausted_after(values, **fields) == expected


def test_a_run_that_is_resumed_ends_where_it_would_have():
    config = EarlyStopping(metric="validation/loss", patience=2)
    before = [{"validation/loss": 2.0}, {"validation/y": 9.0}, {"validation/loss": 3.0}]
    patience = Patience(config, before)
    assert not patience.exhausted
    patience.add({"validation/loss": 2.5})
    assert patience.exhausted
    assert Patience(config, [*before, {"validation/loss": 2.5}]).exhausted
    assert str(patience) == "validation/loss has not improved for 2 evaluations (best 2.0000)"


def test_the_metric_s_name_says_what_is_best():
    config = EarlyStopping(metric="validation/accuracy", patience=2)
    improving = [{"validation/accuracy": value} for value in (0.25, 0.5, 0.75, 1.0)]
    patience = Patience(config, improving)
    assert not patience.exhausted
    for _ in range(2):
        patience.add({"validation/accuracy": 0.5})
    assert str(patience) == "validation/accuracy has not improved for 2 evaluations (best 1.0000)"
    worse = Patience(EarlyStopping(metric="validation/loss", mode="max", patience=1))
    worse.add({"validation/loss": 1.0})
    worse.add({"validation/loss": 2.0})
    assert not worse.exhausted  # what is set counts


def test_no_metric_never_ends():
    patience = Patience(EarlyStopping(), [{"validation/x": 1.0}] * 9)
    assert not patience.exhausted


def test_an_unknown_metric():
    patience = Patience(EarlyStopping(metric="validation/los"))
    with pytest.raises(InputError, match="'validation/los', but the evaluation has the metrics"):
        patience.add({"validation/loss": 1.0})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patience": 0}, "stop_early.patience must be at least 1: got 0"),
        ({"min_delta": -0.5}, "stop_early.min_delta must be at least 0: got -0.5"),
        ({"min_delta": math.nan}, "stop_early.min_delta must be at least 0: got nan"),
    ],
)
def test_bad_settings(fields, message):
    with pytest.raises(InputError, match=message):
        EarlyStopping(metric="validation/x", **fields)
