"""Sequences of tokens in the rows of a batch, without TensorFlow: what layouts are made of.

Rows are equal to those of seqio's feature converters, names, segments and positions included. Which
examples share a row is decided before (`packing.first_fit`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.vocabulary.encoder_tokens import EncoderTokens

ENCODER_FEATURES = (
    "encoder_input_tokens",
    "encoder_segment_ids",
    "encoder_positions",
    "encoder_word_ids",
)
"""Of the rows of an encoder alone."""


class Rows:
    """One sequence of tokens in each row, of examples that are ordered by their rows."""

    def __init__(self, rows: Int[np.ndarray, " n"], *, num_rows: int, pack: bool):
        self._rows, self._num_rows, self._pack = rows, num_rows, pack
        first = np.searchsorted(rows, rows)  # the first example of the same row
        self._first = first
        self._segments = np.arange(len(rows)) - first + 1

    @classmethod
    def of(
        cls,
        examples: Sequence[Mapping[str, np.ndarray]],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        pack: bool,
    ) -> "tuple[Rows, list[Mapping[str, np.ndarray]]]":
        """The rows of examples in any order, and the examples in the order of their rows."""
        order = np.argsort(rows, kind="stable")
        return cls(rows[order], num_rows=num_rows, pack=pack), [examples[i] for i in order]

    def encoder(
        self, parts: Sequence[np.ndarray], length: int
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        tokens, segments, positions = self._place(parts, length)
        found = {"encoder_input_tokens": tokens}
        if self._pack:
            found |= {"encoder_segment_ids": segments, "encoder_positions": positions}
        return found

    def encoder_alone(
        self, parts: Sequence[np.ndarray], length: int, special: EncoderTokens | None
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        """Any id may be padding's, and 0 may be [CLS]."""
        tokens, _, positions = self._place(parts, length)
        segments, words = np.zeros_like(tokens), np.zeros_like(tokens)
        segments.flat[self._places] = np.repeat(self._segments, self._sizes)
        if special is not None:
            words = special.word_ids(tokens) * (segments > 0)
            tokens[segments == 0] = special.pad_id
        return dict(zip(ENCODER_FEATURES, (tokens, segments, positions, words), strict=True))

    def numbers(self, parts: Sequence[np.ndarray], length: int) -> Int32[np.ndarray, "B _"]:
        """Whole numbers in the places of as many tokens, and 0 elsewhere."""
        return self._place(parts, length)[0]

    def decoder(
        self, parts: Sequence[np.ndarray], length: int
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        tokens, segments, positions = self._place(parts, length)
        shifted = np.zeros_like(tokens)
        shifted[:, 1:] = tokens[:, :-1]
        if self._pack:  # an example begins with 0, not with the EOS of the one before
            shifted[:, 1:] *= segments[:, 1:] == segments[:, :-1]
        found = {
            "decoder_target_tokens": tokens,
            "decoder_input_tokens": shifted,
            "decoder_loss_weights": (tokens != 0).astype(np.int32),
        }
        if self._pack:
            found |= {"decoder_segment_ids": segments, "decoder_positions": positions}
        return found

    def prefix(
        self, widths: Int[np.ndarray, " n"], weights: Int32[np.ndarray, "B T"]
    ) -> dict[str, Int32[np.ndarray, "B T"]]:
        """Loss on targets only, and which positions read the inputs; after `decoder`."""
        widths = np.repeat(widths, self._sizes)
        reading, learned = np.zeros_like(weights), np.zeros_like(weights)
        reading.flat[self._places] = self._offsets <= widths
        learned.flat[self._places] = self._offsets >= widths
        return {"decoder_loss_weights": learned * weights, "decoder_causal_attention": reading}

    def _place(
        self, parts: Sequence[np.ndarray], length: int
    ) -> tuple[Int32[np.ndarray, "B T"], Int32[np.ndarray, "B T"], Int32[np.ndarray, "B T"]]:
        """Tokens, segment ids and positions of the rows."""
        sizes = np.array([len(part) for part in parts], np.int64)
        starts = np.cumsum(sizes) - sizes
        before = starts - starts[self._first]  # tokens of the same row that come before
        if (before + sizes > length).any():
            raise ValueError(f"the examples of a row have more than its {length} tokens")
        self._sizes = sizes
        self._offsets = np.arange(sizes.sum()) - np.repeat(starts, sizes)
        self._places = np.repeat(self._rows * length + before, sizes) + self._offsets
        tokens, segments, positions = (
            np.zeros((self._num_rows, length), np.int32) for _ in range(3)
        )
        if len(parts):
            tokens.flat[self._places] = np.concatenate(parts)
        segments.flat[self._places] = np.repeat(self._segments, sizes)
        positions.flat[self._places] = self._offsets
        # As in seqio, a 0 inside an example is padding and of no segment.
        return tokens, segments * (tokens != 0), positions
