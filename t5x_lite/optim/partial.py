"""Training in part: rates by layer, gradual unfreezing, several updates in one step.

Rates by layer: learning rates that decrease from the top layer down, for fine-tuning.

The last of N layers has `decay` times the rate, the first one decay ** N times, and parameters
below the layers (tables, their norm and projection) decay ** (N + 1) times. Parameters above the
layers, such as a head, adapters and a final norm, have the full rate. With N = 2 and decay 0.5:

    heads/classifier  1      layer 1  0.5      layer 0  0.25      model/embedding  0.125

With several stacks, each counts its own layers, and the tables are below the highest. AdamW's
weight decay is part of an update, and is scaled with it. Sources: Howard and Ruder 2018,
arXiv:1801.06146, section 3.2; google-research/electra model/optimization.py, where the whole
encoder has one more factor (with 0.8, its top layer has 0.64).

Gradual unfreezing: layers start to train one after the other, from the top down.

Raffel et al. 2020, arXiv:1910.10683, section 3.5.1, after Howard and Ruder 2018, arXiv:1801.06146.
For a model of N layers and S steps, episode n = 1..N covers the steps from floor((n-1) S/N) up to
floor(n S/N). In it, layers N-n+1..N train, both in the encoder and in the decoder. With N = 3 and
S = 10:

    steps   0 1 2 | 3 4 5 | 6 7 8 9
    layer 3   x       x        x
    layer 2           x        x
    layer 1                    x        and the tables of relative positions that all layers share

A frozen layer does not change, has no weight decay and keeps its optimizer state. Its statistics
and Adam's bias correction start when it does. Its gradient counts in no norm. The token embeddings,
an output layer, the final norms and heads always train; the paper specifies this only for the
embeddings. A stack with fewer layers unfreezes at the nearest equal fraction: with 2 layers next to
4, the lower one starts with the second layer of the 4 (episode 3). Adapters in the slots of a layer
train with their layer.

Updates of a train step: most steps have one, of all parameters.

An objective of several phases (`objectives.base.Phase`) has several updates, one after the other on
one batch. Each has a loss, the paths that it trains and its own optimizer, and starts from the
parameters that the previous one has changed. For example, DeBERTaV3 trains first the generator,
then the discriminator, which reads the tables that the generator has just changed.

    one update:       state.optimizer = {"count": ..., "mu": ...}
    several updates:  state.optimizer = {"generator": {"count": ...}, "discriminator": {...}}
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from t5x_lite.core import patterns, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Whole, check_bounds
from t5x_lite.core.trees import Array, Axes, Batch, Key, Params
from t5x_lite.optim import adafactor

_START = re.compile(r"model/|towers/[^/]+/")
"""Prefix of the paths with layers: of the model, or of a second encoder."""


def decayed_by_layer(
    inner: optax.GradientTransformation,
    decay: float,
    axes: Axes,
    below: Sequence[str],
    *,
    depth: int | None = None,
) -> optax.GradientTransformation:
    """Return the transformation with its updates scaled by layer.

    Args:
      inner: transformation of the gradients; its state does not change.
      decay: factor of a layer, in (0, 1].
      axes: logical axes of the parameters, by their paths from "model/" on.
      below: paths within model/ of the parameters below all layers (`ModelConfig.below`).
      depth: number of layers of the highest stack, trained or not; if None, from these parameters.
    """
    names = trees.flatten(axes)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        found = inner.update(updates, state, params)
        steps: Any = found[0]
        stacks = [
            len(leaf)
            for path, leaf in trees.flatten(steps).items()
            if path.startswith("model/") and adafactor.is_stacked(names[path])
        ]

        def scaled(keys: Sequence[Any], leaf: Any) -> Any:
            path = trees.SEPARATOR.join(key.key for key in keys)
            most = max(stacks, default=0) if depth is None else depth
            return leaf * _factor(path, leaf, decay, depth=most, names=names[path], below=below)

        return jax.tree_util.tree_map_with_path(scaled, steps), found[1]

    return optax.GradientTransformation(inner.init, update)


def _factor(
    path: str, leaf: Any, decay: float, *, depth: int, names: Any, below: Sequence[str]
) -> Any:
    """Return the factor of a parameter's update: a number, or one for each layer."""
    start = _START.match(path)
    if start is None:
        return 1.0
    if adafactor.is_stacked(names):
        num = len(leaf)
        powers = decay ** jnp.arange(num, 0, -1, dtype=jnp.float32)
        return powers.reshape(num, *[1] * (leaf.ndim - 1))
    inside = f"{path[start.end() :]}/"
    is_below = any(inside.startswith(f"{part}/") for part in below)
    return decay ** (depth + 1) if is_below else 1.0


