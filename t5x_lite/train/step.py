"""The train step: bind, loss, gradient, update; one jitted function of (state, batch).

A batch may be run in microbatches, one after the other, to save the memory of activations. The
loss and its gradient are those of the whole batch: every term's total is divided by the term's
weight over ALL microbatches (t5x adds losses that are each divided by their own weight, so that a
token counts more where the padding is).

    microbatches 2, batch of 4 rows on 2 devices: rows 0 1 | 2 3
    the first microbatch has rows 0 | 2, the second 1 | 3: every row stays on its device
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from t5x_lite.sharding import batch_sharding, constrain, data_parallelism, replicated
from t5x_lite.train.state import TrainState
from t5x_lite.types import Array, Batch, InputError, Key, Params

LossFunction = Callable[[Params, Batch, Key | None], Any]
"""(params, batch, key) -> Loss with .value(), .terms and .metrics; see objectives/base.py."""

Metrics = dict[str, Array]

_Value = tuple[Array, Any]
"""The loss, and the metrics' (total, weight) by name."""


def make_train_step(
    loss_function: LossFunction,
    optimizer: optax.GradientTransformation,
    schedule: Callable[[Any], Any],
    *,
    mesh: Mesh,
    layout: TrainState,
    seed: int,
    microbatches: int = 1,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Compiles the step for a mesh.

    The state is donated. The dropout key is fold_in(fold_in(key(seed), 1), step), so that a run
    that is resumed draws what an uninterrupted one draws; of several microbatches, number i has
    that key with i folded in.

    Args:
      loss_function: gives the sums of a batch; their quotient over the global batch is minimised.
      optimizer: gives the update.
      schedule: step -> learning rate, for the metrics.
      mesh: the device mesh.
      layout: the state's shardings.
      seed: of dropout.
      microbatches: parts of the batch that are run one after the other.

    Returns:
      (state, batch) -> (state, metrics). Metrics are float32 scalars: "loss", "learning_rate",
      "gradient_norm", and the objective's. It raises InputError where the batch does not divide.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        dropout_base = jax.random.fold_in(jax.random.key(seed), 1)
        key = jax.random.fold_in(dropout_base, state.step)
        if microbatches == 1:
            (loss, sums), grads = _whole(loss_function, state.params, batch, key)
        else:
            parts = split_batch(batch, microbatches, mesh)
            (loss, sums), grads = _in_parts(loss_function, state.params, parts, key, layout.params)
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

    # With the length split too, `put_batch` says how: arrays of one axis have none.
    batch_layout = batch_sharding(mesh) if mesh.shape["sequence"] == 1 else None
    return jax.jit(
        step,
        in_shardings=(layout, batch_layout),
        out_shardings=(layout, replicated(mesh)),
        donate_argnums=0,
    )


def check_microbatches(batch_size: int, microbatches: int, mesh: Mesh) -> None:
    """Refuses a batch whose microbatches cannot be divided among the devices.

    Raises:
      InputError: with the sizes.
    """
    devices = data_parallelism(mesh)
    if batch_size % (devices * microbatches):
        raise InputError(
            f"microbatches {microbatches} * {devices} devices that share a batch do not divide "
            f"data.batch_size {batch_size}; change --microbatches, --data.batch-size or --mesh.*"
        )


def split_batch(batch: Batch, microbatches: int, mesh: Mesh) -> dict[str, Array]:
    """Microbatches [microbatches, B / microbatches, ...] of arrays [B, ...], inside a jit.

    Number i has the rows i, i + microbatches, i + 2 * microbatches and so on: those of one device
    stay on it.

    Raises:
      InputError: see `check_microbatches`.
    """
    check_microbatches(len(next(iter(batch.values()))), microbatches, mesh)

    def split(x: Array) -> Array:
        parts = jnp.reshape(x, (len(x) // microbatches, microbatches, *x.shape[1:]))
        return constrain(jnp.swapaxes(parts, 0, 1), None, "batch", *_columns(x, mesh))

    return {name: split(value) for name, value in batch.items()}


def _columns(x: Array, mesh: Mesh) -> tuple[str | None, ...]:
    rest: list[str | None] = [None] * (x.ndim - 1)
    if rest and mesh.shape["sequence"] > 1:
        rest[0] = "length"
    return tuple(rest)


def _whole(
    loss_function: LossFunction, params: Params, batch: Batch, key: Key
) -> tuple[_Value, Params]:
    """The loss, its metrics and its gradient."""

    def value(params: Params) -> _Value:
        loss = loss_function(params, batch, key)
        return loss.value(), loss.metrics

    return jax.value_and_grad(value, has_aux=True)(params)


def _in_parts(
    loss_function: LossFunction,
    params: Params,
    parts: Mapping[str, Array],
    key: Key,
    layout: Any,
) -> tuple[_Value, Params]:
    """As `_whole`, of a batch in microbatches; the gradient is summed in float32.

    Args:
      loss_function: gives the sums of a microbatch.
      params: the parameters.
      parts: from `split_batch`.
      key: of dropout.
      layout: the parameters' shardings, which are the gradient's.
    """
    num = len(next(iter(parts.values())))
    inputs = (jnp.arange(num), parts)

    def weights_of(_: None, given: tuple[Array, Batch]) -> tuple[None, dict[str, Array]]:
        index, batch = given
        loss = loss_function(params, batch, jax.random.fold_in(key, index))
        return None, {name: term.weight for name, term in loss.terms.items()}

    # Weights are counts that depend on the batch alone: XLA drops the model's forward pass, whose
    # result nobody reads here.
    _, each = jax.lax.scan(weights_of, None, inputs)
    weights = jax.tree.map(lambda weight: jax.lax.stop_gradient(jnp.sum(weight)), each)

    def value(params: Params, index: Array, batch: Batch) -> _Value:
        loss = loss_function(params, batch, jax.random.fold_in(key, index))
        terms = {name: term._replace(weight=weights[name]) for name, term in loss.terms.items()}
        return loss._replace(terms=terms).value(), loss.metrics

    def add(carry: Any, given: tuple[Array, Batch]) -> tuple[Any, None]:
        new = jax.value_and_grad(value, has_aux=True)(params, *given)
        total = jax.tree.map(lambda a, b: a + b.astype(a.dtype), carry, new)
        return (total[0], _laid_out(total[1], layout)), None

    first = jax.tree.map(lambda x: x[0], inputs)
    shapes = jax.eval_shape(value, params, *first)
    no_value = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), shapes)
    no_gradient = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    start = (no_value, _laid_out(no_gradient, layout))
    (sums, grads), _ = jax.lax.scan(add, start, inputs)
    return sums, grads


def _laid_out(tree: Any, layout: Any) -> Any:
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, layout)
