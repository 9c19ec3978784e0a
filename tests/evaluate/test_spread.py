"""Mean and spread over seeds, orders and wordings."""

import math

import pytest

from t5x_lite.data.few_shot import Trial
from t5x_lite.evaluate.few_shot_trials import means, spread, table

VALUES = {
    Trial(seed=0, order=0): {"accuracy": 0.5},
    Trial(seed=0, order=1): {"accuracy": 0.7},
    Trial(seed=1, order=0): {"accuracy": 0.9},
    Trial(seed=1, order=1): {"accuracy": 0.9},
}


def test_the_axes_are_held_one_by_one():
    assert means(VALUES) == {"accuracy": pytest.approx(0.75)}
    found = spread(VALUES)["accuracy"]
    assert found.pop("seeds") == {
        "min": pytest.approx((0.5 + 0.7) / 2),
        "max": pytest.approx(0.9),
        "std": pytest.approx((0.4 + 0.2) / math.sqrt(2) / 2),
    }
    assert found.pop("orders") == {
        "min": pytest.approx((0.5 + 0.9) / 2),
        "max": pytest.approx((0.7 + 0.9) / 2),
        "std": pytest.approx(0.2 / math.sqrt(2) / 2),
    }
    assert found == {
        "mean": pytest.approx(0.75),
        "min": 0.5,
        "max": 0.9,
        "std": pytest.approx(0.1915, abs=1e-4),
    }


def test_one_trial_has_no_spread():
    assert spread({Trial(): {"f1": 0.25}}) == {
        "f1": {"mean": 0.25, "min": 0.25, "max": 0.25, "std": 0.0}
    }
    assert math.isnan(spread({Trial(): {"f1": math.nan}})["f1"]["std"])


def test_the_table():
    assert table({"rte": spread(VALUES)}).splitlines() == [
        "task  metric     mean    min    max    std  std seeds  std orders  std wordings",
        "rte   accuracy  75.00  50.00  90.00  19.15      21.21        7.07             -",
    ]
