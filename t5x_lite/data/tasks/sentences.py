"""Sentences of documents, and how they are put together to pieces of a length.

    split_sentences("Mr. Fox ran. Why? He said.")   -> ["Mr. Fox ran.", "Why?", "He said."]
    fill([[1, 2], [3, 4], [5], [6, 7, 8, 9, 10]], 4)
        -> [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]

A piece is filled with whole sentences while they fit, as RetroMAE's and BERT's pretraining data
are. A sentence that is longer than a piece must be cut, and so it fills what room there is; nothing
is lost.

Sentences end at a line's end, and where a terminator stands before space and no small letter, and
after no abbreviation or initial. It is a rule for filling, not for counting: where it errs, a piece
is cut inside a sentence.

Source: RetroMAE examples/pretrain/preprocess.py (create_wiki_data).
"""

import re
from collections.abc import Iterable, Sequence

from t5x_lite.records.abbreviations import ABBREVIATIONS

_END = re.compile(
    r"[.!?…]+[\"'”’»)\]]*(?=\s+[\"'“‘«(\[¿¡]*[^\W_a-z])"  # of scripts with spaces
    r"|[。！？]+[”’」』）]*"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, stripped; none is empty."""
    return [sentence for line in text.splitlines() for sentence in _of_line(line)]


def _of_line(line: str) -> list[str]:
    found, start = [], 0
    for match in _END.finditer(line):
        if match[0] == "." and _is_abbreviated(line, match.start()):
            continue
        found.append(line[start : match.end()])
        start = match.end()
    found.append(line[start:])
    return [sentence for part in found if (sentence := part.strip())]


def _is_abbreviated(line: str, end: int) -> bool:
    """Whether the word before `end` is known to have a period, or is an initial."""
    begin = max(line.rfind(" ", 0, end), line.rfind("(", 0, end)) + 1
    word = line[begin:end].lower()
    return word in ABBREVIATIONS or (len(word) == 1 and word.isalpha() and word != "i")


def fill(sentences: Iterable[Sequence[int]], length: int) -> list[list[int]]:
    """Pieces of at most `length` tokens, of whole sentences where these fit.

    Args:
      sentences: the tokens of each.
      length: at least 1.

    Returns:
      Pieces in order; put together they are the sentences put together. None is empty.
    """
    pieces: list[list[int]] = []
    piece: list[int] = []
    for sentence in sentences:
        left = list(sentence)
        if len(piece) + len(left) > length >= len(left):
            pieces.append(piece)
            piece = []
        while len(piece) + len(left) > length:
            room = length - len(piece)
            pieces.append(piece + left[:room])
            piece, left = [], left[room:]
        piece = piece + left
    return [*pieces, piece] if piece else pieces
