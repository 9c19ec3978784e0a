"""Learning-rate schedules: frozen configs whose `build()` gives step -> learning rate (f32).

They compose: a warm-up can precede any schedule, and a linear tail can end it. T5's schedule
(Raffel et al. 2020, section 3.1.2, arXiv:1910.10683) is `InverseSquareRoot()`: 1 / sqrt(max(step,
10^4)), so 0.01 for the first 10^4 steps, without a ramp, and 0.001 at step 10^6:

    schedule = InverseSquareRoot().build()
    schedule(0), schedule(10_000), schedule(1_000_000)      # 0.01, 0.01, 0.001

and `LinearDecayTail(body=InverseSquareRoot(), total_steps=1_000_000)` ends it at 0 over the last
tenth. Steps count from 0; after its total steps a schedule keeps its last value.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import jax.numpy as jnp
import optax

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, Count, In, Whole, check_bounds
from t5x_lite.core.trees import Array

LearningRate: TypeAlias = Callable[[Any], Array]
"""step (an int or an int32 scalar) -> learning rate (f32 scalar)."""


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """Base of the schedules."""

    def __post_init__(self) -> None:
        check_bounds(self, prefix=f"{type(self).__name__}: ")

    @abstractmethod
    def build(self) -> LearningRate:
        """Return the function step -> learning rate."""


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The same rate at every step; T5 fine-tunes with 0.001.

    Attributes:
      value: the learning rate.
    """

    value: Annotated[float, AtLeast(0)] = 1e-3

    def build(self) -> LearningRate:
        """Return the function step -> learning rate."""
        return _as_float32(optax.constant_schedule(self.value))


@dataclass(frozen=True, kw_only=True)
class InverseSquareRoot(Schedule):
    """value / sqrt(max(step, warmup_steps)): flat, then a decay with the root of the step.

    Attributes:
      value: the learning rate times the root of the step.
      warmup_steps: length of the flat part; at least 1.
    """

    value: Annotated[float, AtLeast(0)] = 1.0
    warmup_steps: Count = 10_000

    def build(self) -> LearningRate:
        """Return the function step -> learning rate."""

        def rate(step: Any) -> Array:
            return self.value / jnp.sqrt(jnp.maximum(step, self.warmup_steps).astype(jnp.float32))

        return _as_float32(rate)


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """A linear warm-up from 0 to the peak, then a linear decay to the end.

    Attributes:
      peak: learning rate at warmup_steps.
      total_steps: step at which `end` is reached.
      warmup_steps: length of the warm-up; 0 starts at the peak.
      end: the last learning rate.
    """

    peak: Annotated[float, AtLeast(0)] = 1e-3
    total_steps: Count
    warmup_steps: Whole = 0
    end: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_warmup_before_total(self)

    def build(self) -> LearningRate:
        """Return the function step -> learning rate."""
        decay = optax.linear_schedule(self.peak, self.end, self.total_steps - self.warmup_steps)
        return _as_float32(_after_warmup(decay, self.peak, self.warmup_steps))


@dataclass(frozen=True, kw_only=True)
class Triangular(Schedule):
    """The slanted triangle of Howard and Ruder 2018, arXiv:1801.06146: up fast, down slowly.

    With cut = floor(total_steps * cut_fraction) and p rising from 0 to 1 up to step cut, and
    decreasing to 0 at total_steps, the rate is peak * (1 + p * (ratio - 1)) / ratio.

    Attributes:
      peak: the largest learning rate.
      total_steps: length of the whole triangle.
      cut_fraction: fraction of the steps in which the rate rises.
      ratio: peak rate divided by the smallest rate.
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
        """Return the function step -> learning rate."""
        cut = self._cut
        # The paper's slope; where cut was rounded down it reaches 0 before total_steps.
        down = cut * (1.0 / self.cut_fraction - 1.0)

        def rate(step: Any) -> Array:
            t = jnp.asarray(step, jnp.float32)
            p = jnp.where(t < cut, t / cut, 1.0 - (t - cut) / down)
            return self.peak * (1.0 + jnp.clip(p, 0.0, 1.0) * (self.ratio - 1.0)) / self.ratio

        return _as_float32(rate)


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """A linear warm-up from 0 to the peak, then half a cosine down to the end.

    Loshchilov and Hutter 2017, "SGDR", arXiv:1608.03983, without restarts.

    Attributes:
      peak: learning rate at warmup_steps.
      total_steps: step at which `end` is reached.
      warmup_steps: length of the warm-up; 0 starts at the peak.
      end: the last learning rate.
    """

    peak: Annotated[float, Above(0)] = 1e-3
    total_steps: Count
    warmup_steps: Whole = 0
    end: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_warmup_before_total(self)

    def build(self) -> LearningRate:
        """Return the function step -> learning rate."""
        decay = optax.cosine_decay_schedule(
            self.peak, self.total_steps - self.warmup_steps, alpha=self.end / self.peak
        )
        return _as_float32(_after_warmup(decay, self.peak, self.warmup_steps))


@dataclass(frozen=True, kw_only=True)
class Warmup(Schedule):
    """Any schedule times min(1, step / steps): a linear ramp that does not delay what follows.

    Attributes:
      steps: length of the ramp; at least 1.
      then: the schedule that is ramped up; it gets the same step.
    """

    steps: Count
    then: Schedule

    def build(self) -> LearningRate:
        """Return the function step -> learning rate."""
        then, ramp = self.then.build(), optax.linear_schedule(0.0, 1.0, self.steps)
        return _as_float32(lambda step: then(step) * ramp(step))


@dataclass(frozen=True, kw_only=True)
class LinearDecayTail(Schedule):
    """Any schedule, brought to 0 linearly over the last fraction of the steps.

    Attributes:
      body: the schedule that is brought to 0.
      total_steps: step at which the rate is 0.
      fraction: fraction of the steps over which it decreases; T5's released models used 0.1.
    """

    body: Schedule
    total_steps: Count
    fraction: Annotated[float, In(0, 1, "(]")] = 0.1

    def build(self) -> LearningRate:
        """Return the function step -> learning rate."""
        body, length = self.body.build(), self.total_steps * self.fraction

        def rate(step: Any) -> Array:
            left = self.total_steps - jnp.asarray(step, jnp.float32)
            return body(step) * jnp.clip(left / length, 0.0, 1.0)

        return _as_float32(rate)


def _after_warmup(decay: Callable[[Any], Any], peak: float, steps: int) -> Callable[[Any], Any]:
    """Put a linear warm-up in front of a schedule, which then starts at step `steps`."""
    if steps == 0:
        return decay
    return optax.join_schedules([optax.linear_schedule(0.0, peak, steps), decay], [steps])


def _as_float32(schedule: Callable[[Any], Any]) -> LearningRate:
    """Make a schedule return an f32 array, also for a Python int."""
    return lambda step: jnp.asarray(schedule(jnp.asarray(step)), jnp.float32)


def _require_warmup_before_total(config: "Linear | Cosine") -> None:
    if config.total_steps <= config.warmup_steps:
        raise InputError(
            f"{type(config).__name__}: total_steps must be more than warmup_steps; "
            f"got {config.total_steps} and {config.warmup_steps}"
        )
