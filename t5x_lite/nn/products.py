"""Matrix products.

Every product takes its operands in the compute dtype (that of the parameters) and accumulates and
returns float32. In bfloat16 this is what uses the matrix units (AMX on CPU, the MXU, tensor cores);
the backward products do the same, which `jnp.einsum` alone does not: its transpose would multiply
a float32 cotangent with a bfloat16 operand.
"""

import jax
import jax.numpy as jnp

from t5x_lite.types import Array


def einsum(spec: str, a: Array, b: Array) -> Array:
    """An einsum of two operands of one dtype; float32 out, float32 accumulation.

    Args:
      spec: as for `jnp.einsum`; every index of an operand stands in the other or in the result.
      a: the first operand.
      b: the second, of the same dtype.

    Returns:
      The product in float32. Cotangents are rounded to the operands' dtype before the backward
      products, and their results to it after.
    """
    return _einsum(spec, a, b)


def _product(spec: str, a: Array, b: Array) -> Array:
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    # First the operand whose own index comes first in the result: a product that is transposed
    # afterwards is one that XLA's CPU backend refuses for bfloat16 operands (jax 0.10).
    if _own_index(right, left, out) < _own_index(left, right, out):
        spec, a, b = f"{right},{left}->{out}", b, a
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


def _own_index(operand: str, other: str, out: str) -> int:
    return min((out.index(i) for i in operand if i in out and i not in other), default=len(out))


def _forward(spec: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(spec, a, b), (a, b)


def _backward(spec: str, operands: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    a, b = operands
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    g = g.astype(a.dtype)
    grad_a = einsum(f"{out},{right}->{left}", g, b)
    grad_b = einsum(f"{left},{out}->{right}", a, g)
    return grad_a.astype(a.dtype), grad_b.astype(b.dtype)


_einsum = jax.custom_vjp(_product, nondiff_argnums=(0,))
_einsum.defvjp(_forward, _backward)
