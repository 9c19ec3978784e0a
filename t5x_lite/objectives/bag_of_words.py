"""The bag of words that a text's token states must predict together (DupMAE, arXiv:2305.02564).

    loss = -1 / length * sum over the text's different tokens v of log softmax(s)_v
    s_v  = max over positions i of logit_v(i)

As in the code of staoxiao/RetroMAE, a token that occurs twice counts once, and the length counts it
twice. The logits are made for some positions at a time: there is never an array [B, S, V].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from t5x_lite.nn.products import einsum
from t5x_lite.types import Array

_UNSEEN = -1000.0
"""The logit of a position that is not read."""


def bag_losses(
    states: Float[Array, "B S E"],
    table: Float[Array, "V E"],
    bias: Float[Array, " V"],
    tokens: Int[Array, "B S"],
    *,
    read: Bool[Array, "B S"],
    counted: Bool[Array, "B S"],
    chunk: int,
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The module's loss of each row.

    Args:
      states: what is multiplied with the table.
      table: of the tokens.
      bias: of the logits.
      tokens: the text.
      read: positions whose logits count.
      counted: positions whose tokens are in the bag; their number is the length.
      chunk: positions whose logits are made at a time; made again in the backward pass.

    Returns:
      The loss of each row, and 1 for rows with tokens in the bag, else 0.
    """
    scores = bag_scores(states, table, bias, read=read, chunk=chunk)

    def bag(row: Array, counted: Array) -> Array:
        return jnp.zeros(table.shape[0], jnp.float32).at[row].max(counted.astype(jnp.float32))

    words = jnp.sum(counted, axis=1).astype(jnp.float32)
    log_p = jax.nn.log_softmax(scores, axis=-1)
    total = -jnp.sum(jax.vmap(bag)(tokens, counted) * log_p, axis=1)
    return total / jnp.maximum(words, 1.0), (words > 0).astype(jnp.float32)


def bag_scores(
    states: Float[Array, "B S E"],
    table: Float[Array, "V E"],
    bias: Float[Array, " V"],
    *,
    read: Bool[Array, "B S"],
    chunk: int,
) -> Float[Array, "B V"]:
    """The highest logit of each token of the vocabulary over the positions that are read.

    Args:
      states: what is multiplied with the table.
      table: of the tokens.
      bias: of the logits.
      read: positions whose logits count; where there is none all scores are low.
      chunk: positions whose logits are made at a time; made again in the backward pass.
    """
    batch, length = read.shape
    num = -(-length // chunk)
    missing = num * -(-length // num) - length

    def chunks(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)))
        return jnp.moveaxis(x.reshape(batch, -1, num, *x.shape[2:]), 2, 0)

    @jax.checkpoint
    def highest(scores: Array, slices: tuple[Array, Array]) -> tuple[Array, None]:
        states, read = slices
        logits = einsum("BSE,VE->BSV", states.astype(table.dtype), table)
        logits = jnp.where(read[..., None], logits + bias.astype(jnp.float32), _UNSEEN)
        return jnp.maximum(scores, jnp.max(logits, axis=1)), None

    start = jnp.full((batch, table.shape[0]), _UNSEEN, jnp.float32)
    return jax.lax.scan(highest, start, (chunks(states), chunks(read)))[0]


def largest(scores: Float[Array, "B V"], number: int) -> Float[Array, "B V"]:
    """The largest scores of each row where they are, and 0 elsewhere (DupMAE's sparse vector).

    Args:
      scores: of the vocabulary.
      number: how many stay; of equal ones at the end all.
    """
    last = jax.lax.top_k(scores, min(number, scores.shape[1]))[0][:, -1:]
    return jnp.where((scores >= last) & (scores > _UNSEEN), scores, 0.0)
