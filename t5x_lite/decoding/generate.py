"""Greedy decoding over a cache.

cache = model.init_cache(encoder_input_tokens, max_length=32)
tokens = greedy(model.step, cache, batch_size=4, max_length=32, eos_id=1)
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from t5x_lite.types import Array

Step = Callable[[Array, Any], tuple[Array, Any]]


def greedy(
    step: Step,
    cache: Any,
    *,
    batch_size: int,
    max_length: int,
    eos_id: int = 1,
    start_id: int = 0,
    ended: Bool[Array, " B"] | None = None,
) -> Int[Array, "B L"]:
    """Takes the most likely token at every step, until every row has ended or max_length.

    Args:
      step: (tokens [B, 1], cache) -> (logits [B, 1, V], cache).
      cache: an empty cache for max_length tokens.
      batch_size: B.
      max_length: L, tokens decoded at most.
      eos_id: ends a row.
      start_id: the decoder's first input; T5's is the padding token.
      ended: True for rows that are only filling; None is none of them.

    Returns:
      int32 tokens, the EOS included; 0 after it.
    """

    def going(carry: tuple) -> Array:
        index, _, _, ended, _ = carry
        return (index < max_length) & ~jnp.all(ended)

    def advance(carry: tuple) -> tuple:
        index, tokens, last, ended, cache = carry
        logits, cache = step(last[:, None], cache)
        best = jnp.argmax(logits[:, -1], axis=-1).astype(jnp.int32)
        best = jnp.where(ended, 0, best)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, best[:, None], index, axis=1)
        return index + 1, tokens, best, ended | (best == eos_id), cache

    tokens = jnp.zeros((batch_size, max_length), jnp.int32)
    first = jnp.full((batch_size,), start_id, jnp.int32)
    ended = jnp.zeros((batch_size,), bool) if ended is None else ended
    carry = (jnp.zeros((), jnp.int32), tokens, first, ended, cache)
    return jax.lax.while_loop(going, advance, carry)[1]
