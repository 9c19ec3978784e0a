"""Rows of an encoder that compares a query with passages.

An example has a "query", "positives" that answer it, and a pool of "negatives" that do not, each
text [CLS] ... [SEP]. A row has the query, one positive, and `negatives` of the pool, drawn without
replacement. What is drawn is a function of the run's seed, the epoch and the example's index alone:
another epoch draws others, and a run that goes on draws what it would have drawn. Passages that are
missing are padding, and take no part in a loss. With query and passages of 4 and 3 tokens at most
and one negative:

    {"query": [2 5 6 3], "positives": [2 5 3], "negatives": [2 4 3 2 8 3]},
    {"query": [2 4 3],   "positives": [2 4 3], "negatives": []}

    query_tokens          [2 5 6 3]            [2 4 3 0]            [B, _]
    query_segment_ids     [1 1 1 1]            [1 1 1 0]
    passage_tokens        [[2 5 3] [2 8 3]]    [[2 4 3] [0 0 0]]    [B, 1 + negatives, _]
    passage_segment_ids   [[1 1 1] [1 1 1]]    [[1 1 1] [0 0 0]]
    teacher_scores        [[9.5 0.5]]          [[8.0 NaN]]          float32 [B, 1 + negatives]

The last is there with `teacher`, of a task whose examples have "scores": of the positives, then of
the negatives. RetroMAE and FlagEmbedding draw in the same way, but fill a short pool with random
passages, which may be answers, or with the same ones again.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Int, Shaped

from t5x_lite.data.corruption.noise import GROUP, example_rng
from t5x_lite.data.layouts.base import KEY, Example, Layout, separate
from t5x_lite.data.layouts.rows import Rows
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens

Positives = Literal["each", "sample"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups(Layout):
    """A query a row, with a passage that answers it and others that do not.

    Attributes:
      negatives: passages of a row besides the one that answers.
      negatives_top: of so many that a query lists, the first, they are drawn in each epoch.
      positives: "each" passage that answers makes an example of its own; "sample" draws one of them
        for a query in each epoch.
      teacher: whether rows have the scores of a teacher.
    """

    negatives: int = 0
    negatives_top: int = 200
    positives: Positives = "each"
    teacher: bool = False

    name: ClassVar[str] = "groups"
    task: ClassVar[str] = "tasks.pairs:jsonl"
    features: ClassVar[tuple[str, ...]] = ("query", "positives", "negatives")
    optional: ClassVar[tuple[str, ...]] = ("scores",)
    joined: ClassVar[tuple[str, ...]] = ("positives", "negatives")
    of_encoder: ClassVar[bool] = True
    grouped: ClassVar[str] = "targets_length"
    packs: ClassVar[bool] = False
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.negatives < 0:
            raise InputError(f"data.layout.negatives must not be negative, got {self.negatives}")
        if self.negatives_top < max(1, self.negatives):
            raise InputError(
                f"data.layout.negatives_top must be at least data.layout.negatives, "
                f"{self.negatives}, and 1: got {self.negatives_top}"
            )
        if self.positives not in get_args(Positives):
            raise InputError(
                f"data.layout.positives must be {' or '.join(get_args(Positives))}, "
                f"got {self.positives!r}"
            )

    def lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.lengths`."""
        return {"query": inputs, "positives": targets, "negatives": targets}

    def text_lengths(self, *, inputs: int, targets: int) -> dict[str, int]:
        """See `Layout.text_lengths`."""
        return {"query": inputs, "document": targets}

    def of_task(self, there: Collection[str]) -> "Groups":
        """See `Layout.of_task`."""
        self.check(there)
        if self.teacher and "scores" not in there:
            raise InputError(
                "data.layout.teacher is set, and the task, or its cache, gives no scores: set "
                "--data.layout.teacher False, or write the cache with it"
            )
        return self

    def fixed(self) -> dict[str, Any]:
        """See `Layout.fixed`."""
        return {"positives": self.positives, "negatives_top": self.negatives_top}

    def check_fixed(self, fixed: Mapping[str, Any]) -> None:
        """See `Layout.check_fixed`."""
        positives, top = fixed.get("positives"), fixed.get("negatives_top", 0)
        if positives != self.positives:
            raise InputError(
                f"was made with data.layout.positives {positives}, and it is {self.positives}: "
                f"set --data.layout.positives {positives}, or write another cache"
            )
        if self.negatives_top > top:
            raise InputError(
                f"holds the first {top} negatives of a query, and data.layout.negatives_top is "
                f"{self.negatives_top}: set --data.layout.negatives-top {top}, or write another "
                "cache"
            )

    def longest(self, example: Example) -> int:
        """See `Layout.longest`: of the passages that are drawn for the row."""
        return max(len(text) for text in self.drawn(example)[0])

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
        """See `Layout.lay_out`; examples have `base.KEY` besides."""
        queries, ordered = Rows.of(examples, rows, num_rows=num_rows, pack=False)
        num, size = 1 + self.negatives, lengths["positives"]
        scores = np.full((num_rows, num), np.nan, np.float32)
        passages, places = [], []
        for row, example in zip(np.sort(rows).tolist(), ordered, strict=True):
            texts, of_texts = self.drawn(example)
            passages += texts
            places += [row * num + place for place in range(len(texts))]
            scores[row, : len(texts)] = of_texts
        below = Rows(np.array(places, np.int64), num_rows=num_rows * num, pack=False)
        asked = queries.encoder_alone([e["query"] for e in ordered], lengths["query"], tokens)
        shown = below.encoder_alone(passages, size, tokens)
        return {
            "query_tokens": asked["encoder_input_tokens"],
            "query_segment_ids": asked["encoder_segment_ids"],
            "passage_tokens": shown["encoder_input_tokens"].reshape(num_rows, num, size),
            "passage_segment_ids": shown["encoder_segment_ids"].reshape(num_rows, num, size),
            **({"teacher_scores": scores} if self.teacher else {}),
        }

    def drawn(self, example: Example) -> tuple[list[np.ndarray], np.ndarray]:
        """The passages of a row, the one that answers first, and their scores or NaN.

        Args:
          example: int32 tokens "positives" and "negatives", one text behind the other, `base.KEY`,
            and perhaps "scores", float32.
        """
        seed, epoch, index = example[KEY].tolist()
        rng = example_rng(seed, epoch, index, stream=GROUP)
        positives, negatives = (separate(example[name]) for name in self.joined)
        pool = len(negatives[: self.negatives_top])
        # Uniform doubles alone: the streams of NumPy's other draws may change between versions.
        first = int(rng.random() * len(positives))
        others = np.argsort(rng.random(pool), kind="stable")[: self.negatives]
        scores = np.full(len(positives) + len(negatives), np.nan, np.float32)
        if "scores" in example:
            scores[:] = example["scores"]
        places = np.array([first, *(len(positives) + others)], np.int64)
        return [positives[first], *(negatives[place] for place in others)], scores[places]
