import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import bind, shapes, stacked
from t5x_lite.nn.stack import Running, scan_layers


class Layer(nnx.Module):
    """x to sin(x kernel)."""

    def __init__(self, rngs):
        self.linear = Dense(3, 3, axes=("embed", "mlp"), rngs=rngs)

    def __call__(self, x, more):
        y = jnp.sin(self.linear(x) + more)
        return y, jnp.sum(y)


KERNELS = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32))
MORE = jnp.array([0.0, 1.0, 2.0, 3.0])
X = jnp.ones((1, 2, 3))
GRAPHDEF = shapes(lambda rngs: stacked(Layer, rngs, num=4))[0]


def run(kernels, **running):
    layers = bind(GRAPHDEF, {"linear": {"kernel": kernels}})
    return scan_layers(
        layers,
        lambda layer, x, more: layer(x, more),
        X,
        inputs=MORE,
        running=Running(**running),
    )


def test_layers_follow_one_another():
    y, sums = run(KERNELS)
    expected, expected_sums = np.asarray(X), []
    for kernel, more in zip(np.asarray(KERNELS), np.asarray(MORE), strict=True):
        expected = np.sin(expected @ kernel + more)
        expected_sums.append(expected.sum())
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("unroll", [1, 2, True])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients_stay(unroll, remat):
    def gradient(**running):
        return jax.jit(jax.grad(lambda kernels: jnp.sum(run(kernels, **running)[0])))(KERNELS)

    expected = gradient()
    np.testing.assert_allclose(gradient(unroll=unroll, remat=remat), expected, rtol=1e-5, atol=1e-6)


def test_a_policy_is_applied_to_each_layer():
    def traced(**running):
        gradient = jax.grad(lambda kernels: jnp.sum(run(kernels, **running)[0]))
        return str(jax.make_jaxpr(gradient)(KERNELS))

    assert "checkpoint[" not in traced()
    assert "prevent_cse=False" in traced(remat="full")
    assert "prevent_cse=False" in traced(remat="full", unroll=2)
    assert "prevent_cse=True" in traced(remat="full", unroll=True)
    assert "prevent_cse=True" in traced(remat="full", unroll=4)


def test_straight():
    assert Running(unroll=True).is_straight(9)
    assert Running(unroll=3).is_straight(3)
    assert not Running(unroll=3).is_straight(4)


def test_an_unknown_policy():
    with pytest.raises(InputError, match=r"model.remat must be one of .* did you mean full"):
        Running(remat="ful")
