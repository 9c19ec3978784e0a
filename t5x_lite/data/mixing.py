"""Order of the training examples: rates of tasks, mixtures of caches and random permutations.

`Schedule` computes the cache of each example of a mixture without state:

    sources = parse_sources(("prose=0.75", "code=0.25"))
    schedule = Schedule([rate for _, rate in sources])
    schedule.at([0, 1, 2, 3, 4])   -> caches [0, 0, 1, 0, 0], their examples [0, 1, 0, 2, 3]

For every n, the first n examples contain rate * n examples of each cache, with an error of less
than one example. This is Tijdeman's solution of the chairman assignment problem (Discrete
Mathematics 32, 1980). Rates are fractions, so the order repeats with their common denominator and
any position can be computed.

`order` computes a pseudo-random permutation of any number of examples without memory:

    order([0, 1, 2, 3], [0, 0, 0, 0], size=4, seed=7)   -> [3, 0, 2, 1]
    order([0, 1, 2, 3], [1, 1, 1, 1], size=4, seed=7)   -> [2, 0, 3, 1]

A shuffle buffer mixes only neighbors, and a shuffled list of indices needs memory. Here the index
at each position is computed. A Feistel network (Luby and Rackoff 1988) permutes the next power of
four, and a value outside of [0, size) is permuted again until it is inside (cycle walking, Black
and Rogaway 2002). No library is used, so the order does not change with library versions.

`rate_num_examples` computes a task's rate from its number of examples (Raffel et al. 2020, 3.5.2):

    rate_num_examples(392_702, maximum=2**16)                   # 65536.0: proportional, at most K
    rate_num_examples(250, maximum=2**21, temperature=2.0)      # 15.81...: K before the root
    cache_rates([8551, 250])                                    # [9716, 284] of 10000

Rates are relative to each other. Source: seqio 0.0.20, utils.py (mixing_rate_num_examples), and t5
0.9.4, data/utils.py (rate_num_examples, rate_unsupervised).
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Int, UInt64

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, Count, check_bounds

MAX_PERIOD = 100_000
"""Maximum common denominator of the rates; the order of one period is kept in memory."""

_RATE = re.compile(r"\d+(\.\d+)?|\.\d+")


def parse_sources(cache: str | Sequence[str]) -> list[tuple[str, Fraction]]:
    """Return the directory and rate of each cache that data.cache names.

    Args:
      cache: a directory, or several entries "DIRECTORY=RATE". Rates need not add up to 1. An
        existing directory with a name like "data=2" is read as a name without a rate.

    Returns:
      Pairs (directory, rate) in the given order; the rates add up to 1.

    Raises:
      InputError: if `cache` is empty, a directory occurs twice, or a rate is missing or not a
        positive number.
    """
    texts = [cache] if isinstance(cache, str) else list(cache)
    if not texts or not all(texts):
        raise InputError("data.cache must name directories that `t5x-lite cache` wrote")
    found = [_parse(text, alone=len(texts) == 1) for text in texts]
    names = [directory for directory, _ in found]
    for directory, rate in found:
        if not rate:
            raise InputError(f"data.cache: the rate of {directory} must be more than 0")
        if names.count(directory) > 1:
            raise InputError(
                f"data.cache names the cache {directory} twice; name it once, with the sum of "
                "both rates"
            )
    total = sum(rate for _, rate in found)
    return [(directory, rate / total) for directory, rate in found]


def split_rate(text: str) -> tuple[str, Fraction | None]:
    """Split "DIRECTORY=RATE" into the directory and the rate, which may be missing (None)."""
    directory, _, rate = text.rpartition("=")
    if directory and not Path(text).exists() and _RATE.fullmatch(rate):
        return directory, Fraction(rate)
    return text, None


def _parse(text: str, *, alone: bool) -> tuple[str, Fraction]:
    directory, rate = split_rate(text)
    if rate is not None:
        return directory, rate
    if not alone:
        raise InputError(
            f"data.cache: {text!r} has no rate; write each of several caches as DIRECTORY=RATE, "
            f"as {text}=0.5"
        )
    return text, Fraction(1)


class Schedule:
    """Rule for the order in which the examples of several sources are mixed, given their rates.

    Attributes:
      period: number of examples after which the sequence of sources repeats.
    """

    def __init__(self, rates: Sequence[Fraction]):
        """Compute the sequence of sources for the given rates.

        Args:
          rates: positive rates of the sources; they must add up to 1.

        Raises:
          InputError: if the common denominator of the rates is more than `MAX_PERIOD`.
        """
        self.period = math.lcm(*(rate.denominator for rate in rates))
        if self.period > MAX_PERIOD:
            raise InputError(
                f"the rates of data.cache have the common denominator {self.period}, above the "
                f"maximum {MAX_PERIOD}; round the rates, so that they add up to 1 or 100"
            )
        weights = [int(rate * self.period) for rate in rates]
        self._weights = np.array(weights, np.int64)
        self._sources = np.array(_chairmen(weights), np.int64)
        chosen = self._sources[:, None] == np.arange(len(weights))
        self._before = np.zeros((self.period + 1, len(weights)), np.int64)
        self._before[1:] = chosen.cumsum(0)

    def at(
        self, places: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Return the source, and the index in this source, of each example of the mixture.

        Args:
          places: positions in the mixture, >= 0.

        Returns:
          (index of the source, index of the example in this source), int64.
        """
        periods, rest = np.divmod(places, self.period)
        sources = self._sources[rest]
        return sources, periods * self._weights[sources] + self._before[rest, sources]

    def counts(self, places: int) -> list[int]:
        """Return the number of examples of each source among the first `places` examples."""
        periods, rest = divmod(places, self.period)
        return (periods * self._weights + self._before[rest]).tolist()


