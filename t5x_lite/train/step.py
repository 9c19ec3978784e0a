"""The train step: bind, loss, gradient, update; one jitted function of (state, batch)."""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from t5x_lite.sharding import batch_sharding, replicated
from t5x_lite.train.state import TrainState
from t5x_lite.types import Array, Batch, Key, Params

LossFunction = Callable[[Params, Batch, Key | None], Any]
"""(params, batch, key) -> Loss with .value(), .terms and .metrics; see objectives/base.py."""

Metrics = dict[str, Array]


def make_train_step(
    loss_function: LossFunction,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[Any], Any],
    *,
    mesh: Mesh,
    layout: TrainState,
    seed: int,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Compiles the step for a mesh.

    The state is donated. The dropout key is fold_in(fold_in(key(seed), 1), step), so that a run
    that is resumed draws what an uninterrupted one draws.

    Args:
      loss_function: gives the sums of a batch; their quotient over the global batch is minimised.
      optimizer: gives the update.
      schedule: step -> learning rate, for the metrics.
      mesh: the device mesh.
      layout: the state's shardings.
      seed: of dropout.

    Returns:
      (state, batch) -> (state, metrics). Metrics are float32 scalars: "loss", "learning_rate",
      "gradient_norm", and the objective's.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        dropout_base = jax.random.fold_in(jax.random.key(seed), 1)
        key = jax.random.fold_in(dropout_base, state.step)

        def value(params: Params) -> tuple[Array, Any]:
            loss = loss_function(params, batch, key)
            return loss.value(), loss.metrics

        (loss, sums), grads = jax.value_and_grad(value, has_aux=True)(state.params)
        updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
        params = cast(Params, optax.apply_updates(state.params, updates))
        metrics = {
            "loss": loss,
            "learning_rate": jnp.asarray(schedule(state.step), jnp.float32),
            "gradient_norm": optax.tree.norm(grads),
        }
        metrics |= {
            name: total / jnp.maximum(weight, 1.0) for name, (total, weight) in sums.items()
        }
        return TrainState(state.step + 1, params, optimizer_state), metrics

    return jax.jit(
        step,
        in_shardings=(layout, batch_sharding(mesh)),
        out_shardings=(layout, replicated(mesh)),
        donate_argnums=0,
    )
