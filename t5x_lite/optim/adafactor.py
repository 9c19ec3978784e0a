"""Adafactor with T5X's semantics, as an optax gradient transformation.

Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
arXiv:1804.04235, with the choices of google-research/t5x `adafactor.py`: for a parameter p with
gradient g at step t = 0, 1, ...

    beta2 = 1 - max(t + 1 - step_offset, 1) ** -decay_rate           (0 at the first step)
    v     = beta2 * v + (1 - beta2) * (g^2 + epsilon1)               (factored: row, column means)
    y     = g / sqrt(v)                    factored: v = row * column / mean(row)
    y     = y / max(1, RMS(y) / clipping_threshold)
    s     = learning_rate(t) * max(RMS(p), epsilon2) * y             (momentum: an average of s)
    p     = (1 - weight_decay_rate) * p - s

An array with "layers" as first logical axis stacks one parameter per layer. It is treated exactly
like separate parameters: RMS, clipping, parameter scale and factors are computed for each layer.
(optax.adafactor also averages over the layers, which changes the step by some percent.)

Worked example: for params {"wi": [512, 2048], "scale": [512]} with axes {"wi": ("embed", "mlp"),
"scale": ("embed",)} the state is {"count": 0, "statistics": {"wi": {"row": [512], "column":
[2048]}, "scale": {"full": [512]}}}; the row statistics keep the smaller axis. Statistics are f32.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

from t5x_lite.core import trees
from t5x_lite.core.options import Above, AtLeast, Count, Rate, Whole
from t5x_lite.core.trees import Array, Axes, Params

LAYERS = "layers"
"""Name of the logical axis of stacked layers, which is the first axis of an array."""

# Prefix of the parameters of adapters in a model's slots.
_MODULES = "adapters"

# The sides of a factored parameter of rank above 2 (T5X's standard_logical_factor_rules).
_ROW = frozenset({"embed"})
_COLUMN = frozenset({"vocab", "mlp", "heads", "kv", "joined_kv"})

Dims: TypeAlias = tuple[int, ...]
Statistics: TypeAlias = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Hyperparameters of Adafactor, with T5X's defaults.

    Attributes:
      factored: True to store only row and column means of a large matrix's second moment (mean of
        squared gradients).
      min_dim_size_to_factor: minimum size of a matrix's shorter side for factoring. Parameters of
        rank above 2 are factored by logical axes, regardless of size.
      multiply_by_parameter_scale: True to scale a step by the parameter's RMS. Adapters are never
        scaled, because an adapter that starts at 0 would hardly change.
      decay_rate: exponent in the decay rate of the second moment, beta2 = 1 - t**-decay_rate for
        step t = 1, 2, ...
      step_offset: step at which the schedule of beta2 begins, for a run that continues the step
        count of pretraining; earlier steps have beta2 = 0.
      clipping_threshold: maximum RMS of gradient / sqrt(second moment); None disables clipping.
      momentum: decay rate of the float32 moving average of steps; None disables momentum.
      weight_decay_rate: fraction of a parameter to subtract at each step, not scaled by the
        learning rate; None disables decay.
      epsilon1: constant added to the squared gradient.
      epsilon2: minimum parameter scale.
    """

    factored: bool = True
    min_dim_size_to_factor: Count = 128
    multiply_by_parameter_scale: bool = True
    decay_rate: Annotated[float, Above(0)] = 0.8
    step_offset: Whole = 0
    clipping_threshold: Annotated[float | None, Above(0)] = 1.0
    momentum: Rate | None = None
    weight_decay_rate: Rate | None = None
    epsilon1: Annotated[float, Above(0)] = 1e-30
    epsilon2: Annotated[float, AtLeast(0)] = 1e-3


