"""Which of the long tests a landing runs: each has its turn.

    is_due(item, "35c9791e...")         # of a slow test, once in sixteen commits

All cases of a test have their turn together, as they share what is compiled. The number of a turn
is that of the commit, so the same commit runs the same tests, and landings that follow each other
run others.
"""

import zlib

import pytest

SLOW, EXHAUSTIVE = 16, 160
"""Commits in which a slow or oracle test, and an exhaustive one, has one turn."""


def is_due(item: pytest.Item, commit: str) -> bool:
    """Whether it is a test's turn.

    Args:
      item: a test with its marks.
      commit: hexadecimal digits.
    """
    if item.get_closest_marker("exhaustive"):
        number = EXHAUSTIVE
    elif item.get_closest_marker("slow") or item.get_closest_marker("oracle"):
        number = SLOW
    else:
        return True
    test = item.nodeid.partition("[")[0]
    return zlib.crc32(test.encode()) % number == int(commit[:12], 16) % number
