"""How well passages answer queries, by a cross-encoder: one logit of each row.

    scores = PairScores(learner.bind, head="classifier", batch_size=32, longest=200, ...)
    scores.of(params, [row, other_row])         # float32 [2], raw logits

Rows are [CLS] query [SEP] passage [SEP]. Rows of about one length go through the model together.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from t5x_lite.evaluate.generate import Prediction
from t5x_lite.evaluate.heads import HeadAnswers
from t5x_lite.types import Params


class PairScores(HeadAnswers):
    """The logit of a head of one class; options are those of `HeadAnswers`."""

    def of(
        self, params: Params, rows: Sequence[np.ndarray], *, static_length: int | None = None
    ) -> Float[np.ndarray, " n"]:
        """The logit of each row, in order.

        Args:
          params: of the learner.
          rows: int32 tokens of each.
          static_length: tokens that rows are padded to; None is a power of two that holds them.
        """
        found = self._of_rows(
            params, rows, lambda logits, _: float(logits[0]), static_length=static_length
        )
        return np.array(found, np.float32)

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        """The score as a text."""
        del second
        return [Prediction(text=f"{logits[0]:g}", ids=(), score=float(logits[0]))]
