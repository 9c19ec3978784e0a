"""layouts.py in NumPy: from examples to the rows that a model reads, without TensorFlow.

What the layouts mean, with pictures, stands in layouts.py; the rows here are equal to those of
seqio's feature converters, names, segments and positions included. Which examples share a row is
decided before (`packing.first_fit`).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int32

Example = Mapping[str, np.ndarray]


def features(layout: str) -> tuple[str, ...]:
    """The features of a task that a layout shows."""
    return ("targets",) if layout == "lm" else ("inputs", "targets")


def capacity(layout: str, lengths: Mapping[str, int]) -> tuple[int, ...]:
    """Tokens of a row: of encoder and decoder, or of the decoder alone.

    Args:
      layout: a name in `config.LAYOUT_NAMES`.
      lengths: tokens of each feature at most, EOS included.
    """
    sizes = tuple(lengths[name] for name in features(layout))
    return sizes if layout == "seq2seq" else (sum(sizes),)


def packed_lengths(layout: str, lengths: Int[np.ndarray, "n F"]) -> Int[np.ndarray, "n G"]:
    """What examples with features of `lengths` take of a row's `capacity`."""
    return lengths if layout == "seq2seq" else lengths.sum(1, keepdims=True)


def lay_out(
    examples: Sequence[Example],
    rows: Int[np.ndarray, " n"],
    *,
    num_rows: int,
    layout: str,
    lengths: Mapping[str, int],
    pack: bool,
) -> dict[str, Int32[np.ndarray, "B _"]]:
    """Puts examples in rows, those of a row in their order.

    Args:
      examples: int32 token ids of the features, trimmed, EOS included.
      rows: the row of each, in [0, num_rows).
      num_rows: rows in all; those without an example are zeros.
      layout: a name in `config.LAYOUT_NAMES`.
      lengths: tokens of each feature at most.
      pack: whether rows say which example and which position a token is of.

    Returns:
      The model's features under seqio's names.

    Raises:
      ValueError: examples do not fit in their row.
    """
    sizes = capacity(layout, lengths)
    order = np.argsort(rows, kind="stable")
    ordered = [examples[i] for i in order]
    stream = _Stream(rows[order], num_rows=num_rows, pack=pack)
    if layout == "seq2seq":
        inputs, targets = ([e[name] for e in ordered] for name in ("inputs", "targets"))
        return stream.encoder(inputs, sizes[0]) | stream.decoder(targets, sizes[1])
    if layout == "lm":
        return stream.decoder([example["targets"] for example in ordered], sizes[0])
    whole = [np.concatenate([example["inputs"], example["targets"]]) for example in ordered]
    found = stream.decoder(whole, sizes[0])
    if layout == "prefix_lm":
        widths = np.array([len(example["inputs"]) for example in ordered], np.int64)
        found |= stream.prefix(widths, found["decoder_loss_weights"])
    return found


class _Stream:
    """One sequence of tokens in each row, of examples that are ordered by their rows."""

    def __init__(self, rows: Int[np.ndarray, " n"], *, num_rows: int, pack: bool):
        self._rows, self._num_rows, self._pack = rows, num_rows, pack
        first = np.searchsorted(rows, rows)  # the first example of the same row
        self._first = first
        self._segments = np.arange(len(rows)) - first + 1

    def encoder(
        self, parts: Sequence[np.ndarray], length: int
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        tokens, segments, positions = self._place(parts, length)
        found = {"encoder_input_tokens": tokens}
        if self._pack:
            found |= {"encoder_segment_ids": segments, "encoder_positions": positions}
        return found

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
