"""Matrix products.

Every product takes its operands in the compute dtype (that of the parameters) and accumulates in
float32. In bfloat16 this is what uses the matrix units (AMX on CPU, the MXU, tensor cores); the
backward products do the same, which `jnp.einsum` alone does not: its transpose would multiply a
float32 cotangent with a bfloat16 operand.

On NVIDIA GPUs the memory limits a step: a float32 result that is rounded afterwards is written and
read in twice the bytes. There a product that is rounded anyway is rounded by the product itself.
"""

from typing import Any

import jax
import jax.numpy as jnp

from t5x_lite.chips import is_nvidia
from t5x_lite.sharding import traced_kind
from t5x_lite.types import Array


def saves_bytes() -> bool:
    """Whether the program is traced for devices on which bytes cost more than operations."""
    return is_nvidia(traced_kind())


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


def rounded_einsum(spec: str, a: Array, b: Array) -> Array:
    """As `einsum`, rounded once to the dtype of the operands."""
    return _rounded_einsum(spec, a, b)


def _product(spec: str, a: Array, b: Array) -> Array:
    return _ordered_einsum(spec, a, b, dtype=jnp.float32)


def _rounded_product(spec: str, a: Array, b: Array) -> Array:
    if saves_bytes():
        return _ordered_einsum(spec, a, b, dtype=a.dtype)
    return _product(spec, a, b).astype(a.dtype)


def _ordered_einsum(spec: str, a: Array, b: Array, *, dtype: Any) -> Array:
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    # First the operand whose own index comes first in the result: a product that is transposed
    # afterwards is one that XLA's CPU backend refuses for bfloat16 operands (jax 0.10).
    if _own_index(right, left, out) < _own_index(left, right, out):
        spec, a, b = f"{right},{left}->{out}", b, a
    return jnp.einsum(spec, a, b, preferred_element_type=dtype)


def _own_index(operand: str, other: str, out: str) -> int:
    return min((out.index(i) for i in operand if i in out and i not in other), default=len(out))


def _forward(spec: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(spec, a, b), (a, b)


def _rounded_forward(spec: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rounded_product(spec, a, b), (a, b)


def _backward(spec: str, operands: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    a, b = operands
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    g = g.astype(a.dtype)
    return (
        _rounded_einsum(f"{out},{right}->{left}", g, b),
        _rounded_einsum(f"{left},{out}->{right}", a, g).astype(b.dtype),
    )


_einsum = jax.custom_vjp(_product, nondiff_argnums=(0,))
_einsum.defvjp(_forward, _backward)
_rounded_einsum = jax.custom_vjp(_rounded_product, nondiff_argnums=(0,))
_rounded_einsum.defvjp(_rounded_forward, _backward)
