"""Layouts for unlabeled text and text-to-text tasks.

`Encoder`: rows of an encoder-only model, for a task with only inputs (documents, or segments of
documents).

Each input is [CLS] ... [SEP]. Documents in the same row do not attend to each other. Masks are
sampled later, on the device, among the tokens with a word id. With [CLS] 2, [SEP] 3, padding 0, and
7 a token that continues a word:

    {"inputs": [2 5 7 6 3]}, {"inputs": [2 4 3]}

    encoder_input_tokens   2 5 7 6 3 2 4 3 0 0
    encoder_segment_ids    1 1 1 1 1 2 2 2 0 0
    encoder_positions      0 1 2 3 4 0 1 2 0 0
    encoder_word_ids       0 1 1 2 0 0 3 0 0 0

Without packing, rows have the same features, with one segment per row. Seqio has no such rows,
because its id 0 is always padding (RoBERTa's [CLS] is 0).

`Spans`: rows of an encoder with two spans of one document, for masked and contrastive training.

An example has the "spans" of a document, each a text [CLS] ... [SEP]. A row has two different
spans. A span that is too long for the row is truncated to a window at a random position. The sample
depends only on the run's seed, the epoch and the example's index: it differs between epochs, and a
resumed run takes the same samples. With a maximum of 5 tokens per span:

    {"spans": [2 5 3 2 5 7 6 5 3 2 4 3]}              sampled: the second, cut, and the first

    encoder_input_tokens   [[2 7 6 5 3] [2 5 3 0 0]]          [B, 2, S]
    encoder_segment_ids    [[1 1 1 1 1] [1 1 1 0 0]]
    encoder_positions      [[0 1 2 3 4] [0 1 2 0 0]]
    encoder_word_ids       [[0 1 2 3 0] [0 1 0 0 0]]

All features of a span have the same window. Condenser's code samples two windows, one for the
tokens and another for the words that are masked together (data.py). If a window begins inside a
word, the remaining tokens of the word (7 in this example) are a separate word.

`Seq2Seq`: rows of an encoder-decoder, as in seqio's EncDecFeatureConverter.

Packed, with lengths 10 and 7:

    {"inputs": [7 8 5 1], "targets": [3 9 1]}, {"inputs": [8 4 9 3 1], "targets": [4 1]}

    encoder_input_tokens   7 8 5 1 8 4 9 3 1 0     decoder_target_tokens  3 9 1 4 1 0 0
    encoder_segment_ids    1 1 1 1 2 2 2 2 2 0     decoder_input_tokens   0 3 9 0 4 0 0
    encoder_positions      0 1 2 3 0 1 2 3 4 0     decoder_loss_weights   1 1 1 1 1 0 0
                                                   decoder_segment_ids    1 1 1 2 2 0 0
                                                   decoder_positions      0 1 2 0 1 0 0

The next layouts give the rows of a decoder-only model.

`LM` is seqio's LMFeatureConverter: rows of targets_length tokens of a task that has targets only.

`PrefixLM` is seqio's PrefixLMFeatureConverter: targets follow their inputs in a row of
inputs_length + targets_length tokens. `decoder_causal_attention` is 1 where a prefix language model
reads the inputs, the 0 at their start included; a causal one ignores it. With lengths 8 and 7:

    {"inputs": [7 8 5 1], "targets": [3 9 1]}, {"inputs": [8 4 9 3 1], "targets": [4 1]}

    decoder_target_tokens     7 8 5 1 3 9 1 8 4 9 3 1 4 1 0
    decoder_input_tokens      0 7 8 5 1 3 9 0 8 4 9 3 1 4 0
    decoder_loss_weights      0 0 0 0 1 1 1 0 0 0 0 0 1 1 0
    decoder_causal_attention  1 1 1 1 1 0 0 1 1 1 1 1 1 0 0
    decoder_segment_ids       1 1 1 1 1 1 1 2 2 2 2 2 2 2 0
    decoder_positions         0 1 2 3 4 5 6 0 1 2 3 4 5 6 0

`ConcatLM` has the same rows for a causal language model that also learns the inputs: its loss
weights are 1 on both. It has no `decoder_causal_attention`, which would show the model the tokens
to predict.

EOS is between inputs and targets, as in the released code of T5. The paper writes words there
(Raffel et al. 2020, section 3.2.1), which `separator` puts in the place of EOS:

    translate English to German: That is good. target: Das ist gut.</s>
    ----------- inputs, which a prefix LM sees both ways ---
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.core.errors import InputError
from t5x_lite.layouts.base import (
    DOCUMENT_SPANS,
    KEY,
    EncoderTokens,
    Example,
    Layout,
    Rows,
    Vocabulary,
    example_rng,
    separate,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder(Layout):
    """Layout for masked language models: documents in rows, packed or one per row."""

    name: ClassVar[str] = "encoder"
    task: ClassVar[str] = "tasks.encoder:documents"
    features: ClassVar[tuple[str, ...]] = ("inputs",)
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"

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
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        return stream.encoder_alone([e["inputs"] for e in ordered], lengths["inputs"], tokens)


NUM = 2
"""Number of text spans in each row."""


def _cut(span: Int[np.ndarray, " n"], length: int | None, place: float) -> np.ndarray:
    """Cut a span to `length` tokens, keeping [CLS] and [SEP]; `place` in [0, 1) sets the start."""
    if length is None or len(span) <= length:
        return span
    inner = length - 2
    start = 1 + int(place * (len(span) - 2 - inner + 1))
    return np.concatenate([span[:1], span[start : start + inner], span[-1:]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class LM(Layout):
    """Layout for language models: rows with only targets; data.inputs_length is ignored."""

    name: ClassVar[str] = "lm"
    task: ClassVar[str] = "tasks.text:language_model"
    features: ClassVar[tuple[str, ...]] = ("targets",)
    ends: ClassVar[bool] = False

    def lay_out(
        self,
        examples: Sequence[Example],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
        pack: bool,
        tokens: EncoderTokens | None = None,
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        return stream.decoder([example["targets"] for example in ordered], lengths["targets"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Joined(Layout):
    """Base class of layouts with inputs and targets in one sequence.

    Attributes:
      separator: text at the end of the inputs, such as " target:"; if "", inputs end with EOS. Long
        inputs are truncated before the separator. For a byte vocabulary, use " target: ", with a
        space at the end.
    """

    separator: str = ""

    def capacity(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        return (lengths["inputs"] + lengths["targets"],)

    def packed_lengths(self, lengths: Int[np.ndarray, "n F"]) -> Int[np.ndarray, "n G"]:
        return lengths.sum(1, keepdims=True)

    def identity(self) -> dict[str, Any]:
        own = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return {
            "layout": self.name,
            **{field.name: value for field, value in own if value != field.default},
        }

    def fixed(self) -> dict[str, Any]:
        return {"separator": self.separator} if self.separator else {}

    def ending(self, vocabulary: Vocabulary, *, length: int | None = None) -> tuple[int, ...]:
        if not self.separator:
            return super().ending(vocabulary, length=length)
        found = tuple(vocabulary.encode(self.separator))
        named = f"data.layout.separator {self.separator!r}"
        if not found or vocabulary.pad_id in found:
            what = "contains the padding token" if found else "has no tokens in this vocabulary"
            raise InputError(f'{named} {what}; set it to words, such as " target:"')
        if length is not None and length <= len(found):
            raise InputError(
                f"{named} has {len(found)} tokens, which leaves no room for text in inputs of at "
                f"most {length} tokens; increase data.inputs_length"
            )
        return found

    def lay_out(
        self,
        examples: Sequence[Example],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
        pack: bool,
        tokens: EncoderTokens | None = None,
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        whole = [np.concatenate([e["inputs"], e["targets"]]) for e in ordered]
        batch = stream.decoder(whole, *self.capacity(lengths))
        widths = np.array([len(example["inputs"]) for example in ordered], np.int64)
        return self._finished(batch, stream.prefix(widths, batch["decoder_loss_weights"]))

    def _finished(
        self, batch: dict[str, np.ndarray], prefix: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        raise TypeError(f"layout {type(self).__name__} does not define the method _finished")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConcatLM(_Joined):
    """Layout for causal language models: inputs and targets in one sequence.

    Attributes:
      separator: text at the end of the inputs, such as " target:"; if "", inputs end with EOS.
      loss_on_inputs: True to include the inputs in the loss, as in the T5 paper's language model.
    """

    loss_on_inputs: bool = True

    name: ClassVar[str] = "concat_lm"
    task: ClassVar[str] = "tasks.text:prefix_lm"
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    def _finished(
        self, batch: dict[str, np.ndarray], prefix: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        if self.loss_on_inputs:
            return batch
        return batch | {"decoder_loss_weights": prefix["decoder_loss_weights"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixLM(_Joined):
    """Layout for prefix language models: inputs and targets in one sequence; loss only on targets.

    Attributes:
      separator: text at the end of the inputs, such as " target:"; if "", inputs end with EOS.
    """

    name: ClassVar[str] = "prefix_lm"
    task: ClassVar[str] = "tasks.text:prefix_lm"
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    def _finished(
        self, batch: dict[str, np.ndarray], prefix: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return batch | prefix


def _without_prefix(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "decoder_causal_attention"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seq2Seq(Layout):
    """Layout for encoder-decoders: inputs in the encoder, targets in the decoder."""

    name: ClassVar[str] = "seq2seq"
    task: ClassVar[str] = "tasks.text:span_corruption"
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    def lay_out(
        self,
        examples: Sequence[Example],
        rows: Int[np.ndarray, " n"],
        *,
        num_rows: int,
        lengths: Mapping[str, int],
        pack: bool,
        tokens: EncoderTokens | None = None,
    ) -> dict[str, Int32[np.ndarray, "B _"]]:
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        inputs, targets = ([e[name] for e in ordered] for name in self.features)
        return stream.encoder(inputs, lengths["inputs"]) | stream.decoder(
            targets, lengths["targets"]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spans(Layout):
    """Layout for contrastive pretraining: two different spans of one document per row."""

    name: ClassVar[str] = "spans"
    task: ClassVar[str] = "tasks.encoder:spans"
    features: ClassVar[tuple[str, ...]] = ("spans",)
    joined: ClassVar[tuple[str, ...]] = ("spans",)
    of_encoder: ClassVar[bool] = True
    packs: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
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
        size, order = lengths["spans"], np.argsort(rows, kind="stable")
        texts = [span for i in order for span in self.drawn(examples[i], length=size)]
        places = (rows[order][:, None] * NUM + np.arange(NUM)).reshape(-1)
        stream = Rows(places, num_rows=num_rows * NUM, pack=False)
        found = stream.encoder_alone(texts, size, tokens)
        return {name: value.reshape(num_rows, NUM, size) for name, value in found.items()}

    def drawn(self, example: Example, *, length: int | None = None) -> list[Int[np.ndarray, " _"]]:
        """Sample two spans of a document for one row.

        Args:
          example: int32 tokens "spans" (all spans, concatenated), and `base.KEY` for the sampling.
          length: maximum number of tokens of a span, including [CLS] and [SEP]; None for unlimited.

        Raises:
          InputError: if the document has fewer than two spans.
        """
        seed, epoch, index = example[KEY].tolist()
        rng = example_rng(seed, epoch, index, stream=DOCUMENT_SPANS)
        spans = separate(example["spans"])
        if len(spans) < NUM:
            raise InputError(
                f"a document has {len(spans)} spans, but a row needs {NUM}; remove the document"
            )
        # Only uniform doubles are used: NumPy's other samplers may change between versions.
        chosen = np.argsort(rng.random(len(spans)), kind="stable")[:NUM]
        starts = rng.random(NUM)
        return [_cut(spans[i], length, u) for i, u in zip(chosen, starts.tolist(), strict=True)]
