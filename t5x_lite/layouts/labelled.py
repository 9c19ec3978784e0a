"""Layouts for labels of texts, of tokens, of answer spans, or of choices.

`Choices`: rows for a multiple-choice head, with a question paired with each choice.

"choices" are the concatenated texts of an example, each [CLS] question [SEP] choice [SEP]. "labels"
is the index of the correct choice, counted from 1; 0 is unknown. A row has one example:

    {"choices": [2 5 3 6 3 2 5 3 7 3], "labels": [2 0]}

    encoder_input_tokens  [[2 5 3 6 3 0] [2 5 3 7 3 0]]        labels  2 0
    encoder_segment_ids   [[1 1 1 1 1 0] [1 1 1 1 1 0]]
    encoder_token_types   [[0 0 0 1 1 0] [0 0 0 1 1 0]]

Missing choices are padding, and are never predicted.

`Labelled`: rows for an encoder head, with a label for each text or text pair.

"inputs" are [CLS] a [SEP] or [CLS] a [SEP] b [SEP], and "labels" are two integers, 0 if unknown. A
row has one example:

    {"inputs": [2 5 3 6 4 3], "labels": [1 0]}

    encoder_input_tokens  2 5 3 6 4 3 0        labels  1 0
    encoder_segment_ids   1 1 1 1 1 1 0
    encoder_token_types   0 0 0 1 1 1 0

A regression task also has "scores", float32 [1]; a row's "scores" is one number, NaN if unknown.

`Tokens`: rows for a head that labels each token, such as named entities or parts of speech.

"inputs" are the tokens of a sentence's words, [CLS] ... [SEP], and "token_labels" one integer per
token: class + 1 at the first token of a word, and 0 (no label) at [CLS], [SEP] and all other
tokens. With [CLS] 2, [SEP] 3, padding 0, and 7 a token that continues a word:

    {"inputs": [2 5 7 6 3], "token_labels": [0 4 0 1 0]},
    {"inputs": [2 4 3],     "token_labels": [0 1 0]}

    encoder_input_tokens  2 5 7 6 3 2 4 3 0 0
    encoder_segment_ids   1 1 1 1 1 2 2 2 0 0
    token_labels          0 4 0 1 0 0 1 0 0 0

Sentences in the same row do not attend to each other, and each begins at position 0.

`Windows`: rows for a head that finds an answer span in a text. A long text is split into windows.

Each window is an example and its own row, [CLS] question [SEP] window [SEP] (Devlin et al. 2019;
google-research/bert run_squad.py). With rows of 9 tokens, a question of one token and doc_stride 3,
a context of 8 tokens, 11 to 18, with the answer 15 16 has two windows:

    {"inputs": [2 5 3 11 12 13 14 15 3], "labels": [1 1], "window": [0]}
    {"inputs": [2 5 3 14 15 16 17 18 3], "labels": [5 6], "window": [1]}

A window without the complete answer has the label [CLS], which means no answer. Rows are as in
`Labelled`. "window" is the index of a window in its context, because a task's metrics need all
windows of a question together.

Labels are pairs of integers:

    of_class(2)       (3, 0)        of_span(7, 9)      (8, 10)
    of_class(-1)      (0, 0)

0 means no label, for rows of padding and of a test split. A score is a separate float instead of a
label; caches of earlier versions have it here, in thousandths.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Int, Int32, Shaped

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count, check_bounds
from t5x_lite.layouts.base import EncoderTokens, Example, Layout, Rows, separate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens(Layout):
    """Layout for token classification, such as named entity recognition: a label for each token."""

    name: ClassVar[str] = "tokens"
    task: ClassVar[str] = "tasks.tokens:conll"
    features: ClassVar[tuple[str, ...]] = ("inputs", "token_labels")
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"

    @property
    def answered_by_head(self) -> bool:
        return True

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        del targets
        return {"inputs": inputs, "token_labels": inputs}

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
        """Convert examples to the rows of a batch.

        Raises:
          InputError: if the number of labels of an example differs from its number of tokens.
        """
        for example in examples:
            sizes = [len(example[name]) for name in self.features]
            if sizes[0] != sizes[1]:
                raise InputError(
                    f"an example has {sizes[0]} input tokens, but {sizes[1]} token_labels; "
                    "data.layout tokens needs a label for each token, including [CLS] and [SEP]"
                )
        stream, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=pack)
        inputs, labels = ([e[name] for e in ordered] for name in self.features)
        found = stream.encoder_alone(inputs, lengths["inputs"], tokens)
        return {
            "encoder_input_tokens": found["encoder_input_tokens"],
            "encoder_segment_ids": found["encoder_segment_ids"],
            "token_labels": stream.numbers(labels, lengths["inputs"]),
        }


Label = tuple[int, int]

NONE: Label = (0, 0)
"""Missing label of an example."""
PARTS_OF_SCORE = 1000
"""Number of label units for a score of 1 in caches of earlier versions."""
WIDTH = 2
"""Number of integers in each label."""


def of_class(index: int) -> Label:
    """Convert a class index to a label, (index + 1, 0); an index of -1 becomes (0, 0)."""
    return (index + 1, 0)


def of_span(first: int, last: int) -> Label:
    """Convert an answer's first and last token index to a label, (first + 1, last + 1)."""
    return (first + 1, last + 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled(Layout):
    """Layout with one text or text pair per row, together with its class label or score.

    Attributes:
      scores: True for regression scores, False for class labels; if None, the task determines this.
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
        self.check(there)
        scores = "scores" in there
        if self.scores not in (None, scores):
            raise InputError(
                f"data.layout.scores is {self.scores}, but the task has "
                f"{'scores' if scores else 'labels and no scores'}; unset data.layout.scores"
            )
        return dataclasses.replace(self, scores=scores)

    def identity(self) -> dict[str, Any]:
        return {"layout": self.name, **({"scores": True} if self.scores else {})}

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
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
    """Return token type ids: 0 for the first text of a row ([CLS] included), 1 for the second."""
    ends = ids == sep_id
    return (np.cumsum(ends, axis=1) > ends).astype(np.int32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices(Layout):
    """Layout for multiple-choice questions: each row pairs a question with each choice.

    Attributes:
      num: maximum number of choices per question.
    """

    num: Annotated[int, AtLeast(2)] = 2

    name: ClassVar[str] = "choices"
    task: ClassVar[str] = "tasks.super_glue:copa"
    features: ClassVar[tuple[str, ...]] = ("choices", "labels")
    joined: ClassVar[tuple[str, ...]] = ("choices",)
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"
    packs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_bounds(self, prefix="data.layout.")

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        del targets
        return {"choices": inputs, "labels": WIDTH}

    def longest(self, example: Example) -> int:
        return max((len(text) for text in separate(example["choices"])), default=0)

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
        """Convert examples to the rows of a batch.

        Raises:
          InputError: if an example has more choices than `num`.
        """
        size = lengths["choices"]
        texts, places = [], []
        labels = np.zeros((num_rows, WIDTH), np.int32)
        order = np.argsort(rows, kind="stable")
        for row, example in zip(rows[order].tolist(), [examples[i] for i in order], strict=True):
            choices = separate(example["choices"])
            if len(choices) > self.num:
                raise InputError(
                    f"an example has {len(choices)} choices, but data.layout.num is {self.num}; "
                    f"set --data.layout.num {len(choices)}"
                )
            texts += choices
            places += [row * self.num + place for place in range(len(choices))]
            labels[row] = example["labels"]
        stream = Rows(np.array(places, np.int64), num_rows=num_rows * self.num, pack=False)
        found = stream.encoder_alone(texts, size, tokens)
        ids, segments = found["encoder_input_tokens"], found["encoder_segment_ids"]
        types = np.zeros_like(ids)
        if tokens is not None:
            types = token_types(ids, sep_id=tokens.sep_id) * (segments > 0)
        shape = (num_rows, self.num, size)
        return {
            "encoder_input_tokens": ids.reshape(shape),
            "encoder_segment_ids": segments.reshape(shape),
            "encoder_token_types": types.reshape(shape),
            "labels": labels,
        }


WINDOW = "window"
"""Batch feature, int32 [1]: index of a window in the windows of its text, from 0."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windows(Layout):
    """Layout for extractive question answering: a question and a window of a long text per row.

    Attributes:
      doc_stride: number of tokens from the start of one window to the start of the next, as in
        BERT. In transformers, doc_stride is the overlap of two windows.
      query_length: maximum number of tokens of a question; BERT's max_query_length.
    """

    doc_stride: Count = 128
    query_length: Count = 64

    name: ClassVar[str] = "windows"
    task: ClassVar[str] = "tasks.squad:squad"
    features: ClassVar[tuple[str, ...]] = ("inputs", "labels", WINDOW)
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "inputs_length"
    packs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_bounds(self, prefix="data.layout.")

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        rows = Labelled().lengths(inputs=inputs, targets=targets)
        return {"inputs": rows["inputs"], "labels": rows["labels"], WINDOW: 1}

    def fixed(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def whole(self, examples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Merge the windows of each question into one example, for metrics."""
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
        return Labelled().lay_out(
            examples, rows, num_rows=num_rows, lengths=lengths, pack=pack, tokens=tokens
        )
