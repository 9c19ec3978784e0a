"""Base of all decoding algorithms: conversion of the model for decoding, and its prefill.

Decoding has R rows, `num` for each of the B inputs: row b * num + w. The history has the whole
decoder sequence of each row, aligned so that all rows write to the same column:

    . . 0 | _ _ _ _      no prompt          -1 (.) on the left of the shorter prompts
    0 7 8 | _ _ _ _      prompt 7 8         0 (_) where the new tokens go

The parameters are converted once to a faster layout for decoding, for many batches (docs/adr/0012):

    prepare = Preparation(bind)
    tokens, scores = jax.jit(decode)(prepare(params), inputs)    # made by the first call

In this layout, decoder layers are separate, and matrix products with the same input are one product
with transposed kernels. The results do not change.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from t5x_lite.core.trees import Array, Params

START_ID = 0
"""First input token of the decoder; T5 uses the padding token."""


@runtime_checkable
class Generative(Protocol):
    """Protocol of models that generate text token by token."""

    def prefill(
        self, inputs: Array, *, max_length: int, prompt: Array | None = None
    ) -> tuple[Array, Any]:
        """Run the model on the inputs and the prompt, before the first new token.

        Args:
          inputs: token ids, int [B, S], padded with 0 on the right.
          max_length: maximum number of new tokens.
          prompt: first decoder tokens, int [B, P], padded with 0 on the right.

        Returns:
          Logits of the first new token, float32 [B, V], and the cache.
        """
        ...

    def step(self, tokens: Array, cache: Any) -> tuple[Array, Any]:
        """Read one token per row; return the next tokens' logits [R, V] and the new cache."""
        ...

    def repeat(self, cache: Any, num: int) -> Any:
        """Return a cache with `num` adjacent copies of each row."""
        ...

    def select(self, cache: Any, rows: Array) -> Any:
        """Return a cache with the given rows, such as the rows of the best beams."""
        ...


class Start(NamedTuple):
    """State of text generation before the first new token.

    Attributes:
      logits: logits of the first new token, float32 [R, V].
      history: decoder sequence, int32 [R, H] with H = 1 + P + max_length.
      prompt_lengths: number of prompt tokens, int32 [B].
      cache: decoding cache of the model.
    """

    logits: Any
    history: Any
    prompt_lengths: Any
    cache: Any


def begin(
    model: Generative,
    inputs: Int[Array, "B S"],
    *,
    prompt: Int[Array, "B P"] | None,
    num: int,
    max_length: int,
) -> Start:
    """Run the model's prefill, and return the state before the first new token.

    Args:
      model: model to generate with.
      inputs: token ids, padded with 0 on the right.
      prompt: first tokens of the outputs, padded with 0 on the right, or None.
      num: number of rows for each input.
      max_length: maximum number of new tokens.
    """
    logits, cache = model.prefill(inputs, max_length=max_length, prompt=prompt)
    given = jnp.zeros((inputs.shape[0], 0), jnp.int32) if prompt is None else prompt
    history = jnp.pad(left_padded(given), ((0, 0), (0, max_length)))
    if num > 1:
        cache = model.repeat(cache, num)
        logits, history = jnp.repeat(logits, num, axis=0), jnp.repeat(history, num, axis=0)
    return Start(logits, history, jnp.sum(given > 0, axis=1), cache)


def left_padded(prompt: Int[Array, "B P"]) -> Int[Array, "B Q"]:
    """Convert right-padded prompts to left-padded rows (-1) that begin with the start token."""
    batch_size, width = prompt.shape
    missing = width - jnp.sum(prompt > 0, axis=1, keepdims=True)
    column = jnp.arange(width + 1) - missing  # column of [start, *prompt]
    start = jnp.full((batch_size, 1), START_ID, jnp.int32)
    tokens = jnp.concatenate([start, prompt.astype(jnp.int32)], axis=1)
    aligned = jnp.take_along_axis(tokens, jnp.maximum(column, 0), axis=1)
    return jnp.where(column < 0, -1, aligned)


def log_normaliser(logits: Float[Array, "R V"]) -> tuple[Float[Array, "R 1"], Float[Array, "R 1"]]:
    """Return m, s so that logit x has log-probability (x - m) - s, where m is the maximum logit."""
    by_token = logits.T  # so a model laid out for decoding computes them
    largest = jnp.max(by_token, axis=0)
    total = jnp.sum(jnp.exp(by_token - largest), axis=0)
    return largest[:, None], jnp.log(total)[:, None]


@runtime_checkable
class Preparable(Generative, Protocol):
    """Protocol of models that can be converted to a faster layout for decoding."""

    def prepared(self) -> Generative:
        """Return the same model with its weights in the layout for decoding, as a pytree."""
        ...


def prepared(model: Generative) -> Any:
    """Return the model in its layout for decoding, or unchanged if it has none."""
    return model.prepared() if isinstance(model, Preparable) else model


class Preparation:
    """Callable that converts parameters to a model for decoding, and caches the last result.

    Args:
      bind: function from parameters to a model; its decoding layout must be a pytree.
    """

    def __init__(self, bind: Callable[[Params], Any]):
        self._prepare = jax.jit(lambda params: prepared(bind(params)))
        self._leaves: list[Any] = []
        self._model: Any = None

    def __call__(self, params: Params) -> Any:
        """Return the model for decoding; reuse the last one if the parameters did not change."""
        leaves = jax.tree.leaves(params)
        if self._model is None or [*map(id, leaves)] != [*map(id, self._leaves)]:
            self._model = None  # its arrays go before new ones come
            self._model, self._leaves = self._prepare(params), leaves
        return self._model
