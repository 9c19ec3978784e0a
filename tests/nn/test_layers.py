import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn import masks
from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.dense import split_key
from t5x_lite.nn.layers import DecoderLayer, EncoderLayer, by_head
from t5x_lite.nn.slots import bind, shapes
from tests.nn.tiny_layers import DROPPING, KEY, SMALL, filled, normal, silence

OWN_BIAS = dataclasses.replace(SMALL, relative_bias_per_layer=True)


def encoder_layer(config=SMALL):
    return lambda rngs: EncoderLayer(config, rngs=rngs)


def decoder_layer(config=SMALL, **options):
    return lambda rngs: DecoderLayer(config, rngs=rngs, **options)


def blocks(build):
    """The names of a module's direct parts."""
    return set(shapes(build)[1])


def test_parts():
    encoder = {"attention_norm", "attention", "mlp_norm", "mlp"}
    own = {"self_attention_norm", "self_attention", "mlp_norm", "mlp"}
    across = {"cross_attention_norm", "cross_attention"}
    assert blocks(encoder_layer()) == encoder
    assert blocks(encoder_layer(OWN_BIAS)) == encoder | {"relative_bias"}
    assert blocks(decoder_layer()) == own | across
    assert blocks(decoder_layer(OWN_BIAS)) == own | across | {"relative_bias"}
    assert blocks(decoder_layer(cross_attention=False)) == own


def test_split_key():
    assert split_key(None, 3) == [None, None, None]
    assert len({str(key) for key in split_key(KEY, 3)}) == 3


def test_by_head():
    keys, values = normal(2, 5, 3, 4), normal(2, 5, 3, 4, seed=1)
    by_head_keys, by_head_values = by_head((keys, values))
    np.testing.assert_array_equal(by_head_keys[1, 2, :, 4], keys[1, 4, 2])
    np.testing.assert_array_equal(by_head_values[1, 2, 4], values[1, 4, 2])


@pytest.mark.parametrize("silent", ["attention/out/kernel", "mlp/wo/kernel"])
def test_dropout_after_an_encoder_block_is_shared_over_the_length(silent):
    graphdef, params = filled(encoder_layer(DROPPING))
    params = silence(params, silent)
    x, bias = normal(2, 20, 64), jnp.zeros((1, 2, 20, 20))
    mask = masks.padding(jnp.ones((2, 20), jnp.int32))
    call = jax.jit(lambda key: bind(graphdef, params)(x, pattern=Pattern(mask, bias), key=key))
    kept = np.asarray(call(KEY)) != np.asarray(x)
    assert 0.3 < kept.mean() < 0.7
    assert np.all(kept == kept[:, :1])


def test_dropout_after_a_decoder_block_is_shared_over_the_length():
    graphdef, params = filled(decoder_layer(DROPPING))
    outputs = {"self_attention/out/kernel", "cross_attention/out/kernel", "mlp/wo/kernel"}
    x, encoded, bias = normal(2, 20, 64), normal(2, 9, 64, seed=1), jnp.zeros((1, 2, 20, 20))
    cross_mask = masks.padding(jnp.ones((2, 9), jnp.int32))

    @jax.jit
    def call(params):
        layer, pattern = bind(graphdef, params), Pattern(masks.causal(20), bias)
        return layer(x, encoded, pattern=pattern, across=Pattern(cross_mask), key=KEY)

    for output in sorted(outputs):
        kept = np.asarray(call(silence(params, *outputs - {output}))) != np.asarray(x)
        assert 0.3 < kept.mean() < 0.7
        assert np.all(kept == kept[:, :1])


def test_a_table_of_its_own_is_read_from_both_sides_by_the_encoder_alone():
    positions = jnp.arange(5)
    x, mask = normal(1, 5, 8), jnp.ones((1, 1, 5, 5), bool)
    graphdef, params = filled(encoder_layer(OWN_BIAS))
    plain, _ = filled(encoder_layer())
    decoding, decoder_params = filled(decoder_layer(OWN_BIAS, cross_attention=False))
    plain_decoding, _ = filled(decoder_layer(cross_attention=False))

    @jax.jit
    def both(params, decoder_params):
        def pair(own, without, params, bidirectional, call):
            layer = bind(own, params)
            bias = layer.relative_bias(positions, positions, bidirectional=bidirectional)
            params = {name: part for name, part in params.items() if name != "relative_bias"}
            ours = call(layer, Pattern(mask, positions=(positions, positions)))
            return ours, call(bind(without, params), Pattern(mask, bias))

        def encode(layer, pattern):
            return layer(x, pattern=pattern)

        def decode(layer, pattern):
            return layer(x, None, pattern=pattern)

        return (
            pair(graphdef, plain, params, True, encode),
            pair(decoding, plain_decoding, decoder_params, False, decode),
        )

    for ours, expected in both(params, decoder_params):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_step_is_the_last_row_of_the_whole():
    x, encoded = normal(2, 4, 8), normal(2, 5, 8, seed=1)
    cross_mask = masks.padding(jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    bias = normal(1, 2, 4, 4)
    graphdef, params = filled(decoder_layer())

    @jax.jit
    def both(params):
        layer = bind(graphdef, params)
        whole, own, across = layer.project_and_apply(
            x, encoded, pattern=Pattern(masks.causal(4), bias), across=Pattern(cross_mask)
        )
        keys, values = by_head(own)

        def write(new):
            return (
                jnp.concatenate([keys[..., :3], new[0]], axis=-1),
                jnp.concatenate([values[:, :, :3], new[1]], axis=2),
            )

        last = layer.step(
            x[:, 3:],
            write,
            by_head(across),
            pattern=Pattern(jnp.ones((2, 1, 1, 4), bool), bias[:, :, 3:]),
            across=Pattern(cross_mask),
        )
        return last, whole[:, 3:]

    np.testing.assert_allclose(*both(params), rtol=1e-5, atol=1e-5)
