"""The file of answers that conlleval reads: a word, its tag, and the predicted one in each line.

    EU B-ORG B-ORG
    rejects O O

A blank line ends each sentence. Where the test split has no tags a line has the word and the
predicted tag alone. A space inside a word is written "_", and so is a word of no characters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_lite.data.preprocess.classification import UNKNOWN

Line = tuple[str, ...]
"""A word, its tag where it is known, and the predicted one."""


def sentence(example: Mapping[str, Any], predicted: str) -> tuple[list[Line], bool]:
    """The lines of a sentence, and whether each word has a predicted tag.

    Args:
      example: of `data.tasks.tokens`, with "words" and "targets_pretokenized"; it may be empty.
      predicted: the tags, with spaces between them; a word without one has "O".
    """
    words = example.get("words", "").split("\n") if example else []
    target = example.get("targets_pretokenized", UNKNOWN)
    tags = predicted.split()
    got = [*tags, *["O"] * len(words)][: len(words)]
    known = [] if target == UNKNOWN else [target.split()]
    names = [word.replace(" ", "_") or "_" for word in words]
    return [*zip(names, *known, got, strict=True)], len(tags) == len(words)


def dump(rows: Sequence[tuple[Any, Sequence[Line]]]) -> str:
    """The file's text.

    Args:
      rows: (index, lines) of the sentences in their order.
    """
    return "".join("".join(f"{' '.join(line)}\n" for line in lines) + "\n" for _, lines in rows)


def load(text: str) -> list[tuple[tuple[int], list[Line]]]:
    """The sentences of a file's text, numbered from 0.

    Raises:
      ValueError: a line has another number of columns than the first.
    """
    found: list[list[Line]] = [[]]
    width = len(text.partition("\n")[0].split(" "))
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        columns = tuple(line.split(" ")) if line else ()
        if columns and (len(columns) != width or width not in (2, 3)):
            raise ValueError(f"line {number} must be a word and its tags, got {line!r}")
        found[-1:] = [[*found[-1], columns]] if columns else [found[-1], []]
    return [((index,), lines) for index, lines in enumerate(found[:-1])]
