"""Which examples share a row: first fit, from their lengths alone.

    first_fit([[4, 3], [9, 2], [5, 2]], capacity=(10, 7))   -> [0, 1, 0]

An example goes to the first row that has room for all of its features, and opens a new one where
none has. seqio's packing looks at the last row only; it leaves more padding where examples are of
about a third of a row's length or more. The rule sees no tokens, so that every host can work out
all rows of a batch and read the examples of its own ones only.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


def first_fit(lengths: Int[np.ndarray, "n F"], *, capacity: Sequence[int]) -> Int[np.ndarray, " n"]:
    """The row of each example.

    Args:
      lengths: of the features that are packed, each at most its capacity.
      capacity: tokens of a row, for each feature.

    Returns:
      Row numbers, int64, without gaps, in the order of the rows' first examples.

    Raises:
      ValueError: an example is longer than a row.
    """
    if len(lengths) and (lengths > np.asarray(capacity)).any():
        raise ValueError(f"an example of lengths {lengths.max(0)} does not fit in {capacity}")
    rows = np.empty(len(lengths), np.int64)
    # Rows that can take nothing more are not looked at again: what is left of the others.
    free = np.zeros((len(capacity), len(lengths)), np.int64)
    numbers = np.zeros(len(lengths), np.int64)
    smallest = lengths.min(0).tolist() if len(lengths) else []
    count = num_open = 0
    for example, size in enumerate(lengths.tolist()):
        fits = np.ones(num_open, bool)
        for column, need in zip(free, size, strict=True):
            fits &= column[:num_open] >= need
        place = int(fits.argmax()) if num_open else 0
        if place == num_open or not fits[place]:
            place, num_open = num_open, num_open + 1
            free[:, place], numbers[place] = capacity, count
            count += 1
        free[:, place] -= size
        rows[example] = numbers[place]
        if any(left < need for left, need in zip(free[:, place].tolist(), smallest, strict=True)):
            free[:, place : num_open - 1] = free[:, place + 1 : num_open]
            numbers[place : num_open - 1] = numbers[place + 1 : num_open]
            num_open -= 1
    return rows