def adafactor(
    learning_rate: Callable[[Any], Any],
    axes: Axes,
    *,
    settings: Hyperparameters,
    starts: Callable[[Params], Any] | None = None,
) -> optax.GradientTransformation:
    """Return an Adafactor optimizer for parameters with the given logical axes.

    Args:
      learning_rate: function from step (int32) to learning rate.
      axes: nested dict of tuples of logical axis names, one tuple per parameter.
      settings: hyperparameters.
      starts: function from parameters to the first training step of each parameter or layer; None
        is step 0 for all parameters.

    Returns:
      An optax transformation; update(grads, state, params) returns float32 updates to add to the
        parameters. The state is a nested dict (see the module's example).

    Raises:
      ValueError: raised by init and update if the parameters do not have the paths or ranks of
        `axes`.
    """

    def init(params: Any) -> dict[str, Any]:
        check_axes(axes, params)
        zeros = functools.partial(_init_statistics, settings)
        return {"count": jnp.zeros((), jnp.int32), "statistics": map_axes(zeros, axes, params)}

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, dict[str, Any]]:
        if params is None:
            raise ValueError(
                "Adafactor needs the parameters to compute updates; pass params to update()"
            )
        check_axes(axes, params)
        count = state["count"]
        step = functools.partial(_step, settings, learning_rate(count))
        ages = jax.tree.map(lambda _: count, params) if starts is None else starts(params)
        ages = ages if starts is None else jax.tree.map(lambda start: count - start, ages)
        pairs = map_axes(step, axes, _scaled(axes), ages, updates, state["statistics"], params)
        steps = map_axes(lambda _, pair: pair[0], axes, pairs)
        statistics = map_axes(lambda _, pair: pair[1], axes, pairs)
        return steps, {"count": state["count"] + 1, "statistics": statistics}

    return optax.GradientTransformation(init, update)


def state_axes(axes: Axes, shapes: Params, *, settings: Hyperparameters) -> dict[str, Any]:
    """Return the logical axes of Adafactor's state, in the structure of the state.

    Args:
      axes: logical axes of the parameters.
      shapes: parameters, or a tree with their shapes (jax.eval_shape).
      settings: hyperparameters as given to `adafactor`.

    Returns:
      Nested dict with tuples of axis names as leaves. Row and column statistics lack the axes that
        their means reduce.

    Raises:
      ValueError: if the shapes do not have the paths or ranks of `axes`.
    """
    check_axes(axes, shapes)

    def leaf(names: Sequence[str | None], shape: Any) -> dict[str, tuple[str | None, ...]]:
        layout = _layout(settings, names, shape.shape)
        return {kind: tuple(names[dim] for dim in dims) for kind, dims in layout.items()}

    return {"count": (), "statistics": map_axes(leaf, axes, shapes)}


def is_stacked(names: Sequence[str | None]) -> bool:
    """Return True if a parameter with these logical axes stacks several layers."""
    return len(names) > 0 and names[0] == LAYERS


def check_axes(axes: Axes, params: Params) -> None:
    """Raise ValueError unless `axes` has the paths and ranks of the parameters."""
    names, leaves = trees.flatten(axes), trees.flatten(params)
    wrong = trees.difference(names, leaves)
    if wrong:
        raise ValueError(
            f"the paths of the parameters differ from the paths of their logical axes: {wrong}"
        )
    for path, leaf in leaves.items():
        if not isinstance(names[path], tuple) or len(names[path]) != len(leaf.shape):
            raise ValueError(
                f"{path} must have a tuple of logical axes, one for each dimension; "
                f"got {names[path]} for the shape {tuple(leaf.shape)}"
            )


def map_axes(function: Callable[..., Any], axes: Axes, *rest: Any) -> Any:
    """Map function(axis names, *leaves) over nested dicts with the structure of the parameters.

    A leaf may be a dict, such as the statistics of one parameter.
    """
    return jax.tree.map(function, axes, *rest, is_leaf=lambda node: isinstance(node, tuple))


def _sides(
    settings: Hyperparameters, names: Sequence[str | None], shape: Sequence[int]
) -> tuple[Dims, Dims] | None:
    """Return the row and column axes of one layer's parameter; None if it is not factored.

    The rows of a matrix are its shorter side; for higher ranks, the axis names decide.
    """
    if not settings.factored or len(shape) < 2:
        return None
    if len(shape) == 2:
        short, long = (0, 1) if shape[0] <= shape[1] else (1, 0)
        large = shape[short] >= settings.min_dim_size_to_factor
        return ((short,), (long,)) if large else None
    rows = tuple(dim for dim, name in enumerate(names) if name in _ROW)
    columns = tuple(dim for dim, name in enumerate(names) if name in _COLUMN)
    if not rows or not columns:
        return None
    if len(rows) + len(columns) != len(shape):
        raise ValueError(
            f"every logical axis of a factored parameter of rank {len(shape)} must be a row axis "
            f"{sorted(_ROW)} or a column axis {sorted(_COLUMN)}, got {tuple(names)}"
        )
    return rows, columns


