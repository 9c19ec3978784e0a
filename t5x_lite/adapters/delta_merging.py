"""Ways to make one delta of several.

Ways to make one delta of several, as frozen configs.

    merge([a, b], Ties(density=0.2))
    merge([a, b], Svd(rank=8), weights=(0.5, 0.5))

| how | the result, of deltas d_i with weights w_i |
|---|---|
| `Linear` | sum w_i d_i of what is added: ranks are concatenated, which is exact |
| `Svd` | the nearest product of a rank to that |
| `Ties` | `t5x_lite.adapters.delta_merging` |
| `Dare` | entries dropped with probability p, the others divided by 1 - p, then another way |
| `Fisher` | sum w_i F_i d_i / sum w_i F_i |
| `AverageFactors`, `Zhang`, `PeftLinear` | of LoRA's factors, as libraries do; see there |

An array that a delta lacks is 0 there. Arrays are made one path after the other.

TIES: trim, elect signs, and take the mean of those that agree (Yadav et al. 2023).

    1 trim    of each delta, weighted, the `density` of largest magnitude stays, over all entries
              of the arrays that it changes
    2 elect   the sign of an entry is that of the sum; of sum 0, that of the sum of all signs
    3 mean    of the entries that are not 0 and have that sign; times `scale`

arXiv:2306.01708. Other libraries trim each array by itself, or elect before they weight.
"""

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_parts import Dense, LowRank, Part
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import In, Rate, check_bounds


