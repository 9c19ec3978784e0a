"""What an output may not say: pure functions that set logits to minus infinity.

Both are those of transformers (MinNewTokensLengthLogitsProcessor, NoRepeatNGramLogitsProcessor).
The n-grams are those of what is said: start token 0, prompt and new tokens. Those of the input do
not count. For an encoder-decoder that is transformers' rule; of a language model it counts the
input's n-grams too, which here would depend on whether an input is a prefix or a prompt, so that
one request meant two things: an output may repeat its input with every model.

    no_repeat_ngram(logits, [[0, 5, 6, 5, .]], length=4, size=2)    5 was followed by 6: not again
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from t5x_lite.decoding.config import Decoding
from t5x_lite.types import Array


def minimum_length(
    logits: Float[Array, "R V"], *, index: Int[Array, ""], minimum: int, eos_id: int
) -> Float[Array, "R V"]:
    """Forbids the EOS until `minimum` tokens are there.

    Args:
      logits: of the next token.
      index: new tokens so far.
      minimum: new tokens before the EOS at least.
      eos_id: the EOS.
    """
    column = logits[:, eos_id]
    return logits.at[:, eos_id].set(jnp.where(index < minimum, -jnp.inf, column))


def no_repeat_ngram(
    logits: Float[Array, "R V"],
    history: Int[Array, "R H"],
    *,
    length: Int[Array, ""] | int,
    size: int,
) -> Float[Array, "R V"]:
    """Forbids every token that would complete a sequence of `size` tokens for the second time.

    Args:
      logits: of the next token.
      history: the sequences so far; -1 before the first token of a row that is shorter.
      length: columns of `history` that are filled.
      size: n; 1 forbids every token that has been said.
    """
    num_rows, width = history.shape
    num_windows = width - size + 1
    if num_windows < 1:
        return logits
    # With fewer than `size` tokens the suffix is not one, and no window is complete either.
    suffix = jax.lax.dynamic_slice_in_dim(history, length - (size - 1), size - 1, axis=1)
    banned = jnp.broadcast_to(jnp.arange(num_windows) + size <= length, (num_rows, num_windows))
    for offset in range(size - 1):
        same = history[:, offset : offset + num_windows] == suffix[:, offset, None]
        banned = banned & same
    last = history[:, size - 1 :]
    beyond = logits.shape[-1]
    tokens = jnp.where(banned & (last >= 0), last, beyond)
    return logits.at[jnp.arange(num_rows)[:, None], tokens].set(-jnp.inf, mode="drop")


def constrained(
    logits: Float[Array, "R V"],
    history: Int[Array, "R H"],
    *,
    index: Int[Array, ""],
    decoding: Decoding,
) -> Float[Array, "R V"]:
    """The logits with all that the config forbids at minus infinity.

    Args:
      logits: of the next token.
      history: start token, prompt and new tokens, with room for max_length of the latter.
      index: new tokens so far.
      decoding: its min_length and no_repeat_ngram.
    """
    if decoding.no_repeat_ngram:
        length = history.shape[1] - decoding.max_decode_length + index
        logits = no_repeat_ngram(logits, history, length=length, size=decoding.no_repeat_ngram)
    if decoding.min_length:
        logits = minimum_length(
            logits, index=index, minimum=decoding.min_length, eos_id=decoding.eos_id
        )
    return logits
