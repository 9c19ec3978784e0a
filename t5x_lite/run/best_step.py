"""The earlier place of `t5x_lite.inference.best_step`."""

from t5x_lite.inference.best_step import (
    Measured,
    Step,
    find_step,
    saved_metrics,
    told_at_end,
)

__all__ = [
    "Measured",
    "Step",
    "find_step",
    "saved_metrics",
    "told_at_end",
]
