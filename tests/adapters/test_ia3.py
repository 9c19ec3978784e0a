import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.lora import HiddenScale, Ia3, OutputScale
from t5x_lite.core import trees
from t5x_lite.models.published import bert_base, t5_base
from t5x_lite.nn.dense import MLP, Dense
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from tests.adapters.hosts import learner


@pytest.mark.slow
def test_by_hand():
    dense = Dense(2, 2, axes=("embed", "mlp"), bias=True, rngs=nnx.Rngs(0))
    dense.kernel[...] = jnp.array([[1.0, 0.0], [0.0, 1.0]])
    dense.bias[...] = jnp.array([1.0, 1.0])
    dense.slot = OutputScale(2, "mlp")
    dense.slot.scale[...] = jnp.array([2.0, -1.0])
    np.testing.assert_allclose(dense(jnp.array([[3.0, 4.0]])), [[8.0, -5.0]])
    np.testing.assert_allclose(dense.effective_kernel(), [[2.0, 0.0], [0.0, -1.0]])
    np.testing.assert_allclose(dense.effective_bias(), [2.0, -1.0])


def scaled(activation, place):
    """A feed-forward block of one hidden unit, scaled by -2, of 1."""
    block = MLP(1, 1, activation=activation, bias=True, rngs=nnx.Rngs(0))
    block.wi.kernel[...], block.wo.kernel[...] = jnp.ones((2, 1, 1))
    if place == "after":
        block.slot = HiddenScale(1, "mlp")
        block.slot.scale[...] = jnp.array([-2.0])
    else:
        block.wi.slot = OutputScale(1, "mlp")
        block.wi.slot.scale[...] = jnp.array([-2.0])
    return float(block(jnp.ones((1, 1, 1)))[0, 0, 0])


def test_places_differ():
    """The library `adapters` scales before the activation: with relu, a negative scale is lost."""
    assert scaled("relu", "after") == -2.0
    assert scaled("relu", "before") == 0.0
    assert scaled("gelu", "after") == pytest.approx(-2 * 0.841345, rel=1e-5)
    assert scaled("gelu", "before") == pytest.approx(-0.0455003, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "objective", "options", "count"),
    [
        (bert_base(), Classify(num_classes=2), {}, 55_296),
        (bert_base(), Classify(num_classes=2), {"place": "before"}, 55_296),
        (bert_base(), Classify(num_classes=2), {"attention_out": True}, 64_512),
        (t5_base(), Seq2Seq(), {}, 129_024),
    ],
)
def test_sizes(model, objective, options, count):
    made = Learner.of(model, objective, adapters=(Ia3(**options),))
    assert trees.count_parameters(made.shapes["adapters"]) == count


def test_paths():
    made, _ = learner("bert", Ia3())
    assert set(trees.flatten(made.shapes["adapters"])) == {
        f"ia3/encoder/{site}/scale" for site in ("attention/key", "attention/value", "mlp/hidden")
    }


def test_sites_are_those_of_dense_layers():
    """A pattern that hidden states match, too, scales these no second time."""
    made, _ = learner("bert", Ia3(sites=("attention/.*", "mlp/.*"), feed_forward=False))
    sites = [path.removeprefix("ia3/encoder/") for path in trees.flatten(made.shapes["adapters"])]
    assert "mlp/out/scale" in sites
    assert not [site for site in sites if "hidden" in site]
