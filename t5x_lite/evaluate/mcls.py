"""Several [CLS] in a long text, each for the tokens behind it: BGE-M3's MCLS, without training.

    window 3     [CLS] a b c d e f g [SEP]   ->   [CLS] a b c [CLS] d e f [CLS] g [SEP]

The text's vector is the mean of the last states of all [CLS]. Positions count all tokens, and so
does the longest row. A text of no more tokens than the window is the row that it was.

Source: Chen et al. 2024, arXiv:2402.03216, section 4; no code was published.
"""

import numpy as np
from jaxtyping import Int


def room(length: int, window: int) -> int:
    """Tokens of a text at most, without [CLS] and [SEP], whose row has no more than `length`.

    Args:
      length: of a row, at least 3.
      window: tokens behind a [CLS].
    """
    whole, rest = divmod(length - 1, window + 1)
    return whole * window + max(0, rest - 1)


def with_cls(row: Int[np.ndarray, " S"], window: int) -> Int[np.ndarray, " T"]:
    """A row [CLS] text [SEP] with a [CLS] before each window of the text.

    Args:
      row: its tokens.
      window: tokens behind a [CLS].
    """
    text = row[1:-1]
    if len(text) <= window:
        return row
    return np.insert(row, np.arange(1 + window, 1 + len(text), window), row[0])
