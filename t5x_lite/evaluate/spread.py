"""How much metrics differ between few-shot trials: by seed, by order and by wording.

    values = {Trial(seed=0): {"accuracy": 0.5}, Trial(seed=1): {"accuracy": 0.7}}
    spread(values)["accuracy"]
    # {"mean": 0.6, "min": 0.5, "max": 0.7, "std": 0.14,
    #  "seeds": {"min": 0.5, "max": 0.7, "std": 0.14}}

Over one of the three, the other two are held: of two orders of each of three seeds, "orders" is the
mean over the seeds of what the two orders of a seed give. Standard deviations are those of a
sample (n - 1). What does not vary has no entry.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.evaluate.few_shot import Trial

AXES = {"seeds": "seed", "orders": "order", "wordings": "template"}
"""What varies -> the field of a trial."""

Values = Mapping[Trial, Mapping[str, float]]
"""Trial -> its metrics."""


def means(values: Values) -> dict[str, float]:
    """The mean of each metric over all trials."""
    return {name: statistics.fmean(column) for name, column in _columns(values).items()}


def spread(values: Values) -> dict[str, dict[str, Any]]:
    """Mean, extremes and standard deviation of each metric, over all trials and over each axis."""
    trials = list(values)
    found = {}
    for name, column in _columns(values).items():
        own: dict[str, Any] = {"mean": statistics.fmean(column), **_extremes([column])}
        for axis, field in AXES.items():
            groups = _groups(trials, column, field=field)
            if len(groups[0]) > 1:
                own[axis] = _extremes(groups)
        found[name] = own
    return found


def table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The spreads of tasks as a table of text, values times 100.

    Args:
      rows: `spread` of each task, by its name.
    """
    names = ("task", "metric", "mean", "min", "max", "std")
    lines: list[tuple[str, ...]] = [(*names, *(f"std {axis}" for axis in AXES))]
    for task, metrics in rows.items():
        for metric, own in metrics.items():
            values = [own["mean"], own["min"], own["max"], own["std"]]
            values += [own[axis]["std"] if axis in own else None for axis in AXES]
            shown = ("-" if v is None else f"{100 * v:.2f}" for v in values)
            lines.append((task, metric, *shown))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _columns(values: Values) -> dict[str, list[float]]:
    """The values of each metric, in the order of the trials."""
    names = next(iter(values.values()), {})
    return {name: [metrics[name] for metrics in values.values()] for name in names}


def _groups(trials: Sequence[Trial], column: Sequence[float], *, field: str) -> list[list[float]]:
    """The values of trials that differ in one field alone."""
    groups: dict[Trial, list[float]] = {}
    for trial, value in zip(trials, column, strict=True):
        groups.setdefault(dataclasses.replace(trial, **{field: 0}), []).append(value)
    return list(groups.values())


def _extremes(groups: Sequence[Sequence[float]]) -> dict[str, float]:
    """Smallest and largest value and standard deviation of groups, each the mean over them."""
    return {
        "min": statistics.fmean(map(min, groups)),
        "max": statistics.fmean(map(max, groups)),
        "std": statistics.fmean(map(_deviation, groups)),
    }


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 of one value, NaN where a value is no number."""
    if not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) if len(values) > 1 else 0.0
