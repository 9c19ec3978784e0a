import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from t5x_lite.nn import experts
from t5x_lite.nn.slots import stacked
from t5x_lite.nn.stack import Running, scan_layers


def test_what_is_said_is_added_up_where_something_collects():
    experts.add("a", jnp.ones(2))
    assert not experts.is_collected()
    with experts.collecting() as found:
        experts.add("a", jnp.ones(2))
        with experts.collecting() as inner:
            experts.add("a", 5 * jnp.ones(2))
        experts.add("a", 2 * jnp.ones(2))
        experts.add("b", jnp.float32(7))
        assert experts.is_collected()
    assert {name: x.tolist() for name, x in found.items()} == {"a": [3.0, 3.0], "b": 7.0}
    assert inner["a"].tolist() == [5.0, 5.0]
    with pytest.raises(RuntimeError), experts.collecting():
        raise RuntimeError
    assert not experts.is_collected()


class Layer(nnx.Module):
    """Multiplies, and says what it reads."""

    def __init__(self, rngs: nnx.Rngs):
        self.factor = nnx.Param(rngs.params.uniform(()), logical=())

    def __call__(self, x):
        experts.add("sum", jnp.sum(x))
        return x * self.factor[...]


@pytest.mark.parametrize("unroll", [1, True])
@pytest.mark.parametrize("remat", ["none", "full"])
def test_layers_of_a_scan_say_it_to_what_is_around(unroll, remat):
    """With gradients through what they say, and no difference where nobody asks."""
    layers = stacked(Layer, nnx.Rngs(0), num=3)
    layers.factor[...] = jnp.array([2.0, 3.0, 5.0])
    running = Running(unroll=unroll, remat=remat)

    def run(x):
        return scan_layers(layers, lambda layer, x, _: (layer(x), None), x, running=running)

    def said(x):
        with experts.collecting() as found:
            y, none = run(x)
        assert none is None
        return found["sum"], y

    x = jnp.array([[[1.0, 2.0]]])
    (total, y), gradient = jax.jit(jax.value_and_grad(said, has_aux=True))(x)
    assert total == 3 * (1 + 2 + 6)
    assert gradient.tolist() == [[[9.0, 9.0]]]
    assert y.tolist() == run(x)[0].tolist() == [[[30.0, 60.0]]]
