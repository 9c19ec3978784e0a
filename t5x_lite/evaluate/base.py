"""What an evaluator is."""

from typing import Protocol, runtime_checkable

from t5x_lite.types import Params


@runtime_checkable
class Evaluator(Protocol):
    """Measures parameters; made once, run as often as needed."""

    def run(self, params: Params) -> dict[str, float]:
        """Metrics by name, without the split's prefix."""
        ...
