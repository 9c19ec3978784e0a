"""Layouts for retrieval: rows with a query and passages, as separate texts or as text pairs.

`Groups`: rows of an encoder that compares a query with passages.

An example has a "query", its relevant passages ("positives"), and a pool of irrelevant passages
("negatives"). Each text is [CLS] ... [SEP]. A row has the query, one positive, and `negatives` of
the pool, sampled without replacement. The sample depends only on the run's seed, the epoch and the
example's index: it differs between epochs, and a resumed run takes the same samples. Missing
passages are padding, and take no part in a loss. With maximum lengths of 4 and 3 tokens for query
and passages, and one negative:

    {"query": [2 5 6 3], "positives": [2 5 3], "negatives": [2 4 3 2 8 3]},
    {"query": [2 4 3],   "positives": [2 4 3], "negatives": []}

    query_tokens          [2 5 6 3]            [2 4 3 0]            [B, _]
    query_segment_ids     [1 1 1 1]            [1 1 1 0]
    passage_tokens        [[2 5 3] [2 8 3]]    [[2 4 3] [0 0 0]]    [B, 1 + negatives, _]
    passage_segment_ids   [[1 1 1] [1 1 1]]    [[1 1 1] [0 0 0]]
    teacher_scores        [[9.5 0.5]]          [[8.0 NaN]]          float32 [B, 1 + negatives]

"teacher_scores" exist only with `teacher`, for a task with "scores" in its examples: first of the
positives, then of the negatives. With `known_positives` K, rows have names of passages, by which
objectives recognize another row's passage as a positive. A name is four integers, and 0 0 0 0 is a
missing name:

    passage_ids           [[[3 1 4 1] [5 9 2 6]]]                       [B, 1 + negatives, 4]
    positive_ids          [[[3 1 4 1] [2 7 1 8]]]                       [B, K, 4]

RetroMAE and FlagEmbedding sample in the same way, but fill a short pool with random passages, which
may be relevant, or with repeated passages.

`Ranked`: rows of a cross-encoder, which reads a query and a passage as one text pair.

Examples, sampling and teacher scores are as in `Groups`. A text is [CLS] query [SEP] passage [SEP]
with at most data.targets_length tokens. The query has at most data.inputs_length tokens, and only
the passage is truncated. With 4 and 7 tokens and one negative:

    {"query": [2 5 6 3], "positives": [2 5 3], "negatives": [2 4 3 2 8 9 9 9 3]}

    encoder_input_tokens  [[2 5 6 3 5 3 0] [2 5 6 3 8 9 3]]     [B, 1 + negatives, _]
    encoder_segment_ids   [[1 1 1 1 1 1 0] [1 1 1 1 1 1 1]]
    encoder_token_types   [[0 0 0 0 1 1 0] [0 0 0 0 1 1 1]]
    teacher_scores        [[9.5 0.5]]                           float32 [B, 1 + negatives]

The first text of a row has the positive passage. Missing passages are padding.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int, Shaped

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Share, Whole, check_bounds
from t5x_lite.layouts.base import (
    GROUP,
    KEY,
    SEGMENTS,
    EncoderTokens,
    Example,
    Layout,
    Rows,
    example_rng,
    separate,
)
from t5x_lite.layouts.labelled import token_types

Positives = Literal["each", "sample"]

IDS = ("passage_ids", "positive_ids")
"""Names of features with passage names: of a row's passages, and of all positives of its query."""
ID_WIDTH = 4
"""Number of 16-bit integers that identify a passage; caches of small vocabularies store 16 bits."""
MOST_POSITIVES = 200
"""Maximum number of positive passages to sample from; further positives are ignored."""
_SHORTEST_SHUFFLED = 25
"""Minimum number of tokens of a passage to shuffle; FlagEmbedding uses 100 characters."""
_ADDED = {"known_positives": 0, "shuffle_segments": 0.0, "begins_with_cls": True}
"""Fields that were added later, with the values that they have for older saved data positions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups(Layout):
    """Layout for retrieval with one query, one positive passage and several negatives per row.

    Attributes:
      negatives: number of negative passages per row.
      negatives_top: number of negatives to sample from: the first ones in the query's list.
      positives: "each" for one example per positive passage; "sample" to sample one positive per
        query in each epoch.
      teacher: True to include teacher scores in the rows.
      known_positives: maximum number of positives stored per query, so that they are not used as
        negatives when they occur in other rows; 0 stores none.
      shuffle_segments: probability of splitting a positive passage of at least 25 tokens at word
        boundaries into three segments and shuffling them; BGE-M3 uses 0.002.
      begins_with_cls: True if each text begins with [CLS]; texts for a T5 encoder do not.
    """

    negatives: Whole = 0
    negatives_top: Count = 200
    positives: Positives = "each"
    teacher: bool = False
    known_positives: Whole = 0
    shuffle_segments: Share = 0.0
    begins_with_cls: bool = True

    name: ClassVar[str] = "groups"
    task: ClassVar[str] = "tasks.pairs:jsonl"
    features: ClassVar[tuple[str, ...]] = ("query", "positives", "negatives")
    optional: ClassVar[tuple[str, ...]] = ("scores", *IDS)
    joined: ClassVar[tuple[str, ...]] = ("positives", "negatives")
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "targets_length"
    packs: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_bounds(self, prefix="data.layout.")
        if self.negatives_top < self.negatives:
            raise InputError(
                f"data.layout.negatives_top is {self.negatives_top}, but must be at least "
                f"data.layout.negatives, {self.negatives}"
            )

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        texts = {"query": inputs, "positives": targets, "negatives": targets}
        if not self.known_positives:
            return texts
        most = (MOST_POSITIVES + self.negatives_top) * ID_WIDTH
        return {**texts, "passage_ids": most, "positive_ids": self.known_positives * ID_WIDTH}

    def identity(self) -> dict[str, Any]:
        found = super().identity()
        return {name: x for name, x in found.items() if name not in _ADDED or x != _ADDED[name]}

    def check_model(self, *, begins_with_cls: bool) -> None:
        if begins_with_cls != self.begins_with_cls:
            raise InputError(
                f"data.layout.begins_with_cls is {self.begins_with_cls}, but rows of this model "
                f"{'begin' if begins_with_cls else 'do not begin'} with [CLS]; set "
                f"--data.layout.begins-with-cls {begins_with_cls}"
            )

    def text_lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        return {"query": inputs, "document": targets}

    def of_task(self, there: Collection[str]) -> "Groups":
        self.check(there)
        if self.teacher and "scores" not in there:
            raise InputError(
                "data.layout.teacher is True, but the task or its cache has no teacher scores; "
                "set --data.layout.teacher False, or write the cache with teacher scores"
            )
        if self.known_positives and not {*IDS} <= {*there}:
            raise InputError(
                "data.layout.known_positives is set, but the task or its cache has no passage "
                "ids; set --data.layout.known-positives 0, or write the cache with this option"
            )
        return self

    def fixed(self) -> dict[str, Any]:
        named = {"known_positives": self.known_positives} if self.known_positives else {}
        return {"positives": self.positives, "negatives_top": self.negatives_top, **named}

    def check_fixed(self, fixed: Mapping[str, Any]) -> None:
        positives, top = fixed.get("positives"), fixed.get("negatives_top", 0)
        if self.known_positives > (known := fixed.get("known_positives", 0)):
            raise InputError(
                f"data.layout.known_positives is {self.known_positives}, but the cache stores the "
                f"names of {known} positives per query; set --data.layout.known-positives {known}, "
                "or write another cache"
            )
        if positives != self.positives:
            raise InputError(
                f"data.layout.positives is {self.positives}, but the cache was made with "
                f"{positives}; set --data.layout.positives {positives}, or write another cache"
            )
        if self.negatives_top > top:
            raise InputError(
                f"data.layout.negatives_top is {self.negatives_top}, but the cache has only the "
                f"first {top} negatives of each query; set --data.layout.negatives-top {top}, or "
                "write another cache"
            )

    def longest(self, example: Example) -> int:
        """Return the number of tokens of the longest passage sampled for the row."""
        return max(len(text) for text in self.drawn(example)[0])

    def longest_stored(
        self, joined: Int[np.ndarray, " n"], lengths: Mapping[str, Int[np.ndarray, " n"]]
    ) -> Int[np.ndarray, " n"]:
        """Return the number of tokens of each cached example's longest text: a query or a passage.

        Source: FlagEmbedding research/BGE_M3/split_data_by_length.py.
        """
        return np.maximum(joined, lengths["query"])

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
        queries, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=False)
        num, size = 1 + self.negatives, lengths["positives"]
        numbers = np.sort(rows).tolist()
        passages, places = [], []
        for row, example in zip(numbers, ordered, strict=True):
            texts, _ = self.drawn(example)
            texts[0] = self._perhaps_shuffled(texts[0], example, tokens)
            passages += texts
            places += [row * num + place for place in range(len(texts))]
        below = Rows(np.array(places, np.int64), num_rows=num_rows * num, pack=False)
        first = 0 if self.begins_with_cls else 1
        asked = queries.encoder_alone(
            [e["query"][first:] for e in ordered], lengths["query"], tokens
        )
        shown = below.encoder_alone([text[first:] for text in passages], size, tokens)
        return {
            "query_tokens": asked["encoder_input_tokens"],
            "query_segment_ids": asked["encoder_segment_ids"],
            "passage_tokens": shown["encoder_input_tokens"].reshape(num_rows, num, size),
            "passage_segment_ids": shown["encoder_segment_ids"].reshape(num_rows, num, size),
            **self.beside(numbers, ordered, num_rows=num_rows),
        }

    def beside(
        self, rows: Sequence[int], examples: Sequence[Example], *, num_rows: int
    ) -> dict[str, Shaped[np.ndarray, "B *_"]]:
        """Return the arrays of a batch that do not contain tokens, such as teacher scores.

        Args:
          rows: row index of each example.
          examples: features of each example, by name.
          num_rows: total number of rows.
        """
        num = 1 + self.negatives
        scores = np.full((num_rows, num), np.nan, np.float32)
        ids = np.zeros((num_rows, num, ID_WIDTH), np.int32)
        known = np.zeros((num_rows, self.known_positives, ID_WIDTH), np.int32)
        for row, example in zip(rows, examples, strict=True):
            _, of_texts = self.drawn(example)
            scores[row, : len(of_texts)] = of_texts
            if self.known_positives:
                named, own = (example[name].reshape(-1, ID_WIDTH) for name in IDS)
                drawn = named[self._places(example)]
                ids[row, : len(drawn)] = drawn
                known[row, : len(own)] = own[: self.known_positives]
        return {
            **({"teacher_scores": scores} if self.teacher else {}),
            **(dict(zip(IDS, (ids, known), strict=True)) if self.known_positives else {}),
        }

    def drawn(self, example: Example) -> tuple[list[np.ndarray], np.ndarray]:
        """Sample the passages of a row, positive first, and return them with their teacher scores.

        Args:
          example: concatenated int32 tokens "positives" and "negatives", optional teacher scores
            "scores", and `base.KEY`, the seed, epoch and index that determine the sample.
        """
        texts = [text for name in self.joined for text in separate(example[name])]
        places = self._places(example)
        scores = np.full(len(texts), np.nan, np.float32)
        if "scores" in example:
            scores[:] = example["scores"]
        return [texts[place] for place in places], scores[places]

    def _places(self, example: Example) -> Int[np.ndarray, " _"]:
        seed, epoch, index = example[KEY].tolist()
        rng = example_rng(seed, epoch, index, stream=GROUP)
        positives, negatives = (len(separate(example[name])) for name in self.joined)
        pool = min(negatives, self.negatives_top)
        # Only uniform doubles are used: NumPy's other samplers may change between versions.
        first = int(rng.random() * positives)
        others = np.argsort(rng.random(pool), kind="stable")[: self.negatives]
        return np.array([first, *(positives + others)], np.int64)

    def _perhaps_shuffled(
        self, text: np.ndarray, example: Example, tokens: EncoderTokens | None
    ) -> np.ndarray:
        """Return a passage, possibly with its three segments in random order.

        The passage is split at the word boundaries nearest to its thirds. (FlagEmbedding splits
        inside words and joins the segments with spaces.)
        """
        if not self.shuffle_segments or tokens is None or len(text) < _SHORTEST_SHUFFLED:
            return text
        seed, epoch, index = example[KEY].tolist()
        draws = example_rng(seed, epoch, index, stream=SEGMENTS).random(4)
        if draws[0] >= self.shuffle_segments:
            return text
        inner = text[1:-1]
        begins = np.flatnonzero(np.diff(tokens.word_ids(text)[1:-1])) + 1
        if len(begins) < 2:
            return text
        thirds = [len(inner) / 3, 2 * len(inner) / 3]
        cuts = [int(begins[np.argmin(np.abs(begins - third))]) for third in thirds]
        segments = np.split(inner, cuts)
        order = np.argsort(draws[1:], kind="stable")
        return np.concatenate([text[:1], *(segments[i] for i in order), text[-1:]])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranked(Groups):
    """Layout for a cross-encoder: each row pairs a query with each of its passages."""

    name: ClassVar[str] = "ranked"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.begins_with_cls:
            raise InputError(
                "data.layout Ranked needs begins_with_cls True, because its rows are [CLS] query "
                "[SEP] passage [SEP]"
            )

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """Return the maximum number of tokens of each feature.

        Raises:
          InputError: if a query of maximum length leaves no room for a passage.
        """
        if targets < inputs + 3:
            raise InputError(
                f"data.targets_length {targets} must be at least 3 more than data.inputs_length "
                f"{inputs}, because data.layout ranked uses it for query plus passage"
            )
        return super().lengths(inputs=inputs, targets=targets)

    def text_lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        del inputs, targets
        return {}

    def pair_lengths(self, *, inputs: int, targets: int) -> tuple[int, int | None]:
        return targets, inputs

    def longest(self, example: Example) -> int:
        """Return the number of tokens of the pair of query and longest sampled passage."""
        return len(example["query"]) - 1 + super().longest(example)

    def longest_stored(
        self, joined: Int[np.ndarray, " n"], lengths: Mapping[str, Int[np.ndarray, " n"]]
    ) -> Int[np.ndarray, " n"]:
        """Return the number of tokens of each example's query and longest passage together."""
        return joined + lengths["query"] - 1

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
        order = np.argsort(rows, kind="stable")
        ordered, numbers = [examples[i] for i in order], rows[order].tolist()
        num, size = 1 + self.negatives, lengths["positives"]
        separators = 1 if tokens is None else tokens.separators
        texts, places = [], []
        for row, example in zip(numbers, ordered, strict=True):
            drawn, _ = self.drawn(example)
            texts += [
                joined(example["query"], passage, size=size, separators=separators)
                for passage in drawn
            ]
            places += [row * num + place for place in range(len(drawn))]
        below = Rows(np.array(places, np.int64), num_rows=num_rows * num, pack=False)
        made = below.encoder_alone(texts, size, tokens)
        ids, segments = made["encoder_input_tokens"], made["encoder_segment_ids"]
        types = np.zeros_like(ids)
        if tokens is not None:
            types = token_types(ids, sep_id=tokens.sep_id) * (segments > 0)
        shape = (num_rows, num, size)
        return {
            "encoder_input_tokens": ids.reshape(shape),
            "encoder_segment_ids": segments.reshape(shape),
            "encoder_token_types": types.reshape(shape),
            **self.beside(numbers, ordered, num_rows=num_rows),
        }


def joined(
    query: Int[np.ndarray, " q"], passage: Int[np.ndarray, " p"], *, size: int, separators: int = 1
) -> Int[np.ndarray, " _"]:
    """Return a text pair [CLS] query [SEP] passage [SEP]; only the passage is truncated.

    Args:
      query: query tokens, [CLS] ... [SEP].
      passage: passage tokens, [CLS] ... [SEP].
      size: maximum number of tokens of the pair; it must exceed the query plus `separators`.
      separators: number of [SEP] tokens between query and passage; 2 for RoBERTa.
    """
    more = [query[-1]] * (separators - 1)
    room = size - len(query) - len(more)
    inner = passage[1:-1][: room - 1]
    return np.concatenate([query, np.array(more, query.dtype), inner, passage[-1:]])
