"""The base of all searches: the model laid out for decoding, and the first new token.

A search works on R rows; `num` of them belong to each of the B inputs: row b * num + w. Its
history holds the decoder's whole sequence, so that all rows are at the same column:

    . . 0 | _ _ _ _      no prompt          -1 (.) on the left of the shorter prompts
    0 7 8 | _ _ _ _      prompt 7 8         0 (_) where the new tokens go

The parameters are laid out for decoding once, for many searches (docs/adr/0012):

    prepare = Preparation(bind)
    tokens, scores = jax.jit(decode)(prepare(params), inputs)    # made by the first call

Laid out, a model has its decoder's layers one by one, and matrix products with the same input are
one product with transposed kernels. The results do not change.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from t5x_lite.core.trees import Array, Params

START_ID = 0
"""The decoder's first input; T5's is the padding token."""


@runtime_checkable
class Generative(Protocol):
    """A model that can be decoded from."""

    def prefill(
        self, inputs: Array, *, max_length: int, prompt: Array | None = None
    ) -> tuple[Array, Any]:
        """Run all that is before the first new token.

        Args:
          inputs: int [B, S], padded with 0 on the right.
          max_length: maximum new tokens.
          prompt: int [B, P], the decoder's first tokens, padded with 0 on the right.

        Returns:
          float32 logits [B, V] of the first new token, and the cache.
        """
        ...

    def step(self, tokens: Array, cache: Any) -> tuple[Array, Any]:
        """Logits [R, V] after one more token of each row, and the new cache."""
        ...

    def repeat(self, cache: Any, num: int) -> Any:
        """Return a cache with `num` rows for each row, row-major."""
        ...

    def select(self, cache: Any, rows: Array) -> Any:
        """Return a cache that continues from the given rows of each input."""
        ...


class Start(NamedTuple):
    """A search before its first choice.

    Attributes:
      logits: float32 [R, V] of the first new token.
      history: int32 [R, H], H = 1 + P + max_length.
      prompt_lengths: int32 [B].
      cache: the model's.
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
    """Run the model up to the first new token.

    Args:
      model: to be searched.
      inputs: padded with 0 on the right.
      prompt: first tokens of the outputs, right-padded with 0, or None.
      num: rows of each input.
      max_length: maximum new tokens.
    """
    logits, cache = model.prefill(inputs, max_length=max_length, prompt=prompt)
    given = jnp.zeros((inputs.shape[0], 0), jnp.int32) if prompt is None else prompt
    history = jnp.pad(left_padded(given), ((0, 0), (0, max_length)))
    if num > 1:
        cache = model.repeat(cache, num)
        logits, history = jnp.repeat(logits, num, axis=0), jnp.repeat(history, num, axis=0)
    return Start(logits, history, jnp.sum(given > 0, axis=1), cache)


def left_padded(prompt: Int[Array, "B P"]) -> Int[Array, "B Q"]:
    """Return the start token and the prompt (right-padded with 0), left-padded with -1."""
    batch_size, width = prompt.shape
    missing = width - jnp.sum(prompt > 0, axis=1, keepdims=True)
    column = jnp.arange(width + 1) - missing  # column of [start, *prompt]
    start = jnp.full((batch_size, 1), START_ID, jnp.int32)
    tokens = jnp.concatenate([start, prompt.astype(jnp.int32)], axis=1)
    aligned = jnp.take_along_axis(tokens, jnp.maximum(column, 0), axis=1)
    return jnp.where(column < 0, -1, aligned)


def log_normaliser(logits: Float[Array, "R V"]) -> tuple[Float[Array, "R 1"], Float[Array, "R 1"]]:
    """m and s such that the log-probability of a logit x is (x - m) - s; m is the largest."""
    by_token = logits.T  # so a model laid out for decoding computes them
    largest = jnp.max(by_token, axis=0)
    total = jnp.sum(jnp.exp(by_token - largest), axis=0)
    return largest[:, None], jnp.log(total)[:, None]


@runtime_checkable
class Preparable(Generative, Protocol):
    """A model that decodes faster in another layout than its own."""

    def prepared(self) -> Generative:
        """Return the same model laid out for decoding; a pytree."""
        ...


def prepared(model: Generative) -> Any:
    """Return the model laid out for decoding, if it has such a layout, else as it is."""
    return model.prepared() if isinstance(model, Preparable) else model


class Preparation:
    """Lays a model out, and keeps what it made for as long as the parameters are the same arrays.

    Args:
      bind: puts the model together, which must be a pytree once it is laid out.
    """

    def __init__(self, bind: Callable[[Params], Any]):
        self._prepare = jax.jit(lambda params: prepared(bind(params)))
        self._leaves: list[Any] = []
        self._model: Any = None

    def __call__(self, params: Params) -> Any:
        """Return the model with these parameters, which are kept for comparison."""
        leaves = jax.tree.leaves(params)
        if self._model is None or [*map(id, leaves)] != [*map(id, self._leaves)]:
            self._model = None  # its arrays go before new ones come
            self._model, self._leaves = self._prepare(params), leaves
        return self._model
