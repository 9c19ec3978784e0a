"""Every family names its sites alike; what stands in a slot is called with what it should be."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.nn.dense import Dense, FusedDense
from t5x_lite.nn.layers import residual
from t5x_lite.nn.slots import named, split, stacked
from tests.adapters.hosts import HOSTS

ATTENTION = ("query", "key", "value", "out")


@pytest.mark.parametrize("host", HOSTS)
def test_names_of_sites(host):
    model = HOSTS[host][0].build(rngs=nnx.Rngs(0))
    stacks = model.stacks()
    assert set(stacks) == ({"encoder", "decoder"} if host == "t5" else {"encoder"})
    own = [f"attention/{name}" for name in ATTENTION]
    cross = [f"cross_attention/{name}" for name in ATTENTION]
    mlp = ["mlp/in", "mlp/out", *(["mlp/gate"] if host == "t5" else [])]
    assert set(stacks["encoder"].dense_sites()) == {*own, *mlp}
    assert set(stacks["encoder"].hidden_sites()) == {"attention/hidden", "mlp/hidden"}
    assert stacks["encoder"].block_sites() == ("after_attention", "after_mlp")
    if host == "t5":
        assert set(stacks["decoder"].dense_sites()) == {*own, *cross, *mlp}
        assert "after_cross_attention" in stacks["decoder"].block_sites()
    assert named("a", {"b": 1}) == {"a/b": 1}


class Doubled:
    def __call__(self, x, y, kernel):
        assert kernel.shape == (2, 3)
        return 2.0 * y

    def of_kernel(self, kernel):
        return 2.0 * kernel

    def of_bias(self, bias):
        return jnp.ones(3) if bias is None else bias + 1.0


def test_a_slot_of_a_dense_layer():
    dense = Dense(2, 3, axes=("embed", "mlp"), rngs=nnx.Rngs(0))
    x, plain = jnp.ones((1, 2)), dense(jnp.ones((1, 2)))
    np.testing.assert_array_equal(dense.effective_kernel(), dense.kernel[...])
    object.__setattr__(dense, "slot", Doubled())
    np.testing.assert_allclose(dense(x), 2.0 * plain + 1.0)
    np.testing.assert_allclose(dense.effective_bias(), 1.0)
    fused = FusedDense.of([dense], axes=("mlp", "embed"))
    np.testing.assert_allclose(fused(x)[0], dense(x))
    np.testing.assert_allclose(dense.effective_kernel(), 2.0 * dense.kernel[...])


class Tenfold:
    def __call__(self, f, x, norm, around):
        assert around.source is x
        return 10.0 * f + norm(x)


def test_a_slot_of_a_block():
    x, y = jnp.full((1, 1, 2), 3.0), jnp.full((1, 1, 2), 1.0)
    norm = lambda z: z / 2.0  # noqa: E731
    seen = residual(x, y, norm=norm, slot=Tenfold())
    np.testing.assert_allclose(seen, 11.5)
    np.testing.assert_allclose(residual(x, y, norm=norm), 2.0)


def test_layers_of_flax_have_axes_without_names():
    _, params, axes = split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    assert params["kernel"].shape == (2, 3)
    assert axes == {"kernel": (None, None), "bias": (None,)}
    layers = stacked(lambda rngs: nnx.Linear(2, 3, rngs=rngs), nnx.Rngs(0), num=4)
    assert split(layers)[2] == {"kernel": ("layers", None, None), "bias": ("layers", None)}
