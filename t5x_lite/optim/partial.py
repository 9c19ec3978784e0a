"""Partial training: learning rates by layer, gradual unfreezing, several updates per step.

Learning rates by layer decrease from the top layer down, for fine-tuning.

The last of N layers has `decay` times the learning rate, and the first layer decay ** N times.
Parameters below the layers (embeddings, their norm and projection) have decay ** (N + 1) times.
Parameters above the layers, such as a head, adapters and a final norm, have the full rate. With N =
2 and decay 0.5:

    heads/classifier  1      layer 1  0.5      layer 0  0.25      model/embedding  0.125

With several stacks, each stack counts its own layers, and the embeddings are below the highest
stack. AdamW's weight decay is part of an update, and is scaled with the update. Sources: Howard and
Ruder 2018, arXiv:1801.06146, section 3.2; google-research/electra model/optimization.py, where the
encoder has one more factor (with 0.8, the top layer has 0.64).

Gradual unfreezing: layers start to train one after the other, from the top down.

Raffel et al. 2020, arXiv:1910.10683, section 3.5.1, after Howard and Ruder 2018, arXiv:1801.06146.
For a model of N layers and S steps, episode n = 1..N covers the steps from floor((n-1) S/N) up to
floor(n S/N). In it, layers N-n+1..N train, both in the encoder and in the decoder. With N = 3 and S
= 10:

    steps   0 1 2 | 3 4 5 | 6 7 8 9
    layer 3   x       x        x
    layer 2           x        x
    layer 1                    x        and the tables of relative positions that all layers share

A frozen layer does not change, has no weight decay and keeps its optimizer state. Its optimizer
statistics and Adam's bias correction start when the layer does. Its gradient is excluded from
gradient norms. The token embeddings, an output layer, the final norms and heads always train; the
paper specifies this only for the embeddings. A stack with fewer layers unfreezes at the nearest
equal fraction: with 2 layers next to 4, the lower one starts with the second layer of the 4
(episode 3). Adapters in the slots of a layer train with their layer.

Updates: most train steps have a single update of all parameters.

An objective with several phases (`objectives.base.Phase`) has several updates, one after the other
on the same batch. Each update has its own loss, trained paths and optimizer, and starts from the
parameters after the previous update. For example, DeBERTaV3 first trains the generator, then the
discriminator, which reads the embeddings that the generator has just changed.

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

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Whole, check_bounds
from t5x_lite.core.trees import Array, Axes, Batch, Key, Params
from t5x_lite.optim import adafactor

_START = re.compile(r"model/|towers/[^/]+/")
"""Prefix of the parameter paths of the model or of another encoder."""


def decayed_by_layer(
    inner: optax.GradientTransformation,
    decay: float,
    axes: Axes,
    below: Sequence[str],
    *,
    depth: int | None = None,
) -> optax.GradientTransformation:
    """Wrap an optimizer with layer-wise learning rate decay, from the last layer down.

    Args:
      inner: optimizer; its state does not change.
      decay: factor from one layer to the layer below, in (0, 1].
      axes: logical axes of the parameters, as a nested dict.
      below: paths, without "model/", of parameters below the first layer, such as embeddings
        (`ModelConfig.below`).
      depth: number of layers of the encoder or decoder, whichever is larger, trained or frozen;
        None counts the layers of the trained parameters.
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
    """Wrap an optimizer with learning rate factors for parameters with matching paths.

    Args:
      inner: optimizer; its state does not change.
      rates: pairs of a regular expression for whole paths and a factor; the first match counts.
      axes: logical axes of the parameters, by path.

    Raises:
      InputError: if a regular expression matches no path, or only paths of earlier expressions.
    """
    factors: dict[str, float] = {}
    for pattern, factor in rates:
        new = [p for p in trees.flatten(axes) if p not in factors and trees.fullmatch(pattern, p)]
        if not new:
            raise InputError(
                f"optimizer.rates: pattern {pattern!r} matches no parameter path, or only paths "
                "that earlier patterns match"
            )
        factors |= dict.fromkeys(new, factor)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, state = inner.update(updates, state, params)
        scaled = jax.tree_util.tree_map_with_path(
            lambda keys, leaf: leaf * factors.get(_path(keys), 1.0), steps
        )
        return scaled, state

    return optax.GradientTransformation(inner.init, update)


Starts = Callable[[Params], Any]
"""Function from parameters to their first training steps: int32, [N] for N stacked layers."""

