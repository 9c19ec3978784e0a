"""Base class of layouts, and packing and padding of rows.

A layout is a frozen config that converts the examples of a task to the rows of a batch. Batches,
plans and config checks all call the same object:

    layout = Labelled()
    layout.check(task_features)                      # an InputError names the layout that fits
    lengths = layout.lengths(inputs=512, targets=114)
    layout.lay_out(examples, rows, num_rows=8, lengths=lengths, pack=False, tokens=tokens)

A custom layout is a subclass in any module. A config selects it by `Data(layout=Mine())`, and an
objective accepts it if it is a subclass of one of `Objective.layouts`. Features of a batch that
hold token ids end in "_tokens": they are padded with the vocabulary's padding id, and counted as
tokens. Other features are padded with 0, or with NaN if they are floats.

`Rows` makes rows equal to the rows of seqio's feature converters, including names, segments and
positions. `first_fit` packs examples into rows, given only their lengths:

    first_fit([[4, 3], [9, 2], [5, 2]], capacity=(10, 7))   -> [0, 1, 0]

An example goes to the first row that has room for all of its features, or else to a new row.
seqio's packing considers only the last row, which leaves more padding if examples have about a
third of a row's length or more. The packing depends only on lengths, so that every host can compute
all rows of a batch and read only the examples of its rows.
"""

import dataclasses
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32, Shaped, UInt8

from t5x_lite.core.errors import InputError

# Second half of the Philox key: another use of the same example gets other numbers.
SPANS, PREFIX, IID, PERMUTATION, DENOISER, GROUP = 1, 2, 3, 4, 5, 6
FEW_SHOT, DOCUMENT_SPANS, SEGMENTS = 7, 8, 9
_WORD = 2**64


class _Generator(threading.local):
    """Thread-local random generator; resetting it is eight times as fast as creating a new one."""

    def __init__(self):
        self.bits = np.random.Philox(0)
        self.fresh = self.bits.state
        self.generator = np.random.Generator(self.bits)


_own = _Generator()


def example_rng(seed: int, epoch: int, index: int, *, stream: int = SPANS) -> np.random.Generator:
    """Return the random number generator of one example in one epoch.

    Philox is a counter-based generator. Its key is the seed, and the high words of its counter are
    (index, epoch), so no two examples share random numbers.

    Args:
      seed: random seed of the run, taken modulo 2**64.
      epoch: number of earlier passes over the data, >= 0.
      index: position of the example in the unshuffled data, >= 0.
      stream: purpose of the random numbers, such as SPANS or GROUP.

    Returns:
      The generator of this thread, valid until the next call in this thread.
    """
    key, counter = _own.fresh["state"]["key"], _own.fresh["state"]["counter"]
    key[0], key[1] = seed % _WORD, stream
    counter[2], counter[3] = index, epoch
    _own.bits.state = _own.fresh
    return _own.generator


Example = Mapping[str, np.ndarray]

KEY = "example_key"
"""Batch feature for layouts with random samples, int64 [3]: seed, epoch and example index."""


ADAPTER_IDS = "adapter_ids"
"""Feature [B] with the index of the adapter that each row uses in a `MultiTask` composition."""
OWN_NEGATIVES = "own_negatives"
"""Batch feature [B]: 1 if passages of other rows must not be negatives of the row."""


