"""Whether two systems differ by more than chance: Fisher's paired randomisation test.

    randomisation_test([0.5, 0.2, 0.9], [0.4, 0.2, 0.1], seed=0)    # 0.5, the p-value

If the two were one system, each query's pair of values could as well stand the other way round. The
p-value is the share of such exchanges whose difference of means is at least as large, in either
direction, as that of the systems. All exchanges are tried where there are at most 16 pairs that
differ; else so many that are drawn, and the systems' own order counts as one of them.

Source: Smucker, Allan and Carterette 2007, "A comparison of statistical significance tests for
information retrieval evaluation".
"""

from collections.abc import Sequence

import numpy as np

_ALL_EXCHANGES = 16
_AT_ONCE = 1 << 20


def randomisation_test(
    first: Sequence[float], second: Sequence[float], *, draws: int = 100_000, seed: int = 0
) -> float:
    """The two-sided p-value.

    Args:
      first: a value of each query by one system.
      second: that by the other, in the same order.
      draws: exchanges that are drawn where there are too many to try all.
      seed: of the draws.

    Raises:
      ValueError: the two are not as many.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values are no pairs")
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    differences = differences[differences != 0]
    num = len(differences)
    if not num:
        return 1.0
    # Sums of the same numbers in another order differ in the last bits.
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