def _chairmen(weights: Sequence[int]) -> list[int]:
    """Return an order (Tijdeman's) in which source i occurs weights[i] times, evenly spread."""
    if len(weights) == 1:
        return [0] * weights[0]
    period, slack = sum(weights), 2 * len(weights) - 2
    common = math.lcm(*weights)
    given, found = [0] * len(weights), []
    for place in range(1, period + 1):
        # Among the sources that are far enough behind, the one with the earliest deadline.
        _, chosen = min(
            ((period * (slack - 1) - slack * lag) * (common // weight), source)
            for source, weight in enumerate(weights)
            if slack * (lag := weight * place - period * given[source]) >= period
        )
        given[chosen] += 1
        found.append(chosen)
    return found


_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = 2**64


def order(
    places: Int[np.ndarray, " n"], epochs: Int[np.ndarray, " n"], *, size: int, seed: int
) -> Int[np.ndarray, " n"]:
    """Return the indices of the examples at given positions of randomly permuted epochs.

    Args:
      places: positions in [0, size).
      epochs: the epoch of each position, >= 0; every epoch has a different permutation.
      size: the number of examples, >= 1.
      seed: the run's seed, taken modulo 2**64.

    Returns:
      int64 indices in [0, size). The positions of one epoch have different indices.
    """
    half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    start = np.full(1, seed % _WORD, np.uint64)
    keys = _mix(_mix(start) + epochs.astype(np.uint64) * _GOLDEN)
    found = places.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        found[outside] = _feistel(found[outside], keys[outside], half)
        outside = outside[found[outside] >= size]
    return found.astype(np.int64)


def _feistel(
    values: UInt64[np.ndarray, " n"], keys: UInt64[np.ndarray, " n"], half: np.uint64
) -> UInt64[np.ndarray, " n"]:
    """Permute the integers below 4**half, with a different permutation for each key."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for number in range(_ROUNDS):
        keys = keys + _GOLDEN  # arrays wrap around without a warning
        left, right = right, left ^ (_mix(keys ^ (right + np.uint64(number))) & mask)
    return (left << half) | right


def _mix(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Apply SplitMix64's finalizer (Steele, Lea and Flood 2014), which mixes all bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


CACHE_PERIOD = 10_000
"""Common denominator of the rates of caches, if rates are computed from numbers of examples."""

_By = Literal["examples", "equal"]


@dataclass(frozen=True, kw_only=True)
class Mixing:
    """Configuration of the sampling rates of a mixture's tasks, or of several caches.

    Attributes:
      by: "examples" samples tasks in proportion to their numbers of training examples; "equal"
        samples all tasks equally often.
      maximum: limit K of the T5 paper on a task's number of examples when rates are computed; None
        for no limit.
      temperature: temperature T of the T5 paper: a rate is the T-th root of the number of examples;
        1 is proportional.
      unlabelled: rate of the mixture's unlabelled text, as a number of examples, independent of
        `maximum` and `temperature`. None keeps the mixture's value.
      leave_out: tasks that are neither trained on nor evaluated, each as a task ("tasks.glue:rte"),
        a module with all of its tasks ("tasks.glue"), the name of the task's metrics ("glue_rte"),
        or the function's name if it is unique ("dpr").
    """

    by: _By = "examples"
    maximum: Count | None = None
    temperature: Annotated[float, Above(0)] = 1.0
    unlabelled: Count | None = None
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_bounds(self, prefix="data.mixing.")
        if self.by == "equal" and self.unlabelled is not None:
            raise InputError(
                "data.mixing.unlabelled has no effect with data.mixing.by equal, which gives all "
                "tasks the same rate; unset data.mixing.unlabelled"
            )
        if self.by == "equal" and (self.maximum is not None or self.temperature != 1.0):
            raise InputError(
                "data.mixing.maximum and data.mixing.temperature have no effect with "
                "data.mixing.by equal, which gives all tasks the same rate; unset both"
            )

    def rate(self, num_examples: int) -> float:
        """Return the rate of a task with the given number of training examples."""
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
    """Return the sampling rate of a task with n training examples: min(scale * n, K) ** (1 / T).

    Args:
      num_examples: number of examples in the training split.
      maximum: limit K on the scaled number of examples; None or 0 for no limit.
      temperature: temperature T.
      scale: factor on the number of examples.
    """
    rate = num_examples * scale
    if maximum:
        rate = min(rate, maximum)
    if temperature != 1.0:
        rate = rate ** (1.0 / temperature)
    return float(rate)


def rate_unsupervised(value: float | int = 1e6) -> float:
    """Return the constant sampling rate of unlabelled text in T5's multi-task pretraining."""
    return float(value)


def cache_rates(rates: Sequence[float | int]) -> list[int]:
    """Round relative rates to positive integers that add up to `CACHE_PERIOD`.

    The largest remainders are rounded up, so each error is less than 1.

    Args:
      rates: positive rates; fewer than `CACHE_PERIOD`.
    """
    total = sum(rates)
    shares = [rate / total * CACHE_PERIOD for rate in rates]
    found = [max(1, math.floor(share)) for share in shares]
    while (missing := CACHE_PERIOD - sum(found)) != 0:
        step = 1 if missing > 0 else -1
        # The number furthest from its exact value in the needed direction; on a tie the first.
        able = [k for k in range(len(found)) if found[k] + step >= 1]
        chosen = max(able, key=lambda k: (step * (shares[k] - found[k]), -k))
        found[chosen] += step
    return found


class UnknownSize(InputError):
    """Error raised if the number of examples in an epoch is unknown."""


@dataclass(frozen=True)
class Epoch:
    """Numbers of examples and batches in one pass over the training data.

    Attributes:
      examples: number of examples.
      batches: approximate number of batches.
    """

    examples: int
    batches: float
