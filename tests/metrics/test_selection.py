import math

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.metrics.benchmarks import (
    best_step,
    contradiction,
    described,
    is_test,
    matching,
    mode_of,
    refuse_test,
)

NAMES = ["validation/loss", "validation/glue_rte/score", "validation/glue_cola/score", "test/score"]


def test_matching():
    assert matching("validation/loss", NAMES) == ["validation/loss"]
    assert matching("validation/*/score", NAMES) == NAMES[1:3]
    assert matching("*/score", NAMES) == NAMES[1:]
    assert matching("validation/accuracy", NAMES) == []
    assert matching("a[1]", ["a[1]", "a1"]) == ["a[1]", "a1"]


def test_a_test_split_chooses_nothing():
    for name in ("test/accuracy", "test/*/score", "Test/f1", "test_matched/accuracy"):
        with pytest.raises(InputError, match=r"checkpoints\.best .* by a test split"):
            refuse_test("checkpoints.best", name)
    for name in (None, "validation/accuracy", "validation_test/accuracy", "train/loss"):
        refuse_test("checkpoints.best", name)
    assert is_test("test")
    assert not is_test("latest")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("validation/loss", "min"),
        ("validation/cross_entropy", "min"),
        ("validation/decoder_cross_entropy", "min"),
        ("validation/z_loss", "min"),
        ("validation/detection_loss", "min"),
        ("validation/perplexity", "min"),
        ("validation/squared_error", "min"),
        ("validation/my_task/word_error_rate", "min"),
        ("validation/bag_of_words", "min"),
        ("loss", "min"),
        ("validation/accuracy", "max"),
        ("validation/error_detection_accuracy", "max"),
        ("validation/gloss", "max"),
        ("validation/glue_rte/score", "max"),
        ("validation/rouge2", "max"),
        ("loss/f1", "max"),
    ],
)
def test_the_name_says_which_value_is_best(name, mode):
    assert mode_of(name) == mode
    assert (mode_of(name, "max"), mode_of(name, "min")) == ("max", "min")


def test_the_best_step_is_the_last_of_equals_and_finite():
    values = {100: 1.0, 200: 3.0, 300: 3.0, 400: 1.0, 500: math.nan, 600: math.inf, 700: -math.inf}
    assert best_step(values, mode="max") == 300
    assert best_step(values, mode="min") == 400
    assert best_step({100: math.nan}, mode="max") is None
    assert best_step({}, mode="min") is None


def test_what_is_best_in_words():
    names = ["v/loss", "v/accuracy", *(f"v/{task}/score" for task in "abcd")]
    assert described(names) == (
        "the lowest v/loss, the highest v/accuracy, v/a/score, v/b/score and 2 more"
    )
    assert described(["v/loss"], "max") == "the highest v/loss"
    assert contradiction("checkpoints.best_mode", ["v/loss"], "max") == (
        "checkpoints.best_mode 'max' selects the highest v/loss, but the usual best is "
        "the lowest v/loss; set checkpoints.best_mode None for the usual direction"
    )
    assert contradiction("stop_early.mode", names, None) is None
    assert contradiction("stop_early.mode", ["v/loss"], "min") is None
