"""A pseudo-random order of any number of examples that needs no memory.

    order([0, 1, 2, 3], [0, 0, 0, 0], size=4, seed=7)   -> [3, 0, 2, 1]
    order([0, 1, 2, 3], [1, 1, 1, 1], size=4, seed=7)   -> [2, 0, 3, 1]

A shuffle buffer mixes neighbours only, and a shuffled list of indices must be kept. Here the place
of each example is computed: a Feistel network (Luby and Rackoff 1988) permutes the next power of
four, and what falls outside of [0, size) is permuted again until it falls inside (cycle walking,
Black and Rogaway 2002). It is our own so that the order does not change with a library's version.
"""

import numpy as np
from jaxtyping import Int, UInt64

_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = 2**64


def order(
    places: Int[np.ndarray, " n"], epochs: Int[np.ndarray, " n"], *, size: int, seed: int
) -> Int[np.ndarray, " n"]:
    """Which example stands at each place of an epoch.

    Args:
      places: places in [0, size).
      epochs: the epoch of each, >= 0; every epoch has an order of its own.
      size: the number of examples, >= 1.
      seed: the run's seed, taken modulo 2**64.

    Returns:
      int64 indices in [0, size): over all places of one epoch, each of them once.
    """
    half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    start = np.full(1, seed % _WORD, np.uint64)
    keys = _mix(_mix(start) + epochs.astype(np.uint64) * _GOLDEN)
    found = places.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        found[outside] = _feistel(found[outside], keys[outside], half)
        outside = outside[found[outside] >= size]
    return found.astype(np.int64)


def _feistel(
    values: UInt64[np.ndarray, " n"], keys: UInt64[np.ndarray, " n"], half: np.uint64
) -> UInt64[np.ndarray, " n"]:
    """A permutation of the numbers below 4**half, another one for each key."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for number in range(_ROUNDS):
        keys = keys + _GOLDEN  # arrays wrap around without a warning
        left, right = right, left ^ (_mix(keys ^ (right + np.uint64(number))) & mask)
    return (left << half) | right


def _mix(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """SplitMix64's finalizer (Steele, Lea and Flood 2014): every bit depends on every other."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
