"""Vectors of texts: the encoder's states without padding, and their mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.evaluate.embed import Embedder
from t5x_lite.models.t5_encoder import T5EncoderConfig

INPUTS = [[7, 5, 1], [9, 1], [*range(10, 30), 1], [1]]


@pytest.fixture(scope="module")
def model():
    config = T5EncoderConfig(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=1)
    return config.build(rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def embedder(model):
    return Embedder(lambda params: nnx.merge(nnx.graphdef(model), params), batch_size=3)


@pytest.fixture(scope="module")
def params(model):
    return nnx.to_pure_dict(nnx.state(model))


@pytest.fixture(scope="module")
def by_hand(model):
    encode = jax.jit(model.encode)
    return [np.asarray(encode(jnp.array([row])))[0] for row in INPUTS]


def arrays(rows):
    return [np.array(row, np.int32) for row in rows]


def test_states_of_each_token_in_order(embedder, params, by_hand):
    found = embedder.states(params, arrays(INPUTS))
    assert [states.shape for states in found] == [(3, 16), (2, 16), (21, 16), (1, 16)]
    for got, expected in zip(found, by_hand, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_the_mean_is_over_the_tokens_without_padding(embedder, params, by_hand):
    found = embedder.run(params, arrays(INPUTS))
    assert (found.shape, found.dtype) == ((4, 16), np.float32)
    np.testing.assert_allclose(found, [states.mean(axis=0) for states in by_hand], atol=1e-5)


def test_no_inputs(embedder, params):
    assert embedder.run(params, []).shape == (0, 16)
    assert embedder.states(params, []) == []


def test_half_precision_states_are_added_up_in_float32():
    class Ones:
        def encode(self, tokens):
            return jnp.ones((*tokens.shape, 2), jnp.bfloat16)

    long = [np.full(400, 5, np.int32)]
    found = Embedder(lambda _: Ones(), batch_size=1).run({}, long)
    np.testing.assert_array_equal(found, [[1.0, 1.0]])
