import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.nn.dense import FAN_IN_TRUNCATED, Dense, FusedDense, truncated_normal
from t5x_lite.nn.slots import bind, shapes, split


def test_linear_by_hand():
    module = Dense(2, 3, axes=("embed", "mlp"), rngs=nnx.Rngs(0))
    module.kernel[...] = jnp.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    assert module(jnp.array([1.0, 1.0])).tolist() == [11, 22, 33]
    assert module(jnp.array([[[1.0, 0.0], [0.0, 2.0]]])).tolist() == [[[1, 2, 3], [20, 40, 60]]]


def test_linear_has_one_kernel_with_logical_axes():
    _, params, axes = split(Dense(2, 3, axes=("embed", "joined_kv"), rngs=nnx.Rngs(0)))
    assert {name: array.shape for name, array in params.items()} == {"kernel": (2, 3)}
    assert axes == {"kernel": ("embed", "joined_kv")}


def test_linear_returns_the_dtype_of_x_and_product_float32():
    module = Dense(2, 3, axes=("embed", "mlp"), rngs=nnx.Rngs(0))
    module.kernel[...] = jnp.ones((2, 3), jnp.bfloat16)
    x = jnp.array([[256.0, 1.0]], jnp.bfloat16)
    assert module(x).dtype == jnp.bfloat16
    assert module.product(x).dtype == jnp.float32
    assert module.product(x).tolist() == [[257, 257, 257]]  # bfloat16 has no 257


def test_initialisers_have_variance_1_over_fan_in():
    normal = Dense(400, 1000, axes=("embed", "mlp"), rngs=nnx.Rngs(0)).kernel[...]
    truncated = Dense(
        400, 1000, axes=("embed", "mlp"), initializer=FAN_IN_TRUNCATED, rngs=nnx.Rngs(0)
    ).kernel[...]
    for kernel in (normal, truncated):
        np.testing.assert_allclose(np.var(kernel), 1 / 400, rtol=0.02)
        np.testing.assert_allclose(np.mean(kernel), 0, atol=5e-4)
    # Cut at two standard deviations, then scaled up to the variance: 2 / 0.8796 / 20.
    assert np.max(np.abs(truncated)) < 0.1137 < np.max(np.abs(normal))


def test_a_bias_by_hand():
    graphdef, _, axes = shapes(
        lambda rngs: Dense(2, 3, axes=("embed", "mlp"), bias=True, rngs=rngs)
    )
    assert axes == {"kernel": ("embed", "mlp"), "bias": ("mlp",)}
    params = {"kernel": jnp.array([[1.0, 0, 2], [0, 1, 3]]), "bias": jnp.array([10.0, 20, 30])}
    layer = bind(graphdef, params)
    np.testing.assert_array_equal(layer(jnp.array([[1.0, 2]])), [[11, 22, 38]])
    assert layer.product(jnp.ones((1, 2), jnp.bfloat16)).dtype == jnp.float32


def test_a_truncated_normal_ends_at_twice_its_deviation():
    kernel = Dense(
        100, 100, axes=("embed", "mlp"), initializer=truncated_normal(0.02), rngs=nnx.Rngs(0)
    ).kernel[...]
    assert 0.039 < np.abs(kernel).max() <= 0.04 + 1e-6
    assert np.std(kernel) == pytest.approx(0.8796 * 0.02, rel=0.03)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.slow
def test_joint_products_are_those_of_each_layer(dtype):
    rng = np.random.default_rng(0)
    kernels = [jnp.asarray(rng.integers(-3, 4, size=(6, width)), dtype) for width in (4, 1, 5)]
    joint = FusedDense([kernel.T for kernel in kernels], axes=("mlp", "embed"))
    for batch in ((), (2,), (2, 3)):
        x = jnp.asarray(rng.integers(-3, 4, size=(*batch, 6)), dtype)
        outputs, products = jax.jit(lambda x: (joint(x), joint.products(x)))(x)
        for kernel, output, product in zip(kernels, outputs, products, strict=True):
            assert (output.dtype, product.dtype) == (dtype, jnp.float32)
            np.testing.assert_array_equal(product, np.float32(x) @ np.float32(kernel))
            np.testing.assert_array_equal(output, product.astype(dtype))


def test_a_joint_of_one_kernel_is_that_array():
    kernel = jnp.ones((3, 2))
    assert FusedDense([kernel], axes=("vocab", "embed")).kernel[...] is kernel
