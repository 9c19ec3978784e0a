"""Rows for a head on an encoder, of a task whose texts have labels.

"inputs" are [CLS] a [SEP] or [CLS] a [SEP] b [SEP], and "labels" two whole numbers (`data.labels`:
0 is none). One example a row:

    {"inputs": [2 5 3 6 4 3], "labels": [1 0]}

    encoder_input_tokens  2 5 3 6 4 3 0        labels  1 0
    encoder_segment_ids   1 1 1 1 1 1 0
    encoder_token_types   0 0 0 1 1 1 0

A task of regression has "scores" besides, float32 [1]; a row's "scores" is one number, NaN where
there is none.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, Int32, Shaped

from t5x_lite.data.labels import WIDTH
from t5x_lite.data.layouts.base import Example, Layout
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled(Layout):
    """A text or a pair of texts a row, and its label.

    Attributes:
      scores: whether rows have scores; None is as the task has them.
    """

    scores: bool | None = None

    name: ClassVar[str] = "labelled"
    task: ClassVar[str] = "tasks.glue:sst2"
    features: ClassVar[tuple[str, ...]] = ("inputs", "labels")
    optional: ClassVar[tuple[str, ...]] = ("scores",)
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"
    packs: ClassVar[bool] = False

    def of_task(self, there: Collection[str]) -> "Labelled":
        """See `Layout.of_task`."""
        self.check(there)
        scores = "scores" in there
        if self.scores not in (None, scores):
            raise InputError(
                f"data.layout.scores is {self.scores}, and the task gives "
                f"{'scores' if scores else 'labels, and no scores'}: leave it None"
            )
        return dataclasses.replace(self, scores=scores)

    def identity(self) -> dict[str, Any]:
        """See `Layout.identity`."""
        return {"layout": self.name, **({"scores": True} if self.scores else {})}

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.lengths`."""
        del targets
        return {"inputs": inputs, "labels": WIDTH, "scores": 1}

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
        """See `Layout.lay_out`; token types go by the [SEP] before them."""
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=False)
        found = stream.encoder_alone([e["inputs"] for e in ordered], lengths["inputs"], tokens)
        ids, segments = found["encoder_input_tokens"], found["encoder_segment_ids"]
        types = np.zeros_like(ids)
        if tokens is not None:
            types = token_types(ids, sep_id=tokens.sep_id) * (segments > 0)
        labels = np.zeros((num_rows, WIDTH), np.int32)
        scores = np.full(num_rows, np.nan, np.float32)
        for row, example in zip(rows.tolist(), examples, strict=True):
            labels[row] = example["labels"]
            scores[row] = example.get("scores", [np.nan])[0]
        return {
            "encoder_input_tokens": ids,
            "encoder_segment_ids": segments,
            "encoder_token_types": types,
            "labels": labels,
            **({"scores": scores} if self.scores else {}),
        }


def token_types(ids: Int[np.ndarray, "B S"], *, sep_id: int) -> Int32[np.ndarray, "B S"]:
    """0 for a row's first text, [CLS] and [SEP] included, and 1 for what comes behind it."""
    ends = ids == sep_id
    return (np.cumsum(ends, axis=1) > ends).astype(np.int32)
