"""Activations by name, and what a feed-forward block makes of them.

A block's hidden layer is its largest array. Where bytes cost more than operations
(`products.saves_bytes`) its backward pass computes the activation again from what went into it,
instead of keeping a second array of that size.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from t5x_lite.nn.products import saves_bytes
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


def activated(x: Array, activation: Activation, *, dtype: Any) -> Array:
    """The activation of x in float32, rounded to the dtype."""

    def rounded(x: Array) -> Array:
        return activate(x.astype(jnp.float32), activation).astype(dtype)

    return _computed_again(rounded, x) if saves_bytes() else rounded(x)


def gated(first: Array, second: Array, activation: Activation) -> Array:
    """The activation of the first, times the second."""

    def product(first: Array, second: Array) -> Array:
        return activate(first, activation) * second

    return _computed_again(product, first, second) if saves_bytes() else product(first, second)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _computed_again(function: Callable[..., Array], *arguments: Array) -> Array:
    return function(*arguments)


def _keep_arguments(function: Callable[..., Array], *arguments: Array) -> tuple[Array, Any]:
    return function(*arguments), arguments


def _differentiate_again(function: Callable[..., Array], arguments: Any, g: Array) -> Any:
    # Behind a barrier: the compiler would find the two computations equal and keep the first.
    return jax.vjp(function, *jax.lax.optimization_barrier(arguments))[1](g)


_computed_again.defvjp(_keep_arguments, _differentiate_again)
