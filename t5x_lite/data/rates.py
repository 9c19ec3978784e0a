"""At what rates the tasks of a mixture are drawn (Raffel et al. 2020, section 3.5.2).

    rate_num_examples(392_702, maximum=2**16)                   # 65536.0: proportional, at most K
    rate_num_examples(250, maximum=2**21, temperature=2.0)      # 15.81...: K before the root
    cache_rates([8551, 250])                                    # [9716, 284] of 10000

Rates are relative to each other. Source: seqio 0.0.20, utils.py (mixing_rate_num_examples), and t5
0.9.4, data/utils.py (rate_num_examples, rate_unsupervised).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from t5x_lite.errors import InputError

CACHE_PERIOD = 10_000
"""Of so many examples of a mixture of caches each gives a whole number."""

_By = Literal["examples", "equal"]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """How the tasks of a mixture, or several caches without rates, are mixed.

    Attributes:
      by: "examples" draws them in proportion to the numbers of their training examples; "equal"
        draws all equally often.
      maximum: the paper's K: a task counts as having so many examples at most; None is no limit.
      temperature: the paper's T: a rate is the number's T-th root; 1 is proportional.
      unlabelled: the number of examples that a mixture's unlabelled text counts as, which is its
        rate: neither `maximum` nor `temperature` changes it. None is what the mixture says.
      leave_out: tasks that are neither trained on nor measured: "tasks.glue:rte", all of a module
        as "tasks.glue", the name that its metrics have, "glue_rte", or its own, "dpr", where no
        other task has it.
    """

    by: _By = "examples"
    maximum: int | None = None
    temperature: float = 1.0
    unlabelled: int | None = None
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.by not in get_args(_By):
            raise InputError(f"data.mixing.by must be examples or equal, got {self.by!r}")
        if self.maximum is not None and self.maximum < 1:
            raise InputError(f"data.mixing.maximum must be at least 1, got {self.maximum}")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"data.mixing.temperature must be positive, got {self.temperature}")
        if self.unlabelled is not None and self.unlabelled < 1:
            raise InputError(
                f"data.mixing.unlabelled must be at least 1, got {self.unlabelled}: "
                "data.mixing.leave_out trains without a task"
            )
        if self.by == "equal" and self.unlabelled is not None:
            raise InputError(
                "data.mixing.by equal gives unlabelled text the rate of all others: leave out "
                "data.mixing.unlabelled"
            )
        if self.by == "equal" and (self.maximum is not None or self.temperature != 1.0):
            raise InputError(
                "data.mixing.by equal knows no numbers of examples: leave out "
                "data.mixing.maximum and data.mixing.temperature"
            )

    def rate(self, num_examples: int) -> float:
        """The rate of a task with so many training examples."""
        if self.by == "equal":
            return 1.0
        return rate_num_examples(num_examples, maximum=self.maximum, temperature=self.temperature)


def rate_num_examples(
    num_examples: int,
    *,
    maximum: int | None = None,
    temperature: float = 1.0,
    scale: float = 1.0,
) -> float:
    """The rate of a task by its number of examples: min(scale * examples, K) ** (1 / T).

    Args:
      num_examples: of the training split.
      maximum: K, the limit, after `scale` and before `temperature`; None or 0 is no limit.
      temperature: T.
      scale: what the number is multiplied by first.
    """
    rate = num_examples * scale
    if maximum:
        rate = min(rate, maximum)
    if temperature != 1.0:
        rate = rate ** (1.0 / temperature)
    return float(rate)


def rate_unsupervised(value: float | int = 1e6) -> float:
    """The rate of the unsupervised task in multi-task pretraining: a constant."""
    return float(value)


def cache_rates(rates: Sequence[float | int]) -> list[int]:
    """Whole numbers, of sum `CACHE_PERIOD`, nearest to relative rates; each at least 1.

    Largest remainders are rounded up, so that no share is off by as much as one of the period.

    Args:
      rates: positive; fewer than `CACHE_PERIOD`.
    """
    total = sum(rates)
    shares = [rate / total * CACHE_PERIOD for rate in rates]
    found = [max(1, math.floor(share)) for share in shares]
    while (missing := CACHE_PERIOD - sum(found)) != 0:
        step = 1 if missing > 0 else -1
        # Who is furthest from its share in the direction that is needed; of equals the first.
        able = [k for k in range(len(found)) if found[k] + step >= 1]
        chosen = max(able, key=lambda k: (step * (shares[k] - found[k]), -k))
        found[chosen] += step
    return found


class UnknownSize(InputError):
    """The data do not say how many examples an epoch has."""


@dataclass(frozen=True)
class Epoch:
    """A pass over the training data.

    Attributes:
      examples: their number.
      batches: about as many batches.
    """

    examples: int
    batches: float
