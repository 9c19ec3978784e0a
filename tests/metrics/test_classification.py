import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.metrics.classification import (
    ClassTable,
    accuracy,
    f1,
    macro_f1,
    matthews,
    mean_multiclass_f1,
    weighted_f1,
)


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
    with pytest.raises(ValueError, match="there are 2 targets and 1 predictions"):
        metric([0, 1], [0])


def test_macro_and_weighted_f1():
    # Class 0: 2/3 (1 hit, 1 miss), class 1: 2/3 (1 hit, 1 false alarm).
    assert macro_f1([0, 0, 1], [0, 1, 1]) == {"macro_f1": pytest.approx(2 / 3)}
    # Class "a": 1, of 3 targets; class "b": 0, of one.
    given = (["a", "a", "a", "b"], ["a", "a", "a", "c"])
    assert macro_f1(*given) == {"macro_f1": pytest.approx(1 / 3)}
    assert weighted_f1(*given) == {"weighted_f1": pytest.approx(3 / 4)}


def test_no_label_is_wrong_and_is_not_a_class():
    assert macro_f1([0, 1], [0, -1]) == {"macro_f1": 0.5}
    assert weighted_f1([0, 1, -1], [0, -1, 1]) == {"weighted_f1": 0.5}
    assert macro_f1([-1], [0]) == {"macro_f1": 0.0}
    assert weighted_f1([-1], [0]) == {"weighted_f1": 0.0}


def test_groups_do_not_matter_for_f1():
    targets = [{"value": 0, "group": 1}, {"value": 1, "group": 1}]
    assert macro_f1(targets, [{"value": 0}, {"value": 0}]) == macro_f1([0, 1], [0, 0])


def test_the_table_of_classes():
    table = ClassTable.of(("no", "yes", "perhaps"), [0, 0, np.int64(1), -1], [0, 1, -1, 0])
    assert str(table).splitlines() == [
        "                  precision  recall      f1  support",
        "no                   1.0000  0.5000  0.6667        2",
        "yes                  0.0000  0.0000  0.0000        1",
        "perhaps              0.0000  0.0000  0.0000        0",
        "macro average        0.5000  0.2500  0.3333        3",
        "weighted average     0.6667  0.3333  0.4444        3",
        "target, predicted:  no  yes  perhaps  other",
        "no                   1    1        0      0",
        "yes                  0    0        0      1",
        "perhaps              0    0        0      0",
    ]
    content = json.loads(json.dumps(table.to_json()))
    assert content["confusion"] == [[1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert content["classes"]["no"] == {
        "precision": 1.0,
        "recall": 0.5,
        "f1": pytest.approx(2 / 3),
        "support": 2,
    }


def test_large_tables_have_no_confusions():
    table = ClassTable.of([str(i) for i in range(13)], [0], [0])
    assert "predicted:" not in str(table)
    assert table.to_json()["confusion"] is not None
    assert ClassTable.of([str(i) for i in range(201)], [200], [200]).to_json()["confusion"] is None
    assert ClassTable.of(("a", "b"), [], []).rows()["macro average"]["f1"] == 0.0


classes = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3)), min_size=1, max_size=30).map(
    lambda pairs: tuple(map(list, zip(*pairs, strict=True)))
)


@given(classes)
def test_f1_and_the_table_are_those_of_scikit_learn(pairs):
    reference = pytest.importorskip("sklearn.metrics")
    true, predicted = pairs
    for average, got in (
        ("macro", macro_f1(true, predicted)),
        ("weighted", weighted_f1(true, predicted)),
    ):
        labels = sorted({*true, *predicted} - {-1})
        options = {"labels": labels, "average": average, "zero_division": 0}
        assert got == {f"{average}_f1": pytest.approx(reference.f1_score(*pairs, **options))}
    table = ClassTable.of("abcd", true, predicted)
    wanted = reference.precision_recall_fscore_support(*pairs, labels=range(4), zero_division=0)
    np.testing.assert_allclose(table.scores(), wanted[:3], atol=1e-12)
    assert table.support.tolist() == wanted[3].tolist()
    confusion = reference.confusion_matrix(*pairs, labels=[0, 1, 2, 3, -1])
    assert table.confusion is not None
    assert table.confusion.tolist() == confusion[:4].tolist()