def _layout(
    settings: Hyperparameters, names: Sequence[str | None], shape: Sequence[int]
) -> dict[str, Dims]:
    lead = int(is_stacked(names))
    every = tuple(range(len(shape)))
    sides = _sides(settings, names[lead:], shape[lead:])
    if sides is None:
        layout = {"full": every}
    else:
        row, column = (every[:lead] + tuple(dim + lead for dim in side) for side in sides)
        layout = {"row": row, "column": column}
    return layout | ({"momentum": every} if settings.momentum is not None else {})


def _init_statistics(
    settings: Hyperparameters, names: Sequence[str | None], param: Any
) -> Statistics:
    layout = _layout(settings, names, param.shape)
    return {
        kind: jnp.zeros(tuple(param.shape[dim] for dim in dims), jnp.float32)
        for kind, dims in layout.items()
    }


def _scaled(axes: Axes) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda keys, _: keys[0].key != _MODULES, axes, is_leaf=lambda node: isinstance(node, tuple)
    )


def _step(
    settings: Hyperparameters,
    rate: Any,
    names: Sequence[str | None],
    scaled: bool,
    count: Array,
    grad: Array,
    statistics: Statistics,
    param: Array,
) -> tuple[Array, Statistics]:
    if not scaled:
        numbers = {field.name: getattr(settings, field.name) for field in fields(Hyperparameters)}
        settings = Hyperparameters(**numbers | {"multiply_by_parameter_scale": False})
    if not is_stacked(names):
        return _step_one(settings, names, rate, count, grad, statistics, param)
    one = functools.partial(_step_one, settings, names[1:], rate)
    each = (0 if count.ndim else None, 0, 0, 0)
    return jax.vmap(one, in_axes=each)(count, grad, statistics, param)


def _step_one(
    settings: Hyperparameters,
    names: Sequence[str | None],
    rate: Any,
    count: Array,
    grad: Array,
    statistics: Statistics,
    param: Array,
) -> tuple[Array, Statistics]:
    grad, param = grad.astype(jnp.float32), param.astype(jnp.float32)
    age = jnp.maximum(count + 1 - settings.step_offset, 1).astype(jnp.float32)
    mix = age**-settings.decay_rate
    square = grad * grad + settings.epsilon1
    sides = _sides(settings, names, grad.shape)
    new: Statistics = {}
    if sides is None:
        new["full"] = (1.0 - mix) * statistics["full"] + mix * square
        direction = grad * new["full"] ** -0.5
    else:
        rows, columns = sides
        new["row"] = (1.0 - mix) * statistics["row"] + mix * jnp.mean(square, axis=columns)
        new["column"] = (1.0 - mix) * statistics["column"] + mix * jnp.mean(square, axis=rows)
        row_factor = (new["row"] / jnp.mean(new["row"])) ** -0.5
        column_factor = new["column"] ** -0.5
        direction = grad * jnp.expand_dims(row_factor, columns)
        direction = direction * jnp.expand_dims(column_factor, rows)
    if settings.clipping_threshold is not None:
        excess = _root_mean_square(direction) / settings.clipping_threshold
        direction = direction / jnp.maximum(excess, 1.0)
    step = rate * direction
    if settings.multiply_by_parameter_scale:
        step = step * jnp.maximum(_root_mean_square(param), settings.epsilon2)
    if settings.momentum is not None:
        step = settings.momentum * statistics["momentum"] + (1.0 - settings.momentum) * step
        new["momentum"] = step
    if settings.weight_decay_rate is not None:
        step = step + settings.weight_decay_rate * param
    return -step, new


def _root_mean_square(x: Array) -> Array:
    return jnp.sqrt(jnp.mean(x * x))
