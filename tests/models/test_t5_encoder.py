import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.t5 import T5Config, T5EncoderConfig
from t5x_lite.nn.slots import bind, shapes

SIZES = {"vocab_size": 19, "d_model": 8, "d_kv": 3, "d_ff": 12, "num_heads": 2}
ENCODER = T5EncoderConfig(num_layers=2, dropout_rate=0.0, **SIZES)
T5 = T5Config(num_encoder_layers=2, num_decoder_layers=1, dropout_rate=0.0, **SIZES)
TOKENS = jnp.array([[5, 6, 7, 8], [9, 10, 0, 0]])


def structure(config):
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    return graphdef, abstract


def test_parameters_are_those_of_a_t5_without_its_decoder():
    ours, whole = (
        {path: leaf.shape for path, leaf in flatten(structure(config)[1]).items()}
        for config in (ENCODER, T5)
    )
    assert ours == {
        path: shape for path, shape in whole.items() if not path.startswith(("decoder", "lm_head"))
    }


def test_encodes_as_a_t5_does():
    graphdef, abstract = structure(T5)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), "float32"), abstract
    )
    own = {name: params[name] for name in ("token_embedding", "encoder")}
    segments = jnp.array([[1, 1, 2, 2], [1, 1, 0, 0]])

    @jax.jit
    def run(own, params):
        encoder, whole = bind(structure(ENCODER)[0], own), bind(graphdef, params)
        return (
            (encoder(TOKENS), whole.encode(TOKENS)),
            (encoder.encode(TOKENS), whole.encode(TOKENS)),
            (encoder(TOKENS, segment_ids=segments), whole.encode(TOKENS, segment_ids=segments)),
        )

    for ours, expected in run(own, params):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_key_turns_dropout_on():
    graphdef, abstract = structure(ENCODER.replace(dropout_rate=0.5))

    def program(**options):
        def call(params):
            return bind(graphdef, params)(TOKENS, **options)

        return str(jax.make_jaxpr(call)(abstract))

    assert "random_bits" in program(key=jax.random.key(0))
    assert "random_bits" not in program()


def test_no_layer():
    with pytest.raises(InputError, match=r"model\.num_layers must be at least 1: got 0"):
        ENCODER.replace(num_layers=0)
