import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.trees import flatten
from t5x_lite.nn.dense import Dense, RMSNorm
from t5x_lite.nn.slots import bind, cast, init, shapes, split, stacked


class Block(nnx.Module):
    """A norm and a dense layer."""

    def __init__(self, *, rngs):
        self.norm = RMSNorm(4)
        self.dense = Dense(4, 400, axes=("embed", "mlp"), rngs=rngs)

    def __call__(self, x):
        return self.dense(self.norm(x))


def build(rngs):
    return Block(rngs=rngs)


def test_split_gives_nested_dicts_of_arrays_and_of_axes():
    _, params, axes = split(build(nnx.Rngs(0)))
    assert {path: array.shape for path, array in flatten(params).items()} == {
        "norm/scale": (4,),
        "dense/kernel": (4, 400),
    }
    assert all(isinstance(array, jax.Array) for array in flatten(params).values())
    assert axes == {"norm": {"scale": ("embed",)}, "dense": {"kernel": ("embed", "mlp")}}


def test_bind_inverts_split():
    module = build(nnx.Rngs(0))
    graphdef, params, _ = split(module)
    x = jax.random.normal(jax.random.key(1), (2, 4))
    np.testing.assert_array_equal(bind(graphdef, params)(x), module(x))


def test_bind_inside_a_traced_function():
    graphdef, params, _ = split(build(nnx.Rngs(0)))
    x = jnp.ones((2, 4))
    grads = jax.jit(jax.grad(lambda params: jnp.sum(bind(graphdef, params)(x))))(params)
    np.testing.assert_allclose(grads["dense"]["kernel"], np.full((4, 400), 2.0), rtol=1e-5)


def test_cast_leaves_integers():
    params = cast({"a": {"kernel": jnp.ones(2)}, "table": jnp.arange(2)}, jnp.bfloat16)
    assert params["a"]["kernel"].dtype == jnp.bfloat16
    assert params["table"].dtype == jnp.int32


def test_shapes_are_those_of_split_and_nothing_is_allocated():
    graphdef, abstract, axes = shapes(build)
    _, params, expected_axes = split(build(nnx.Rngs(0)))
    assert axes == expected_axes
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in flatten(abstract).values())
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), abstract) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), params
    )
    assert bind(graphdef, params)(jnp.ones((1, 4))).shape == (1, 400)


def test_init_is_a_pure_function_of_the_key():
    eager = init(build, jax.random.key(5))
    jitted = jax.jit(lambda key: init(build, key))(jax.random.key(5))
    other = init(build, jax.random.key(6))
    np.testing.assert_allclose(eager["dense"]["kernel"], jitted["dense"]["kernel"], rtol=1e-6)
    assert np.all(np.asarray(eager["dense"]["kernel"]) != other["dense"]["kernel"])


def test_stacked_parameters_have_a_leading_layer_axis():
    _, params, axes = split(stacked(build, nnx.Rngs(0), num=3))
    assert {path: array.shape for path, array in flatten(params).items()} == {
        "norm/scale": (3, 4),
        "dense/kernel": (3, 4, 400),
    }
    assert axes == {
        "norm": {"scale": ("layers", "embed")},
        "dense": {"kernel": ("layers", "embed", "mlp")},
    }


def test_stacked_layers_are_initialised_one_by_one():
    kernel = np.asarray(split(stacked(build, nnx.Rngs(0), num=3))[1]["dense"]["kernel"])
    # The layer axis is no part of the fan-in: 1/4 each, and no two layers alike.
    np.testing.assert_allclose(kernel.var(axis=(1, 2)), [0.25, 0.25, 0.25], rtol=0.15)
    assert len(np.unique(kernel)) == kernel.size


def test_a_stack_of_one_layer_and_of_none():
    assert split(stacked(build, nnx.Rngs(0), num=1))[1]["norm"]["scale"].shape == (1, 4)
    with pytest.raises(ValueError, match="at least one layer, but num is 0"):
        stacked(build, nnx.Rngs(0), num=0)
