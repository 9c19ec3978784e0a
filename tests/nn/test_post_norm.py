import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.layers import PostNormConfig, PostNormLayer
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import bind, cast, shapes, split
from tests.nn.tiny_layers import normal

CONFIG = PostNormConfig(
    d_model=12, d_ff=20, num_heads=3, dropout_rate=0.5, attention_dropout_rate=0.5
)
# Its bits compile several times faster than those of the default generator.
KEY = jax.random.key(3, impl="unsafe_rbg")


def filled(build):
    """A module's structure and random parameters, made by NumPy: nothing is compiled."""
    graphdef, abstract, _ = shapes(build)
    rng = np.random.default_rng(1)

    def fill(leaf):
        return jnp.asarray(rng.normal(size=leaf.shape, scale=0.5).astype(np.float32))

    return graphdef, jax.tree.map(fill, abstract)


GRAPHDEF, PARAMS = filled(lambda rngs: PostNormLayer(CONFIG, rngs=rngs))


@jax.jit
def run(params, x, *, mask=None, bias=None, **options):
    return bind(GRAPHDEF, params)(x, pattern=Pattern(mask, bias), **options)


def norm(x, params, epsilon=1e-12):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * params["scale"] + params["bias"]


def dense(x, params):
    return x @ params["kernel"] + params["bias"]


def reference(params, x, source, mask, bias: Any = 0.0):
    """The layer in NumPy, in float64."""
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
    x, source = np.asarray(x, np.float64), np.asarray(source, np.float64)
    block, heads = params["attention"], CONFIG.num_heads
    size = x.shape[-1] // heads
    query, keys, values = (
        dense(y, block[name]).reshape(*y.shape[:-1], heads, size)
        for name, y in (("query", x), ("key", source), ("value", source))
    )
    logits = np.einsum("bthk,bshk->bhts", query, keys) / math.sqrt(size) + bias
    weights = np.exp(np.where(mask, logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("bhts,bshk->bthk", weights, values).reshape(x.shape)
    y = norm(x + dense(mixed, block["out"]), params["attention_norm"])
    hidden = dense(y, params["mlp"]["wi"])
    hidden = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    return norm(y + dense(hidden, params["mlp"]["wo"]), params["mlp_norm"])


def test_equals_a_numpy_reference():
    x, mask = normal(2, 4, 12), np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)[:, None, None]
    expected = reference(PARAMS, x, x, mask)
    np.testing.assert_allclose(run(PARAMS, x, mask=jnp.asarray(mask)), expected, atol=1e-5)


def test_keys_from_another_source_and_a_bias():
    x, source, bias = normal(2, 4, 12), normal(2, 5, 12, seed=4), normal(1, 3, 4, 5, seed=5)
    mask = np.random.default_rng(2).random((2, 1, 4, 5)) < 0.7
    mask[..., 0] = True
    found = run(PARAMS, x, keys_from=source, mask=jnp.asarray(mask), bias=bias)
    expected = reference(PARAMS, x, source, mask, np.asarray(bias))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not np.allclose(found, run(PARAMS, x, mask=None, bias=None), atol=1e-2)


@pytest.mark.slow
def test_a_query_that_sees_no_key_gives_numbers_and_gradients():
    x, mask = normal(1, 3, 12), jnp.array([[1, 1, 1], [0, 0, 0], [1, 0, 0]], bool)[None, None]

    @jax.jit
    def gradient(params, x):
        return jax.grad(
            lambda p, x: jnp.sum(bind(GRAPHDEF, p)(x, pattern=Pattern(mask)) ** 2), (0, 1)
        )(params, x)

    assert np.isfinite(run(PARAMS, x, mask=mask)).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(PARAMS, x)))


def test_blocks_of_keys_give_what_an_array_gives():
    x, segments = normal(2, 5, 12), jnp.array([[1, 1, 2, 2, 0], [1, 1, 1, 1, 1]])
    visible = Visibility(keys=segments, queries=segments, block_size=2)
    blocked = jax.jit(lambda p, x: bind(GRAPHDEF, p)(x, pattern=Pattern(visible)))(PARAMS, x)
    plain = run(PARAMS, x, mask=visible.dense(5))
    real = np.asarray(segments) > 0
    np.testing.assert_allclose(np.asarray(blocked)[real], np.asarray(plain)[real], atol=1e-5)


@pytest.mark.slow
def test_a_key_turns_dropout_on():
    x = normal(1, 3, 12)
    one, same, other = (run(PARAMS, x, mask=None, key=k) for k in (KEY, KEY, jax.random.key(4)))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    assert not np.allclose(one, run(PARAMS, x, mask=None))


def test_bfloat16_stays_near_float32():
    x = normal(2, 4, 12)
    low = run(cast(PARAMS, jnp.bfloat16), x.astype(jnp.bfloat16), mask=None)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        low.astype(jnp.float32), run(PARAMS, x, mask=None), rtol=0.05, atol=0.1
    )


def test_initial_values():
    _, params, axes = split(PostNormLayer(CONFIG, rngs=nnx.Rngs(0)))
    kernels = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params) if leaf.ndim == 2])
    assert 0.0165 < kernels.std() < 0.0185
    assert abs(kernels).max() <= 0.04
    assert (params["attention_norm"]["scale"] == 1).all()
    assert (params["mlp"]["wo"]["bias"] == 0).all()
    assert axes["mlp"]["wi"] == {"kernel": ("embed", "mlp"), "bias": ("mlp",)}
    assert axes["attention"]["out"] == {"kernel": ("joined_kv", "embed"), "bias": ("embed",)}


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="multiple of num_heads: got 12 and 5"):
        dataclasses.replace(CONFIG, num_heads=5)
