"""Learning-rate schedules: frozen configs; `build()` returns a function from step to learning rate.

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
        return _as_float32(optax.constant_schedule(self.value))


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

        return _as_float32(rate)


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
        return _as_float32(_after_warmup(decay, self.peak, self.warmup_steps))


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

        return _as_float32(rate)


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
        return _as_float32(_after_warmup(decay, self.peak, self.warmup_steps))


@dataclass(frozen=True, kw_only=True)
class Warmup(Schedule):
    """Linear warm-up of another schedule: its learning rate times min(1, step / steps).

    Attributes:
      steps: number of warm-up steps; at least 1.
      then: schedule to warm up; its steps also count from 0.
    """

    steps: Count
    then: Schedule

    def build(self) -> LearningRate:
        then, ramp = self.then.build(), optax.linear_schedule(0.0, 1.0, self.steps)
        return _as_float32(lambda step: then(step) * ramp(step))


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

        return _as_float32(rate)


def _after_warmup(decay: Callable[[Any], Any], peak: float, steps: int) -> Callable[[Any], Any]:
    """Prepend a linear warm-up of `steps` steps to a schedule, which then starts at its step 0."""
    if steps == 0:
        return decay
    return optax.join_schedules([optax.linear_schedule(0.0, peak, steps), decay], [steps])


def _as_float32(schedule: Callable[[Any], Any]) -> LearningRate:
    return lambda step: jnp.asarray(schedule(jnp.asarray(step)), jnp.float32)


def _require_warmup_before_total(config: "Linear | Cosine") -> None:
    if config.total_steps <= config.warmup_steps:
        raise InputError(
            f"{type(config).__name__}: total_steps {config.total_steps} must be more than "
            f"warmup_steps {config.warmup_steps}"
        )
