import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from t5x_lite.nn import dense
from t5x_lite.nn.dense import einsum, rounded_einsum

# Every product of nn/, with small sizes of its operands: the backward pass of each adds two more.
SIZES = dict(zip("ABCEIOTSHKDV", (2, 3, 4, 2, 6, 5, 3, 4, 2, 6, 6, 7), strict=True))
SPECS = [
    "I,IO->O",
    "AI,IO->AO",
    "ABI,IO->ABO",
    "ABCI,IO->ABCO",
    "ABCEI,IO->ABCEO",
    "BTD,VD->BTV",
    "BTHK,BSHK->BHTS",
    "BHTS,BSHK->BTHK",
    "BHTS,BTHK->BSHK",
]


def operands(spec, dtype=jnp.float32):
    """Random operands and a random cotangent of the (float32) result."""
    inputs, out = spec.split("->")
    shapes = [tuple(SIZES[i] for i in indices) for indices in (*inputs.split(","), out)]
    a, b, g = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes))
    return jnp.asarray(a.astype(dtype)), jnp.asarray(b.astype(dtype)), g.astype(np.float32)


def forward_and_backward(spec, a, b, g):
    """The product and both gradients, under jit."""

    def run(a, b, g):
        out, pullback = jax.vjp(lambda a, b: einsum(spec, a, b), a, b)
        return out, *pullback(g)

    return jax.jit(run)(a, b, g)


def numpy_forward_and_backward(spec, a, b, g):
    a, b, g = (np.asarray(x, np.float64) for x in (a, b, g))
    inputs, out = spec.split("->")
    left, right = inputs.split(",")
    return (
        np.einsum(spec, a, b),
        np.einsum(f"{out},{right}->{left}", g, b),
        np.einsum(f"{left},{out}->{right}", a, g),
    )


@pytest.mark.parametrize("spec", SPECS)
def test_einsum_and_its_gradients_in_float32(spec):
    a, b, g = operands(spec)
    expected = numpy_forward_and_backward(spec, a, b, g)
    for ours, reference in zip(forward_and_backward(spec, a, b, g), expected, strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
def test_einsum_and_its_gradients_in_bfloat16(spec):
    # XLA's CPU backend refuses some products of bfloat16 operands; none of these, there and back.
    a, b, g = operands(spec, jnp.bfloat16)
    out, *grads = forward_and_backward(spec, a, b, g)
    # The cotangent is rounded to bfloat16 first, and the gradients at last: to 8 bits.
    rounded = g.astype(jnp.bfloat16)
    expected, *expected_grads = numpy_forward_and_backward(spec, a, b, rounded)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    for ours, reference in zip(grads, expected_grads, strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_allclose(ours.astype(np.float32), reference, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("spec", ["ABI,IO->ABO", "BTHK,BSHK->BHTS"])
def test_einsum_has_the_gradients_of_finite_differences(spec):
    function = jax.jit(lambda a, b: einsum(spec, a, b))
    check_grads(
        function, operands(spec)[:2], order=2, modes=["rev"], atol=1e-2, rtol=1e-2, eps=1e-2
    )


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100 80GB HBM3"])
@pytest.mark.parametrize("spec", ["ABI,IO->ABO", "BTHK,BSHK->BHTS"])
def test_a_rounded_product_is_rounded_once(monkeypatch, kind, spec):
    monkeypatch.setattr(dense, "traced_kind", lambda: kind)
    a, b, g = operands(spec, jnp.bfloat16)

    def run(a, b, g):
        out, pullback = jax.vjp(lambda a, b: rounded_einsum(spec, a, b), a, b)
        return out, *pullback(g.astype(out.dtype))

    text = jax.jit(run).lower(a, b, g).as_text()
    float32 = [line for line in text.splitlines() if "dot_general" in line and "xf32>" in line]
    assert len(float32) == (3 if kind == "cpu" else 0)
    expected = numpy_forward_and_backward(spec, a, b, jnp.asarray(g, jnp.bfloat16))
    for ours, reference in zip(jax.jit(run)(a, b, g), expected, strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_allclose(ours.astype(np.float32), reference, rtol=0.01, atol=0.01)
