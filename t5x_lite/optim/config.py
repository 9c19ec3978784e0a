"""Optimizer configs, which build optax transformations and name the axes of their state.

    optimizer = Adafactor(schedule=InverseSquareRoot())
    transformation = optimizer.build(axes)          # optax init and update
    names = optimizer.state_axes(axes, params)      # logical axes of transformation.init(params)

A state is a nested dict of arrays, so that its paths are readable in a checkpoint. Its logical axes
are a nested dict of the same structure with tuples as leaves. Clipping and the schedule add only
the step count to the state.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax

from t5x_lite.core import patterns, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, In, Rate, check_bounds
from t5x_lite.core.trees import Array, Axes, Params
from t5x_lite.optim import adafactor
from t5x_lite.optim.partial import (
    Gradual,
    Starts,
    decayed_by_layer,
    live,
    scaled_by_path,
    unfreezing,
)
from t5x_lite.optim.schedules import LearningRate, Schedule

AUTO = "auto"
"""Value of `schedule_offset` that means the step of the checkpoint of `--init`."""


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """Base class of the optimizer configs.

    Attributes:
      schedule: learning-rate schedule.
      schedule_offset: number of training steps before this run; step t of the run has the learning
        rate of step t + schedule_offset. "auto" is the step of the checkpoint of `--init`.
      clip_norm: maximum global norm of the gradients; None disables clipping.
      clip_groups: regular expressions for parameter paths; the parameters that match each
        expression, and all remaining parameters, are clipped separately. For two networks with one
        loss, use ("objective/generator.*",).
      rates: learning-rate factors for some parameters, as PATTERN=FACTOR with a regular expression
        for whole paths; the first match counts. LoRA+ (Hayou et al. 2024, arXiv:2402.12354):
        ("adapters/.*/b=16",); a faster head: ("heads/.*=10",).
      layer_decay: factor of the learning rate from one layer to the layer below, for fine-tuning; 1
        disables it.
      unfreezing: configuration of gradual unfreezing.
    """

    schedule: Schedule
    schedule_offset: Annotated[int | Literal["auto"], AtLeast(0)] = 0
    clip_norm: Annotated[float | None, Above(0)] = None
    clip_groups: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    layer_decay: Annotated[float, In(0, 1, "(]")] = 1.0
    unfreezing: Gradual = field(default_factory=Gradual)

    def __post_init__(self):
        check_bounds(self, prefix="optimizer.")
        for pattern in self.clip_groups:
            patterns.check("optimizer.clip_groups", pattern)
        for pattern, _ in self._rates:
            patterns.check("optimizer.rates", pattern)

    @property
    def _rates(self) -> list[tuple[str, float]]:
        found = []
        for line in self.rates:
            pattern, _, factor = line.rpartition("=")
            try:
                number = float(factor)
            except ValueError:
                number = math.nan
            if not pattern or not 0 <= number < math.inf:
                raise InputError(
                    "optimizer.rates must be PATTERN=FACTOR with a factor of at least 0, such as "
                    f"'adapters/.*/b=16', got {line!r}"
                )
            found.append((pattern, number))
        return found

    @property
    def first_step(self) -> int:
        """Step of the learning-rate schedule at which the run begins; 0 if "auto" is unresolved."""
        return 0 if self.schedule_offset == AUTO else self.schedule_offset

    def rate(self) -> LearningRate:
        """Return a function from training step to learning rate, with `schedule_offset` added."""
        rate, first = self.schedule.build(), self.first_step
        return rate if not first else lambda step: rate(step + first)

    def build(
        self, axes: Axes, *, below: Sequence[str] = (), depth: int | None = None
    ) -> optax.GradientTransformation:
        """Return the optax optimizer for parameters with the given logical axes.

        The optimizer's update(grads, state, params) needs the parameters.

        Args:
          axes: logical axes of the parameters.
          below: paths of the model parameters below the first layer, such as embeddings, for
            `layer_decay`.
          depth: number of layers of the encoder or decoder, whichever is larger, for `layer_decay`
            and `unfreezing`; None counts the layers of the parameters.

        Raises:
          InputError: if `layer_decay` is set but `below` is empty, or `unfreezing` is set for a
            model without layers.
        """
        starts = self.starts(axes, depth=depth)
        inner = self._build(axes, starts=starts)
        if self.layer_decay != 1.0:
            if not below:
                raise InputError(
                    "optimizer.layer_decay needs the parameter paths below all layers; define "
                    "ModelConfig.below in the class of the model's config"
                )
            inner = decayed_by_layer(inner, self.layer_decay, axes, below, depth=depth)
        if self.rates:
            inner = scaled_by_path(inner, self._rates, axes)
        if self.clip_norm is not None:
            inner = _clipped(inner, _clipping(self.clip_norm, self.clip_groups, axes))
        return inner if starts is None else unfreezing(inner, starts, axes)

    def starts(self, axes: Axes, *, depth: int | None) -> Starts | None:
        """Return a function from parameters to the steps at which they start to train, or None.

        Raises:
          InputError: if the model has no layers to unfreeze.
        """
        if not self.unfreezing.total_steps:
            return None
        if not depth:
            raise InputError(
                "optimizer.unfreezing needs a model with layers; set "
                "optimizer.unfreezing.total_steps to 0"
            )
        return self.unfreezing.starts(axes, depth=depth)

    def live(self, axes: Axes, *, depth: int | None) -> Callable[[Params, Any], Params] | None:
        """Return a function that sets gradients of frozen layers to 0; None without unfreezing."""
        starts = self.starts(axes, depth=depth)
        if starts is None:
            return None
        return lambda grads, state: live(grads, state["count"], starts)

    @abstractmethod
    def _build(self, axes: Axes, *, starts: Starts | None) -> optax.GradientTransformation:
        """Return the optax optimizer, to which `build` adds clipping and learning-rate factors."""

    @abstractmethod
    def state_axes(self, axes: Axes, shapes: Params) -> dict[str, Any]:
        """Return the logical axes of the optimizer state, in the structure of the state."""


@dataclass(frozen=True, kw_only=True)
class Adafactor(Optimizer, adafactor.Hyperparameters):
    """Configuration of Adafactor, T5's optimizer (options: `optim.adafactor.Hyperparameters`)."""

    def _build(self, axes: Axes, *, starts: Starts | None) -> optax.GradientTransformation:
        return adafactor.adafactor(self.rate(), axes, settings=self, starts=starts)

    def state_axes(self, axes: Axes, shapes: Params) -> dict[str, Any]:
        return adafactor.state_axes(axes, shapes, settings=self)


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Configuration of AdamW, Adam with decoupled weight decay (arXiv:1711.05101).

    Weight decay is scaled by the learning rate. Parameters with fewer than two dimensions per layer
    (norm scales, biases) and relative-position biases have no decay. Moments are float32.

    Attributes:
      b1: decay rate of the mean of gradients.
      b2: decay rate of the mean of squared gradients.
      eps: constant added to the root of the second moment.
      weight_decay: fraction of a parameter that is subtracted at each step, times the learning
        rate.
      bias_correction: True to divide the moments by 1 - b^t. BERT and ELECTRA do not
        (google-research/electra model/optimization.py); their schedule is Warmup(steps=10_000,
        then=Linear(peak=5e-4, total_steps=1_000_000)).
    """

    b1: Rate = 0.9
    b2: Rate = 0.999
    eps: Annotated[float, Above(0)] = 1e-8
    weight_decay: Annotated[float, AtLeast(0)] = 0.01
    bias_correction: bool = True

    def _build(self, axes: Axes, *, starts: Starts | None) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(self.b1, self.b2, self.eps)
        schedule = self.rate()

        def init(params: Any) -> dict[str, Any]:
            adafactor.check_axes(axes, params)
            state: Any = adam.init(_as_float32(params))
            return {"count": state.count, "mu": state.mu, "nu": state.nu}

        def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, dict[str, Any]]:
            if params is None:
                raise ValueError(
                    "AdamW needs the parameters to compute weight decay; pass params to update()"
                )
            moments = optax.ScaleByAdamState(**state)
            directions, moved = adam.update(_as_float32(updates), moments)
            new: Any = moved
            if not self.bias_correction:
                directions = jax.tree.map(
                    lambda mu, nu: mu / (jnp.sqrt(nu) + self.eps), new.mu, new.nu
                )
            elif starts is not None:
                directions = jax.tree.map(
                    functools.partial(self._corrected, new.count), starts(params), new.mu, new.nu
                )
            rate = schedule(state["count"])

            def step(names: Sequence[str | None], direction: Any, param: Any) -> Any:
                decay = self.weight_decay if decays(names) else 0.0
                return -rate * (direction + decay * param.astype(jnp.float32))

            steps = adafactor.map_axes(step, axes, directions, params)
            return steps, {"count": new.count, "mu": new.mu, "nu": new.nu}

        return optax.GradientTransformation(init, update)

    def _corrected(self, count: Array, start: Any, mu: Array, nu: Array) -> Array:
        age = jnp.maximum(count - start, 1).astype(jnp.float32)
        age = age.reshape(*age.shape, *[1] * (mu.ndim - age.ndim))
        return (mu / (1 - self.b1**age)) / (jnp.sqrt(nu / (1 - self.b2**age)) + self.eps)

    def state_axes(self, axes: Axes, shapes: Params) -> dict[str, Any]:
        adafactor.check_axes(axes, shapes)
        return {"count": (), "mu": axes, "nu": axes}


def _clipped(
    inner: optax.GradientTransformation, clip: Callable[[Any], Any]
) -> optax.GradientTransformation:
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return inner.update(clip(updates), state, params)

    return optax.GradientTransformation(inner.init, update)


def _clipping(norm: float, groups: Sequence[str], axes: Axes) -> Callable[[Any], Any]:
    clip = optax.clip_by_global_norm(norm)
    rest, paths = list(trees.flatten(axes)), []
    for pattern in groups:
        paths.append({path for path in rest if patterns.fullmatch(pattern, path)})
        rest = [path for path in rest if path not in paths[-1]]
        if not paths[-1]:
            raise InputError(
                f"optimizer.clip_groups: pattern {pattern!r} matches no parameter path, or only "
                "paths that earlier patterns match"
            )

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
    """Return True if AdamW applies weight decay to a parameter with these logical axes."""
    rank = len(names) - adafactor.is_stacked(names)
    return rank >= 2 and "relpos_buckets" not in names


def _as_float32(tree: Params) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
