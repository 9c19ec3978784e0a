"""Broadcasts whose gradient is a sum that XLA's CPU backend would make slowly.

The gradient of what is shared over a batch is a sum over leading axes. XLA compiles it on CPU to a
strided loop, 70 times slower than adding the slices (T5-small's relative bias spent a third of the
backward pass there). Elsewhere the plain sum is the right program.
"""

import functools
import operator

import jax
import jax.numpy as jnp
from jaxtyping import Float

from t5x_lite.types import Array

_MOST_SLICES = 64


def sum_leading(x: Float[Array, "B *rest"]) -> Float[Array, "*rest"]:
    """The sum over the first axis."""
    if x.shape[0] > _MOST_SLICES:
        return jnp.sum(x, axis=0)
    return jax.lax.platform_dependent(
        x,
        cpu=lambda x: functools.reduce(operator.add, [x[row] for row in range(x.shape[0])]),
        default=lambda x: jnp.sum(x, axis=0),
    )


@jax.custom_vjp
def scale_features(x: Float[Array, "*batch D"], scale: Float[Array, " D"]) -> Array:
    """x * scale, the scale shared over all axes but the last; both of one dtype.

    The gradient of the scale is accumulated in float32.
    """
    return x * scale


def _scale_forward(x: Array, scale: Array) -> tuple[Array, tuple[Array, Array]]:
    return x * scale, (x, scale)


def _scale_backward(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    x, scale = saved
    products = (g.astype(jnp.float32) * x.astype(jnp.float32)).reshape(-1, x.shape[-1])
    total = jnp.einsum("R,RD->D", jnp.ones(products.shape[:1], jnp.float32), products)
    return g * scale, total.astype(scale.dtype)


scale_features.defvjp(_scale_forward, _scale_backward)
