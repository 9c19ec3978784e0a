"""Labels as whole numbers, as a row of the layout Labelled() has two of them.

    of_class(2)       (3, 0)        of_span(7, 9)      (8, 10)
    of_class(-1)      (0, 0)

0 is no label: rows of padding have none, and neither have those of a test split. A score is no
label but a float of its own; caches that an earlier version wrote have it here, in thousandths.
"""

Label = tuple[int, int]

NONE: Label = (0, 0)
"""No label."""
PARTS_OF_SCORE = 1000
"""A score of 1 is so many, in caches of earlier versions."""
WIDTH = 2
"""Numbers of a label."""


def of_class(index: int) -> Label:
    """A class by its index; -1 is none."""
    return (index + 1, 0)


def of_span(first: int, last: int) -> Label:
    """The places of a span's first and last token in their row."""
    return (first + 1, last + 1)
