import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_lite.nn.dense import Embedding
from t5x_lite.nn.slots import split


def test_embedding_looks_tokens_up():
    module = Embedding(3, 2, rngs=nnx.Rngs(0))
    module.table[...] = jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    assert module(jnp.array([[2, 0], [1, 1]])).tolist() == [[[4, 5], [0, 1]], [[2, 3], [2, 3]]]
    assert split(module)[2] == {"table": ("vocab", "embed")}


def test_embedding_starts_as_a_standard_normal():
    table = Embedding(1000, 400, rngs=nnx.Rngs(0)).table[...]
    np.testing.assert_allclose(np.var(table), 1.0, rtol=0.02)


def test_tied_logits_are_divided_by_the_root_of_d_model():
    module = Embedding(2, 4, rngs=nnx.Rngs(0))
    module.table[...] = jnp.array([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 2.0]])
    assert module.logits(jnp.ones((1, 1, 4))).tolist() == [[[5, 1]]]


def test_tied_logits_of_bfloat16_are_float32():
    module = Embedding(2, 4, rngs=nnx.Rngs(0))
    module.table[...] = jnp.full((2, 4), 1.0, jnp.bfloat16)
    x = jnp.array([[[512.0, 2.0, 0.0, 0.0]]], jnp.bfloat16)
    logits = module.logits(x)
    assert logits.dtype == jnp.float32
    assert logits.tolist() == [[[257, 257]]]
