"""Optimizer configs: what to minimise with, and how its state is laid out.

    optimizer = Adafactor(schedule=InverseSquareRoot())
    transformation = optimizer.build(axes)          # optax init and update
    names = optimizer.state_axes(axes, params)      # logical axes of transformation.init(params)

A state is a nested dict of arrays, so that its paths are readable in a checkpoint; its logical
axes are a nested dict of the same structure, whose leaves are tuples. Clipping and the schedule
add nothing to it but the count.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from t5x_lite import trees
from t5x_lite.errors import InputError
from t5x_lite.optim import adafactor
from t5x_lite.optim.layer_decay import decayed_by_layer
from t5x_lite.optim.schedules import (
    Schedule,
    require_above_zero,
    require_below_one,
    require_not_negative,
)
from t5x_lite.types import Axes, Params


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """Base of the optimizers.

    Attributes:
      schedule: the learning rate.
      clip_norm: gradients are scaled down to this norm over all parameters, before anything else;
        None leaves them.
      clip_groups: regular expressions of whole paths; the parameters that one matches have a norm
        of their own for clip_norm, and so have those that none matches. Two networks that are
        trained by one loss: ("objective/generator.*",).
      layer_decay: factor of the learning rate from one layer to the one below it, for fine-tuning:
        `optim.layer_decay`. 1 is the same rate everywhere.
    """

    schedule: Schedule
    clip_norm: float | None = None
    clip_groups: tuple[str, ...] = ()
    layer_decay: float = 1.0

    def __post_init__(self):
        require_above_zero(self, "clip_norm", "layer_decay")
        if self.layer_decay > 1.0:
            raise InputError(f"optimizer.layer_decay must be at most 1: got {self.layer_decay}")
        for pattern in self.clip_groups:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"optimizer.clip_groups: {pattern!r}: {error}") from error

    def build(
        self, axes: Axes, *, below: Sequence[str] = (), depth: int | None = None
    ) -> optax.GradientTransformation:
        """Returns the transformation for parameters with these logical axes.

        Its update(grads, state, params) needs the parameters, and gives what
        optax.apply_updates adds to them.

        Args:
          axes: the parameters' logical axes.
          below: paths of the model's parameters below all layers, for `layer_decay`.
          depth: layers of the highest stack, for it; None is that of these parameters.

        Raises:
          InputError: there is a layer_decay, and `below` is empty.
        """
        inner = self._build(axes)
        if self.layer_decay != 1.0:
            if not below:
                raise InputError(
                    "optimizer.layer_decay needs to know what is below the layers: the class of "
                    "the model's config must say it (ModelConfig.below)"
                )
            inner = decayed_by_layer(inner, self.layer_decay, axes, below, depth=depth)
        if self.clip_norm is None:
            return inner
        clip = _clipping(self.clip_norm, self.clip_groups, axes)

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
            return inner.update(clip(updates), state, params)

        return optax.GradientTransformation(inner.init, update)

    @abstractmethod
    def _build(self, axes: Axes) -> optax.GradientTransformation:
        """Returns the transformation without clipping by norm."""

    @abstractmethod
    def state_axes(self, axes: Axes, shapes: Params) -> dict[str, Any]:
        """Returns the logical axes of the state, in the structure of the state.

        Args:
          axes: the parameters' logical axes.
          shapes: the parameters, or anything with their shapes.
        """


@dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer, adafactor.Hyperparameters):
    """T5's optimizer; `optim.adafactor.Hyperparameters` says what the other fields mean."""

    def __post_init__(self):
        super().__post_init__()
        require_above_zero(
            self, "min_dim_size_to_factor", "decay_rate", "clipping_threshold", "epsilon1"
        )
        require_not_negative(self, "step_offset", "epsilon2")
        require_below_one(self, "momentum", "weight_decay_rate")

    def _build(self, axes: Axes) -> optax.GradientTransformation:
        return adafactor.adafactor(self.schedule.build(), axes, settings=self)

    def state_axes(self, axes: Axes, shapes: Params) -> dict[str, Any]:
        """Returns the logical axes of the state: {"count", "statistics"}."""
        return adafactor.state_axes(axes, shapes, settings=self)


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101).

    The decay is scaled by the learning rate, and spares what has one dimension or none per layer
    (norm scales, biases) and relative-position biases. Moments are f32.

    Attributes:
      b1: decay of the mean of gradients.
      b2: decay of the mean of squared gradients.
      eps: added to the root of the second moment.
      weight_decay: part of a parameter that is taken off at each step, times the learning rate.
      bias_correction: whether the moments are divided by 1 - b^t. BERT and ELECTRA leave it out
        (google-research/electra model/optimization.py), and their rate is
        Warmup(steps=10_000, then=Linear(peak=5e-4, total_steps=1_000_000)).
    """

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    bias_correction: bool = True

    def __post_init__(self):
        super().__post_init__()
        require_below_one(self, "b1", "b2")
        require_above_zero(self, "eps")
        require_not_negative(self, "weight_decay")

    def _build(self, axes: Axes) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
        schedule = self.schedule.build()

        def init(params: Any) -> dict[str, Any]:
            adafactor.check_axes(axes, params)
            state: Any = adam.init(_as_float32(params))
            return {"count": state.count, "mu": state.mu, "nu": state.nu}

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, dict[str, Any]]:
            if params is None:
                raise ValueError("AdamW's decay depends on the parameters; pass them to update")
            moments = optax.ScaleByAdamState(**state)
            directions, moved = adam.update(_as_float32(updates), moments)
            new: Any = moved
            if not self.bias_correction:
                directions = jax.tree.map(
                    lambda mu, nu: mu / (jnp.sqrt(nu) + self.eps), new.mu, new.nu
                )
            rate = schedule(state["count"])

            def step(names: Sequence[str | None], direction: Any, param: Any) -> Any:
                decay = self.weight_decay if decays(names) else 0.0
                return -rate * (direction + decay * param.astype(jnp.float32))

            steps = adafactor.map_axes(step, axes, directions, params)
            return steps, {"count": new.count, "mu": new.mu, "nu": new.nu}

        return optax.GradientTransformation(init, update)

    def state_axes(self, axes: Axes, shapes: Params) -> dict[str, Any]:
        """Returns the logical axes of the state: {"count", "mu", "nu"}."""
        adafactor.check_axes(axes, shapes)
        return {"count": (), "mu": axes, "nu": axes}


def _clipping(norm: float, groups: Sequence[str], axes: Axes) -> Callable[[Any], Any]:
    """Scales gradients down to a norm, those of each group by themselves.

    Raises:
      InputError: a group has no parameter.
    """
    clip = optax.clip_by_global_norm(norm)
    rest, paths = list(trees.flatten(axes)), []
    for pattern in groups:
        paths.append({path for path in rest if re.fullmatch(pattern, path)})
        rest = [path for path in rest if path not in paths[-1]]
        if not paths[-1]:
            raise InputError(f"optimizer.clip_groups: {pattern!r} matches no path that is left")

    def clipped(grads: Any) -> Any:
        if not groups:
            return clip.update(grads, optax.EmptyState())[0]
        result = grads
        for group in (*paths, set(rest)):
            part = trees.partition(grads, lambda path, _, group=group: path in group)[0]
            scaled: Any = clip.update(part, optax.EmptyState())[0]
            result = trees.overlaid(result, scaled)
        return result

    return clipped


def decays(names: Sequence[str | None]) -> bool:
    """Returns whether AdamW's weight decay applies to a parameter with these logical axes."""
    rank = len(names) - adafactor.is_stacked(names)
    return rank >= 2 and "relpos_buckets" not in names


def _as_float32(tree: Params) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