_LAYERED = ("model/", "adapters/", "towers/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradual:
    """Configuration of gradual unfreezing: layers start to train one after the other, top first.

    Attributes:
      total_steps: number of steps of the run, over which all layers unfreeze; 0 disables freezing.
      episodes: number of groups into which the layers are divided; layers of a group unfreeze
        together. None is one group per layer.
    """

    total_steps: Whole = 0
    episodes: Count | None = None

    def __post_init__(self) -> None:
        check_bounds(self, prefix="optimizer.unfreezing.")
        if self.episodes is not None and not self.total_steps:
            raise InputError(
                "optimizer.unfreezing.episodes needs optimizer.unfreezing.total_steps; set it to "
                "the number of steps of the run"
            )

    def first_steps(self, layers: int, *, depth: int) -> tuple[int, ...]:
        """Return the step at which each layer starts to train, lowest layer first.

        Args:
          layers: number of layers of one stack, the encoder or the decoder.
          depth: number of layers of the deepest stack.
        """
        episodes = self.episodes or depth
        found = []
        for above in range(layers - 1, -1, -1):
            place = math.floor(above * depth / layers + 0.5)
            episode = place * episodes // depth
            found.append(episode * self.total_steps // episodes)
        return tuple(found)

    def starts(self, axes: Axes, *, depth: int) -> Starts:
        """Return a function from parameters to the first training step of each parameter."""
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
    """Set the values of still frozen parameters to 0, in a tree such as the gradients.

    Args:
      tree: arrays at the paths of the parameters.
      count: number of completed steps.
      starts: function that returns the first training step of each parameter.
    """
    return jax.tree.map(
        lambda leaf, start: _chosen(count >= start, leaf, jnp.zeros_like(leaf)), tree, starts(tree)
    )


def unfreezing(
    inner: optax.GradientTransformation, starts: Starts, axes: Axes
) -> optax.GradientTransformation:
    """Wrap an optimizer so that parameters stay frozen until their first training step.

    Args:
      inner: optimizer with a state such as {"count": steps, "mu": tree, "nu": tree}; the trees have
        the structure of the parameters. It receives gradients of 0 for frozen parameters.
      starts: function that returns the first training step of each parameter.
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
    return jnp.where(flag.reshape(*flag.shape, *[1] * (yes.ndim - flag.ndim)), yes, no)


LossFunction = Callable[[Params, Batch, Key | None], Any]
"""Function (params, batch, key) -> Loss with sums and weights of a batch (objectives/base.py)."""


@dataclasses.dataclass(frozen=True)
class Update:
    """One update of a train step: a loss function, an optimizer, and the parameters that it trains.

    Attributes:
      loss_function: function that returns loss sums and weights of a batch; their quotient over the
        global batch is minimized.
      optimizer: optimizer of the trained parameters.
      schedule: function from step to learning rate, for metrics.
      name: name of the update's optimizer state; "" for a single update.
      trains: predicate of the paths to train; None trains all parameters.
      joint: function that computes loss terms that compare rows of the global batch, or None.
      live: function (gradient, optimizer state) that sets gradients of frozen layers to 0; None
        without frozen layers.
      scheduled: function from a step to the values of parameters that follow a schedule, or None.
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
        """Return the loss, with the terms that compare the rows of the global batch.

        Raises:
          ValueError: if the loss has terms that compare rows, but `joint` is None.
        """
        if not loss.rows:
            return loss
        if self.joint is None:
            raise ValueError(
                f"the loss has terms that compare the rows of a batch, {sorted(loss.rows)}, but "
                "the update has no `joint` function to compute them"
            )
        return loss.joined(self.joint(loss.rows, batch, step=step))

    def part(self, tree: Any) -> Any:
        """Select the trained parameters from a tree with all parameters."""
        trains = self.trains
        if trains is None:
            return tree
        return trees.partition(tree, lambda path, _: trains(path))[0]

    def loss_of(self, params: Params) -> LossFunction:
        """Return the loss as a function of only the trained parameters."""
        if self.trains is None:
            return self.loss_function

        def loss(trained: Params, batch: Batch, key: Key | None) -> Any:
            return self.loss_function(trees.overlaid(params, trained), batch, key)

        return loss

    def at_step(self, params: Params, step: Any) -> Params:
        """Return all parameters, with the values of scheduled parameters at a training step."""
        new = {} if self.scheduled is None else self.scheduled(step)
        return trees.overlaid(params, trees.unflatten(new)) if new else params

    def apply(self, grads: Params, state: Any, params: Params) -> tuple[Params, Any]:
        """Apply gradients; return all parameters, and the new state of the optimizer."""
        trained = self.part(params)
        updates, state = self.optimizer.update(grads, state, trained)
        changed = cast(Params, optax.apply_updates(trained, updates))
        return changed if self.trains is None else trees.overlaid(params, changed), state


def check_updates(updates: Sequence[Update], paths: Sequence[str]) -> None:
    """Raise ValueError unless exactly one update trains each parameter path."""
    names = [update.name for update in updates]
    if len(updates) > 1 and (len(set(names)) < len(names) or "" in names):
        raise ValueError(f"the updates of a training step must have different names, got {names}")
    times = {path: sum(u.trains is None or u.trains(path) for u in updates) for path in paths}
    wrong = [f"{path} ({number})" for path, number in times.items() if number != 1]
    if wrong:
        raise ValueError(
            "every parameter path must be trained by exactly one update; wrong counts: "
            f"{', '.join(wrong)}"
        )


def joint_optimizer(updates: Sequence[Update]) -> optax.GradientTransformation:
    """Combine the optimizers of several updates into one optimizer."""
    first = updates[0]
    if not first.name and first.trains is None:
        return first.optimizer

    def init(params: Any) -> Any:
        states = [update.optimizer.init(update.part(params)) for update in updates]
        return joint_state(updates, states)

    def refuse(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del updates, state, params
        raise TypeError(
            "a training step with several updates has no joint optimizer; apply each update with "
            "the update's own optimizer"
        )

    return optax.GradientTransformation(init, refuse)


def state_of(update: Update, states: Any) -> Any:
    """Return the optimizer state of one update from the joint optimizer state."""
    return states[update.name] if update.name else states


def joint_state(updates: Sequence[Update], states: Sequence[Any]) -> Any:
    """Combine the optimizer states of several updates into one joint state."""
    if not updates[0].name:
        return states[0]
    return {update.name: state for update, state in zip(updates, states, strict=True)}
