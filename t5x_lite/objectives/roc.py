"""The area under the ROC curve as sums: of a metric that is no quotient of two of them.

The area is the share of pairs of a positive and a negative in which the positive has the larger
logit, equal ones counting half. It needs all logits at once; what can be added up over batches,
devices and hosts is their histogram, in bins that are fixed beforehand:

    Roc.of(logits, labels, weights).area()

    logits -3, 1 negative; 1.01, 4 positive: the pair (1, 1.01) shares a bin and counts half, as a
    tie; the area is (3 + 1/2) / 4

`BINS` bins of equal width divide the logits from -`LARGEST` to `LARGEST`; the first and the last
have all that lies beyond. Only pairs within one bin can be counted wrong, each by a half at most:

    |area() - exact area|  <=  1/2 sum_b  p_b n_b  =  `error`

with p_b and n_b the parts of the positives and of the negatives that lie in bin b. With logits
spread over a range of width 4 that is about 1/2 / 256 = 0.002 at most.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float

from t5x_lite.types import Array

BINS, LARGEST = 2048, 16.0


class Roc(NamedTuple):
    """Two histograms, which are added up like any sums.

    Attributes:
      positives: weights of the positives in each bin; float32, or NumPy's float64.
      negatives: weights of the negatives.
    """

    positives: Any
    negatives: Any

    @classmethod
    def of(
        cls,
        logits: Float[Array, "*batch"],
        labels: Bool[Array, "*batch"],
        weights: Float[Array, "*batch"],
    ) -> "Roc":
        """The histograms of logits.

        Args:
          logits: larger where a positive is likelier.
          labels: whether each is a positive.
          weights: of each; 0 leaves it out. Counts below 2**24 in a bin are exact.
        """
        place = (logits.astype(jnp.float32) + LARGEST) * (BINS / (2 * LARGEST))
        bins = jnp.clip(jnp.floor(place), 0, BINS - 1).astype(jnp.int32)
        empty = jnp.zeros((BINS,), jnp.float32)
        found = (empty.at[bins].add(jnp.where(which, weights, 0.0)) for which in (labels, ~labels))
        return cls(*found)

    def area(self) -> Any:
        """The area, in [0, 1]; 0.5 where there are no positives or no negatives."""
        positives, negatives = _shares(self.positives), _shares(self.negatives)
        below = negatives.cumsum() - 0.5 * negatives
        there = (self.positives.sum() > 0) & (self.negatives.sum() > 0)
        return (positives * below).sum() + 0.5 * ~there

    def error(self) -> Any:
        """What `area` may differ from the exact area at most."""
        return 0.5 * (_shares(self.positives) * _shares(self.negatives)).sum()


def _shares(counts: Any) -> Any:
    total = counts.sum()
    return counts / (total + (total == 0))
