"""Rows for a head that chooses: a question with each of its choices, side by side.

"choices" are the texts of an example, one behind the other, each [CLS] question [SEP] choice [SEP],
and "labels" the choice that is right (`data.labels`: 0 is none). One example a row:

    {"choices": [2 5 3 6 3 2 5 3 7 3], "labels": [2 0]}

    encoder_input_tokens  [[2 5 3 6 3 0] [2 5 3 7 3 0]]        labels  2 0
    encoder_segment_ids   [[1 1 1 1 1 0] [1 1 1 1 1 0]]
    encoder_token_types   [[0 0 0 1 1 0] [0 0 0 1 1 0]]

Choices that an example lacks are padding, and are never chosen.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.data.labels import WIDTH
from t5x_lite.data.layouts.base import Example, Layout, separate
from t5x_lite.data.layouts.labelled import token_types
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices(Layout):
    """A question a row, with its choices, and which one is right.

    Attributes:
      num: choices of a question at most.
    """

    num: int = 2

    name: ClassVar[str] = "choices"
    task: ClassVar[str] = "tasks.super_glue:copa"
    features: ClassVar[tuple[str, ...]] = ("choices", "labels")
    joined: ClassVar[tuple[str, ...]] = ("choices",)
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"
    packs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.num < 2:
            raise InputError(f"data.layout.num must be at least 2 choices, got {self.num}")

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.lengths`."""
        del targets
        return {"choices": inputs, "labels": WIDTH}

    def longest(self, example: Example) -> int:
        """See `Layout.longest`."""
        return max((len(text) for text in separate(example["choices"])), default=0)

    def lay_out(
        self,
        examples: Sequence[Example],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
        pack: bool,
        tokens: EncoderTokens | None = None,
    ) -> dict[str, Int32[np.ndarray, "B *_"]]:
        """See `Layout.lay_out`.

        Raises:
          InputError: an example has more choices than `num`.
        """
        size = lengths["choices"]
        texts, places = [], []
        labels = np.zeros((num_rows, WIDTH), np.int32)
        order = np.argsort(rows, kind="stable")
        for row, example in zip(rows[order].tolist(), [examples[i] for i in order], strict=True):
            choices = separate(example["choices"])
            if len(choices) > self.num:
                raise InputError(
                    f"an example has {len(choices)} choices: set --data.layout.num {len(choices)}"
                )
            texts += choices
            places += [row * self.num + place for place in range(len(choices))]
            labels[row] = example["labels"]
        stream = Rows(np.array(places, np.int64), num_rows=num_rows * self.num, pack=False)
        found = stream.encoder_alone(texts, size, tokens)
        ids, segments = found["encoder_input_tokens"], found["encoder_segment_ids"]
        types = np.zeros_like(ids)
        if tokens is not None:
            types = token_types(ids, sep_id=tokens.sep_id) * (segments > 0)
        shape = (num_rows, self.num, size)
        return {
            "encoder_input_tokens": ids.reshape(shape),
            "encoder_segment_ids": segments.reshape(shape),
            "encoder_token_types": types.reshape(shape),
            "labels": labels,
        }
