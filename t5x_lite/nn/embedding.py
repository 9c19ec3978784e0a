"""Rows of tables, and T5's table of tokens."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.nn.products import einsum
from t5x_lite.types import Array


@jax.custom_vjp
def lookup(table: Float[Array, "V D"], tokens: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Rows of a table. The gradient is accumulated in float32 and rounded once.

    Adding a common token's cotangents one by one in bfloat16 stops at 256 times the addend.
    """
    return jnp.take(table, tokens, axis=0)


def _lookup_forward(table: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    return lookup(table, tokens), (table, tokens)


def _lookup_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, None]:
    table, tokens = saved
    total = jnp.zeros(table.shape, jnp.float32).at[tokens].add(g.astype(jnp.float32))
    return total.astype(table.dtype), None


lookup.defvjp(_lookup_forward, _lookup_backward)


class Embedding(nnx.Module):
    """A table of token embeddings, N(0, 1) at the start as in T5 (t5x network.py).

    Args:
      vocab_size: rows of the table.
      d_model: columns.
      rngs: the stream "params" is used.
    """

    def __init__(self, vocab_size: int, d_model: int, *, rngs: nnx.Rngs):
        table = jax.random.normal(rngs.params(), (vocab_size, d_model), jnp.float32)
        self.table = nnx.Param(table, logical=("vocab", "embed"))

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Looks tokens up by gather (t5x multiplies by one-hot vectors; the result is equal)."""
        return lookup(self.table[...], tokens)

    def logits(self, x: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """Scores against the table: x E^T / sqrt(d_model), in float32 (tied output, T5 1.0)."""
        table = self.table[...]
        return einsum("BTD,VD->BTV", x.astype(table.dtype), table) / jnp.sqrt(
            jnp.float32(x.shape[-1])
        )
