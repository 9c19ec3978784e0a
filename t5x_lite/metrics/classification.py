"""Metrics of class labels: accuracy, F1 and Matthews correlation, as GLUE and SuperGLUE use them.

    accuracy([0, 1, 1, 1], [0, 1, 0, 1])        # {"accuracy": 0.75}

A prediction that is no valid label (T5 writes text, and -1 stands for text that is no label) is
wrong in all of them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Returns {"accuracy": the fraction of predictions that equal their target}.

    Args:
      targets: labels of any type that compares with ==.
      predictions: as many labels.

    Raises:
      ValueError: there are no targets, or not as many predictions.
    """
    check_lengths(targets, predictions)
    equal = [bool(t == p) for t, p in zip(targets, predictions, strict=True)]
    return {"accuracy": sum(equal) / len(equal)}


def f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Returns {"f1": F1 of class 1 of two}: 2 TP / (2 TP + FP + FN), and 0 if that is 0 / 0.

    Args:
      targets: 0 or 1.
      predictions: 0 or 1; anything else counts as the class that the target is not, as in T5
        (f1_score_with_invalid in google-research/text-to-text-transfer-transformer).

    Raises:
      ValueError: there are no targets, not as many predictions, or a target is not 0 or 1.
    """
    check_lengths(targets, predictions)
    true, predicted = np.asarray(targets), np.asarray(predictions)
    if not np.isin(true, (0, 1)).all():
        raise ValueError(f"F1's targets must be 0 or 1; got {sorted(set(true.tolist()))}")
    predicted = np.where(np.isin(predicted, (0, 1)), predicted, 1 - true)
    return {"f1": _class_f1(true == 1, predicted == 1)}


def mean_multiclass_f1(
    targets: Sequence[int], predictions: Sequence[int], *, num_classes: int
) -> dict[str, float]:
    """Returns {"mean_<C>class_f1": the mean over classes of each class's F1}; CommitmentBank's.

    Args:
      targets: classes 0 .. num_classes - 1.
      predictions: as many classes; anything else is no class.
      num_classes: number of classes that the mean is over, seen or not (an unseen one counts 0).

    Raises:
      ValueError: there are no targets, or not as many predictions.
    """
    check_lengths(targets, predictions)
    true, predicted = np.asarray(targets), np.asarray(predictions)
    scores = [_class_f1(true == c, predicted == c) for c in range(num_classes)]
    return {f"mean_{num_classes}class_f1": sum(scores) / num_classes}


def matthews(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Returns {"matthews_correlation": in [-1, 1]}; 0 if either side has one class only.

    Matthews 1975 for two classes, Gorodkin 2004 ("Comparing two K-category assignments by a
    K-category correlation coefficient") for more, of which two classes are a case.

    Args:
      targets: class numbers.
      predictions: as many class numbers; one that no target has is a class of its own.

    Raises:
      ValueError: there are no targets, or not as many predictions.
    """
    check_lengths(targets, predictions)
    classes = np.unique(np.concatenate([targets, predictions]))
    true = np.asarray(targets)[:, None] == classes
    predicted = np.asarray(predictions)[:, None] == classes
    n = len(true)
    # Exact in integers: n^2 times the covariance of two one-hot assignments.
    by_class, by_prediction = true.sum(axis=0), predicted.sum(axis=0)
    covariance = int((true & predicted).sum()) * n - int(by_class @ by_prediction)
    spread = (n * n - int(by_class @ by_class)) * (n * n - int(by_prediction @ by_prediction))
    return {"matthews_correlation": covariance / spread**0.5 if spread else 0.0}


def check_lengths(targets: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Checks that a metric has something to compare.

    Raises:
      ValueError: there are no targets, or not as many predictions.
    """
    if len(targets) != len(predictions):
        raise ValueError(
            f"a metric needs one prediction for each target; "
            f"got {len(targets)} targets and {len(predictions)} predictions"
        )
    if len(targets) == 0:
        raise ValueError("a metric needs at least one target; got an empty sequence")


def _class_f1(true: np.ndarray, predicted: np.ndarray) -> float:
    """Returns F1 of the True class of two boolean arrays [n], 0 where it is not defined."""
    hits = int((true & predicted).sum())
    found_and_wanted = int(true.sum()) + int(predicted.sum())
    return 2 * hits / found_and_wanted if found_and_wanted else 0.0
