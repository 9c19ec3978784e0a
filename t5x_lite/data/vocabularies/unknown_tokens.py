"""Checks of a vocabulary on a text: fraction of unknown tokens, and fertility.

`tell` logs a warning if text has many unknown tokens, before training begins:

    tell("glue_stsb", [{"inputs": [5, 8, 1], "targets": [2, 9, 2, 1]}], vocabulary)
    # glue_stsb: 100% of targets have unknown tokens (50% of their tokens), such as " ⁇ . ⁇ "; ...

For example, a vocabulary trained on a few novels has no pieces for digits. All targets of STS-B
then have the same tokens, and a model cannot learn them. The first examples of a task are checked.

Fertility is the number of pieces per word:

    fertility(lines, vocabulary).pieces_per_word        1.4 of English, 2.3 of Finnish

In a language with a high fertility, rows are long and few words are a single piece (Rust et al.
2021, arXiv:2012.15613). Words are separated by white space. For scripts without white space, such
as Thai, the number of characters per piece is more informative.
"""

import collections
import dataclasses
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.data.vocabularies.loading import Vocabulary

_logger = logging.getLogger(__name__)

FIRST = 200
"""Number of examples that are checked for unknown tokens."""
_FEATURES = ("targets", "inputs")
_SHARE = 0.01
"""Minimum fraction of examples with unknown tokens for a warning; of tokens, a tenth of it."""
_SHOWN = 40


def tell(name: str, examples: Iterable[Mapping[str, Any]], vocabulary: Vocabulary) -> None:
    """Log a warning if the inputs or targets of a task have many unknown tokens.

    Args:
      name: the task's name.
      examples: examples with token ids as "inputs" or "targets"; the first `FIRST` are read. If
        they have the text as "inputs_pretokenized" or "targets_pretokenized", the warning lists
        unknown characters.
      vocabulary: vocabulary of the token ids.
    """
    rows: dict[str, list[np.ndarray]] = {feature: [] for feature in _FEATURES}
    texts: dict[str, list[str]] = {feature: [] for feature in _FEATURES}
    for example in itertools.islice(examples, FIRST):
        for feature in _FEATURES:
            if feature in example:
                rows[feature].append(np.asarray(example[feature]))
                texts[feature].append(_text(example.get(f"{feature}_pretokenized", "")))
    told = [
        text + _unknown_characters(texts[feature], vocabulary)
        for feature, found in rows.items()
        if (text := _told(feature, found, vocabulary))
    ]
    if told:
        _logger.warning(
            "%s: %s; train a vocabulary on this text with `t5x-lite vocab`, or set "
            "--data.vocabulary bytes",
            name,
            "; ".join(told),
        )


def _told(feature: str, rows: Sequence[np.ndarray], vocabulary: Vocabulary) -> str:
    """Return the warning about a feature's unknown tokens, or "" if unknown tokens are rare."""
    unknown = [int((ids == vocabulary.unk_id).sum()) for ids in rows]
    in_examples = sum(map(bool, unknown)) / max(1, len(rows))
    in_tokens = sum(unknown) / max(1, sum(ids.size for ids in rows))
    if in_examples < _SHARE or in_tokens < _SHARE / 10:
        return ""
    first = rows[next(i for i, number in enumerate(unknown) if number)]
    shown = vocabulary.decode(first.tolist())[:_SHOWN]
    return (
        f"{_percent(in_examples)} of {feature} have unknown tokens ({_percent(in_tokens)} of their "
        f"tokens), such as {shown!r}"
    )


def _text(value: Any) -> str:
    value = value.item() if isinstance(value, np.ndarray) and not value.shape else value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _unknown_characters(texts: Sequence[str], vocabulary: Vocabulary) -> str:
    """Return the part of the warning that lists characters without a token, or ""."""
    characters = collections.Counter("".join("".join(text.split()) for text in texts))
    unknown = [
        character
        for character, _ in characters.most_common()
        if vocabulary.unk_id in vocabulary.encode(character)
    ]
    shown = " ".join(unknown[:_SHOWN])
    return f"; characters without a token: {shown}" if unknown else ""


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"


LINES = 2_000
"""Default number of lines for measuring the fertility."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fertility:
    """Counts of words, characters and tokens in a text.

    Attributes:
      words: number of words, separated by white space.
      characters: number of characters in these words.
      pieces: number of tokens.
      unknown: number of unknown tokens.
    """

    words: int
    characters: int
    pieces: int
    unknown: int

    @property
    def pieces_per_word(self) -> float:
        """The fertility: mean number of pieces per word."""
        return self.pieces / max(self.words, 1)

    def __str__(self) -> str:
        length = self.characters / max(self.pieces, 1)
        unknown = 100 * self.unknown / max(self.pieces, 1)
        return (
            f"{self.pieces_per_word:.2f} pieces per word, {length:.1f} characters per piece, "
            f"{unknown:.2f} % unknown pieces ({self.words:,} words)"
        )


def fertility(lines: Iterable[str], vocabulary: Vocabulary, *, most: int = LINES) -> Fertility:
    """Count the words, characters and pieces of the first nonempty lines.

    Args:
      lines: lines of text.
      vocabulary: vocabulary that encodes the text.
      most: maximum number of lines.
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
