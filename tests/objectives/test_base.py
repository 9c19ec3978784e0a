import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import shapes
from t5x_lite.objectives.base import Loss, NoLoss, Objective, Term
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import Seq2Seq

MODEL = T5Config(
    vocab_size=8,
    d_model=4,
    d_kv=2,
    d_ff=8,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
)


def loss(*, cross_entropy, auxiliary, accuracy):
    return Loss(
        terms={
            "cross_entropy": Term(*map(jnp.float32, cross_entropy)),
            "auxiliary": Term(*map(jnp.float32, auxiliary), scale=0.1),
        },
        metrics={"accuracy": tuple(map(jnp.float32, accuracy))},
    )


def test_value_divides_each_term_by_its_own_weight():
    # 6 / 3 + 0.1 * 20 / 4
    value = loss(cross_entropy=(6, 3), auxiliary=(20, 4), accuracy=(0, 1)).value()
    np.testing.assert_allclose(value, 2.5, rtol=1e-6)


def test_a_term_of_weight_0_counts_0():
    value = loss(cross_entropy=(6, 3), auxiliary=(0, 0), accuracy=(0, 0)).value()
    np.testing.assert_allclose(value, 2.0, rtol=1e-6)


def test_weights_below_1_divide_too():
    value = loss(cross_entropy=(0.5, 0.25), auxiliary=(0, 0), accuracy=(0, 0)).value()
    np.testing.assert_allclose(value, 2.0, rtol=1e-6)


def test_plus_adds_sums_and_keeps_scales():
    first = loss(cross_entropy=(6, 3), auxiliary=(20, 4), accuracy=(2, 3))
    second = loss(cross_entropy=(2, 1), auxiliary=(0, 0), accuracy=(1, 1))
    both = first.plus(second)
    assert both.terms == {"cross_entropy": (8, 4, 1.0), "auxiliary": (20, 4, 0.1)}
    assert both.metrics == {"accuracy": (3, 4)}
    # Not the mean of the batches' values.
    np.testing.assert_allclose(both.value(), 8 / 4 + 0.1 * 20 / 4, rtol=1e-6)


def test_penalties_are_the_same_of_parts_and_of_the_whole():
    loss = Loss({"a": Term(jnp.float32(6), jnp.float32(2))}, {})
    assert loss.plus_terms({}) == loss
    part = loss.plus_terms({"x_penalty": (jnp.float32(50), 0.1)})
    assert list(part.terms) == ["a", "x_penalty"]
    assert float(part.value()) == 8
    assert float(part.plus(part).value()) == 8


def test_the_value_is_differentiable():
    def value(total):
        return Loss(terms={"a": Term(total * total, jnp.float32(4))}, metrics={}).value()

    assert float(jax.grad(value)(jnp.float32(6))) == 3.0


def test_a_learner_is_the_model_and_its_objective():
    def build(rngs):
        return Bound(MODEL, Seq2Seq(), rngs=rngs)

    _, params, axes = shapes(build)
    _, model, _ = shapes(lambda rngs: MODEL.build(rngs=rngs))
    assert set(flatten(params)) == {f"model/{path}" for path in flatten(model)}
    assert axes["model"]["lm_head"]["kernel"] == ("embed", "vocab")


def test_an_objective_defines_build():
    with pytest.raises(TypeError, match="Objective does not define the method build"):
        Objective().build(MODEL, rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_no_loss_says_how_to_train():
    bound = Bound(MODEL, NoLoss(), rngs=nnx.Rngs(0))
    with pytest.raises(InputError, match=r"no training objective.*--init"):
        bound({"encoder_input_tokens": jnp.ones((1, 2), jnp.int32)})
