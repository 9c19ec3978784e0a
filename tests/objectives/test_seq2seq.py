import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.errors import InputError
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.bind import bind, shapes
from t5x_lite.objectives.base import Learner
from t5x_lite.objectives.seq2seq import Seq2Seq
from t5x_lite.trees import flatten

MODEL = T5Config(
    vocab_size=3,
    d_model=4,
    d_kv=2,
    d_ff=8,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout_rate=0.0,
)

# Probabilities 1/2, 1/4, 1/4 where Z is 1; then all doubled, Z = 2, the last class the likeliest.
LOGITS = jnp.log(jnp.array([[[0.5, 0.25, 0.25], [0.5, 0.5, 1.0], [0.25, 0.25, 0.5]]]))
BATCH = {
    "encoder_input_tokens": jnp.array([[2, 1]]),
    "decoder_input_tokens": jnp.array([[0, 1, 2]]),
    "decoder_target_tokens": jnp.array([[1, 2, 0]]),
    "decoder_loss_weights": jnp.array([[1, 1, 0]]),
}


def evaluate(batch, *, logits=LOGITS, config=None):
    """The objective's sums for a model that gives these logits, and what the model was given."""
    given = {}

    def model(inputs, decoder_inputs, **options):
        given.update(options, inputs=inputs, decoder_inputs=decoder_inputs)
        return logits

    objective = (config or Seq2Seq(z_loss=0.1)).build(MODEL, rngs=nnx.Rngs(0))
    return objective(model, batch), given


def test_sums_over_the_targets_of_weight_1():
    loss, _ = evaluate(BATCH)
    # Target 1 of probability 1/4 and Z 1, target 2 of probability 1/2 and Z 2, one of weight 0.
    cross_entropy, z_loss = math.log(4) + math.log(2), 0.1 * math.log(2) ** 2
    total, weight, scale = loss.terms["cross_entropy"]
    np.testing.assert_allclose(total, cross_entropy + z_loss, rtol=1e-5)
    assert (float(weight), scale) == (2.0, 1.0)
    np.testing.assert_allclose(loss.metrics["cross_entropy"], (cross_entropy, 2), rtol=1e-5)
    np.testing.assert_allclose(loss.metrics["z_loss"], (z_loss, 2), rtol=1e-5)
    assert tuple(map(float, loss.metrics["token_accuracy"])) == (1.0, 2.0)
    np.testing.assert_allclose(loss.value(), (cross_entropy + z_loss) / 2, rtol=1e-5)


def test_targets_of_weight_0_count_nothing():
    changed = {**BATCH, "decoder_target_tokens": jnp.array([[1, 2, 2]])}
    for one, other in zip(
        *(jax.tree.leaves(evaluate(b)[0]) for b in (BATCH, changed)), strict=True
    ):
        assert float(one) == float(other)


def test_a_batch_of_weight_0_has_loss_0():
    empty = {**BATCH, "decoder_loss_weights": jnp.zeros((1, 3))}
    assert float(evaluate(empty)[0].value()) == 0.0


def test_fractional_weights_weigh():
    batch = {**BATCH, "decoder_loss_weights": jnp.array([[0.5, 0.0, 0.0]])}
    loss, _ = evaluate(batch, config=Seq2Seq(z_loss=0.0))
    np.testing.assert_allclose(loss.terms["cross_entropy"].total, 0.5 * math.log(4), rtol=1e-5)
    np.testing.assert_allclose(loss.value(), math.log(4), rtol=1e-5)


def test_label_smoothing_lowers_what_a_sure_model_gains():
    logits = jnp.array([[[9.0, 0.0, 0.0]] * 3])
    batch = {**BATCH, "decoder_target_tokens": jnp.zeros((1, 3), jnp.int32)}
    smoothed, _ = evaluate(batch, logits=logits, config=Seq2Seq(z_loss=0.0, label_smoothing=0.1))
    plain, _ = evaluate(batch, logits=logits, config=Seq2Seq(z_loss=0.0))
    assert float(plain.value()) < 0.001 < 0.3 < float(smoothed.value())


def test_the_model_gets_the_segment_ids_of_packed_batches():
    _, given = evaluate(BATCH)
    assert given["encoder_segment_ids"] is None
    assert given["decoder_segment_ids"] is None
    ids = {
        "encoder_segment_ids": jnp.array([[1, 1]]),
        "decoder_segment_ids": jnp.array([[1, 1, 2]]),
    }
    _, given = evaluate({**BATCH, **ids})
    assert given["inputs"] is BATCH["encoder_input_tokens"]
    assert given["decoder_inputs"] is BATCH["decoder_input_tokens"]
    assert given["encoder_segment_ids"] is ids["encoder_segment_ids"]
    assert given["decoder_segment_ids"] is ids["decoder_segment_ids"]


def test_every_parameter_of_a_t5_gets_a_gradient():
    graphdef, abstract, _ = shapes(lambda rngs: Learner(MODEL, Seq2Seq(), rngs=rngs))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), abstract
    )
    grads = jax.jit(jax.grad(lambda params: bind(graphdef, params)(BATCH).value()))(params)
    gradients = flatten(grads)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients.values())
    assert [path for path, gradient in gradients.items() if not np.any(gradient)] == []


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_label_smoothing_outside_its_range(smoothing):
    with pytest.raises(InputError, match=r"objective.label_smoothing must be in \[0, 1\)"):
        Seq2Seq(label_smoothing=smoothing)


def test_negative_z_loss():
    with pytest.raises(InputError, match=r"objective.z_loss must not be negative: got -1.0"):
        Seq2Seq(z_loss=-1.0)
