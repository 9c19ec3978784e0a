import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.metrics.classification import accuracy, f1, matthews, mean_multiclass_f1


def test_accuracy():
    assert accuracy([0, 1, 1, 1], [0, 1, 0, 1]) == {"accuracy": 0.75}
    assert accuracy(["json", "os"], ["json", "io"]) == {"accuracy": 0.5}
    assert accuracy([np.int64(1)], [1]) == {"accuracy": 1.0}


def test_f1_is_that_of_class_one():
    # 2 true positives, 1 false positive, 1 false negative.
    assert f1([1, 1, 1, 0, 0], [1, 1, 0, 1, 0]) == {"f1": 4 / 6}
    assert f1([0, 0], [0, 0]) == {"f1": 0.0}
    assert f1([1, 0], [1, 0]) == {"f1": 1.0}


def test_f1_counts_an_invalid_prediction_as_the_other_class():
    # -1 for target 1 is a miss, for target 0 a false alarm: TP 1, FP 1, FN 1.
    assert f1([1, 1, 0], [1, -1, -1]) == {"f1": 0.5}


def test_f1_refuses_other_targets():
    with pytest.raises(ValueError, match="must be 0 or 1"):
        f1([0, 2], [0, 0])


def test_mean_multiclass_f1():
    # Class 0: 2/3; class 1: 2/3; class 2 unseen: 0.
    got = mean_multiclass_f1([0, 1, 1], [0, 0, 1], num_classes=3)
    assert list(got) == ["mean_3class_f1"]
    assert math.isclose(got["mean_3class_f1"], 4 / 9)
    assert mean_multiclass_f1([0, 1], [0, -1], num_classes=2) == {"mean_2class_f1": 0.5}


@pytest.mark.parametrize(
    ("targets", "predictions", "expected"),
    [
        # TP 6, TN 3, FP 1, FN 2: (6 * 3 - 1 * 2) / sqrt(7 * 8 * 4 * 5).
        ([1] * 8 + [0] * 4, [1] * 6 + [0] * 2 + [1] + [0] * 3, 16 / math.sqrt(1120)),
        # scikit-learn's documented example.
        ([1, 1, 1, -1], [1, -1, 1, 1], -1 / 3),
        ([0, 1, 1], [0, 1, 1], 1.0),
        ([0, 1], [1, 0], -1.0),
        ([0, 1, 0, 1], [1, 1, 1, 1], 0.0),
        # Three classes: (2 * 3 - 3) / sqrt((9 - 3) * (9 - 5)).
        ([0, 1, 2], [0, 1, 1], 3 / math.sqrt(24)),
    ],
)
def test_matthews(targets, predictions, expected):
    got = matthews(targets, predictions)
    assert list(got) == ["matthews_correlation"]
    assert math.isclose(got["matthews_correlation"], expected, abs_tol=1e-12)


LABELS = st.integers(1, 20).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 2), min_size=n, max_size=n),
        st.lists(st.integers(-1, 2), min_size=n, max_size=n),
    )
)
DEGENERATE = [
    ([0], [0]), ([0], [1]), ([1, 1, 1], [1, 1, 1]), ([0, 0], [0, 0]), ([1, 1], [0, 0]),
    ([0, 1, 0, 1], [1, 1, 1, 1]), ([0, 1, 2], [1, 2, 0]), ([2, 2, 2], [-1, -1, -1]),
]  # fmt: skip


def assert_equal_to_scikit_learn(targets, predictions):
    sklearn = pytest.importorskip("sklearn.metrics")
    expected = sklearn.accuracy_score(targets, predictions)
    assert accuracy(targets, predictions)["accuracy"] == pytest.approx(expected)
    expected = sklearn.matthews_corrcoef(targets, predictions)
    assert matthews(targets, predictions)["matthews_correlation"] == pytest.approx(expected)
    expected = sklearn.f1_score(
        targets, predictions, labels=[0, 1, 2], average="macro", zero_division=0
    )
    got = mean_multiclass_f1(targets, predictions, num_classes=3)["mean_3class_f1"]
    assert got == pytest.approx(expected)
    two = [min(target, 1) for target in targets]
    # T5's rule for a prediction that is no label: it is the class that the target is not.
    valid = [p if p in (0, 1) else 1 - t for t, p in zip(two, predictions, strict=True)]
    expected = sklearn.f1_score(two, valid, zero_division=0)
    assert f1(two, predictions)["f1"] == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@given(LABELS)
@pytest.mark.slow
def test_equal_to_scikit_learn(labels):
    assert_equal_to_scikit_learn(*labels)


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@pytest.mark.parametrize(("targets", "predictions"), DEGENERATE)
def test_degenerate_labels_are_equal_to_scikit_learn(targets, predictions):
    assert_equal_to_scikit_learn(targets, predictions)


@pytest.mark.parametrize("metric", [accuracy, f1, matthews])
def test_refuses_nothing_and_unequal_lengths(metric):
    with pytest.raises(ValueError, match="empty"):
        metric([], [])
    with pytest.raises(ValueError, match="got 2 targets and 1 predictions"):
        metric([0, 1], [0])
