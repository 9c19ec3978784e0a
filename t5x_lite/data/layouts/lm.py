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

from t5x_lite.data.layouts.base import Example, Layout
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens
from t5x_lite.vocabulary.loading import Vocabulary


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
class _Joined(Layout):
    """Inputs and targets one behind the other; what the two layouts share.

    Attributes:
      separator: words that end the inputs in place of EOS, such as " target:"; "" is EOS. Inputs
        that are too long are cut in front of them. A vocabulary that keeps spaces, as of bytes,
        needs " target: ".
    """

    separator: str = ""

    def capacity(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """See `Layout.capacity`: inputs and targets share a row."""
        return (lengths["inputs"] + lengths["targets"],)

    def packed_lengths(self, lengths: Int[np.ndarray, "n F"]) -> Int[np.ndarray, "n G"]:
        """See `Layout.packed_lengths`."""
        return lengths.sum(1, keepdims=True)

    def identity(self) -> dict[str, Any]:
        """See `Layout.identity`; positions that were saved before a field was there fit."""
        own = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return {
            "layout": self.name,
            **{field.name: value for field, value in own if value != field.default},
        }

    def fixed(self) -> dict[str, Any]:
        """See `Layout.fixed`."""
        return {"separator": self.separator} if self.separator else {}

    def ending(self, vocabulary: Vocabulary, *, length: int | None = None) -> tuple[int, ...]:
        """See `Layout.ending`."""
        if not self.separator:
            return super().ending(vocabulary, length=length)
        found = tuple(vocabulary.encode(self.separator))
        named = f"data.layout.separator {self.separator!r}"
        if not found or vocabulary.pad_id in found:
            what = "holds padding" if found else "has no tokens in this vocabulary"
            raise InputError(f'{named} {what}: write words, such as " target:"')
        if length is not None and length <= len(found):
            raise InputError(
                f"{named} has {len(found)} tokens, and inputs have at most {length}: there is no "
                "room for a text; raise their length"
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
        """See `Layout.lay_out`."""
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        whole = [np.concatenate([e["inputs"], e["targets"]]) for e in ordered]
        batch = stream.decoder(whole, *self.capacity(lengths))
        widths = np.array([len(example["inputs"]) for example in ordered], np.int64)
        return self._finished(batch, stream.prefix(widths, batch["decoder_loss_weights"]))

    def _finished(
        self, batch: dict[str, np.ndarray], prefix: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The rows of a layout, of those of all and of what says where inputs end."""
        raise TypeError(f"{type(self).__name__} does not define _finished")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConcatLM(_Joined):
    """Inputs and targets one behind the other for a causal model, which learns both.

    Attributes:
      separator: words that end the inputs in place of EOS, such as " target:"; "" is EOS.
      loss_on_inputs: whether the inputs are learned, too, as the paper's language model learns
        them.
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

    def converter(self, seqio: Any, *, pack: bool) -> Any:
        """See `Layout.converter`."""
        convert = seqio.PrefixLMFeatureConverter(
            pack=pack, loss_on_targets_only=not self.loss_on_inputs
        )
        return lambda dataset, lengths: convert(dataset, lengths).map(_without_prefix)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixLM(_Joined):
    """Inputs and targets one behind the other, and a loss on the targets.

    Attributes:
      separator: words that end the inputs in place of EOS, such as " target:"; "" is EOS.
    """

    name: ClassVar[str] = "prefix_lm"
    task: ClassVar[str] = "tasks.text:prefix_lm"
    features: ClassVar[tuple[str, ...]] = ("inputs", "targets")

    def _finished(
        self, batch: dict[str, np.ndarray], prefix: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return batch | prefix

    def converter(self, seqio: Any, *, pack: bool) -> Any:
        """See `Layout.converter`."""
        return seqio.PrefixLMFeatureConverter(pack=pack)


def _without_prefix(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "decoder_causal_attention"}
