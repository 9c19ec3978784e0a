"""Gates: how much of a module a row gets (UniPELT, Mao et al. 2022, arXiv:2110.07577).

    g = mean over tokens of sigmoid(x w + b)        w [D, 1] begins as N(0, 0.02), b as 0

In the library `adapters` the mean is that of a whole row, padding and, in a decoder, the future
included. Here it is that of the tokens that a token of an encoder sees, and in a decoder each
token's own. The library's, "all_tokens", is for encoders alone.
"""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.masks import Visibility
from t5x_lite.types import Array

Gate = Literal["none", "real_tokens", "all_tokens"]


def make_gate(features: int, axis: str | None, *, rngs: nnx.Rngs, num: int = 1) -> Dense:
    """w and b.

    Args:
      features: D.
      axis: its logical name.
      rngs: the stream "params" is used.
      num: gates, each of the same input.
    """
    init = jax.nn.initializers.normal(0.02)
    return Dense(features, num, axes=(axis, None), initializer=init, bias=True, rngs=rngs)


def gates_of(
    dense: Dense, read: Float[Array, "*B T D"], seen: Any, kind: Gate
) -> Float[Array, "*B #T G"]:
    """The gate of each token, in float32.

    Args:
      dense: w and b.
      read: x.
      seen: which positions of the row a position sees, as of `slots.Around.mask`.
      kind: of the gate.
    """
    gates = jax.nn.sigmoid(dense.product(read))
    if kind == "all_tokens":
        return jnp.mean(gates, axis=-2, keepdims=True)
    return mean_of_seen(gates, seen)


def mean_of_seen(values: Float[Array, "*B T G"], seen: Any) -> Float[Array, "*B #T G"]:
    """The mean over the tokens that each token sees; None is itself alone.

    Args:
      values: of each token, in float32.
      seen: which positions of the row a position sees, as of `slots.Around.mask`.
    """
    if isinstance(seen, Visibility):
        seen = seen.dense(values.shape[1])
    if seen is None:
        return values
    weights = seen[:, 0].astype(jnp.float32)  # [B, 1 or T, T]
    return (weights @ values) / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1.0)


def check_gate(gate: str) -> None:
    """Refuses, by an InputError, what is no gate."""
    if gate not in get_args(Gate):
        raise InputError(f"gate must be one of {get_args(Gate)}: got {gate!r}")


def check_stacks(gate: str, stacks: Any) -> None:
    """Refuses, by an InputError, a gate that reads tokens that a decoder does not know yet."""
    if gate == "all_tokens" and "decoder" in stacks:
        raise InputError(
            "gate 'all_tokens' reads tokens that a decoder does not know yet: take 'real_tokens'"
        )
