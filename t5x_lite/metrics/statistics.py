"""Bootstrap confidence intervals of metrics, and significance tests for two systems.

    interval(accuracy, targets, predictions, samples=1000, seed=0)      # {"accuracy": (0.61, 0.74)}

A bootstrap sample has as many examples as the data, sampled with replacement. Examples of one group
({"group", "value"}) are sampled together, because answers to the same question of MultiRC are not
independent. Equal seeds give equal intervals.

Fisher's paired randomization test estimates whether a difference of two systems is random:

    randomisation_test([0.5, 0.2, 0.9], [0.4, 0.2, 0.1], seed=0)    # 0.5, the p-value

Under the null hypothesis, the two values of each query can be exchanged. The p-value is the
fraction of exchanges with an absolute difference of means at least as large as the observed
difference. If up to 16 pairs differ, all exchanges are enumerated. Otherwise exchanges are sampled,
and the observed order is one of the samples.

Source: Smucker, Allan and Carterette 2007, "A comparison of statistical significance tests for
information retrieval evaluation".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.metrics.classification import check_lengths

Metric = Callable[[list[Any], list[Any]], Mapping[str, float]]


def interval(
    metric: Metric,
    targets: Sequence[Any],
    predictions: Sequence[Any],
    *,
    samples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Return the bootstrap confidence interval of each value of a metric, {name: (low, high)}.

    Args:
      metric: function (targets, predictions) -> {name: value}.
      targets: targets of the examples.
      predictions: predictions, one for each target.
      samples: number of bootstrap samples.
      level: fraction of the samples' values inside the interval.
      seed: random seed.

    Raises:
      ValueError: if the numbers of targets and predictions differ or are 0, `samples` is less than
        1, or `level` is not between 0 and 1.
    """
    check_lengths(targets, predictions)
    if samples < 1 or not 0 < level < 1:
        raise ValueError(
            f"samples must be at least 1 and level between 0 and 1, but are {samples} and {level}"
        )
    units = _units(targets)
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {}
    for _ in range(samples):
        chosen, wanted, given = rng.integers(0, len(units), len(units)), [], []
        for place, unit in enumerate(chosen):
            for row in units[unit]:
                wanted.append(_copy(targets[row], place))
                given.append(predictions[row])
        for name, value in metric(wanted, given).items():
            drawn.setdefault(name, []).append(float(value))
    tails = [(1 - level) / 2, (1 + level) / 2]
    ends = {name: np.quantile(values, tails) for name, values in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in ends.items()}


def _units(targets: Sequence[Any]) -> list[list[int]]:
    units: dict[Any, list[int]] = {}
    for row, target in enumerate(targets):
        units.setdefault(target["group"] if _is_grouped(target) else ("row", row), []).append(row)
    return list(units.values())


def _copy(target: Any, place: int) -> Any:
    """Return a target; a group number g becomes (place, g), to separate repeated groups."""
    if not _is_grouped(target):
        return target
    return {**target, "group": (place, target["group"])}


def _is_grouped(target: Any) -> bool:
    return isinstance(target, Mapping) and "group" in target


_ALL_EXCHANGES = 16
_AT_ONCE = 1 << 20


def randomisation_test(
    first: Sequence[float], second: Sequence[float], *, draws: int = 100_000, seed: int = 0
) -> float:
    """Return the two-sided p-value of the difference between two systems.

    Args:
      first: value of each query for one system.
      second: values for the other system, in the same order.
      draws: number of sampled exchanges if there are too many exchanges to enumerate.
      seed: random seed.

    Raises:
      ValueError: if the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(
            f"both systems need the same number of values, but have {len(first)} and {len(second)}"
        )
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences = differences[differences != 0]
    num = len(differences)
    if not num:
        return 1.0
    # Floating-point sums in another order differ in the last bits.
    least = abs(differences.sum()) * (1 - 1e-12)
    if num <= _ALL_EXCHANGES:
        bits = np.arange(1 << num)[:, None] >> np.arange(num) & 1
        return float(np.mean(np.abs((1 - 2.0 * bits) @ differences) >= least))
    rng, extreme, left = np.random.default_rng(seed), 0, draws
    while left:
        size = min(left, max(1, _AT_ONCE // num))
        signs = rng.integers(0, 2, (size, num)) * 2.0 - 1
        extreme += int((np.abs(signs @ differences) >= least).sum())
        left -= size
    return (extreme + 1) / (draws + 1)