@dataclasses.dataclass(frozen=True)
class How:
    """Base of the ways to merge."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """The merged delta; see `merge`."""
        raise TypeError(f"{type(self).__name__} does not define merged")


def merge(
    deltas: Sequence[Delta], how: How | None = None, *, weights: Sequence[float | int] = ()
) -> Delta:
    """One delta of several of one base.

    Args:
      deltas: one at least; heads of one name must be equal, or be left out of all but one.
      how: `Linear()` by default.
      weights: one for each; all 1 by default.

    Raises:
      InputError: different bases, weights of another number, parts that are no sums, or what the
        way refuses.
    """
    if not deltas:
        raise InputError("there is nothing to merge: give one delta at least")
    weights = tuple(weights) or (1.0,) * len(deltas)
    if len(weights) != len(deltas):
        raise InputError(f"there are {len(deltas)} deltas and {len(weights)} weights")
    for delta in deltas:
        delta.check_additive()
    return (how or Linear()).merged(deltas, weights)


@dataclasses.dataclass(frozen=True)
class Linear(How):
    """The weighted sum of what is added. Products add by concatenating their factors."""

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """sum w_i d_i."""
        terms = [weight * delta for delta, weight in zip(deltas, weights, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


@dataclasses.dataclass(frozen=True)
class Svd(How):
    """The best approximation of the weighted sum by products of a rank.

    Attributes:
      rank: of every kernel.
    """

    rank: int

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """The singular vectors of the largest values of sum w_i d_i."""
        return Linear().merged(deltas, weights).factor(self.rank)


@dataclasses.dataclass(frozen=True)
class Dare(How):
    """Drop and rescale (Yu et al. 2023, arXiv:2311.03099).

    Delta number i of a merge draws with the key fold_in(k, crc32(path)), where k is key(seed) of
    the first, number 0, and fold_in(key(seed), i) of others.

    Attributes:
      p: probability that an entry is dropped; libraries call 1 - p the density.
      seed: of what is dropped; from 0 to below 2^31.
      then: how the rest is merged.
    """

    p: Rate
    seed: int = 0
    then: How = dataclasses.field(default_factory=Linear)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed must be from 0 to below 2^31: got {self.seed}")

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """The other way, of what is left of each delta."""
        thinned = []
        for number, delta in enumerate(deltas):
            parts: dict[str, Part] = {
                path: Dense(self._kept(path, part, number)) for path, part in delta.parts.items()
            }
            thinned.append(dataclasses.replace(delta, parts=parts))
        return self.then.merged(thinned, weights)

    def _kept(self, path: str, part: Part, number: int) -> np.ndarray:
        value = part.dense()
        kept = dare_mask(path, value.shape, p=self.p, seed=self.seed, number=number)
        return np.where(kept, value / np.float32(1.0 - self.p), np.float32(0.0))


def dare_mask(
    path: str, shape: tuple[int, ...], *, p: float, seed: int, number: int = 0
) -> np.ndarray:
    """Which entries of an array `Dare` keeps of the delta of a number; booleans."""
    key = jax.random.key(seed)
    if number:
        key = jax.random.fold_in(key, number)
    key = jax.random.fold_in(key, np.uint32(zlib.crc32(path.encode())))
    return np.asarray(jax.random.bernoulli(key, 1.0 - p, shape))


@dataclasses.dataclass(frozen=True, eq=False)
class Fisher(How):
    """Weighted by the diagonal of each Fisher matrix (Matena and Raffel 2021, arXiv:2111.09832).

    Attributes:
      diagonals: of each delta, by path; a path that both lack counts the floor.
      normalize: whether each is divided by its L2 norm.
      floor: what they are at least.
    """

    diagonals: Sequence[Mapping[str, Any]]
    normalize: bool = True
    floor: float = 1e-6

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """sum w_i F_i d_i / sum w_i F_i, entry by entry."""
        if len(self.diagonals) != len(deltas):
            raise InputError(
                f"there are {len(deltas)} deltas and {len(self.diagonals)} Fisher diagonals"
            )
        if any(weight <= 0 for weight in weights):
            raise InputError(f"fisher weights must be above 0: got {tuple(weights)}")
        norms = [self._norm(diagonal) for diagonal in self.diagonals]

        def combined(path: str, values: Sequence[np.ndarray]) -> np.ndarray:
            above, below = np.zeros_like(values[0]), np.zeros_like(values[0])
            for i, value in enumerate(values):
                if path in deltas[i].parts and path not in self.diagonals[i]:
                    raise InputError(
                        f"a Fisher diagonal lacks {path}, which its delta changes: it is of "
                        "another model"
                    )
                diagonal = self.diagonals[i].get(path, np.zeros(value.shape, np.float32))
                if tuple(diagonal.shape) != value.shape:
                    raise InputError(
                        f"the Fisher diagonal of {path} has shape {tuple(diagonal.shape)}, and the "
                        f"array {value.shape}"
                    )
                share = np.maximum(np.asarray(diagonal, np.float32), np.float32(self.floor))
                share = np.float32(weights[i] / norms[i]) * share
                above, below = above + share * value, below + share
            return above / below

        return by_path(deltas, combined)

    def _norm(self, diagonal: Mapping[str, Any]) -> float:
        if not self.normalize:
            return 1.0
        squares = (float(np.sum(np.square(np.asarray(x, np.float64)))) for x in diagonal.values())
        return math.sqrt(sum(squares)) or 1.0


@dataclasses.dataclass(frozen=True)
class AverageFactors(How):
    """A = sum w_i A_i, B = sum w_i B_i (`linear` of the library adapters).

    The product has cross terms w_i w_j A_i B_j, so it is the sum for equal factors alone; a weight
    of -1 turns both factors round and changes nothing.
    """

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """The sums of the factors."""
        return _of_factors(deltas, weights, weights, what="average_factors")


@dataclasses.dataclass(frozen=True)
class Zhang(How):
    """A = sum abs(w_i) A_i, B = sum w_i B_i (Zhang et al. 2023, arXiv:2306.14870).

    One adapter alone is negated rightly; cross terms remain. For parity with the library adapters.
    """

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """The sums of the factors."""
        return _of_factors(deltas, [abs(w) for w in weights], weights, what="zhang")


@dataclasses.dataclass(frozen=True)
class PeftLinear(How):
    """A = sum sgn sqrt(abs(w_i s_i)) A_i, B = sum sqrt(abs(w_i s_i)) B_i (PEFT's `linear`).

    Of n equal adapters at weights 1 / n it gives n times one. For parity with PEFT.
    """

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """The sums of the factors; the scales are in them."""
        return _of_factors(deltas, weights, weights, what="peft_linear", roots=True)


def _of_factors(
    deltas: Sequence[Delta],
    for_a: Sequence[float | int],
    for_b: Sequence[float | int],
    *,
    what: str,
    roots: bool = False,
) -> Delta:
    """Sums of factors; with `roots`, of their square roots with the scales."""
    whole = together(deltas)
    parts: dict[str, Part] = {}
    for path in sorted({path for delta in deltas for path in delta.parts}):
        low = [part for d in deltas if isinstance(part := d.parts.get(path), LowRank)]
        if len(low) < len(deltas) or len({part.rank for part in low}) > 1:
            raise InputError(f"{what} is for LoRAs of one rank at the same places: {path} is none")
        if roots:
            sizes = [math.sqrt(abs(w * part.scale)) for w, part in zip(for_a, low, strict=True)]
            signs = [math.copysign(1.0, w * p.scale) for w, p in zip(for_a, low, strict=True)]
            ones, twos = [s * r for s, r in zip(signs, sizes, strict=True)], sizes
        elif len({part.scale for part in low}) > 1:
            raise InputError(f"{what} is for LoRAs of one scale: those of {path} differ")
        else:
            ones, twos = list(for_a), list(for_b)
        scale = 1.0 if roots else low[0].scale
        a = sum(np.float32(w) * np.asarray(p.a) for w, p in zip(ones, low, strict=True))
        b = sum(np.float32(w) * np.asarray(p.b) for w, p in zip(twos, low, strict=True))
        parts[path] = LowRank(a, b, scale)
    return dataclasses.replace(whole, parts=parts)


def together(deltas: Sequence[Delta]) -> Delta:
    """What deltas of one base have besides their parts.

    Raises:
      InputError: different bases, modules that this way of merging cannot add, or two heads.
    """
    for delta in deltas:
        if delta.config and len(deltas) > 1:
            raise InputError(
                f"the module {delta.config[0].name} is added by linear alone: this way of merging "
                "is for what kernels hold"
            )
    total = dataclasses.replace(deltas[0], parts={})
    for delta in deltas[1:]:
        total = total + dataclasses.replace(delta, parts={})
    return total


def by_path(
    deltas: Sequence[Delta], combined: Callable[[str, Sequence[np.ndarray]], np.ndarray]
) -> Delta:
    """Dense parts of what a function makes of each path's arrays, with zeros for absent ones."""
    whole = together(deltas)
    parts: dict[str, Part] = {}
    for path in sorted({path for delta in deltas for path in delta.parts}):
        parts[path] = Dense(combined(path, values_at(deltas, path)))
    return dataclasses.replace(whole, parts=parts)


def values_at(deltas: Sequence[Delta], path: str) -> list[np.ndarray]:
    """What each delta adds to an array; zeros where it adds nothing.

    Raises:
      InputError: their shapes differ.
    """
    shapes = {delta.parts[path].shape for delta in deltas if path in delta.parts}
    if len(shapes) > 1:
        raise InputError(f"the deltas change {path} of different shapes: {sorted(shapes)}")
    [shape] = shapes
    return [
        delta.parts[path].dense() if path in delta.parts else np.zeros(shape, np.float32)
        for delta in deltas
    ]


@dataclasses.dataclass(frozen=True)
class Ties(How):
    """TIES merging of what is added to the arrays.

    Attributes:
      density: the share of a delta's entries that stays.
      scale: of the result; the paper's lambda.
    """

    density: Annotated[float, In(0, 1, "(]")] = 0.2
    scale: float = 1.0

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """The three steps.

        Raises:
          InputError: a weight is negative.
        """
        if any(weight < 0 for weight in weights):
            raise InputError(
                f"ties elects signs, so its weights may not be negative: got {tuple(weights)}; "
                "subtract the delta from the result"
            )
        kept = [delta.sparsify(density=self.density) for delta in deltas]
        thin = [weight * delta for delta, weight in zip(kept, weights, strict=True)]
        paths = sorted({path for delta in thin for path in delta.parts})
        signs = sum(float(np.sum(np.sign(sum(values_at(thin, path))))) for path in paths)
        majority = np.float32(np.sign(signs))
        return by_path(thin, self._mean(majority))

    def _mean(self, majority: np.float32) -> Callable[[str, Sequence[np.ndarray]], np.ndarray]:
        def mean(path: str, values: Sequence[np.ndarray]) -> np.ndarray:
            del path
            sign = np.sign(sum(values))
            sign = np.where(sign == 0, majority, sign)
            total, count = np.zeros_like(values[0]), np.zeros_like(values[0])
            for value in values:
                agrees = (np.sign(value) == sign) & (value != 0)
                total += np.where(agrees, value, 0)
                count += agrees
            return np.float32(self.scale) * total / np.maximum(count, 1)

        return mean
