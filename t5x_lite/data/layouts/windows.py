"""Rows for a head that finds an answer in a text, which is divided into windows where it is long.

Each window is an example and a row of its own, [CLS] question [SEP] window [SEP] (Devlin et al.
2019; google-research/bert run_squad.py). With rows of 9 tokens, a question of one token and
doc_stride 3, a context of 8 tokens, 11 to 18, whose answer is 15 16, has two windows:

    {"inputs": [2 5 3 11 12 13 14 15 3], "labels": [1 1], "window": [0]}
    {"inputs": [2 5 3 14 15 16 17 18 3], "labels": [5 6], "window": [1]}

A window that does not hold the whole answer has the label [CLS], which is no answer. Rows are those
of `Labelled`. "window" is the number of a window of its context: a task's metrics need all windows
of a question together.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, Shaped

from t5x_lite.data.layouts.base import Example, Layout
from t5x_lite.data.layouts.labelled import Labelled
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens

WINDOW = "window"
"""A feature, int32 [1]: the number of an example among the windows of its question, from 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows(Layout):
    """A question and a window of its context a row, and where the answer is.

    Attributes:
      doc_stride: tokens from the beginning of one window to that of the next, as in BERT;
        transformers calls so the tokens that two windows share.
      query_length: tokens of a question at most; BERT's max_query_length.
    """

    doc_stride: int = 128
    query_length: int = 64

    name: ClassVar[str] = "windows"
    task: ClassVar[str] = "tasks.squad:squad"
    features: ClassVar[tuple[str, ...]] = ("inputs", "labels", WINDOW)
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"
    packs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in ("doc_stride", "query_length"):
            value = getattr(self, field)
            if value < 1:
                raise InputError(f"data.layout.{field} must be at least 1, got {value}")

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.lengths`."""
        rows = Labelled().lengths(inputs=inputs, targets=targets)
        return {"inputs": rows["inputs"], "labels": rows["labels"], WINDOW: 1}

    def fixed(self) -> dict[str, Any]:
        """See `Layout.fixed`."""
        return dataclasses.asdict(self)

    def whole(self, examples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """See `Layout.whole`; "inputs" are all windows of a question, one behind the other."""
        first: dict[str, Any] = {}
        parts: list[np.ndarray] = []
        for example in examples:
            if parts and example[WINDOW][0] == 0:
                yield {**first, "inputs": np.concatenate(parts)}
                parts = []
            if not parts:
                first = example
            parts.append(example["inputs"])
        if parts:
            yield {**first, "inputs": np.concatenate(parts)}

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
        """See `Layout.lay_out`; rows do not say which window they are."""
        return Labelled().lay_out(
            examples, rows, num_rows=num_rows, lengths=lengths, pack=pack, tokens=tokens
        )
