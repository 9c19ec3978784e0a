"""Fertility: into how many pieces a vocabulary cuts a word, by language.

    fertility(lines, vocabulary).pieces_per_word        1.4 of English, 2.3 of Finnish

A language with a high one has long rows and few whole words (Rust et al. 2021, arXiv:2012.15613).
Words are what white space divides: of scripts without it, such as Thai's, the characters of a piece
say more.
"""

import dataclasses
import itertools
from collections.abc import Iterable

from t5x_lite.vocabulary.loading import Vocabulary

LINES = 2_000
"""With text, from the beginning of a source, that are measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fertility:
    """Counts of some text.

    Attributes:
      words: what white space divides.
      characters: of these words.
      pieces: tokens.
      unknown: tokens that stand for what has no piece.
    """

    words: int
    characters: int
    pieces: int
    unknown: int

    @property
    def pieces_per_word(self) -> float:
        """The fertility."""
        return self.pieces / max(self.words, 1)

    def __str__(self) -> str:
        length = self.characters / max(self.pieces, 1)
        unknown = 100 * self.unknown / max(self.pieces, 1)
        return (
            f"{self.pieces_per_word:.2f} pieces a word, {length:.1f} characters a piece, "
            f"{unknown:.2f} % of the pieces unknown ({self.words:,} words)"
        )


def fertility(lines: Iterable[str], vocabulary: Vocabulary, *, most: int = LINES) -> Fertility:
    """Counts the first lines with text.

    Args:
      lines: text.
      vocabulary: that cuts it.
      most: lines at most.
    """
    words = characters = pieces = unknown = 0
    for line in itertools.islice((line for line in lines if line.strip()), most):
        ids = list(vocabulary.encode(line))
        own = line.split()
        words += len(own)
        characters += sum(map(len, own))
        pieces += len(ids)
        unknown += ids.count(vocabulary.unk_id)
    return Fertility(words=words, characters=characters, pieces=pieces, unknown=unknown)
