"""Hidden states without logits, and blocked attention, in every architecture."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core import tied_parameters
from t5x_lite.models.lm import LMConfig
from t5x_lite.models.t5 import T5Config, T5EncoderConfig
from t5x_lite.nn.slots import bind, shapes

SIZES = {
    "vocab_size": 19,
    "d_model": 8,
    "d_kv": 3,
    "d_ff": 12,
    "num_heads": 2,
    "relative_buckets": 8,
    "relative_max_distance": 6,
    "dropout_rate": 0.0,
}
T5 = T5Config(**SIZES, num_encoder_layers=1, num_decoder_layers=1)
TIED = T5.replace(feed_forward="relu", tie_embeddings=True)
SHARED = T5.replace(share_layers=True)
UMT5 = T5.replace(relative_bias_per_layer=True)
LM = LMConfig(**SIZES, num_layers=1)
PREFIX = LM.replace(prefix=True)
ENCODER = T5EncoderConfig(**SIZES, num_layers=1)

# Two examples and padding; one example, and the beginning of another.
INPUTS = jnp.array([[5, 6, 7, 8, 9, 1, 0], [10, 11, 12, 13, 1, 14, 15]])
SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 2, 2]])
CAUSAL_ATTENTION = jnp.array([[1, 1, 0, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1, 0]])
TARGETS = jnp.array([[0, 12, 0, 13, 0], [0, 15, 16, 0, 18]])
TARGET_SEGMENTS = jnp.array([[1, 1, 2, 2, 0], [1, 1, 1, 2, 2]])


def structure(config):
    return shapes(lambda rngs: config.build(rngs=rngs))[:2]


def filled(config):
    """The model's structure and random parameters, made by NumPy: nothing is compiled."""
    graphdef, abstract = structure(config)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape, scale=0.5).astype(np.float32)),
        abstract,
    )
    return graphdef, tied_parameters.read(
        config.views(), tied_parameters.write(config.views(), params)
    )


@pytest.mark.parametrize("config", [TIED, T5, LM], ids=["tied", "untied", "language model"])
def test_logits_are_the_hidden_states_times_the_output_layer(config):
    graphdef, params = filled(config)
    arguments = (TARGETS,) if isinstance(config, LMConfig) else (INPUTS, TARGETS)

    @jax.jit
    def both(params):
        model = bind(graphdef, params)
        output = model.output()
        kernel = output.kernel.T if output.axes == ("vocab", "embed") else output.kernel
        return model(*arguments), model.hidden(*arguments) @ kernel / output.divisor

    logits, ours = both(params)
    np.testing.assert_allclose(ours, logits, rtol=1e-5, atol=1e-5)


def run(config, model):
    """What a model gives for packed rows and for others; what scores targets among it."""
    if config is ENCODER:
        return model(INPUTS), model(INPUTS, segment_ids=SEGMENTS)
    if isinstance(config, LMConfig):
        packed = {
            "decoder_segment_ids": SEGMENTS,
            "decoder_causal_attention": CAUSAL_ATTENTION,
        }
        return model(INPUTS, **packed), model.target_logits(INPUTS, TARGETS[:, 1:])
    packed = {"encoder_segment_ids": SEGMENTS, "decoder_segment_ids": TARGET_SEGMENTS}
    return model(INPUTS, TARGETS, **packed), model.target_logits(INPUTS, TARGETS[:, 1:])


@pytest.mark.gate("T5")
@pytest.mark.parametrize(
    "config",
    [T5, SHARED, UMT5, LM, PREFIX, ENCODER],
    ids=["T5", "shared", "umT5", "language model", "prefix", "encoder"],
)
@pytest.mark.slow
def test_blocked_attention_changes_nothing(config):
    graphdef, params = filled(config)
    blocked, _ = structure(config.replace(attention="blocked", attention_block=4))

    @jax.jit
    def both(params):
        return [run(config, bind(g, params)) for g in (blocked, graphdef)]

    for ours, expected in zip(*both(params), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
