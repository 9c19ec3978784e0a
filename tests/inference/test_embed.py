"""Vectors of texts: the encoder's states without padding, and their mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.inference.text_encoder import Embedder, rounded_length
from t5x_lite.models.t5 import T5EncoderConfig

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
        def encode(self, tokens, *, segment_ids):
            return jnp.ones((*tokens.shape, 2), jnp.bfloat16)

    long = [np.full(400, 5, np.int32)]
    found = Embedder(lambda _: Ones(), batch_size=1).run({}, long)
    np.testing.assert_array_equal(found, [[1.0, 1.0]])


class Shown:
    """States that say what the model is given: token, whether it is a text's, and the length."""

    def encode(self, tokens, *, segment_ids):
        length = jnp.full_like(tokens, tokens.shape[1])
        return jnp.stack([tokens, segment_ids, length], axis=-1).astype(jnp.float32)


def shown(inputs, **options):
    return Embedder(lambda _: Shown(), batch_size=2, **options).run({}, arrays(inputs))


def test_a_token_that_others_pad_with_is_a_token():
    mean = shown([[0, 0, 6], [1, 3]], pad_id=1)
    np.testing.assert_allclose(mean, [[2.0, 1.0, 16.0], [2.0, 1.0, 16.0]])
    cls = shown([[0, 0, 6], [7, 3]], pad_id=1, pooling="cls")
    np.testing.assert_array_equal(cls, [[0, 1, 16], [7, 1, 16]])


def test_vectors_of_length_1():
    found = shown([[2, 2], [0]], normalize=True, max_length=2)
    np.testing.assert_allclose(found, [[2 / 3, 1 / 3, 2 / 3], [0, 0.2**0.5, 0.8**0.5]], rtol=1e-6)


def test_rows_are_not_longer_than_the_model_reads():
    long = [5] * 33
    assert shown([long])[0, 2] == 64
    assert shown([long], max_length=40)[0, 2] == 40


def test_lengths_are_few():
    lengths = [1, 16, 17, 33, 64, 65, 96, 97, 129, 161, 192, 193, 257, 400, 513]
    rounded = [16, 16, 32, 64, 64, 96, 96, 128, 160, 192, 192, 224, 320, 448, 640]
    assert [rounded_length(length) for length in lengths] == rounded
