"""Correlation of numbers: Pearson's and Spearman's coefficients, as STS-B uses them.

    pearson([1.0, 2.0, 3.0], [0.0, 1.0, 5.0])       # {"pearson_corrcoef": 0.9449...}

T5 writes a number as text, and -1 stands for text that is none (t5/data/postprocessors.py,
string_to_float); so does a prediction here that is not finite.
"""

from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import numpy as np
from jaxtyping import Float64

from t5x_lite.metrics.classification import check_lengths

INVALID = -1.0
"""What a prediction counts as that is no finite number."""


def pearson(
    targets: Sequence[SupportsFloat], predictions: Sequence[SupportsFloat]
) -> dict[str, float]:
    """Returns {"pearson_corrcoef": in [-1, 1]}: covariance over the product of the deviations.

    It is scipy.stats.pearsonr's, and 0 where either side is constant.

    Args:
      targets: finite numbers.
      predictions: as many numbers.

    Raises:
      ValueError: there are no targets, not as many predictions, or a target is not finite.
    """
    from scipy import stats

    def scaled(*sides: np.ndarray) -> Any:
        # The squares of huge and of tiny numbers leave the range of a float.
        return stats.pearsonr(*(values / np.abs(values).max() for values in sides))

    return {"pearson_corrcoef": _coefficient(scaled, targets, predictions)}


def spearman(
    targets: Sequence[SupportsFloat], predictions: Sequence[SupportsFloat]
) -> dict[str, float]:
    """Returns {"spearman_corrcoef": in [-1, 1]}: Pearson's of the ranks, equal values sharing one.

    It is scipy.stats.spearmanr's, and 0 where either side is constant.

    Args:
      targets: finite numbers.
      predictions: as many numbers.

    Raises:
      ValueError: there are no targets, not as many predictions, or a target is not finite.
    """
    from scipy import stats

    return {"spearman_corrcoef": _coefficient(stats.spearmanr, targets, predictions)}


def _coefficient(
    function: Callable[..., Any],
    targets: Sequence[SupportsFloat],
    predictions: Sequence[SupportsFloat],
) -> float:
    true, predicted = _numbers(targets, predictions)
    if (true == true[0]).all() or (predicted == predicted[0]).all():
        return 0.0
    return float(function(true, predicted)[0])


def _numbers(
    targets: Sequence[SupportsFloat], predictions: Sequence[SupportsFloat]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    check_lengths(targets, predictions)
    true = np.array([float(value) for value in targets])
    if not np.isfinite(true).all():
        raise ValueError("a correlation's targets must be finite numbers")
    predicted = np.array([float(value) for value in predictions])
    return true, np.where(np.isfinite(predicted), predicted, INVALID)
