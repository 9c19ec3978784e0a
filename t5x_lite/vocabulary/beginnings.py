"""Tokens of the beginnings of long texts, without those of all the rest.

    first_tokens(vocabulary, texts, count=64)    # of each text all tokens, or its first 65 and more

A text of megabytes of which 64 tokens are wanted is cut before it is encoded, where this cannot
change them: at a space between two letters, over which no piece of the vocabulary reaches. If the
beginning has too few tokens, a longer one is taken. A text without such a place is encoded whole.
"""

import functools
import re
from collections.abc import Sequence

from t5x_lite.vocabulary.byte_level import Bytes
from t5x_lite.vocabulary.loading import Vocabulary

_SHORTEST = 4096
"""Characters; what is shorter is not worth a look."""
_CHARACTERS = 16
"""Of a token, more than in any language: a longer beginning is seldom needed."""
_LONGER = 8
_PLACE = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")


def first_tokens(vocabulary: Vocabulary, texts: Sequence[str], *, count: int) -> list[list[int]]:
    """Token ids of each text: all of them, or, of a long text, more than `count` of its first.

    Args:
      vocabulary: of the tokens.
      texts: any strings.
      count: how many are wanted.

    Returns:
      Of each text `ids`, so that ids[:count] are those of the whole text, and len(ids) > count just
      where the whole text has more.
    """
    size = max(_SHORTEST, _CHARACTERS * count)
    found: list[list[int]] = [[] for _ in texts]
    pending = list(range(len(texts)))
    while pending:
        places = [_place(vocabulary, texts[i], size) for i in pending]
        parts = [texts[i][:place] for i, place in zip(pending, places, strict=True)]
        encoded = vocabulary.encode_batch(parts)
        left = []
        for i, place, ids in zip(pending, places, encoded, strict=True):
            found[i] = ids
            if place < len(texts[i]) and len(ids) <= count:
                left.append(i)
        pending, size = left, size * _LONGER
    return found


def _place(vocabulary: Vocabulary, text: str, size: int) -> int:
    """Where a text can be cut, from `size` characters on; its length where it cannot."""
    if len(text) <= size:
        return len(text)
    if isinstance(vocabulary, Bytes) and vocabulary.layout == "seqio":
        return size
    match = _PLACE.search(text, size) if _divides(vocabulary) else None
    return match.start() if match else len(text)


@functools.lru_cache(maxsize=8)
def _divides(vocabulary: Vocabulary) -> bool:
    return vocabulary.divides_words
