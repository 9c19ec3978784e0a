"""Whole texts as the rows of an encoder, without a task: for vectors of texts.

    rows = text_rows(vocabulary, begins=True)
    rows(["dogs bark"], length=8)        # Cut(rows=[array([2, 9, 7, 3])], longer=[])

A row of BERT and its relatives is [CLS] ... [SEP], of T5 the text and its EOS. A text that is too
long is cut at its end, and what ends a row stays. Special tokens that stand in a text are found, as
transformers finds them.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.vocabulary.beginnings import first_tokens
from t5x_lite.vocabulary.encoder_tokens import encoder_tokens
from t5x_lite.vocabulary.loading import Vocabulary
from t5x_lite.vocabulary.tokenizer import Tokenizer


class Cut(NamedTuple):
    """Rows of texts.

    Attributes:
      rows: int32 tokens of each text.
      longer: the numbers of the texts that were cut.
    """

    rows: list[np.ndarray]
    longer: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRows:
    """What makes rows of texts.

    Attributes:
      vocabulary: of the tokens.
      before: the tokens that begin a row.
      after: the tokens that end it.
    """

    vocabulary: Vocabulary
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def pad_id(self) -> int:
        """The token of padding."""
        return self.vocabulary.pad_id

    @property
    def shortest(self) -> int:
        """Tokens of an empty text."""
        return len(self.before) + len(self.after)

    def __call__(self, texts: Sequence[str], *, length: int) -> Cut:
        """The tokens of each text.

        Args:
          texts: any strings.
          length: tokens of a row at most, at least one more than those that begin and end it.

        Raises:
          InputError: the length is too short.
        """
        room = length - self.shortest
        if room < 1:
            raise InputError(
                f"rows of {length} tokens hold no text: {self.shortest} of them begin and end it"
            )
        encoded = first_tokens(self.vocabulary, texts, count=room)
        rows = [np.array([*self.before, *ids[:room], *self.after], np.int32) for ids in encoded]
        return Cut(rows, [i for i, ids in enumerate(encoded) if len(ids) > room])


def text_rows(vocabulary: Vocabulary, *, begins: bool) -> TextRows:
    """What makes rows of texts.

    Args:
      vocabulary: of the tokens.
      begins: whether a row begins with [CLS], as encoders have it and T5 has not.

    Raises:
      InputError: there is no [CLS]: the vocabulary has too few sentinels.
    """
    if not begins:
        return TextRows(vocabulary=vocabulary, before=(), after=(vocabulary.eos_id,))
    special = vocabulary if isinstance(vocabulary, Tokenizer) else encoder_tokens(vocabulary)
    return TextRows(vocabulary=vocabulary, before=(special.cls_id,), after=(special.sep_id,))
