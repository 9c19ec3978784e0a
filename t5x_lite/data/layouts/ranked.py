"""Rows of a cross-encoder: a query with each of its passages in one text, side by side.

Examples, what is drawn of them and a teacher's scores are those of `groups`. A text is
[CLS] query [SEP] passage [SEP], of data.targets_length tokens at most; the query has
data.inputs_length of them at most, and the passage alone is cut. With 4 and 7 tokens and one
negative:

    {"query": [2 5 6 3], "positives": [2 5 3], "negatives": [2 4 3 2 8 9 9 9 3]}

    encoder_input_tokens  [[2 5 6 3 5 3 0] [2 5 6 3 8 9 3]]     [B, 1 + negatives, _]
    encoder_segment_ids   [[1 1 1 1 1 1 0] [1 1 1 1 1 1 1]]
    encoder_token_types   [[0 0 0 0 1 1 0] [0 0 0 0 1 1 1]]
    teacher_scores        [[9.5 0.5]]                           float32 [B, 1 + negatives]

The first text of a row is the one that answers. Passages that are missing are padding.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Shaped

from t5x_lite.data.layouts.base import Example
from t5x_lite.data.layouts.groups import Groups
from t5x_lite.data.layouts.labelled import token_types
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranked(Groups):
    """A query with each of its passages, the one that answers first; fields as of `Groups`."""

    name: ClassVar[str] = "ranked"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.begins_with_cls:
            raise InputError("data.layout Ranked has rows [CLS] query [SEP] passage [SEP]")

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.lengths`.

        Raises:
          InputError: a whole query leaves no room for a passage.
        """
        if targets < inputs + 3:
            raise InputError(
                f"data.targets_length {targets} must be at least 3 more than data.inputs_length "
                f"{inputs}: with data.layout ranked it is that of query and passage together"
            )
        return super().lengths(inputs=inputs, targets=targets)

    def text_lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.text_lengths`: no text stands alone."""
        del inputs, targets
        return {}

    def pair_lengths(self, *, inputs: int, targets: int) -> tuple[int, int | None]:
        """See `Layout.pair_lengths`."""
        return targets, inputs

    def longest(self, example: Example) -> int:
        """See `Layout.longest`: of the passages that are drawn, with the query."""
        return len(example["query"]) - 1 + super().longest(example)

    def longest_stored(
        self, joined: Int[np.ndarray, " n"], lengths: Mapping[str, Int[np.ndarray, " n"]]
    ) -> Int[np.ndarray, " n"]:
        """See `Layout.longest_stored`: of all passages, with the query."""
        return joined + lengths["query"] - 1

    def lay_out(
        self,
        examples: Sequence[Example],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
        pack: bool,
        tokens: EncoderTokens | None = None,
    ) -> dict[str, Shaped[np.ndarray, "B *_"]]:
        """See `Layout.lay_out`; examples have `base.KEY` besides."""
        order = np.argsort(rows, kind="stable")
        ordered, numbers = [examples[i] for i in order], rows[order].tolist()
        num, size = 1 + self.negatives, lengths["positives"]
        separators = 1 if tokens is None else tokens.separators
        texts, places = [], []
        for row, example in zip(numbers, ordered, strict=True):
            drawn, _ = self.drawn(example)
            texts += [
                joined(example["query"], passage, size=size, separators=separators)
                for passage in drawn
            ]
            places += [row * num + place for place in range(len(drawn))]
        below = Rows(np.array(places, np.int64), num_rows=num_rows * num, pack=False)
        made = below.encoder_alone(texts, size, tokens)
        ids, segments = made["encoder_input_tokens"], made["encoder_segment_ids"]
        types = np.zeros_like(ids)
        if tokens is not None:
            types = token_types(ids, sep_id=tokens.sep_id) * (segments > 0)
        shape = (num_rows, num, size)
        return {
            "encoder_input_tokens": ids.reshape(shape),
            "encoder_segment_ids": segments.reshape(shape),
            "encoder_token_types": types.reshape(shape),
            **self.beside(numbers, ordered, num_rows=num_rows),
        }


def joined(
    query: Int[np.ndarray, " q"], passage: Int[np.ndarray, " p"], *, size: int, separators: int = 1
) -> Int[np.ndarray, " _"]:
    """[CLS] query [SEP] passage [SEP], the passage cut so that there are `size` tokens at most.

    Args:
      query: [CLS] ... [SEP].
      passage: the same.
      size: at least `separators` and one more than the query has.
      separators: [SEP]s between the two: RoBERTa has two.
    """
    more = [query[-1]] * (separators - 1)
    room = size - len(query) - len(more)
    inner = passage[1:-1][: room - 1]
    return np.concatenate([query, np.array(more, query.dtype), inner, passage[-1:]])
