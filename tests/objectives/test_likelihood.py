import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.lm import LMConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import LanguageModel, Seq2Seq

SIZES = {"vocab_size": 3, "d_model": 4, "d_kv": 2, "d_ff": 8, "num_heads": 2}
T5 = T5Config(**SIZES, num_encoder_layers=1, num_decoder_layers=1)
LM = LMConfig(**SIZES, num_layers=1)

# Probabilities 1/2, 1/4, 1/4 where Z is 1; then all doubled, Z = 2, the last class the likeliest.
LOGITS = jnp.log(jnp.array([[[0.5, 0.25, 0.25], [0.5, 0.5, 1.0], [0.25, 0.25, 0.5]]]))
BATCH = {
    "decoder_input_tokens": jnp.array([[0, 1, 2]]),
    "decoder_target_tokens": jnp.array([[1, 2, 0]]),
    "decoder_loss_weights": jnp.array([[1, 1, 0]]),
}
OF_AN_ENCODER_TOO = {**BATCH, "encoder_input_tokens": jnp.array([[2, 1]])}


def evaluate(batch, *, logits=LOGITS, **options):
    """The objective's sums for a model that gives these logits."""
    config = LanguageModel(**{"z_loss": 0.1, **options})
    objective = config.build(ModelConfig(vocab_size=3), rngs=nnx.Rngs(0))
    return objective(lambda **features: logits, None, batch)


def test_sums_over_the_targets_of_weight_1():
    loss = evaluate(BATCH)
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
    for one, other in zip(*(jax.tree.leaves(evaluate(b)) for b in (BATCH, changed)), strict=True):
        assert float(one) == float(other)


def test_a_batch_of_weight_0_has_loss_0():
    assert float(evaluate({**BATCH, "decoder_loss_weights": jnp.zeros((1, 3))}).value()) == 0.0


def test_fractional_weights_weigh():
    batch = {**BATCH, "decoder_loss_weights": jnp.array([[0.5, 0.0, 0.0]])}
    loss = evaluate(batch, z_loss=0.0)
    np.testing.assert_allclose(loss.terms["cross_entropy"].total, 0.5 * math.log(4), rtol=1e-5)
    np.testing.assert_allclose(loss.value(), math.log(4), rtol=1e-5)


def test_label_smoothing_lowers_what_a_sure_model_gains():
    logits = jnp.array([[[9.0, 0.0, 0.0]] * 3])
    batch = {**BATCH, "decoder_target_tokens": jnp.zeros((1, 3), jnp.int32)}
    smoothed = evaluate(batch, logits=logits, z_loss=0.0, label_smoothing=0.1)
    plain = evaluate(batch, logits=logits, z_loss=0.0)
    assert float(plain.value()) < 0.001 < 0.3 < float(smoothed.value())


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_label_smoothing_outside_its_range(smoothing):
    with pytest.raises(InputError, match=r"objective.label_smoothing must be in \[0, 1\)"):
        Seq2Seq(label_smoothing=smoothing)


def test_negative_z_loss():
    with pytest.raises(InputError, match=r"objective.z_loss must be at least 0: got -1.0"):
        LanguageModel(z_loss=-1.0)


@pytest.mark.parametrize(
    ("model", "objective", "message"),
    [
        (
            LM,
            Seq2Seq(),
            "objective Seq2Seq passes decoder_input_tokens, encoder_input_tokens to the model, but "
            "LM needs decoder_input_tokens; use Seq2Seq for an encoder-decoder, and "
            "LanguageModel for a decoder-only model",
        ),
        (
            T5,
            LanguageModel(),
            "objective LanguageModel passes decoder_input_tokens to the model, but T5 needs "
            "decoder_input_tokens, encoder_input_tokens; use Seq2Seq for an encoder-decoder, and "
            "LanguageModel for a decoder-only model",
        ),
    ],
)
def test_a_model_of_the_other_kind_is_refused_before_any_data(model, objective, message):
    before = set(sys.modules)
    with pytest.raises(InputError) as raised:
        shapes(lambda rngs: Bound(model, objective, rngs=rngs))
    assert str(raised.value) == message
    assert "tensorflow" not in set(sys.modules) - before


@pytest.mark.parametrize(
    ("objective", "batch", "message"),
    [
        (
            Seq2Seq(),
            BATCH,
            "objective Seq2Seq reads decoder_input_tokens, encoder_input_tokens, but the batch has "
            "no encoder_input_tokens: data.layout must be seq2seq",
        ),
        (
            LanguageModel(),
            OF_AN_ENCODER_TOO,
            "objective LanguageModel reads decoder_input_tokens, but the batch also has "
            "encoder_input_tokens: data.layout must be lm or prefix_lm or concat_lm",
        ),
    ],
)
def test_rows_of_another_layout_are_refused(objective, batch, message):
    loss = objective.build(T5, rngs=nnx.Rngs(0))
    with pytest.raises(InputError) as raised:
        loss(lambda **features: LOGITS, None, batch)
    assert str(raised.value) == message


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.slow
def test_logits_in_chunks_change_nothing(tied):
    config = LM.replace(tie_embeddings=tied, dropout_rate=0.0)
    batch = {
        "decoder_input_tokens": jnp.array([[0, 1, 2, 1, 1], [0, 2, 2, 1, 0]]),
        "decoder_target_tokens": jnp.array([[1, 2, 1, 1, 2], [2, 2, 1, 0, 0]]),
        "decoder_loss_weights": jnp.array([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
    }

    def learner(**options):
        return shapes(
            lambda rngs: Bound(config, LanguageModel(label_smoothing=0.1, **options), rngs=rngs)
        )

    whole, abstract, _ = learner()
    chunked, _, _ = learner(logits_chunk=2)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), abstract
    )

    @jax.jit
    def both(params):
        def run(graphdef):
            def value(params):
                loss = bind(graphdef, params)(batch)
                return loss.value(), (loss.terms["cross_entropy"][:2], loss.metrics)

            return jax.value_and_grad(value, has_aux=True)(params)

        return run(chunked), run(whole)

    for ours, expected in zip(*map(jax.tree.leaves, both(params)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_chunk_of_no_logits():
    with pytest.raises(InputError, match=r"objective.logits_chunk must be at least 1"):
        Seq2Seq(logits_chunk=0)
