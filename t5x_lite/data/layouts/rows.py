"""Layouts in NumPy: from examples to the rows that a model reads, without TensorFlow.

What the layouts mean, with pictures, stands in live.py; the rows here are equal to those of
seqio's feature converters, names, segments and positions included. Which examples share a row is
decided before (`packing.first_fit`). Rows of "encoder" are made here for tf.data, too.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.data.labels import WIDTH
from t5x_lite.data.layouts.epochs import PLAIN
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens

Example = Mapping[str, np.ndarray]

ENCODER_FEATURES = (
    "encoder_input_tokens",
    "encoder_segment_ids",
    "encoder_positions",
    "encoder_word_ids",
)
"""Of the rows of an encoder alone."""

_APART = ("seq2seq", "pairs", "labelled")
"""The layouts that do not put one feature behind the other."""


def features(layout: str) -> tuple[str, ...]:
    """The features of a task that a layout shows."""
    others = {
        "lm": ("targets",),
        "encoder": ("inputs",),
        "pairs": ("query", "passages"),
        "labelled": ("inputs", "labels"),
    }
    return others.get(layout, ("inputs", "targets"))


def capacity(layout: str, lengths: Mapping[str, int]) -> tuple[int, ...]:
    """Tokens of a row: of encoder and decoder, of query and passages, or of the one there is.

    Args:
      layout: a name in `config.LAYOUT_NAMES`.
      lengths: tokens of each feature at most, EOS included.
    """
    sizes = tuple(lengths[name] for name in features(layout))
    return sizes if layout in _APART else (sum(sizes),)


def packed_lengths(layout: str, lengths: Int[np.ndarray, "n F"]) -> Int[np.ndarray, "n G"]:
    """What examples with features of `lengths` take of a row's `capacity`."""
    return lengths if layout in _APART else lengths.sum(1, keepdims=True)


def lay_out(
    examples: Sequence[Example],
    rows: Int[np.ndarray, " n"],
    *,
    num_rows: int,
    layout: str,
    lengths: Mapping[str, int],
    pack: bool,
    tokens: EncoderTokens | None = None,
) -> dict[str, Int32[np.ndarray, "B *_"]]:
    """Puts examples in rows, those of a row in their order.

    Args:
      examples: int32 token ids of the features, trimmed, EOS included.
      rows: the row of each, in [0, num_rows).
      num_rows: rows in all; those without an example are zeros.
      layout: a name in `config.LAYOUT_NAMES`.
      lengths: tokens of each feature at most.
      pack: whether rows say which example and which position a token is of; those of "encoder" do
        in any case.
      tokens: the vocabulary's, for the rows of "encoder", "pairs" and "labelled"; without it those
        of "encoder" have no words.

    Returns:
      The model's features under seqio's names.

    Raises:
      ValueError: examples do not fit in their row.
    """
    order = np.argsort(rows, kind="stable")
    ordered = [examples[i] for i in order]
    if layout == "pairs":
        return _pairs(ordered, rows[order], num_rows=num_rows, lengths=lengths, tokens=tokens)
    if layout == "labelled":
        return _labelled(ordered, rows[order], num_rows=num_rows, lengths=lengths, tokens=tokens)
    sizes = capacity(layout, lengths)
    stream = _Stream(rows[order], num_rows=num_rows, pack=pack)
    if layout == "encoder":
        return stream.encoder_alone([e["inputs"] for e in ordered], sizes[0], tokens)
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


def _pairs(
    examples: Sequence[Example],
    rows: Int[np.ndarray, " n"],
    *,
    num_rows: int,
    lengths: Mapping[str, int],
    tokens: EncoderTokens | None,
) -> dict[str, Int32[np.ndarray, "B *_"]]:
    """A query a row, in the order of rows, and its passages, which begin at each [CLS]."""
    size = lengths["targets"]
    num_passages = lengths["passages"] // size if "passages" in lengths else 1
    passages, places = [], []
    for row, example in zip(rows.tolist(), examples, strict=True):
        joined = example["passages"]
        plain = joined & PLAIN
        parts = np.split(joined, np.flatnonzero(plain == plain[0])[1:])
        passages += parts[:num_passages]
        places += [row * num_passages + place for place in range(len(parts[:num_passages]))]
    queries = _Stream(rows, num_rows=num_rows, pack=False)
    found = queries.encoder_alone([e["query"] for e in examples], lengths["inputs"], tokens)
    below = _Stream(np.array(places, np.int64), num_rows=num_rows * num_passages, pack=False)
    under = below.encoder_alone(passages, size, tokens)
    shape = (num_rows, num_passages, size)
    return {
        "query_tokens": found["encoder_input_tokens"],
        "query_segment_ids": found["encoder_segment_ids"],
        "passage_tokens": under["encoder_input_tokens"].reshape(shape),
        "passage_segment_ids": under["encoder_segment_ids"].reshape(shape),
    }


def _labelled(
    examples: Sequence[Example],
    rows: Int[np.ndarray, " n"],
    *,
    num_rows: int,
    lengths: Mapping[str, int],
    tokens: EncoderTokens | None,
) -> dict[str, Int32[np.ndarray, "B *_"]]:
    """A text or a pair a row, its token types by the [SEP] before them, and its label."""
    stream = _Stream(rows, num_rows=num_rows, pack=False)
    found = stream.encoder_alone([e["inputs"] for e in examples], lengths["inputs"], tokens)
    ids, segments = found["encoder_input_tokens"], found["encoder_segment_ids"]
    types = np.zeros_like(ids)
    if tokens is not None:
        types = token_types(ids & PLAIN, sep_id=tokens.sep_id) * (segments > 0)
    labels = np.zeros((num_rows, WIDTH), np.int32)
    for row, example in zip(rows.tolist(), examples, strict=True):
        labels[row] = example["labels"] & PLAIN
    return {
        "encoder_input_tokens": ids,
        "encoder_segment_ids": segments,
        "encoder_token_types": types,
        "labels": labels,
    }


def token_types(ids: Int[np.ndarray, "B S"], *, sep_id: int) -> Int32[np.ndarray, "B S"]:
    """0 for a row's first text, [CLS] and [SEP] included, and 1 for what comes behind it."""
    ends = ids == sep_id
    return (np.cumsum(ends, axis=1) > ends).astype(np.int32)


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

    def encoder_alone(
        self, parts: Sequence[np.ndarray], length: int, special: EncoderTokens | None
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        """Any id may be padding's, and 0 may be [CLS]."""
        tokens, _, positions = self._place(parts, length)
        segments, words = np.zeros_like(tokens), np.zeros_like(tokens)
        segments.flat[self._places] = np.repeat(self._segments, self._sizes)
        if special is not None:
            words = special.word_ids(tokens & PLAIN) * (segments > 0)
            tokens[segments == 0] = special.pad_id
        return dict(zip(ENCODER_FEATURES, (tokens, segments, positions, words), strict=True))

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
