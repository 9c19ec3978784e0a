"""Activations by name."""

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from t5x_lite.types import Array

Activation = Literal["gelu", "relu", "gelu_new", "tanh", "swish"]
"""gelu is exact (by the error function), gelu_new its tanh approximation; swish is x sigmoid(x)."""


def activate(x: Array, activation: Activation) -> Array:
    """The activation of that name, elementwise.

    Raises:
      ValueError: there is none of that name.
    """
    if activation == "gelu":
        return jax.nn.gelu(x, approximate=False)
    if activation == "gelu_new":
        return jax.nn.gelu(x, approximate=True)
    if activation == "relu":
        return jax.nn.relu(x)
    if activation == "tanh":
        return jnp.tanh(x)
    if activation == "swish":
        return jax.nn.swish(x)
    raise ValueError(f"activation must be one of {get_args(Activation)}: got {activation!r}")
