import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn import dense
from t5x_lite.nn.dense import LayerNorm, RMSNorm
from t5x_lite.nn.slots import bind, split


def norm(scale, **options):
    module = RMSNorm(len(scale), **options)
    module.scale[...] = jnp.asarray(scale)
    return module


def test_starts_at_scale_1_on_axis_embed():
    _, params, axes = split(RMSNorm(3))
    assert params["scale"].tolist() == [1, 1, 1]
    assert params["scale"].dtype == jnp.float32
    assert axes == {"scale": ("embed",)}


def test_divides_by_the_root_of_the_mean_square():
    # 3, 4: mean square 12.5. The mean is not subtracted.
    got = norm([1.0, 2.0])(jnp.array([[3.0, 4.0], [-6.0, 8.0]]))
    np.testing.assert_allclose(got, [[0.8485281, 2.2627417], [-0.8485281, 2.2627417]], rtol=1e-5)


def test_against_numpy():
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
    scale = np.random.default_rng(1).normal(size=16).astype(np.float32)
    expected = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, -1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(jax.jit(norm(scale))(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-5)


def test_epsilon_is_inside_the_root():
    x = jnp.full((1, 2), 1e-3)
    np.testing.assert_allclose(norm([1.0, 1.0])(x), np.full((1, 2), 0.70710678), rtol=1e-5)
    wide = norm([1.0, 1.0], epsilon=3e-6)(x)
    np.testing.assert_allclose(wide, np.full((1, 2), 0.5), rtol=1e-5)
    assert norm([1.0, 1.0])(jnp.zeros((1, 2))).tolist() == [[0, 0]]


def test_bfloat16_is_rounded_before_the_scale():
    # 3 / sqrt(12.5) = 0.848528 rounds to 0.84765625; times 1.875 is 1.589355, which rounds to
    # 1.5859375. Rounded after the product only, 1.590990 would become 1.59375.
    x = jnp.array([[3.0, 4.0]], jnp.bfloat16)
    got = norm([1.875, 1.0])(x)
    assert got.dtype == jnp.bfloat16
    assert got.astype(jnp.float32).tolist() == [[1.5859375, 1.1328125]]


def test_the_statistic_of_bfloat16_is_float32():
    # A bfloat16 sum of ones stops growing at 256.
    got = RMSNorm(4096)(jnp.ones((1, 4096), jnp.bfloat16))
    assert np.unique(got.astype(jnp.float32)).tolist() == [1.0]


def test_gradient_equals_that_of_a_plain_norm():
    module = norm([0.5, 2.0, -1.0])
    x = jnp.array([[1.0, -2.0, 3.0], [0.1, 0.2, 0.3]])
    g = jnp.array([[1.0, 0.5, -1.0], [2.0, 1.0, 0.0]])

    def plain(x):
        mean_square = jnp.mean(x * x, axis=-1, keepdims=True)
        return x / jnp.sqrt(mean_square + 1e-6) * jnp.array([0.5, 2.0, -1.0])

    both = jax.jit(lambda x: [jax.vjp(function, x)[1](g)[0] for function in (module, plain)])
    got, expected = both(x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_layer_norm_literals():
    layer = LayerNorm(2, 1e-12)
    np.testing.assert_allclose(layer(jnp.array([[1.0, 3.0], [5.0, 5.0]])), [[-1, 1], [0, 0]])
    # The mean is taken out before the square: no cancellation far from zero.
    np.testing.assert_allclose(layer(jnp.array([[10001.0, 10003.0]])), [[-1, 1]])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_on_a_tpu_the_gradient_of_a_layer_norm_is_its_closed_form(monkeypatch, dtype):
    x, g = (jnp.asarray(np.random.default_rng(i).normal(size=(2, 5, 16)), dtype) for i in range(2))
    module = LayerNorm(16)
    module.scale[...] = jnp.asarray(np.random.default_rng(2).normal(size=16), jnp.float32)
    graphdef, params, _ = split(module)

    def found():
        out, pull = jax.vjp(lambda params, x: bind(graphdef, params)(x), params, x)
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (out, *pull(g)))

    expected = found()
    monkeypatch.setattr(dense, "traced_kind", lambda: "TPU v5 lite")
    tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
    for ours, theirs in zip(*map(jax.tree.leaves, (found(), expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
