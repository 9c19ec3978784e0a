"""The held-out loss: the objective's sums over a whole split, divided once."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from t5x_lite.evaluate.interruption import between_batches
from t5x_lite.objectives.base import metric_value
from t5x_lite.progress import step
from t5x_lite.sharding import put_whole, replicated
from t5x_lite.types import Batch, Params


class LossEvaluator:
    """Loss and metrics of an objective over batches, without dropout.

    Args:
      loss_function: (params, batch) -> Loss.
      batches: called for a fresh pass over the split at each run; every process reads all rows of
        every batch, and its devices get their own.
      mesh: where the batches go.
    """

    def __init__(
        self,
        loss_function: Callable[[Params, Batch], Any],
        batches: Callable[[], Iterable[Mapping[str, np.ndarray]]],
        *,
        mesh: Mesh,
    ):
        self._loss = jax.jit(loss_function, out_shardings=replicated(mesh))
        self._batches = batches
        self._mesh = mesh

    def over(self, batches: Callable[[], Iterable[Mapping[str, np.ndarray]]]) -> "LossEvaluator":
        """The same loss, compiled once, over other batches."""
        other = copy.copy(self)
        other._batches = batches
        return other

    def names(self, params: Any) -> list[str]:
        """The names of the metrics, from shapes of the parameters; one batch is read for it."""
        batch = next(iter(self._batches()))
        return ["loss", *jax.eval_shape(self._loss, params, batch).metrics]

    def run(self, params: Params) -> dict[str, float]:
        """{"loss": ..., and the objective's metrics}, over all batches; equal on all processes."""
        sums: Any = None
        with jax.set_mesh(self._mesh):
            for batch in self._batches():
                between_batches()
                loss = self._loss(params, put_whole(batch, self._mesh))
                loss = jax.tree.map(np.float64, jax.device_get(loss))
                sums = loss if sums is None else sums.plus(loss)
                step(len(next(iter(batch.values()))))
        if sums is None:
            raise ValueError("the split gave no batch")
        metrics = {name: metric_value(value) for name, value in sums.metrics.items()}
        return {name: float(value) for name, value in {"loss": sums.value(), **metrics}.items()}