def scaled_by_path(
    inner: optax.GradientTransformation, rates: Sequence[tuple[str, float]], axes: Axes
) -> optax.GradientTransformation:
    """Return the transformation with the updates of some parameters scaled.

    Args:
      inner: transformation of the gradients; its state does not change.
      rates: regular expressions of complete paths with their factors; the first match counts.
      axes: logical axes of the parameters, by path.

    Raises:
      InputError: if an expression matches no remaining path.
    """
    factors: dict[str, float] = {}
    for pattern, factor in rates:
        new = [
            p for p in trees.flatten(axes) if p not in factors and patterns.fullmatch(pattern, p)
        ]
        if not new:
            raise InputError(f"optimizer.rates: {pattern!r} matches no path that is left")
        factors |= dict.fromkeys(new, factor)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, state = inner.update(updates, state, params)
        scaled = jax.tree_util.tree_map_with_path(
            lambda keys, leaf: leaf * factors.get(_path(keys), 1.0), steps
        )
        return scaled, state

    return optax.GradientTransformation(inner.init, update)


Starts = Callable[[Params], Any]
"""parameters -> first step of each: int32, [N] for a parameter of N layers."""

_LAYERED = ("model/", "adapters/", "towers/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradual:
    """Gradual unfreezing of the layers.

    Attributes:
      total_steps: steps of the run, over which all layers unfreeze; 0 freezes none.
      episodes: number of groups of layers; None is one for each layer of the highest stack.
    """

    total_steps: Whole = 0
    episodes: Count | None = None

    def __post_init__(self) -> None:
        check_bounds(self, prefix="optimizer.unfreezing.")
        if self.episodes is not None and not self.total_steps:
            raise InputError(
                "optimizer.unfreezing.episodes needs optimizer.unfreezing.total_steps, the run's "
                "steps"
            )

    def first_steps(self, layers: int, *, depth: int) -> tuple[int, ...]:
        """Return the first step of each layer of a stack, lowest layer first.

        Args:
          layers: number of layers of the stack.
          depth: number of layers of the highest stack.
        """
        episodes = self.episodes or depth
        found = []
        for above in range(layers - 1, -1, -1):
            place = math.floor(above * depth / layers + 0.5)
            episode = place * episodes // depth
            found.append(episode * self.total_steps // episodes)
        return tuple(found)

    def starts(self, axes: Axes, *, depth: int) -> Starts:
        """Return the function of first steps, for parameters with these logical axes by path."""
        names = trees.flatten(axes)

        def start(path: str, leaf: Any, layers: dict[str, int]) -> np.ndarray:
            if not path.startswith(_LAYERED):
                return np.zeros((), np.int32)
            if adafactor.is_stacked(names[path]):
                return np.asarray(self.first_steps(leaf.shape[0], depth=depth), np.int32)
            if "relpos_buckets" in names[path]:
                own = layers.get(_stack(path), depth)
                return np.asarray(self.first_steps(own, depth=depth)[0], np.int32)
            return np.zeros((), np.int32)

        def of(params: Params) -> Any:
            leaves = trees.flatten(params)
            layers = {
                _stack(path): leaf.shape[0]
                for path, leaf in leaves.items()
                if path.startswith(_LAYERED) and adafactor.is_stacked(names[path])
            }
            return jax.tree_util.tree_map_with_path(
                lambda keys, leaf: start(_path(keys), leaf, layers), params
            )

        return of


def _path(keys: Sequence[Any]) -> str:
    return trees.SEPARATOR.join(key.key for key in keys)


def _stack(path: str) -> str:
    return trees.SEPARATOR.join(path.split(trees.SEPARATOR)[:2])


def live(tree: Any, count: Array, starts: Starts) -> Any:
    """Return a tree of the parameters' structure, such as a gradient, with 0 for frozen ones.

    Args:
      tree: the arrays.
      count: number of steps taken.
      starts: function that returns the first step of each parameter.
    """
    return jax.tree.map(
        lambda leaf, start: _chosen(count >= start, leaf, jnp.zeros_like(leaf)), tree, starts(tree)
    )


def unfreezing(
    inner: optax.GradientTransformation, starts: Starts, axes: Axes
) -> optax.GradientTransformation:
    """Freeze parameters until their first step: zero updates, unchanged optimizer state.

    Args:
      inner: transformation with a nested dict as state, {"count": steps, KIND: {path: arrays}}; the
        gradients of frozen parameters are 0 for it.
      starts: function that returns the first step of each parameter.
      axes: logical axes of the parameters.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        count = state["count"]
        begun = jax.tree.map(lambda start: count >= start, starts(updates))
        steps, moved = inner.update(live(updates, count, starts), state, params)
        steps = jax.tree.map(
            lambda flag, step: _chosen(flag, step, jnp.zeros_like(step)), begun, steps
        )

        def kept(_: Sequence[Any], flag: Array, new: Any, old: Any) -> Any:
            return jax.tree.map(lambda n, o: _chosen(flag, n, o), new, old)

        new: Any = moved
        return steps, {
            kind: part
            if kind == "count"
            else adafactor.map_axes(kept, axes, begun, part, state[kind])
            for kind, part in new.items()
        }

    return optax.GradientTransformation(inner.init, update)


def _chosen(flag: Array, yes: Any, no: Any) -> Array:
    """Select by a flag, one for all or one for each layer."""
    return jnp.where(flag.reshape(*flag.shape, *[1] * (yes.ndim - flag.ndim)), yes, no)


LossFunction = Callable[[Params, Batch, Key | None], Any]
"""(params, batch, key) -> Loss, the first of its two stages: objectives/base.py."""


@dataclasses.dataclass(frozen=True)
class Update:
    """One update of a train step.

    Attributes:
      loss_function: returns the sums of a batch; their quotient over the global batch is minimized.
      optimizer: computes the change of the trained parameters.
      schedule: step -> learning rate, for the metrics.
      name: name of its part of the optimizer's state; "" for a single update.
      trains: predicate of trained paths; None trains all.
      joint: second stage of the loss, (rows, batch, step=) -> Loss, or None.
      live: (gradient, optimizer's state) -> the gradient with 0 for layers that are still frozen;
        None without such layers.
      scheduled: steps taken -> parameters by path that depend only on them; they do not train.
        None without such parameters.
    """

    loss_function: LossFunction
    optimizer: optax.GradientTransformation
    schedule: Callable[[Any], Any]
    name: str = ""
    trains: Callable[[str], bool] | None = None
    joint: Callable[..., Any] | None = None
    live: Callable[[Params, Any], Params] | None = None
    scheduled: Callable[[Any], dict[str, Any]] | None = None

    def complete(self, loss: Any, batch: Batch, step: Any) -> Any:
        """Return a whole batch's loss with the terms of its rows, if it has rows.

        Raises:
          ValueError: if there is no second stage.
        """
        if not loss.rows:
            return loss
        if self.joint is None:
            raise ValueError(f"the loss has rows, {sorted(loss.rows)}, but no second stage")
        return loss.joined(self.joint(loss.rows, batch, step=step))

    def part(self, tree: Any) -> Any:
        """Return the trained part of a tree that has the parameters' paths."""
        trains = self.trains
        if trains is None:
            return tree
        return trees.partition(tree, lambda path, _: trains(path))[0]

    def loss_of(self, params: Params) -> LossFunction:
        """Return the loss as a function of the trained part; `params` has the other parameters."""
        if self.trains is None:
            return self.loss_function

        def loss(trained: Params, batch: Batch, key: Key | None) -> Any:
            return self.loss_function(trees.overlaid(params, trained), batch, key)

        return loss

    def at_step(self, params: Params, step: Any) -> Params:
        """Return the parameters with scheduled ones set for the number of steps taken."""
        new = {} if self.scheduled is None else self.scheduled(step)
        return trees.overlaid(params, trees.unflatten(new)) if new else params

    def apply(self, grads: Params, state: Any, params: Params) -> tuple[Params, Any]:
        """Return all parameters after the update, and the state of its optimizer."""
        trained = self.part(params)
        updates, state = self.optimizer.update(grads, state, trained)
        changed = cast(Params, optax.apply_updates(trained, updates))
        return changed if self.trains is None else trees.overlaid(params, changed), state


def check_updates(updates: Sequence[Update], paths: Sequence[str]) -> None:
    """Raise ValueError unless several updates train every path exactly once."""
    names = [update.name for update in updates]
    if len(updates) > 1 and (len(set(names)) < len(names) or "" in names):
        raise ValueError(f"several updates need names that are different: got {names}")
    times = {path: sum(u.trains is None or u.trains(path) for u in updates) for path in paths}
    wrong = [f"{path} ({number})" for path, number in times.items() if number != 1]
    if wrong:
        raise ValueError(f"every path must be trained by exactly one update: {', '.join(wrong)}")


def joint_optimizer(updates: Sequence[Update]) -> optax.GradientTransformation:
    """Return the optimizer of all updates; a single one without a name is returned as it is."""
    first = updates[0]
    if not first.name and first.trains is None:
        return first.optimizer

    def init(params: Any) -> Any:
        states = [update.optimizer.init(update.part(params)) for update in updates]
        return joint_state(updates, states)

    def refuse(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del updates, state, params
        raise TypeError("several updates are made one after the other, each by its own optimizer")

    return optax.GradientTransformation(init, refuse)


def state_of(update: Update, states: Any) -> Any:
    """Return the state of one update's optimizer from the train state's."""
    return states[update.name] if update.name else states


def joint_state(updates: Sequence[Update], states: Sequence[Any]) -> Any:
    """Return the train state's optimizer state from each update's."""
    if not updates[0].name:
        return states[0]
    return {update.name: state for update, state in zip(updates, states, strict=True)}
