import numpy as np
import pytest

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.delta_merging import merge_adapters as merge
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.core.errors import InputError
from t5x_lite.nn.slots import bind
from tests.adapters.hosts import learner, random


def attached(*adapters):
    made, _ = learner("bert", *adapters)
    bound = bind(made.graphdef, random(made.shapes))
    bound.adapters.attach(bound.model)
    return bound


def test_slots_become_kernels():
    """W + s A B, scaled where what is hidden is; the slots are empty then."""
    bound = attached(
        Lora(name="a", rank=2, alpha=4.0, sites=("mlp/in",)),
        Ia3(name="b", sites=("attention/key",)),
    )
    layers = bound.model.layers
    before = {name: np.asarray(site.kernel[...]) for name, site in layers.dense_sites().items()}
    branch, scale = layers.dense_sites()["mlp/in"].slot, layers.hidden_sites()["mlp/hidden"].slot
    a, b = branch.a[...], branch.b[...]
    factors = np.asarray(scale.scale[...])
    merge(bound.model)
    after = {name: np.asarray(site.kernel[...]) for name, site in layers.dense_sites().items()}
    np.testing.assert_allclose(after["mlp/in"], before["mlp/in"] + 2.0 * (a @ b), rtol=1e-5)
    np.testing.assert_allclose(after["mlp/out"], before["mlp/out"] * factors[:, :, None], rtol=1e-5)
    np.testing.assert_array_equal(after["attention/query"], before["attention/query"])
    assert layers.dense_sites()["mlp/in"].slot is None
    assert layers.hidden_sites()["mlp/hidden"].slot is None


def test_what_no_kernel_holds():
    bound = attached(seq_bn(name="a", reduction=4.0))
    with pytest.raises(InputError, match="adapter at encoder/after_mlp cannot be merged"):
        merge(bound.model)
