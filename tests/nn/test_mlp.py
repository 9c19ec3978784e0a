import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.nn.dense import MLP
from t5x_lite.nn.slots import bind, cast, split


def mlp(feed_forward, *, d_model=6, d_ff=10, dropout_rate=0.0):
    kind = {"relu": {}, "gated-gelu": {"activation": "gelu_new", "gated": True}}[feed_forward]
    return MLP(d_model, d_ff, **kind, dropout_rate=dropout_rate, rngs=nnx.Rngs(0))


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def test_parameters():
    assert {
        kind: (jax.tree.map(jnp.shape, split(mlp(kind))[1]), split(mlp(kind))[2])
        for kind in ("relu", "gated-gelu")
    } == {
        "relu": (
            {"wi": {"kernel": (6, 10)}, "wo": {"kernel": (10, 6)}},
            {"wi": {"kernel": ("embed", "mlp")}, "wo": {"kernel": ("mlp", "embed")}},
        ),
        "gated-gelu": (
            {
                "wi_0": {"kernel": (6, 10)},
                "wi_1": {"kernel": (6, 10)},
                "wo": {"kernel": (10, 6)},
            },
            {
                "wi_0": {"kernel": ("embed", "mlp")},
                "wi_1": {"kernel": ("embed", "mlp")},
                "wo": {"kernel": ("mlp", "embed")},
            },
        ),
    }


def test_relu_against_numpy():
    module = mlp("relu")
    x = np.asarray(normal(2, 3, 6))
    wi, wo = (np.asarray(layer.kernel[...]) for layer in (module.wi, module.wo))
    expected = np.maximum(x @ wi, 0) @ wo
    np.testing.assert_allclose(jax.jit(module)(x), expected, rtol=1e-5, atol=1e-5)


def test_gated_gelu_against_numpy():
    module = mlp("gated-gelu")
    x = np.asarray(normal(2, 3, 6))
    gate, linear, wo = (
        np.asarray(layer.kernel[...]) for layer in (module.wi_0, module.wi_1, module.wo)
    )
    expected = (gelu_tanh(x @ gate) * (x @ linear)) @ wo
    np.testing.assert_allclose(jax.jit(module)(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
def test_joined_is_the_same(kind):
    module, x = mlp(kind), normal(2, 3, 6)
    expected = module(x)
    module.join()
    assert sorted(split(module)[1]) == ["joint", "joint_out"]
    np.testing.assert_allclose(jax.jit(module)(x), expected, rtol=1e-5, atol=1e-5)


def test_gelu_is_the_tanh_approximation():
    # gelu(1): 0.841192 by tanh, 0.841345 by the error function.
    module = mlp("gated-gelu", d_model=1, d_ff=1)
    for layer in (module.wi_0, module.wi_1, module.wo):
        layer.kernel[...] = jnp.ones((1, 1))
    np.testing.assert_allclose(module(jnp.ones((1, 1, 1))), [[[0.841192]]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
def test_hidden_dropout_is_shared_over_the_length(kind):
    module = mlp(kind, d_model=64, d_ff=64, dropout_rate=0.5)
    module.wo.kernel[...] = jnp.asarray(np.eye(64, dtype=np.float32))
    x = normal(2, 50, 64)
    plain, dropped = jax.jit(lambda key: (module(x), module(x, key=key)))(jax.random.key(2))
    kept = np.asarray(dropped) != 0
    for row in range(2):
        hidden_units = kept[row].any(axis=0)
        assert 10 < hidden_units.sum() < 54
        expected = np.asarray(plain)[row] * hidden_units * 2
        np.testing.assert_allclose(dropped[row], expected, rtol=1e-5, atol=1e-5)
    assert np.any(kept[0].any(axis=0) != kept[1].any(axis=0))


def test_kernels_start_truncated_with_variance_1_over_fan_in():
    module = mlp("relu", d_model=300, d_ff=1200)
    for layer, fan_in in ((module.wi, 300), (module.wo, 1200)):
        kernel = np.asarray(layer.kernel[...])
        np.testing.assert_allclose(np.var(kernel), 1 / fan_in, rtol=0.02)
        assert np.max(np.abs(kernel)) < 2 / 0.8796 / np.sqrt(fan_in)


@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
def test_bfloat16_is_near_float32(kind):
    graphdef, params, _ = split(mlp(kind))
    x = normal(2, 3, 6)

    @jax.jit
    def low_and_full(params):
        low = bind(graphdef, cast(params, jnp.bfloat16))(x.astype(jnp.bfloat16))
        return low, bind(graphdef, params)(x)

    low, full = low_and_full(params)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(np.float32), full, atol=0.05)
