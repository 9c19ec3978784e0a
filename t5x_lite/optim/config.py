"""Optimizer configs: the update rule, its learning-rate schedule, and the layout of its state.

Learning-rate schedules: frozen configs; `build()` returns a function from step to learning rate.

They compose: a warm-up can precede any schedule, and a linear tail can end it. T5's schedule
(Raffel et al. 2020, section 3.1.2, arXiv:1910.10683) is `InverseSquareRoot()`: 1 / sqrt(max(step,
10^4)), so 0.01 for the first 10^4 steps, without a ramp, and 0.001 at step 10^6:

    schedule = InverseSquareRoot().build()
    schedule(0), schedule(10_000), schedule(1_000_000)      # 0.01, 0.01, 0.001

and `LinearDecayTail(body=InverseSquareRoot(), total_steps=1_000_000)` ends it at 0 over the last
tenth. Steps count from 0; after its total steps a schedule keeps its last value.

Optimizer configs, which build optax transformations and name the axes of their state.

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
from typing import Annotated, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import optax

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, Count, In, Rate, Whole, check_bounds
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

LearningRate: TypeAlias = Callable[[Any], Array]
"""Function from step (an int or an int32 scalar) to learning rate (float32 scalar)."""


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Base class of the learning-rate schedule configs."""

    def __post_init__(self) -> None:
        check_bounds(self, prefix=f"{type(self).__name__}: ")

    @abstractmethod
    def build(self) -> LearningRate:
        """Return the function from step to learning rate."""


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """Constant learning rate; T5 fine-tunes with 0.001.

    Attributes:
      value: learning rate.
    """

    value: Annotated[float, AtLeast(0)] = 1e-3

    def build(self) -> LearningRate:
        return _step_as_float32(optax.constant_schedule(self.value))


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Schedule):
    """Learning rate value / sqrt(max(step, warmup_steps)): constant, then decaying.

    Attributes:
      value: numerator of the learning rate.
      warmup_steps: number of steps with a constant learning rate; at least 1.
    """

    value: Annotated[float, AtLeast(0)] = 1.0
    warmup_steps: Count = 10_000

    def build(self) -> LearningRate:
        def rate(step: Any) -> Array:
            return self.value / jnp.sqrt(jnp.maximum(step, self.warmup_steps).astype(jnp.float32))

        return _step_as_float32(rate)


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """Linear warm-up from 0 to a peak learning rate, then linear decay.

    Attributes:
      peak: learning rate at `warmup_steps`.
      total_steps: step at which the learning rate is `end`.
      warmup_steps: number of warm-up steps; 0 starts at the peak.
      end: final learning rate.
    """

    peak: Annotated[float, AtLeast(0)] = 1e-3
    total_steps: Count
    warmup_steps: Whole = 0
    end: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_warmup_before_total(self)

    def build(self) -> LearningRate:
        decay = optax.linear_schedule(self.peak, self.end, self.total_steps - self.warmup_steps)
        return _step_as_float32(_after_warmup(decay, self.peak, self.warmup_steps))


