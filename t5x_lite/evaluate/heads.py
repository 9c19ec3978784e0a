"""What a head on an encoder answers to a task's examples, as the text that the task's metrics read.

    ClassAnswers(bind, ("negative", "positive"), ...)    # "positive", the labels in their order
    ScoreAnswers(bind, ...)                              # "3.81"
    SpanAnswers(bind, longest=30, ...)                   # "12 15": tokens of the second text

They stand where a text-to-text model has its search: postprocessing, metrics, samples and the files
for the servers are the same.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from t5x_lite.evaluate.generate import Bind, Generator, Prediction, batched, padded_length
from t5x_lite.sharding import jit_rows, rounded_rows
from t5x_lite.types import Array, Params


class HeadAnswers(Generator):
    """Runs the head over rows in batches of one size.

    Args:
      bind: puts together the learner, whose objective has `logits(model, batch)`.
      batch_size: rows at once; on a mesh, rounded up to what its devices can share.
      longest: tokens of a row at most.
      pad_id: the token of padding.
      sep_id: ends each text of a row.
      mesh: the rows are split over it; None runs where the parameters are.
    """

    def __init__(
        self,
        bind: Bind,
        *,
        batch_size: int,
        longest: int,
        pad_id: int,
        sep_id: int,
        mesh: Mesh | None = None,
    ):
        def logits(params: Params, tokens: Array, segment_ids: Array, token_types: Array) -> Array:
            learner = bind(params)
            batch = {
                "encoder_input_tokens": tokens,
                "encoder_segment_ids": segment_ids,
                "encoder_token_types": token_types,
            }
            return learner.objective.logits(learner.model, batch)

        self._logits = jit_rows(logits, mesh)
        self._batch_size = rounded_rows(batch_size, mesh)
        self._longest, self._pad_id, self._sep_id = longest, pad_id, sep_id

    def run(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        *,
        prompts: Sequence[np.ndarray] | None = None,
        seeds: Sequence[int | None] | None = None,
        offset: int = 0,
    ) -> list[list[Prediction]]:
        """Answers to each input, the best first, in the inputs' order.

        Args:
          params: of the learner.
          inputs: int32 tokens of each row, [CLS] and [SEP] included.
          prompts: means nothing here, like seeds and offset: nothing is decoded.
          seeds: see prompts.
          offset: see prompts.
        """
        del prompts, seeds, offset
        found: dict[int, list[Prediction]] = {}
        order = sorted(range(len(inputs)), key=lambda row: len(inputs[row]))
        for rows in batched(order, self._batch_size):
            length = min(padded_length(max(len(inputs[row]) for row in rows)), self._longest)
            tokens = np.full((self._batch_size, length), self._pad_id, np.int32)
            segments = np.zeros_like(tokens)
            for place, row in enumerate(rows):
                tokens[place, : len(inputs[row])] = inputs[row]
                segments[place, : len(inputs[row])] = 1
            ends = (tokens == self._sep_id) & (segments > 0)
            types = ((np.cumsum(ends, axis=1) > ends) & (segments > 0)).astype(np.int32)
            logits = np.asarray(self._logits(params, tokens, segments, types))
            second = (types > 0) & ~ends
            for place, row in enumerate(rows):
                found[row] = self._answers(logits[place], second[place])
        return [found[row] for row in range(len(inputs))]

    @abstractmethod
    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        """The answers to a row, the best first.

        Args:
          logits: float32, what the head says of it.
          second: which tokens are of its second text.
        """


class ClassAnswers(HeadAnswers):
    """One of some labels; the score is the logarithm of its probability.

    Args:
      bind: of the learner.
      labels: the texts, in the order of the classes.
      **options: of `HeadAnswers`.
    """

    def __init__(self, bind: Bind, labels: Sequence[str], **options: Any):
        super().__init__(bind, **options)
        self._labels = tuple(labels)

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        scores = logits.astype(np.float64) - np.max(logits)
        scores -= np.log(np.sum(np.exp(scores)))
        return [
            Prediction(text=self._labels[index], ids=(), score=float(scores[index]))
            for index in np.argsort(-scores, kind="stable").tolist()
        ]


class ScoreAnswers(HeadAnswers):
    """A number as text."""

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        return [Prediction(text=f"{float(logits[0]):.6g}", ids=(), score=0.0)]


class SpanAnswers(HeadAnswers):
    """The likeliest span of the second text: the places of its ends, from that text's first token.

    Args:
      bind: of the learner.
      longest_answer: tokens of a span at most.
      **options: of `HeadAnswers`.
    """

    def __init__(self, bind: Bind, *, longest_answer: int, **options: Any):
        super().__init__(bind, **options)
        self._longest_answer = longest_answer

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        first, last, score = best_span(*logits[:, second], longest=self._longest_answer)
        text = f"{first} {last}" if np.any(second) else ""
        return [Prediction(text=text, ids=(), score=score)]


def best_span(first: np.ndarray, last: np.ndarray, *, longest: int) -> tuple[int, int, float]:
    """The span with the largest sum of the logits of its ends; of equal ones the earliest.

    Args:
      first: logits of the first token, [n].
      last: logits of the last one, [n].
      longest: tokens of a span at most.

    Returns:
      Its first and last place, and the sum; (0, 0, -inf) where there are no tokens.
    """
    best = (0, 0, -np.inf)
    for width in range(min(longest, len(first))):
        sums = first[: len(first) - width].astype(np.float64) + last[width:]
        place = int(np.argmax(sums))
        if (sums[place], -place) > (best[2], -best[0]):
            best = (place, place + width, float(sums[place]))
    return best
