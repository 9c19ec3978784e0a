"""Log-likelihood of given targets under a text-to-text model."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from t5x_lite.evaluate.generate import Bind, batched, pad, padded_length
from t5x_lite.objectives.losses import cross_entropy
from t5x_lite.sharding import jit_rows, rounded_rows
from t5x_lite.types import Array, Params


class Scorer:
    """Scores in batches of one size; lengths are rounded up to powers of two.

    Args:
      bind: puts together a model that has `target_logits`.
      batch_size: rows scored at once.
      mesh: whose devices share the rows; None is the first device.
    """

    def __init__(self, bind: Bind, *, batch_size: int, mesh: Mesh | None = None):
        def score(params: Params, inputs: Array, targets: Array) -> Array:
            loss, _ = cross_entropy(bind(params).target_logits(inputs, targets), targets)
            return -jnp.sum(loss * (targets > 0), axis=-1)

        self._score = jit_rows(score, mesh)
        self._batch_size = rounded_rows(batch_size, mesh)

    def run(
        self, params: Params, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> list[float]:
        """Natural-log likelihood of each target, its EOS included, in order.

        Args:
          params: the model's own.
          inputs: int32 tokens of each input, EOS included.
          targets: int32 tokens of each target, EOS included; an empty one is EOS alone.
        """
        order = sorted(
            range(len(inputs)), key=lambda row: (padded_length(len(targets[row])), len(inputs[row]))
        )
        scores = [0.0] * len(inputs)
        for rows in batched(order, self._batch_size):
            values = self._score(
                params,
                pad([inputs[row] for row in rows], rows=self._batch_size),
                pad([targets[row] for row in rows], rows=self._batch_size),
            )
            for row, value in zip(rows, np.asarray(values), strict=False):
                scores[row] = float(value)
        return scores
