"""The K numbers of largest magnitude among several arrays: exactly K, found one array at a time.

Ties go by path and then by flat index. Magnitudes are compared as bits: of two float32 numbers that
are not negative, the larger one has the larger bits. Two histograms of 2^16 counts find the K-th,
so no array is sorted, and no two are in memory.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from t5x_lite.errors import InputError

_HALF = 1 << 16

Lazy = Mapping[str, Callable[[], np.ndarray]]
"""Path -> what makes the array; called three times."""


def count_of(total: int, *, k: int | None = None, density: float | None = None) -> int:
    """K, of which one of the two arguments is given.

    Args:
      total: of all numbers.
      k: itself.
      density: K = round(density * total).

    Raises:
      InputError: none or both are given, or they are out of range.
    """
    if (k is None) == (density is None):
        raise InputError("give one of k, a number of entries, and density, a share of them")
    if density is not None:
        if not 0.0 <= density <= 1.0:
            raise InputError(f"density must be from 0 to 1: got {density}")
        return round(density * total)
    assert k is not None
    if not 0 <= k <= total:
        raise InputError(f"k must be from 0 to the {total} entries that there are: got {k}")
    return k


def largest(arrays: Lazy, k: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The K numbers of largest magnitude.

    Args:
      arrays: float32; zeros count like other numbers.
      k: how many.

    Yields:
      path, array, and the sorted flat indices of those that are chosen; the paths are sorted.
    """
    if k == 0:
        return
    limit, ties = _limit(arrays, k)
    for path in sorted(arrays):
        array = arrays[path]()
        bits = _bits(array)
        chosen = bits > limit
        equal = np.flatnonzero(bits == limit)[:ties]
        ties -= equal.size
        chosen[equal] = True
        yield path, array, np.flatnonzero(chosen)


def _bits(array: np.ndarray) -> np.ndarray:
    return np.abs(np.asarray(array, np.float32)).reshape(-1).view(np.uint32)


def _limit(arrays: Lazy, k: int) -> tuple[int, int]:
    """The bits of the K-th largest magnitude, and how many of exactly that are chosen."""
    high = np.zeros(_HALF, np.int64)
    for make in arrays.values():
        high += np.bincount(_bits(make()) >> 16, minlength=_HALF)
    first, rest = _from_above(high, k)
    low = np.zeros(_HALF, np.int64)
    for make in arrays.values():
        bits = _bits(make())
        low += np.bincount(bits[bits >> 16 == first] & (_HALF - 1), minlength=_HALF)
    second, ties = _from_above(low, rest)
    return (first << 16) + second, ties


def _from_above(counts: np.ndarray, k: int) -> tuple[int, int]:
    """The bin in which the K-th lies, counted from the last bin, and K less what is above it."""
    above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(above, k))
    before = int(above[place - 1]) if place else 0
    return len(counts) - 1 - place, k - before
