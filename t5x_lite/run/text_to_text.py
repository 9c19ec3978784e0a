"""The earlier place and name of `t5x_lite.inference.checkpoint.Checkpoint`."""

from t5x_lite.inference.checkpoint import Checkpoint as TextToText
from t5x_lite.inference.checkpoint import check_finite, find_steps

__all__ = ["TextToText", "check_finite", "find_steps"]
