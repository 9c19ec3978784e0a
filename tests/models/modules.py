"""What the tests of heads share: random parameters, and layers in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.models.encoder import BertConfig
from t5x_lite.nn.slots import bind, shapes

MODEL = BertConfig(
    vocab_size=9, d_model=6, d_ff=8, num_heads=2, num_layers=1, max_positions=8, dropout_rate=0.2
)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def filled(build):
    """A head with random parameters, and these in float64."""
    graphdef, abstract, _ = shapes(build)
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), abstract
    )
    return bind(graphdef, params), jax.tree.map(lambda p: np.asarray(p, np.float64), params)


def dense(x, params):
    return x @ params["kernel"] + params["bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def norm(x, params, epsilon):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * params["scale"] + params["bias"]
