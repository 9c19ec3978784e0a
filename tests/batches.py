"""Batches of a stream, and whether two runs of it are equal."""

import numpy as np


def take(batches, count):
    return [next(batches) for _ in range(count)]


def assert_equal_batches(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
