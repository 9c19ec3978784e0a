"""Vectors of texts: the encoder's states, or their mean over the tokens of a text."""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from t5x_lite.evaluate.generate import Bind, batched, pad
from t5x_lite.types import Array, Params


class Embedder:
    """Encodes in batches of one size; lengths are rounded up to powers of two.

    Args:
      bind: puts together a model that has `encode`.
      batch_size: rows encoded at once.
    """

    def __init__(self, bind: Bind, *, batch_size: int):
        def states(params: Params, tokens: Array) -> Array:
            return bind(params).encode(tokens).astype(jnp.float32)

        def mean(params: Params, tokens: Array) -> Array:
            mask = (tokens > 0).astype(jnp.float32)[..., None]
            total = jnp.sum(states(params, tokens) * mask, axis=1)
            return total / jnp.maximum(jnp.sum(mask, axis=1), 1.0)

        self._states = jax.jit(states)
        self._mean = jax.jit(mean)
        self._batch_size = batch_size

    def run(self, params: Params, inputs: Sequence[np.ndarray]) -> Float[np.ndarray, "n D"]:
        """The mean of each input's states, its EOS included: float32, in order.

        Args:
          params: the model's own.
          inputs: int32 tokens of each input, EOS included.
        """
        # Of no inputs a row of padding tells D.
        batches = self._batches(list(inputs) or [np.zeros(0, np.int32)])
        found: dict[int, np.ndarray] = {}
        for rows, tokens in batches:
            vectors = np.asarray(self._mean(params, tokens))
            found |= dict(zip(rows, vectors, strict=False))
        return np.stack([found[row] for row in range(len(found))])[: len(inputs)]

    def states(self, params: Params, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The encoder's states of each input's tokens: float32 [length, D], in order."""
        found: dict[int, np.ndarray] = {}
        for rows, tokens in self._batches(inputs):
            vectors = np.asarray(self._states(params, tokens))
            found |= {row: v[: len(inputs[row])] for row, v in zip(rows, vectors, strict=False)}
        return [found[row] for row in range(len(inputs))]

    def _batches(self, inputs: Sequence[np.ndarray]) -> Iterator[tuple[Sequence[int], np.ndarray]]:
        order = sorted(range(len(inputs)), key=lambda row: len(inputs[row]))
        for rows in batched(order, self._batch_size):
            yield rows, pad([inputs[row] for row in rows], rows=self._batch_size)
