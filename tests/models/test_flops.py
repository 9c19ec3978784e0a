import math

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from t5x_lite.models.base import ModelConfig
from t5x_lite.models.flops import (
    lm_forward,
    t5_encoder_forward,
    t5_forward,
    train_step_flops,
)
from t5x_lite.models.lm import LMConfig
from t5x_lite.models.presets import t5_1_1_base
from t5x_lite.models.t5 import T5Config
from t5x_lite.models.t5_encoder import T5EncoderConfig
from t5x_lite.nn.bind import bind, shapes

TINY = T5Config(
    vocab_size=7,
    d_model=2,
    d_kv=3,
    d_ff=5,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    feed_forward="relu",
)


def test_by_hand():
    # Multiplications with d_model 2, joined 6, d_ff 5, vocabulary 7, 3 inputs and 1 target.
    projection, feed_forward = 2 * 6, 2 * 5
    encoder = 3 * 4 * projection + 2 * 3 * 3 * 6 + 3 * 2 * feed_forward
    self_attention = 1 * 4 * projection + 2 * 1 * 1 * 6
    cross_attention = 1 * 2 * projection + 3 * 2 * projection + 2 * 1 * 3 * 6
    decoder = self_attention + cross_attention + 1 * 2 * feed_forward
    logits = 1 * 2 * 7
    assert (encoder, decoder, logits) == (312, 212, 14)
    assert t5_forward(TINY, inputs_length=3, targets_length=1) == 2 * (312 + 212 + 14)


def test_a_gate_is_one_more_product():
    plain = t5_forward(TINY, inputs_length=3, targets_length=1)
    gated = t5_forward(TINY.replace(feed_forward="gated-gelu"), inputs_length=3, targets_length=1)
    assert gated - plain == 2 * (3 + 1) * 2 * 5


TINY_LM = LMConfig(
    vocab_size=7, d_model=2, d_kv=3, d_ff=5, num_heads=2, num_layers=3, feed_forward="relu"
)
TINY_ENCODER = T5EncoderConfig(
    vocab_size=7, d_model=2, d_kv=3, d_ff=5, num_heads=2, num_layers=3, feed_forward="relu"
)


@pytest.mark.parametrize(
    ("config", "lengths", "forward"),
    [
        (TINY, {"encoder_input_tokens": 3, "decoder_target_tokens": 1}, 2 * (312 + 212 + 14)),
        # Three layers of 4 * 4 * 12 + 2 * 4 * 4 * 6 + 4 * 2 * 10, and 4 * 14 for the logits.
        (TINY_LM, {"decoder_target_tokens": 4}, 2 * (3 * 464 + 56)),
        (TINY_LM.replace(prefix=True), {"decoder_target_tokens": 4}, 2 * (3 * 464 + 56)),
        (TINY_ENCODER, {"encoder_input_tokens": 4}, 2 * 3 * 464),
    ],
    ids=["t5", "lm", "prefix_lm", "encoder"],
)
def test_a_train_step_is_three_forward_passes_of_each_row(config, lengths, forward):
    other = {"encoder_segment_ids": 3, "decoder_segment_ids": 1}
    assert train_step_flops(config, rows=8, lengths=other | lengths) == 24 * forward


def test_t5_1_1_base():
    # Multiplications of a row: 12 encoder layers, 12 decoder layers, the output.
    multiplications = 48_318_382_080 + 19_859_447_808 + 2_812_870_656
    lengths = {"encoder_input_tokens": 512, "decoder_target_tokens": 114}
    flops = train_step_flops(t5_1_1_base(), rows=256, lengths=lengths)
    assert flops == 3 * 256 * 2 * multiplications == 109_041_716_035_584


def test_a_model_that_is_not_counted():
    assert train_step_flops(ModelConfig(vocab_size=7), rows=8, lengths={}) is None


def products(jaxpr):
    """Multiplications of all matrix products of a traced function."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            inner = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += inner * equation.outvars[0].aval.size
        repeats = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += repeats * sum(map(products, jaxprs_in_params(equation.params)))
    return total


@pytest.mark.parametrize(
    "fields",
    [
        {"feed_forward": "relu"},
        {"feed_forward": "gated-gelu", "relative_bias_per_layer": True},
        {"feed_forward": "relu", "share_layers": True, "num_decoder_layers": 3},
    ],
    ids=["1.0", "umT5", "shared"],
)
def test_equals_the_products_of_the_traced_model(fields):
    config = TINY.replace(**{"num_encoder_layers": 3, "num_decoder_layers": 2, **fields})
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    inputs, targets = (jax.ShapeDtypeStruct((4, n), jnp.int32) for n in (6, 5))
    traced = jax.make_jaxpr(lambda params, *tokens: bind(graphdef, params)(*tokens))(
        abstract, inputs, targets
    )
    expected = 4 * t5_forward(config, inputs_length=6, targets_length=5)
    assert 2 * products(traced.jaxpr) == expected


def test_an_encoder_equals_the_products_of_the_traced_model():
    assert traced_products(TINY_ENCODER, length=6) == 4 * t5_encoder_forward(TINY_ENCODER, length=6)


def test_a_language_model_equals_the_products_of_the_traced_model():
    assert traced_products(TINY_LM, length=6) == 4 * lm_forward(TINY_LM, length=6)


def traced_products(config, *, length):
    """FLOPs of the matrix products of a model of one input, for 4 rows."""
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    tokens = jax.ShapeDtypeStruct((4, length), jnp.int32)
    traced = jax.make_jaxpr(lambda params, tokens: bind(graphdef, params)(tokens))(abstract, tokens)
    return 2 * products(traced.jaxpr)
