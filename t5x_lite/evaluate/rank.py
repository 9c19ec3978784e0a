"""Rank classification: the likeliest of given candidates (t5/evaluation/metrics.py).

    ranker = Ranker(Scorer(bind, batch_size=32))
    ranker.run(params, inputs, candidates)      # [[-0.4, -1.1], [-2.0, -0.1]]: 2 inputs x 2

Every answer is one of the candidates, whereas decoding may write anything. A candidate's score is
its whole log-likelihood, EOS included and not divided by its length.
"""

from collections.abc import Sequence

import numpy as np

from t5x_lite.evaluate.generate import Generator, Prediction
from t5x_lite.evaluate.score import Scorer
from t5x_lite.types import Params


class Ranker:
    """Scores every candidate after every input.

    Args:
      scorer: gives the log-likelihoods.
    """

    def __init__(self, scorer: Scorer):
        self._scorer = scorer

    def run(
        self, params: Params, inputs: Sequence[np.ndarray], candidates: Sequence[np.ndarray]
    ) -> list[list[float]]:
        """Log-likelihoods of all candidates in their order, for each input.

        Args:
          params: the model's own.
          inputs: int32 tokens of each input, EOS included.
          candidates: int32 tokens of each candidate, EOS included; at least one.
        """
        num = len(candidates)
        scores = self._scorer.run(
            params, [row for row in inputs for _ in candidates], [*candidates] * len(inputs)
        )
        return [scores[start : start + num] for start in range(0, len(scores), num)]


class LabelGenerator(Generator):
    """Predicts one of a closed set of labels, by rank and not by search.

    Args:
      ranker: ranks them.
      labels: the texts.
      tokens: int32 tokens of each label, EOS included.
    """

    ranks = True

    def __init__(self, ranker: Ranker, labels: Sequence[str], tokens: Sequence[np.ndarray]):
        self._ranker = ranker
        self._labels = tuple(labels)
        self._tokens = tuple(tokens)

    def run(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        *,
        prompts: Sequence[np.ndarray] | None = None,
        offset: int = 0,
    ) -> list[list[Prediction]]:
        """All labels of each input, the likeliest first; of equal ones the earlier."""
        del prompts, offset  # a label is whole, and nothing is drawn
        return [
            [
                Prediction(text=label, ids=tuple(ids.tolist()), score=score)
                for label, ids, score in sorted(
                    zip(self._labels, self._tokens, scores, strict=True),
                    key=lambda candidate: -candidate[2],
                )
            ]
            for scores in self._ranker.run(params, inputs, self._tokens)
        ]
