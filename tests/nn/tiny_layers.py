"""Sizes and random parameters of tiny layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.core.trees import flatten, unflatten
from t5x_lite.nn.layers import LayerConfig
from t5x_lite.nn.slots import shapes

SMALL = LayerConfig(
    d_model=8,
    d_kv=3,
    d_ff=10,
    num_heads=2,
    feed_forward="gated-gelu",
    dropout_rate=0.0,
    norm_epsilon=1e-6,
    relative_buckets=32,
    relative_max_distance=128,
)
DROPPING = dataclasses.replace(SMALL, d_model=64, d_kv=16, dropout_rate=0.5)

# Its bits compile several times faster than those of the default generator.
KEY = jax.random.key(3, impl="unsafe_rbg")


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def filled(build):
    """A module's structure and random parameters, made by NumPy: nothing is compiled."""
    graphdef, abstract, _ = shapes(build)
    rng = np.random.default_rng(0)

    def fill(leaf):
        scale = leaf.shape[-2] ** -0.5 if len(leaf.shape) > 1 else 1.0
        return jnp.asarray(rng.normal(size=leaf.shape, scale=scale).astype(np.float32))

    return graphdef, jax.tree.map(fill, abstract)


def silence(tree, *names):
    """Sets the kernels of these names to zero: the blocks that they close add nothing."""
    flat = flatten(tree)
    for name in names:
        flat[name] = jnp.zeros_like(flat[name])
    return unflatten(flat)
