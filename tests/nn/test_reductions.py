import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from t5x_lite.nn.dense import scale_features, sum_leading


@pytest.mark.parametrize("rows", [1, 5, 64, 65])
def test_sum_leading(rows):
    x = np.random.default_rng(0).normal(size=(rows, 3, 4)).astype(np.float32)
    got = jax.jit(sum_leading)(jnp.asarray(x))
    np.testing.assert_allclose(got, x.sum(0), rtol=1e-5, atol=1e-5)


def test_sum_leading_has_the_gradient_of_a_sum():
    grad = jax.grad(lambda x: jnp.sum(sum_leading(x) * jnp.array([1.0, 2.0])))(jnp.ones((3, 2)))
    assert grad.tolist() == [[1, 2], [1, 2], [1, 2]]


def test_scale_features_is_a_product():
    x = jnp.array([[[1.0, 2.0], [3.0, 4.0]]])
    assert scale_features(x, jnp.array([2.0, -1.0])).tolist() == [[[2, -2], [6, -4]]]


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 5, 8)])
def test_scale_features_has_the_gradients_of_a_product(shape):
    x, g, scale = (
        jnp.asarray(np.random.default_rng(seed).normal(size=size).astype(np.float32))
        for seed, size in enumerate((shape, shape, 8))
    )

    @jax.jit
    def both(x, scale, g):
        return [jax.vjp(f, x, scale)[1](g) for f in (scale_features, jnp.multiply)]

    for ours, plain in zip(*both(x, scale, g), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


def test_scale_features_has_the_gradients_of_finite_differences():
    inputs = jnp.linspace(-1, 1, 12).reshape(3, 4), jnp.linspace(0.5, 2, 4)
    check_grads(jax.jit(scale_features), inputs, order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_the_gradient_of_a_bfloat16_scale_is_summed_in_float32():
    # A bfloat16 sum of ones stops growing at 256.
    x, scale = jnp.ones((4096, 2), jnp.bfloat16), jnp.ones(2, jnp.bfloat16)
    pullback = jax.jit(lambda x, scale: jax.vjp(scale_features, x, scale)[1](x))
    grad_x, grad_scale = pullback(x, scale)
    assert (grad_x.dtype, grad_scale.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert grad_scale.tolist() == [4096, 4096]
