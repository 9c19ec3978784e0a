"""TIES: trim, elect signs, and take the mean of those that agree (Yadav et al. 2023).

    1 trim    of each delta, weighted, the `density` of largest magnitude stays, over all entries
              of the arrays that it changes
    2 elect   the sign of an entry is that of the sum; of sum 0, that of the sum of all signs
    3 mean    of the entries that are not 0 and have that sign; times `scale`

arXiv:2306.01708. Other libraries trim each array by itself, or elect before they weight.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from t5x_lite.deltas.delta import Delta
from t5x_lite.deltas.merging import How, by_path, values_at
from t5x_lite.errors import InputError


@dataclasses.dataclass(frozen=True)
class Ties(How):
    """TIES merging of what is added to the arrays.

    Attributes:
      density: the share of a delta's entries that stays.
      scale: of the result; the paper's lambda.
    """

    density: float = 0.2
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.density <= 1.0:
            raise InputError(f"density must be above 0 and at most 1: got {self.density}")

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """The three steps.

        Raises:
          InputError: a weight is negative.
        """
        if any(weight < 0 for weight in weights):
            raise InputError(
                f"ties elects signs, so its weights may not be negative: got {tuple(weights)}; "
                "subtract the delta from the result"
            )
        kept = [delta.sparsify(density=self.density) for delta in deltas]
        thin = [weight * delta for delta, weight in zip(kept, weights, strict=True)]
        paths = sorted({path for delta in thin for path in delta.parts})
        signs = sum(float(np.sum(np.sign(sum(values_at(thin, path))))) for path in paths)
        majority = np.float32(np.sign(signs))
        return by_path(thin, self._mean(majority))

    def _mean(self, majority: np.float32) -> Callable[[str, Sequence[np.ndarray]], np.ndarray]:
        def mean(path: str, values: Sequence[np.ndarray]) -> np.ndarray:
            del path
            sign = np.sign(sum(values))
            sign = np.where(sign == 0, majority, sign)
            total, count = np.zeros_like(values[0]), np.zeros_like(values[0])
            for value in values:
                agrees = (np.sign(value) == sign) & (value != 0)
                total += np.where(agrees, value, 0)
                count += agrees
            return np.float32(self.scale) * total / np.maximum(count, 1)

        return mean
