"""The few static shapes that batches have, so that every program is compiled at the start.

sizes(32)               (1, 2, 4, 8, 16, 32)
lengths(512)            (32, 128, 512)
fit((32, 128, 512), 33) 128
"""

from collections.abc import Sequence

SHORTEST = 16


def sizes(largest: int) -> tuple[int, ...]:
    """Rows of a batch: powers of four, and the largest itself."""
    result = [1]
    while result[-1] * 4 < largest:
        result.append(result[-1] * 4)
    return (*result, largest) if largest > 1 else (1,)


def lengths(longest: int) -> tuple[int, ...]:
    """Tokens of a row: powers of two, each a quarter of the next; the last one holds `longest`."""
    result = [1 << (max(longest, SHORTEST) - 1).bit_length()]
    while result[0] // 4 >= SHORTEST:
        result.insert(0, result[0] // 4)
    return tuple(result)


def fit(choices: Sequence[int], needed: int) -> int:
    """The least of the choices, which ascend, that holds so many; the last one if none does."""
    return next((choice for choice in choices if choice >= needed), choices[-1])
