"""Train step, and the state that it updates.

The step is one jitted function of (state, batch): bind, loss, gradient, update. The state holds the
step, the parameters and the optimizer's state. It has no random state: the dropout key of a step is
a function of the seed and the step.

A batch may be split into microbatches that run one after the other, to save activation memory. Loss
and gradient equal the values of the complete batch: the sum of each loss term is divided by the
term's weight over ALL microbatches. (t5x divides each microbatch by its own weight, so a token
counts more in a microbatch with more padding.)

If the loss compares examples of a batch, it has two stages (`objectives.base`), and each microbatch
runs twice:

    1  run each microbatch without gradient, and keep its rows
    2  compute joint(all rows) and its gradient d with respect to the rows
    3  run each microbatch again with the same key; differentiate its terms + <d, its rows>

This is gradient caching (Gao et al. 2021, arXiv:2101.06983). The mode "recompute" instead
differentiates the complete loss, through a loop with a rematerialized body. It needs less memory
for activations, and more for the values that the loop keeps.

A step may make several updates, one after the other: see `optim.partial`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from t5x_lite.core.devices import CompilerOptions, without_all_reduce_motion
from t5x_lite.core.sharding import (
    Parts,
    batch_sharding,
    replicated,
    shardings,
    split_batch,
    together,
)
from t5x_lite.core.trees import Array, Axes, Batch, Key, Params
from t5x_lite.objectives.base import Loss, Term, metric_value
from t5x_lite.optim.partial import LossFunction, Update, joint_state, state_of


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Train state (step, parameters, optimizer state), or a tree of its shardings or shapes.

    Attributes:
      step: number of completed steps, int32 scalar.
      params: parameter tree in float32.
      optimizer: state of the optimizer.
    """

    step: Any
    params: Params
    optimizer: Any


def state_shardings(mesh: Mesh, axes: Axes, optimizer_axes: Axes) -> TrainState:
    """Return the shardings of a train state, as a TrainState."""
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
    """Create the initial parameters and optimizer state directly on their devices.

    Args:
      init_params: pure function from a random key to parameters.
      optimizer: optimizer to initialize.
      layout: shardings, from `state_shardings`.
      seed: random seed of the parameters.
    """

    def init(key: Key) -> TrainState:
        params = init_params(key)
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    key = jax.random.fold_in(jax.random.key(seed), 0)
    return jax.jit(init, out_shardings=layout)(key)


def abstract_state(
    shapes: Any, optimizer: optax.GradientTransformation, layout: TrainState
) -> TrainState:
    """Return shapes, dtypes and shardings of a train state, to restore a checkpoint."""
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


Metrics = dict[str, Array]

_Value = tuple[Array, Any]
"""Tuple (loss, (sums of metrics by name, features for the next update))."""

_Complete = Callable[[Loss], Loss]
"""Function that adds to a loss the terms that compare all rows of a batch."""


