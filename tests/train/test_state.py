"""The train state: shapes and shardings are those of the arrays, and a seed decides them all."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train.step import TrainState, abstract_state, init_state, state_shardings

AXES = {"model": {"kernel": ("embed", "mlp"), "scale": ("embed",)}}
OPTIMIZER = AdamW(schedule=Constant(value=0.1))


def init_params(key):
    return {"model": {"kernel": jax.random.normal(key, (4, 2)), "scale": jnp.ones(4)}}


@pytest.fixture(scope="module")
def layout():
    shapes = jax.eval_shape(init_params, jax.random.key(0))
    return state_shardings(make_mesh(MeshConfig()), AXES, OPTIMIZER.state_axes(AXES, shapes))


def initial(layout, *, seed):
    return init_state(init_params, OPTIMIZER.build(AXES), layout, seed=seed)


def test_layout_follows_the_logical_axes(layout):
    assert layout.params["model"]["kernel"].spec == PartitionSpec("fsdp", "tensor")
    assert layout.params["model"]["scale"].spec == PartitionSpec("fsdp")
    assert layout.optimizer["mu"]["model"]["kernel"].spec == PartitionSpec("fsdp", "tensor")
    assert layout.step.spec == layout.optimizer["count"].spec == PartitionSpec()


def test_the_initial_state(layout):
    state = initial(layout, seed=3)
    assert (int(state.step), state.step.dtype) == (0, jnp.int32)
    key = jax.random.fold_in(jax.random.key(3), 0)
    np.testing.assert_array_equal(
        state.params["model"]["kernel"], jax.jit(init_params)(key)["model"]["kernel"]
    )
    assert not np.any(state.optimizer["mu"]["model"]["kernel"])
    assert int(state.optimizer["count"]) == 0
    assert jax.tree.map(lambda x: x.sharding, state) == layout


def test_a_seed_decides_the_parameters(layout):
    kernels = [initial(layout, seed=seed).params["model"]["kernel"] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert not np.allclose(kernels[0], kernels[2])


def test_the_abstract_state_is_that_of_the_arrays(layout):
    def described(leaf):
        return leaf.shape, leaf.dtype, leaf.sharding

    shapes = jax.eval_shape(init_params, jax.random.key(0))
    abstract = abstract_state(shapes, OPTIMIZER.build(AXES), layout)
    assert jax.tree.map(described, abstract) == jax.tree.map(described, initial(layout, seed=0))


def test_a_state_is_frozen_and_a_tree():
    state = TrainState(jnp.int32(1), {"w": jnp.ones(2)}, {"count": jnp.int32(1)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.step = jnp.int32(2)
    doubled = jax.tree.map(lambda x: 2 * x, state)
    assert (int(doubled.step), doubled.params["w"].tolist()) == (2, [2.0, 2.0])
