"""Rows of a decoder alone.

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

`ConcatLM` has the same rows for a causal language model that learns the inputs too: its loss
weights are 1 on both, and there is no `decoder_causal_attention`, which would show the model what
it shall predict.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, Int32

from t5x_lite.data.layouts.base import Example, Layout
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class LM(Layout):
    """Text without inputs; data.inputs_length means nothing to it."""

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
        """See `Layout.lay_out`."""
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        return stream.decoder([example["targets"] for example in ordered], lengths["targets"])

    def converter(self, seqio: Any, *, pack: bool) -> Any:
        """See `Layout.converter`."""
        return seqio.LMFeatureConverter(pack=pack)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConcatLM(Layout):
    """Inputs and targets one behind the other, and a loss on both."""

    name: ClassVar[str] = "concat_lm"
    task: ClassVar[str] = "tasks.text:prefix_lm"
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    def capacity(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """See `Layout.capacity`: inputs and targets share a row."""
        return (lengths["inputs"] + lengths["targets"],)

    def packed_lengths(self, lengths: Int[np.ndarray, "n F"]) -> Int[np.ndarray, "n G"]:
        """See `Layout.packed_lengths`."""
        return lengths.sum(1, keepdims=True)

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
        """See `Layout.lay_out`."""
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        whole = [np.concatenate([e["inputs"], e["targets"]]) for e in ordered]
        return self._finished(stream, stream.decoder(whole, *self.capacity(lengths)), ordered)

    def _finished(
        self, stream: Rows, batch: dict[str, np.ndarray], examples: Sequence[Example]
    ) -> dict[str, np.ndarray]:
        return batch

    def converter(self, seqio: Any, *, pack: bool) -> Any:
        """See `Layout.converter`."""
        convert = seqio.PrefixLMFeatureConverter(pack=pack, loss_on_targets_only=False)
        return lambda dataset, lengths: convert(dataset, lengths).map(_without_prefix)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixLM(ConcatLM):
    """Inputs and targets one behind the other, and a loss on the targets."""

    name: ClassVar[str] = "prefix_lm"

    def _finished(
        self, stream: Rows, batch: dict[str, np.ndarray], examples: Sequence[Example]
    ) -> dict[str, np.ndarray]:
        widths = np.array([len(example["inputs"]) for example in examples], np.int64)
        return batch | stream.prefix(widths, batch["decoder_loss_weights"])

    def converter(self, seqio: Any, *, pack: bool) -> Any:
        """See `Layout.converter`."""
        return seqio.PrefixLMFeatureConverter(pack=pack)


def _without_prefix(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "decoder_causal_attention"}