SPECIAL, BEGINS, CONTINUES, ALONE = range(4)
"""Kinds of tokens: special, first of a word, continuation of a word, or a complete word."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EncoderTokens:
    """Special token ids of an encoder's vocabulary, and the kind of every token.

    Attributes:
      cls_id: id of [CLS], the first token of each row.
      sep_id: id of [SEP], the last token of each text.
      mask_id: id of [MASK], which replaces masked tokens.
      pad_id: id of the padding token.
      unk_id: id of the unknown token.
      kinds: int array with the kind of each token id, such as SPECIAL or BEGINS (beginning of a
        word).
      separators: number of [SEP] tokens between two texts; 2 for RoBERTa and XLM-R.
    """

    cls_id: int
    sep_id: int
    mask_id: int
    pad_id: int
    unk_id: int
    kinds: UInt8[np.ndarray, " V"]
    separators: int = 1

    def word_ids(self, tokens: Int[np.ndarray, "*B S"]) -> Int32[np.ndarray, "*B S"]:
        """Return for each token the number of its word in the row, from 1; 0 for special tokens."""
        kinds = self.kinds[tokens]
        before = np.concatenate([np.zeros_like(kinds[..., :1]), kinds[..., :-1]], axis=-1)
        goes_on = (kinds == CONTINUES) & ((before == BEGINS) | (before == CONTINUES))
        words = kinds != SPECIAL
        return (np.cumsum(words & ~goes_on, axis=-1) * words).astype(np.int32)


@runtime_checkable
class Vocabulary(Protocol):
    """Protocol of the vocabularies that layouts use."""

    @property
    def eos_id(self) -> int: ...

    @property
    def pad_id(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Base class of the layouts, which convert examples to the rows of a batch.

    Attributes:
      name: name of the layout, such as "groups".
      features: features that a task must have, in the order in which they are packed.
      optional: features that the layout also uses if the task has them.
      joined: features with several concatenated texts, each beginning with [CLS]; they are not
        truncated.
      of_encoder: True for rows of an encoder, which need [CLS], [SEP] and padding ids.
      packs: True if several examples may share a row.
      draws: True if rows contain a random sample of an example's texts.
      ends: True if inputs of text-to-text tasks end with EOS or another separator.
      grouped: data config field that data.batches Bucketed varies between batches, such as
        "inputs_length"; "" if the layout does not support Bucketed.
      task: example of a task with the required features, for error messages.
    """

    name: ClassVar[str] = ""
    features: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()
    joined: ClassVar[tuple[str, ...]] = ()
    of_encoder: ClassVar[bool] = False
    packs: ClassVar[bool] = True
    draws: ClassVar[bool] = False
    ends: ClassVar[bool] = True
    grouped: ClassVar[str] = ""
    task: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    @property
    def answered_by_head(self) -> bool:
        """True if a classification head answers tasks, False if the model generates text."""
        return "labels" in self.features

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """Return the maximum number of tokens of a text, for each feature.

        Args:
          inputs: the value of data.inputs_length.
          targets: the value of data.targets_length.
        """
        return {"inputs": inputs, "targets": targets}

    def ending(self, vocabulary: Vocabulary, *, length: int | None = None) -> tuple[int, ...]:
        """Return the token ids at the end of each input of a text-to-text task, by default EOS.

        Args:
          vocabulary: vocabulary of the tokens.
          length: maximum number of tokens of inputs, including these end tokens; None if unknown.

        Raises:
          InputError: if the end tokens leave no room for text in `length`.
        """
        del length
        return (vocabulary.eos_id,) if self.ends else ()

    def text_lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """Return the maximum number of tokens of queries and of documents, for retrieval tasks.

        Args:
          inputs: the value of data.inputs_length.
          targets: the value of data.targets_length.
        """
        del inputs, targets
        return {}

    def pair_lengths(self, *, inputs: int, targets: int) -> tuple[int, int | None]:
        """Return the maximum number of tokens of a text pair and of the pair's first text."""
        del targets
        return inputs, None

    def check_model(self, *, begins_with_cls: bool) -> None:
        """Raise InputError unless the model accepts rows of this layout.

        Args:
          begins_with_cls: True if the model's rows begin with [CLS].
        """
        del begins_with_cls

    def capacity(self, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """Return the number of tokens that fit in a row, for each packed feature."""
        return tuple(lengths[name] for name in self.features)

    def packed_lengths(self, lengths: Int[np.ndarray, "n F"]) -> Int[np.ndarray, "n G"]:
        """Return the number of tokens of each example and packed feature."""
        return lengths

    def longest(self, example: Example) -> int:
        """Return the number of tokens of the longest text in a row of this example."""
        return len(example[self.features[0]])

    def longest_stored(
        self, joined: Int[np.ndarray, " n"], lengths: Mapping[str, Int[np.ndarray, " n"]]
    ) -> Int[np.ndarray, " n"]:
        """Return the number of tokens of the longest text of each example in a cache.

        Args:
          joined: number of tokens of the longest text in each example's `joined` features.
          lengths: number of tokens of each feature in the cache.
        """
        del lengths
        return joined

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
        """Convert examples to the rows of a batch.

        Args:
          examples: features by name: truncated int32 token ids including EOS, or other numbers.
          rows: row index of each example, in [0, num_rows).
          num_rows: number of rows; rows without an example are padding.
          lengths: maximum number of tokens of each feature (see `Layout.lengths`).
          pack: True to add segment ids and positions.
          tokens: special token ids of the vocabulary, for encoders; None if only shapes are needed.

        Returns:
          Batch features by name.

        Raises:
          ValueError: if examples do not fit in their row.
        """
        raise TypeError(f"layout {type(self).__name__} does not define the method lay_out")

    def identity(self) -> dict[str, Any]:
        """Return the settings that must stay the same when training is resumed, as JSON data."""
        return {"layout": self.name, **dataclasses.asdict(self)}

    def check(self, there: Collection[str]) -> None:
        """Raise InputError unless a task has the features that this layout requires.

        Args:
          there: feature names of the task; names that are unknown to all layouts are ignored.
        """
        if self.fits(there):
            return
        others = [other.name for other in _layouts() if other.fits(there)]
        task = f"a task such as {self.task}" if self.task else "another task"
        shown = {name for layout in (type(self), *_layouts()) for name in layout.features}
        raise InputError(
            f"data.layout {self.name} needs the features {_listed(self.features)}, but the task "
            f"has {_listed(sorted(shown & {*there} or there))}; use {' or '.join([*others, task])}"
        )

    def of_task(self, there: Collection[str]) -> "Layout":
        """Return the variant of this layout for a task with the given features."""
        self.check(there)
        return self

    def shown(self, there: Collection[str]) -> tuple[str, ...]:
        """Return the names of the task features that this layout uses."""
        return (*self.features, *(name for name in self.optional if name in there))

    @classmethod
    def fits(cls, there: Collection[str]) -> bool:
        """Return True if this is the best layout for a task with the given features."""
        if not {*cls.features} <= {*there}:
            return False
        others = [other for other in _layouts() if {*cls.features} < {*other.features}]
        return not any({*other.features} <= {*there} for other in others)

    def fixed(self) -> dict[str, Any]:
        """Return the settings that cannot change after a cache has been written, as JSON data."""
        return {}

    def check_fixed(self, fixed: Mapping[str, Any]) -> None:
        """Raise InputError if a cache was written with different settings of the layout."""
        own = self.fixed()
        fields = {field.name for field in dataclasses.fields(self)}
        for name in dict.fromkeys([*own, *fixed]):
            there, here = fixed.get(name, ""), own.get(name, "")
            if there == here:
                continue
            made = f"the cache was made with data.layout.{name} {there!r}"
            if name not in fields:
                raise InputError(
                    f"data.layout {self.name} has no field {name}, but {made}; write another cache"
                )
            raise InputError(
                f"data.layout.{name} is {here!r}, but {made}; set "
                f"--data.layout.{name.replace('_', '-')} {there!r}, or write another cache"
            )

    def whole(self, examples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Merge the examples of one question, such as windows of one text, for metrics."""
        return examples


def separate(joined: Int[np.ndarray, " n"]) -> list[Int[np.ndarray, " _"]]:
    """Split concatenated texts at their [CLS] tokens."""
    if not len(joined):
        return []
    return np.split(joined, np.flatnonzero(joined == joined[0])[1:])


def longest_joined(layout: Layout, example: Example) -> int:
    """Return the number of tokens of the longest text in an example that has several texts."""
    texts = [text for name in layout.joined for text in separate(example[name])]
    return max(map(len, texts), default=0)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) or "nothing"


def _layouts(base: type[Layout] = Layout) -> Iterator[type[Layout]]:
    for layout in base.__subclasses__():
        if layout.__module__.startswith("t5x_lite.") and layout.features:
            yield layout
        yield from _layouts(layout)


ENCODER_FEATURES = (
    "encoder_input_tokens",
    "encoder_segment_ids",
    "encoder_positions",
    "encoder_word_ids",
)
"""Names of the batch features of encoder-only models."""


class Rows:
    """Builder of the arrays of a batch, which puts one or several examples into each row."""

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
        """Return a builder for the given examples, and the examples sorted by row."""
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
        """Return the batch features of an encoder-only model, such as token ids and segment ids."""
        tokens, _, positions = self._place(parts, length)
        segments, words = np.zeros_like(tokens), np.zeros_like(tokens)
        segments.flat[self._places] = np.repeat(self._segments, self._sizes)
        if special is not None:
            words = special.word_ids(tokens) * (segments > 0)
            tokens[segments == 0] = special.pad_id
        return dict(zip(ENCODER_FEATURES, (tokens, segments, positions, words), strict=True))

    def numbers(self, parts: Sequence[np.ndarray], length: int) -> Int32[np.ndarray, "B _"]:
        """Return rows with one integer for each token, and 0 for padding."""
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
        """Return loss weights (1 on targets) and prefix mask (1 on inputs) of a language model."""
        widths = np.repeat(widths, self._sizes)
        reading, learned = np.zeros_like(weights), np.zeros_like(weights)
        reading.flat[self._places] = self._offsets <= widths
        learned.flat[self._places] = self._offsets >= widths
        return {"decoder_loss_weights": learned * weights, "decoder_causal_attention": reading}

    def _place(
        self, parts: Sequence[np.ndarray], length: int
    ) -> tuple[Int32[np.ndarray, "B T"], Int32[np.ndarray, "B T"], Int32[np.ndarray, "B T"]]:
        sizes = np.array([len(part) for part in parts], np.int64)
        starts = np.cumsum(sizes) - sizes
        before = starts - starts[self._first]  # tokens of the same row that come before
        if (before + sizes > length).any():
            raise ValueError(
                f"the examples of a row have more tokens than the row length of {length}"
            )
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


def first_fit(lengths: Int[np.ndarray, "n F"], *, capacity: Sequence[int]) -> Int[np.ndarray, " n"]:
    """Pack examples into rows: each example is put into the first row with enough room.

    Args:
      lengths: number of tokens of each example and packed feature.
      capacity: number of tokens of a row, for each packed feature.

    Returns:
      Row numbers, int64, without gaps, in order of each row's first example.

    Raises:
      ValueError: if an example is longer than a row.
    """
    if len(lengths) and (lengths > np.asarray(capacity)).any():
        raise ValueError(
            f"an example with feature lengths {lengths.max(0)} does not fit into a row of lengths "
            f"{capacity}"
        )
    rows = np.empty(len(lengths), np.int64)
    # Rows that can take nothing more are not looked at again: what is left of the others.
    free = np.zeros((len(capacity), len(lengths)), np.int64)
    numbers = np.zeros(len(lengths), np.int64)
    smallest = lengths.min(0).tolist() if len(lengths) else []
    count = num_open = 0
    for example, size in enumerate(lengths.tolist()):
        fits = np.ones(num_open, bool)
        for column, need in zip(free, size, strict=True):
            fits &= column[:num_open] >= need
        place = int(fits.argmax()) if num_open else 0
        if place == num_open or not fits[place]:
            place, num_open = num_open, num_open + 1
            free[:, place], numbers[place] = capacity, count
            count += 1
        free[:, place] -= size
        rows[example] = numbers[place]
        if any(left < need for left, need in zip(free[:, place].tolist(), smallest, strict=True)):
            free[:, place : num_open - 1] = free[:, place + 1 : num_open]
            numbers[place : num_open - 1] = numbers[place + 1 : num_open]
            num_open -= 1
    return rows
