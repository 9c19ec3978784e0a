"""What a train step carries on: the step, the parameters and the optimizer's state.

There is no random state: the dropout key of a step is a function of the seed and the step.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from t5x_lite.sharding import replicated, shardings
from t5x_lite.types import Axes, Key, Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The state of a run after `step` steps.

    Or a tree of its structure that holds other leaves: its shapes, its shardings.

    Attributes:
      step: int32 scalar, steps taken.
      params: float32 master parameters.
      optimizer: the optimizer's state.
    """

    step: Any
    params: Params
    optimizer: Any


def state_shardings(mesh: Mesh, axes: Axes, optimizer_axes: Axes) -> TrainState:
    """The shardings of a state, in the structure of a state."""
    return TrainState(
        step=replicated(mesh),
        params=shardings(mesh, axes),
        optimizer=shardings(mesh, optimizer_axes),
    )


def init_state(
    init_params: Callable[[Key], Params],
    optimizer: optax.GradientTransformation,
    layout: TrainState,
    *,
    seed: int,
) -> TrainState:
    """Initial parameters and optimizer state, made on the devices where they stay.

    Args:
      init_params: a pure function of a key.
      optimizer: its init is used.
      layout: shardings, from `state_shardings`.
      seed: of the parameters.
    """

    def init(key: Key) -> TrainState:
        params = init_params(key)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    key = jax.random.fold_in(jax.random.key(seed), 0)
    return jax.jit(init, out_shardings=layout)(key)


def abstract_state(
    shapes: Any, optimizer: optax.GradientTransformation, layout: TrainState
) -> TrainState:
    """Shapes, dtypes and shardings of a state, to restore a checkpoint onto."""
    state = TrainState(
        jax.ShapeDtypeStruct((), jnp.int32),
        shapes,
        jax.eval_shape(optimizer.init, shapes),
    )
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        layout,
    )