@dataclass(frozen=True, kw_only=True)
class Triangular(Schedule):
    """Slanted triangular learning rate (Howard and Ruder 2018): fast warm-up, slow linear decay.

    With cut = floor(total_steps * cut_fraction) and p rising from 0 to 1 up to step cut, and
    decreasing to 0 at total_steps, the rate is peak * (1 + p * (ratio - 1)) / ratio.

    Attributes:
      peak: maximum learning rate.
      total_steps: number of steps of the whole schedule.
      cut_fraction: fraction of the steps with increasing learning rate.
      ratio: peak learning rate divided by the smallest learning rate.
    """

    peak: Annotated[float, AtLeast(0)] = 1e-3
    total_steps: Count
    cut_fraction: Annotated[float, In(0, 1, "()")] = 0.1
    ratio: Annotated[float, AtLeast(1)] = 32.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._cut < 1:
            raise InputError(
                f"Triangular: total_steps * cut_fraction must be at least 1 step; "
                f"got {self.total_steps} * {self.cut_fraction}"
            )

    @property
    def _cut(self) -> int:
        return int(self.total_steps * self.cut_fraction)

    def build(self) -> LearningRate:
        cut = self._cut
        # The paper's slope; where cut was rounded down it reaches 0 before total_steps.
        down = cut * (1.0 / self.cut_fraction - 1.0)

        def rate(step: Any) -> Array:
            t = jnp.asarray(step, jnp.float32)
            p = jnp.where(t < cut, t / cut, 1.0 - (t - cut) / down)
            return self.peak * (1.0 + jnp.clip(p, 0.0, 1.0) * (self.ratio - 1.0)) / self.ratio

        return _step_as_float32(rate)


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Linear warm-up from 0 to a peak learning rate, then cosine decay (arXiv:1608.03983).

    Attributes:
      peak: learning rate at `warmup_steps`.
      total_steps: step at which the learning rate is `end`.
      warmup_steps: number of warm-up steps; 0 starts at the peak.
      end: final learning rate.
    """

    peak: Annotated[float, Above(0)] = 1e-3
    total_steps: Count
    warmup_steps: Whole = 0
    end: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_warmup_before_total(self)

    def build(self) -> LearningRate:
        decay = optax.cosine_decay_schedule(
            self.peak, self.total_steps - self.warmup_steps, alpha=self.end / self.peak
        )
        return _step_as_float32(_after_warmup(decay, self.peak, self.warmup_steps))


@dataclass(frozen=True, kw_only=True)
class Warmup(Schedule):
    """Linear warm-up of another schedule: its learning rate times min(1, step / steps).

    Attributes:
      steps: number of warm-up steps; at least 1.
      then: schedule to warm up; it begins at step 0, not after the warm-up.
    """

    steps: Count
    then: Schedule

    def build(self) -> LearningRate:
        then, ramp = self.then.build(), optax.linear_schedule(0.0, 1.0, self.steps)
        return _step_as_float32(lambda step: then(step) * ramp(step))


@dataclass(frozen=True, kw_only=True)
class LinearDecayTail(Schedule):
    """Schedule with a final linear decay to 0, over the last fraction of the steps.

    Attributes:
      body: schedule that is multiplied by the decay.
      total_steps: step at which the learning rate is 0.
      fraction: fraction of the steps with decay; T5's released models used 0.1.
    """

    body: Schedule
    total_steps: Count
    fraction: Annotated[float, In(0, 1, "(]")] = 0.1

    def build(self) -> LearningRate:
        body, length = self.body.build(), self.total_steps * self.fraction

        def rate(step: Any) -> Array:
            left = self.total_steps - jnp.asarray(step, jnp.float32)
            return body(step) * jnp.clip(left / length, 0.0, 1.0)

        return _step_as_float32(rate)


def _after_warmup(decay: Callable[[Any], Any], peak: float, steps: int) -> Callable[[Any], Any]:
    """Return a schedule that begins with `steps` steps of linear warm-up."""
    if steps == 0:
        return decay
    return optax.join_schedules([optax.linear_schedule(0.0, peak, steps), decay], [steps])


def _step_as_float32(schedule: Callable[[Any], Any]) -> LearningRate:
    return lambda step: jnp.asarray(schedule(jnp.asarray(step)), jnp.float32)


def _require_warmup_before_total(config: "Linear | Cosine") -> None:
    if config.total_steps <= config.warmup_steps:
        raise InputError(
            f"{type(config).__name__}: total_steps {config.total_steps} must be more than "
            f"warmup_steps {config.warmup_steps}"
        )


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
        expression, and all remaining parameters, are clipped separately. Example:
        ("objective/generator.*",) for the generator of ELECTRA.
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
            trees.check("optimizer.clip_groups", pattern)
        for pattern, _ in self._rates:
            trees.check("optimizer.rates", pattern)

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
        """Step of the learning-rate schedule at which the run begins; 0 for "auto"."""
        return 0 if self.schedule_offset == AUTO else self.schedule_offset

    def rate(self) -> LearningRate:
        """Return a function from a step of the run to its learning rate."""
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
                    "optimizer.layer_decay is not supported for this model, because the class of "
                    "its config does not define `below`, the paths of the embeddings"
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
                "optimizer.unfreezing requires a model with layers; to disable unfreezing, set "
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
        """Return the optax optimizer without clipping and learning-rate factors."""

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
        paths.append({path for path in rest if trees.fullmatch(pattern, path)})
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
