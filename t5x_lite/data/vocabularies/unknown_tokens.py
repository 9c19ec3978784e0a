"""How well a vocabulary spells text: unknown tokens, and fertility.

Text that a vocabulary cannot spell, told before it costs a run.

    tell("glue_stsb", [{"inputs": [5, 8, 1], "targets": [2, 9, 2, 1]}], vocabulary)
    # glue_stsb: 100% of targets have unknown tokens (50% of their tokens), such as " ⁇ . ⁇ "; ...

A vocabulary of a few novels has no piece for digits: the targets of STS-B are then all alike, and
no training can tell them apart. A look at the first examples of a task shows it.

Fertility: into how many pieces a vocabulary cuts a word, by language.

    fertility(lines, vocabulary).pieces_per_word        1.4 of English, 2.3 of Finnish

A language with a high one has long rows and few whole words (Rust et al. 2021, arXiv:2012.15613).
Words are what white space divides: of scripts without it, such as Thai's, the characters of a piece
say more.
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
"""Examples that are looked at."""
_FEATURES = ("targets", "inputs")
_SHARE = 0.01
"""Of the examples, and a tenth of it of the tokens: what is rarer is not told."""
_SHOWN = 40


def tell(name: str, examples: Iterable[Mapping[str, Any]], vocabulary: Vocabulary) -> None:
    """Warns of a task whose inputs or targets have unknown tokens.

    Args:
      name: the task's.
      examples: with the tokens of "inputs" and "targets", or of one of them; the first are read.
        If they hold the text as "inputs_pretokenized" or "targets_pretokenized", the warning names
        its unknown characters.
      vocabulary: of the tokens.
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
    """What is told of the rows of a feature; "" where there is nothing to tell."""
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
    """Return a text of an example, which TensorFlow gives as bytes."""
    value = value.item() if isinstance(value, np.ndarray) and not value.shape else value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _unknown_characters(texts: Sequence[str], vocabulary: Vocabulary) -> str:
    """Return a part of the warning that names characters without a token, or ""."""
    characters = collections.Counter("".join("".join(text.split()) for text in texts))
    unknown = [
        character
        for character, _ in characters.most_common()
        if vocabulary.unk_id in vocabulary.encode(character)
    ]
    shown = " ".join(unknown[:_SHOWN])
    return f"; characters without a token: {shown}" if unknown else ""


def _percent(share: float) -> str:
    """A share in percent; at least one digit of it that is not 0."""
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"


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
