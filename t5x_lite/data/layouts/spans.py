"""Rows of an encoder with two spans of one document, which learn from masks and from each other.

An example has the "spans" of a document, each a text [CLS] ... [SEP]. A row has two different ones
of them; a span that is too long for the row is cut to a window at a random place. What is drawn is
a function of the run's seed, the epoch and the example's index alone: another epoch draws other
spans, and a run that goes on draws what it would have drawn. With spans of 5 tokens at most:

    {"spans": [2 5 3 2 5 7 6 5 3 2 4 3]}              drawn: the second, cut, and the first

    encoder_input_tokens   [[2 7 6 5 3] [2 5 3 0 0]]          [B, 2, S]
    encoder_segment_ids    [[1 1 1 1 1] [1 1 1 0 0]]
    encoder_positions      [[0 1 2 3 4] [0 1 2 0 0]]
    encoder_word_ids       [[0 1 2 3 0] [0 1 0 0 0]]

The window of a span is one for all its features: Condenser's code draws two, one for the tokens and
another for the words that are masked together (data.py). A piece that goes on with a word whose
beginning was cut off, as 7 here, is a word of its own.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.data.corruption.noise import DOCUMENT_SPANS, example_rng
from t5x_lite.data.layouts.base import KEY, Example, Layout, separate
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens

NUM = 2
"""Spans of a row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans(Layout):
    """Two spans of one document a row."""

    name: ClassVar[str] = "spans"
    task: ClassVar[str] = "tasks.encoder:spans"
    features: ClassVar[tuple[str, ...]] = ("spans",)
    joined: ClassVar[tuple[str, ...]] = ("spans",)
    of_encoder: ClassVar[bool] = True
    packs: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.lengths`."""
        del targets
        return {"spans": inputs}

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
        """See `Layout.lay_out`; examples have `base.KEY` besides."""
        size, order = lengths["spans"], np.argsort(rows, kind="stable")
        texts = [span for i in order for span in self.drawn(examples[i], length=size)]
        places = (rows[order][:, None] * NUM + np.arange(NUM)).reshape(-1)
        stream = Rows(places, num_rows=num_rows * NUM, pack=False)
        found = stream.encoder_alone(texts, size, tokens)
        return {name: value.reshape(num_rows, NUM, size) for name, value in found.items()}

    def drawn(self, example: Example, *, length: int | None = None) -> list[Int[np.ndarray, " _"]]:
        """The spans of a row.

        Args:
          example: int32 tokens "spans", one span behind the other, and `base.KEY`.
          length: tokens of a span at most, [CLS] and [SEP] included; None leaves them as they are.

        Raises:
          InputError: the document has fewer than two spans.
        """
        seed, epoch, index = example[KEY].tolist()
        rng = example_rng(seed, epoch, index, stream=DOCUMENT_SPANS)
        spans = separate(example["spans"])
        if len(spans) < NUM:
            raise InputError(
                f"a document has {len(spans)} spans, and a row has {NUM}: leave it out"
            )
        # Uniform doubles alone: the streams of NumPy's other draws may change between versions.
        chosen = np.argsort(rng.random(len(spans)), kind="stable")[:NUM]
        starts = rng.random(NUM)
        return [_cut(spans[i], length, u) for i, u in zip(chosen, starts.tolist(), strict=True)]


def _cut(span: Int[np.ndarray, " n"], length: int | None, place: float) -> np.ndarray:
    """A window of a span between its [CLS] and [SEP], at a place in [0, 1) of those there are."""
    if length is None or len(span) <= length:
        return span
    inner = length - 2
    start = 1 + int(place * (len(span) - 2 - inner + 1))
    return np.concatenate([span[:1], span[start : start + inner], span[-1:]])
