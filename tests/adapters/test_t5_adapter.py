import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.bottleneck_variants import T5Adapter, T5AdapterBlock, t5_adapter
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import count_parameters, partition
from t5x_lite.models.published import t5_base
from t5x_lite.nn.slots import Around
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq


@pytest.mark.parametrize(
    ("d", "count"), [(32, 1_198_080), (128, 4_737_024), (512, 18_892_800), (2048, 75_515_904)]
)
def test_sizes(d, count):
    for norms, more in (("own", 0), ("all", 47_616)):
        made = Learner.of(t5_base(), Seq2Seq(), adapters=(t5_adapter(d=d, norms=norms),))
        found = partition(made.shapes, lambda path, _, made=made: made.trains(path))[0]
        assert count_parameters(found) == count + more


def test_by_hand():
    block = T5AdapterBlock(t5_adapter(d=1), 2, rngs=nnx.Rngs(0))
    block.norm.scale[...] = jnp.array([1.0, 2.0])
    block.mlp.wi.kernel[...] = jnp.array([[1.0], [1.0]])
    block.mlp.wo.kernel[...] = jnp.array([[1.0, -1.0]])
    f, x = jnp.array([[[1.0, 2.0]]]), jnp.array([[[2.0, 2.0]]])
    # x + f = [3, 4], its root mean square is sqrt(12.5).
    hidden = (3.0 + 2.0 * 4.0) / 12.5**0.5
    expected = [[[3.0 + hidden, 4.0 - hidden]]]
    np.testing.assert_allclose(block(f, x, None, Around(x)), expected, rtol=1e-5)
    zero = T5AdapterBlock(t5_adapter(d=1, zero=True), 2, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(zero(f, x, None, Around(x)), f + x)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 0}, "width must be at least 1: got 0"),
        ({"width": 1, "dropout_rate": -0.1}, "dropout_rate must be in"),
    ],
)
def test_what_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        T5Adapter(**fields)