def make_train_step(
    updates: Sequence[Update],
    *,
    mesh: Mesh,
    layout: TrainState,
    seed: int,
    microbatches: int | Parts = 1,
    options: CompilerOptions | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """Compile the train step for a mesh.

    The state is donated. The dropout key is fold_in(fold_in(key(seed), 1), step), so a resumed run
    uses the same keys as an uninterrupted run. Microbatch i folds i into this key.

    Args:
      updates: parameter updates of a step, in order; usually one.
      mesh: device mesh.
      layout: shardings of the state.
      seed: random seed of dropout.
      microbatches: number of microbatches, or a `Parts` that derives it from the batch shape.
      options: options of XLA's compiler.

    Returns:
      Function (state, batch) -> (state, metrics). Metrics are float32 scalars: "loss",
      "learning_rate", "gradient_norm", and the objective's metrics. With several updates, "loss" is
      the sum of losses, "gradient_norm" covers all gradients, and "learning_rate" is the first
      update's; each update also has a norm and rate under its name. The function raises InputError
      if the batch is not divisible.
    """
    parts = microbatches if isinstance(microbatches, Parts) else Parts(count=microbatches)
    in_parts = _in_parts if parts.mode == "cached" else _recomputed

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        num = parts.of(batch, mesh)
        dropout_base = jax.random.fold_in(jax.random.key(seed), 1)
        key = jax.random.fold_in(dropout_base, state.step)
        given = batch if num == 1 else split_batch(batch, num, mesh)
        params, states, found = state.params, [], []
        for update in updates:
            loss_function, trained = update.loss_of(params), update.part(params)
            if num == 1:
                complete = functools.partial(update.complete, batch=given, step=state.step)
                (loss, (sums, features)), grads = _whole(
                    loss_function, trained, given, key, complete
                )
            else:
                features = {n: together(x) for n, x in given.items() if n not in batch}
                whole = {**batch, **features}
                complete = functools.partial(update.complete, batch=whole, step=state.step)
                (loss, (sums, features)), grads = in_parts(
                    loss_function, trained, given, key, complete, update.part(layout.params)
                )
            own = state_of(update, state.optimizer)
            if update.live is not None:
                grads = update.live(grads, own)
            params, own = update.apply(grads, own, params)
            params = update.at_step(params, state.step + 1)
            given = {**given, **features}
            states.append(own)
            rate = jnp.asarray(update.schedule(state.step), jnp.float32)
            found.append((loss, rate, optax.tree.norm(grads), sums))
        return TrainState(state.step + 1, params, joint_state(updates, states)), _metrics(
            [update.name for update in updates], found
        )

    # If the sequence axis is split, `put_batch` sets the sharding: arrays of rank 1 have no such
    # axis.
    batch_layout = batch_sharding(mesh) if mesh.shape["sequence"] == 1 else None
    options = dict(options or {})
    if parts.may_be_several:
        options = without_all_reduce_motion(options)
    return jax.jit(
        step,
        in_shardings=(layout, batch_layout),
        out_shardings=(layout, replicated(mesh)),
        donate_argnums=0,
        compiler_options=options or None,
    )


def _metrics(
    names: Sequence[str], found: Sequence[tuple[Array, Array, Array, Mapping[str, Any]]]
) -> Metrics:
    losses, rates, norms, sums = zip(*found, strict=True)
    metrics = {
        "loss": sum(losses[1:], start=losses[0]),
        "learning_rate": rates[0],
        "gradient_norm": norms[0] if len(norms) == 1 else jnp.linalg.norm(jnp.stack(norms)),
    }
    for name, rate, norm, each in zip(names, rates, norms, sums, strict=True):
        if name:
            metrics |= {f"{name}_learning_rate": rate, f"{name}_gradient_norm": norm}
        metrics |= {key: metric_value(value) for key, value in each.items()}
    return metrics


def _whole(
    loss_function: LossFunction, params: Params, batch: Batch, key: Key, complete: _Complete
) -> tuple[_Value, Params]:
    """Return ((loss, (metrics, features)), gradient) of a batch without microbatches."""

    def value(params: Params) -> _Value:
        loss = complete(loss_function(params, batch, key))
        return loss.value(), (loss.metrics, loss.features)

    return jax.value_and_grad(value, has_aux=True)(params)


def _in_parts(
    loss_function: LossFunction,
    params: Params,
    parts: Mapping[str, Array],
    key: Key,
    complete: _Complete,
    layout: Any,
) -> tuple[_Value, Params]:
    """Compute loss and gradient of a batch in microbatches with float32 gradient sums."""
    num = len(next(iter(parts.values())))
    inputs = (jnp.arange(num), parts)

    def first_stage(_: None, given: tuple[Array, Batch]) -> tuple[None, Any]:
        index, batch = given
        loss = loss_function(params, batch, jax.random.fold_in(key, index))
        return None, ({name: term.weight for name, term in loss.terms.items()}, loss.rows)

    # Weights are counts that depend only on the batch. Without rows, XLA drops the model's unused
    # forward pass.
    _, (each, rows) = jax.lax.scan(first_stage, None, inputs)
    weights = jax.tree.map(lambda weight: jax.lax.stop_gradient(jnp.sum(weight)), each)

    def of_rows(rows: Mapping[str, Array]) -> tuple[Array, Any]:
        loss = complete(Loss({}, {}, rows={name: together(x) for name, x in rows.items()}))
        return loss.value(), loss.metrics

    (joint, joint_sums), pulls = jax.value_and_grad(of_rows, has_aux=True)(rows)

    def value(
        params: Params, index: Array, batch: Batch, pull: Mapping[str, Array]
    ) -> tuple[Array, Any]:
        loss = loss_function(params, batch, jax.random.fold_in(key, index))
        terms = {name: term._replace(weight=weights[name]) for name, term in loss.terms.items()}
        own = loss._replace(terms=terms).value()
        pulled = sum((jnp.sum(pull[name] * x) for name, x in loss.rows.items()), start=own)
        return pulled, ((own, loss.metrics), loss.features)

    def add(carry: Any, given: tuple[Array, Batch, Any]) -> tuple[Any, Mapping[str, Array]]:
        (_, (sums, features)), grads = jax.value_and_grad(value, has_aux=True)(params, *given)
        total = jax.tree.map(lambda a, b: a + b.astype(a.dtype), carry, (sums, grads))
        return (total[0], _laid_out(total[1], layout)), features

    inputs = (*inputs, pulls)
    first = jax.tree.map(lambda x: x[0], inputs)
    _, (sums_shapes, _) = jax.eval_shape(value, params, *first)
    no_value = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), sums_shapes)
    no_gradient = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    start = (no_value, _laid_out(no_gradient, layout))
    (((loss, sums), grads), features) = jax.lax.scan(add, start, inputs)
    return (joint + loss, ({**sums, **joint_sums}, features)), grads


def _recomputed(
    loss_function: LossFunction,
    params: Params,
    parts: Mapping[str, Array],
    key: Key,
    complete: _Complete,
    layout: Any,
) -> tuple[_Value, Params]:
    """Compute loss and gradient of a batch in microbatches that the backward pass recomputes."""
    inputs = (jnp.arange(len(next(iter(parts.values())))), parts)

    def value(params: Params) -> _Value:
        def part(_: None, given: tuple[Array, Batch]) -> tuple[None, Any]:
            index, batch = given
            loss = loss_function(params, batch, jax.random.fold_in(key, index))
            # Scales are Python numbers, which a loop cannot return.
            return None, loss._replace(
                terms={
                    name: term._replace(scale=jnp.float32(term.scale))
                    for name, term in loss.terms.items()
                }
            )

        _, each = jax.lax.scan(jax.checkpoint(part), None, inputs)
        sums = jax.tree.map(lambda x: jnp.sum(x, axis=0), each.metrics)
        terms = {
            name: Term(
                jnp.sum(term.total), jax.lax.stop_gradient(jnp.sum(term.weight)), term.scale[0]
            )
            for name, term in each.terms.items()
        }
        rows = {name: together(x) for name, x in each.rows.items()}
        loss = complete(Loss(terms, sums, rows=rows))
        return loss.value(), (loss.metrics, each.features)

    found, grads = jax.value_and_grad(value, has_aux=True)(params)
    return found, _laid_out(grads, layout)


def _laid_out(tree: Any, layout: Any) -> Any:
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, layout)
