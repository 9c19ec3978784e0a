"""Rows for a head that labels each token: names of things, parts of speech.

"inputs" are the pieces of a sentence's words, [CLS] ... [SEP], and "token_labels" a whole number
for each of them: the class + 1 of a word at its first piece, and 0 elsewhere, at [CLS], [SEP] and
the further pieces of a word (`data.labels`: 0 is none). With [CLS] 2, [SEP] 3, padding 0, and 7 a
piece that goes on with a word:

    {"inputs": [2 5 7 6 3], "token_labels": [0 4 0 1 0]},
    {"inputs": [2 4 3],     "token_labels": [0 1 0]}

    encoder_input_tokens  2 5 7 6 3 2 4 3 0 0
    encoder_segment_ids   1 1 1 1 1 2 2 2 0 0
    token_labels          0 4 0 1 0 0 1 0 0 0

Sentences that share a row do not see each other, and each begins at position 0.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.data.layouts.base import Example, Layout
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens(Layout):
    """Sentences with a label for each token."""

    name: ClassVar[str] = "tokens"
    task: ClassVar[str] = "tasks.tokens:conll"
    features: ClassVar[tuple[str, ...]] = ("inputs", "token_labels")
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"

    @property
    def answered_by_head(self) -> bool:
        """See `Layout.answered_by_head`."""
        return True

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.lengths`."""
        del targets
        return {"inputs": inputs, "token_labels": inputs}

    def lay_out(
        self,
        examples: Sequence[Example],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
        pack: bool,
        tokens: EncoderTokens | None = None,
    ) -> dict[str, Int32[np.ndarray, "B S"]]:
        """See `Layout.lay_out`.

        Raises:
          InputError: an example has not as many labels as tokens.
        """
        for example in examples:
            sizes = [len(example[name]) for name in self.features]
            if sizes[0] != sizes[1]:
                raise InputError(
                    f"an example has {sizes[0]} inputs and {sizes[1]} token_labels: a task of "
                    "data.layout tokens gives a label for each token, [CLS] and [SEP] included"
                )
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        inputs, labels = ([e[name] for e in ordered] for name in self.features)
        found = stream.encoder_alone(inputs, lengths["inputs"], tokens)
        return {
            "encoder_input_tokens": found["encoder_input_tokens"],
            "encoder_segment_ids": found["encoder_segment_ids"],
            "token_labels": stream.numbers(labels, lengths["inputs"]),
        }
