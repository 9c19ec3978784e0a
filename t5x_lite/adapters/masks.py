"""Masks of the model's weights: lottery tickets, supermasks, movement pruning, Piggyback.

    (W + difference) * mask

| method | difference | mask |
|---|---|---|
| `prune` | trains | fixed, by the magnitude after each round (arXiv:1803.03635) |
| `supermask` | none: W is frozen | of scores that train (Ramanujan et al. 2020, arXiv:1911.13299) |
| `threshold` | none | of real numbers from 0.01, above 0.005 (Piggyback: Mallya et al. 2018) |
| `movement` | trains | the share v of highest scores (Sanh et al. 2020, arXiv:2005.07683) |

The gradient of a score is that of the mask as if it were the score itself: dL/d(W mask) * W. Each
layer of a stacked array has a mask of its own share. Scores are part of a checkpoint; a delta has
the mask alone, one bit for each entry.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.adapters.arrays import Leaf
from t5x_lite.adapters.base import ADAPTERS, Modules
from t5x_lite.adapters.chosen import straight_through, top
from t5x_lite.adapters.whole_arrays import (
    MOST_ROUNDS,
    ArrayAdapter,
    ArrayModule,
    ArrayModules,
)
from t5x_lite.deltas.mask import Mask, unpacked
from t5x_lite.deltas.parts import Dense, Part
from t5x_lite.errors import InputError
from t5x_lite.types import Array, Key

By = Literal["top", "sigmoid", "value"]
_LEAST = 0.005
"""Share of a layer's entries that a mask keeps at least, those of highest scores."""
_KERNELS = (r"model/.*/kernel",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prune(ArrayAdapter):
    """Iterative magnitude pruning: train, drop the lowest, rewind, and again.

    Attributes:
      targets: kernels, or other arrays.
      density: share of the entries that are left after the last round.
      rounds: times that entries are dropped, each time the same share of what is left; 0 is as many
        as make that share 20 % at most.
      rewind_step: step of the first round to whose weights all rounds rewind; 0 is the beginning.
      train_steps: steps of each round before the last; 0 is those of the run.
      criterion: what is lowest: |theta_T|, or |theta_T - theta_0|.
      scope: whether the lowest of all arrays are dropped, or a share of each array.
      structure: whether entries are dropped, or whole rows (inputs) or columns (outputs) of
        kernels, by their norms.
    """

    name: str = "prune"
    targets: tuple[str, ...] = _KERNELS
    density: float = 0.2
    rounds: int = 0
    rewind_step: int = 0
    train_steps: int = 0
    criterion: Literal["magnitude", "change"] = "magnitude"
    scope: Literal["global", "per_tensor"] = "global"
    structure: Literal["entries", "rows", "columns"] = "entries"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_density(self.density)
        if min(self.rounds, self.rewind_step, self.train_steps) < 0:
            raise InputError("rounds, rewind_step and train_steps must be at least 0")
        if self.rounds > MOST_ROUNDS:
            raise InputError(f"rounds must be at most {MOST_ROUNDS}: got {self.rounds}")

    @property
    def densities(self) -> tuple[float, ...]:
        """The share that is left after each round."""
        rounds = self.rounds or max(1, math.ceil(math.log(self.density) / math.log(0.8) - 1e-9))
        return tuple(self.density ** ((number + 1) / rounds) for number in range(rounds))

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The differences; the masks stay."""
        return self.trains_leaves(("difference",))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes differences of 0, and masks that keep all.

        Raises:
          InputError: rows or columns of an array that has none.
        """
        leaves = self.leaves(model)
        flat = [path for path, leaf in leaves.items() if len(leaf.rows[1]) < 2]
        if self.structure != "entries" and flat:
            raise InputError(
                f"adapter {self.name!r}: {flat[0]} has no {self.structure}: leave it out by targets"
            )
        return ArrayModules(leaves, lambda path, leaf: Pruned(leaf))


class Pruned(ArrayModule):
    """A fixed mask, and a difference that trains under it.

    Args:
      leaf: the array.
    """

    def __init__(self, leaf: Leaf):
        self.difference = nnx.Param(jnp.zeros(leaf.shape, jnp.float32), logical=leaf.axes)
        whole = np.packbits(np.ones(leaf.size, bool))
        self.bits = nnx.Param(jnp.asarray(whole), logical=(None,))

    def __call__(self, base: Float[Array, "*axes"], *, key: Key | None) -> Float[Array, "*axes"]:
        """The array and the difference where the mask is 1."""
        del key
        moved = base + self.difference[...].astype(jnp.float32)
        return jnp.where(unpacked(self.bits[...], base.shape), moved, 0.0)

    def part(self, shape: tuple[int, ...]) -> Part:
        """A sum, and the mask."""
        difference = Dense(np.asarray(self.difference[...], np.float32))
        return difference.then(Mask(np.asarray(self.bits[...]), shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supermask(ArrayAdapter):
    """A mask that is learned of weights that are not.

    Attributes:
      targets: kernels, or other arrays.
      by: "top" keeps the highest scores, "sigmoid" those whose sigmoid is above tau, "value" those
        above tau.
      density: share of each layer that `top` keeps.
      tau: the threshold of the others.
      start: scores at first; None is U(+-1 / sqrt(inputs)), PyTorch's kaiming_uniform_(a=sqrt(5)).
      penalty: times the mean of sigmoid(scores), which is added to the loss.
      rate: how many times faster than the run's rate scores move.
    """

    name: str = "supermask"
    targets: tuple[str, ...] = _KERNELS
    by: By = "top"
    density: float = 0.5
    tau: float = 0.5
    start: float | None = None
    penalty: float = 0.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_density(self.density)
        _check_tau(self.by, self.tau)
        if self.penalty < 0 or self.rate <= 0:
            raise InputError("penalty must be at least 0 and rate above 0")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The scores."""
        return self.trains_leaves(("scores",))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the scores."""
        leaves = self.leaves(model)
        mean = self.penalty / sum(leaf.size for leaf in leaves.values())

        def scored(path: str, leaf: Leaf) -> Scored:
            if self.start is not None:
                scores = jnp.full(leaf.shape, self.start, jnp.float32)
            else:
                end = 1.0 / math.sqrt(
                    leaf.rows[1][-2] if len(leaf.rows[1]) > 1 else math.prod(leaf.rows[1])
                )
                scores = jax.random.uniform(rngs.params(), leaf.shape, jnp.float32, -end, end)
            return Scored(
                leaf, scores / self.rate, by=self.by, tau=self.tau, penalty=mean, rate=self.rate
            )

        return ScoredModules(leaves, scored, share=self.density)


def threshold(*, name: str = "threshold", **changes: Any) -> Supermask:
    """Piggyback's masks (Mallya et al. 2018, arXiv:1801.06519)."""
    return Supermask(**{"name": name, "by": "value", "start": 1e-2, "tau": 5e-3, **changes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Movement(ArrayAdapter):
    """Movement pruning: weights and their scores train together.

    Attributes:
      targets: kernels, or other arrays.
      density: v at the end, the share of each layer that is kept.
      by: "top" keeps the share v of highest scores; "sigmoid" (soft movement) those whose sigmoid
        is above tau, and v is not used.
      tau: the threshold of "sigmoid".
      penalty: times the mean of sigmoid(scores), which is added to the loss, of "sigmoid".
      rate: how many times faster than the run's rate scores move: 100 is a rate of 0.01 where
        AdamW's is 1e-4.
      steps: of the run, over which v falls; 0 is those of the run that `t5x-lite train` makes.
      warmup: steps at the beginning in which v is 1.
      cooldown: steps at the end in which v is `density`.
    """

    name: str = "movement"
    targets: tuple[str, ...] = _KERNELS
    density: float = 0.15
    by: Literal["top", "sigmoid"] = "top"
    tau: float = 0.1
    penalty: float = 0.0
    rate: float = 100.0
    steps: int = 0
    warmup: int = 0
    cooldown: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_density(self.density)
        _check_tau(self.by, self.tau)
        if self.penalty < 0 or self.rate <= 0:
            raise InputError("penalty must be at least 0 and rate above 0")
        if min(self.steps, self.warmup, self.cooldown) < 0:
            raise InputError("steps, warmup and cooldown must be at least 0")
        if self.steps and self.warmup + self.cooldown > self.steps:
            raise InputError(
                f"warmup {self.warmup} and cooldown {self.cooldown} of {self.name!r} are more than "
                f"the {self.steps} steps"
            )

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Scores and differences; the share follows from the step."""
        return self.trains_leaves(("scores", "difference"))

    def scheduled(self, step: Array) -> dict[str, Array]:
        """The share v after a number of steps."""
        return {f"{ADAPTERS}{self.name}/share/kept": self.kept(step)}

    def kept(self, step: Array) -> Array:
        """v: 1, and between warm-ups v_end + (1 - v_end)(1 - progress)^3."""
        length = max(1, self.steps - self.warmup - self.cooldown)
        progress = jnp.clip((step - self.warmup) / length, 0.0, 1.0)
        return jnp.float32(self.density + (1.0 - self.density) * (1.0 - progress) ** 3)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes scores and differences of 0."""
        leaves = self.leaves(model)
        mean = self.penalty / sum(leaf.size for leaf in leaves.values())

        def scored(path: str, leaf: Leaf) -> Scored:
            scores = jnp.zeros(leaf.shape, jnp.float32)
            return Scored(
                *(leaf, scores), by=self.by, tau=self.tau, penalty=mean, rate=self.rate, moves=True
            )

        return ScoredModules(leaves, scored, share=self.kept(jnp.int32(0)))


class Share(nnx.Module):
    """The share of each layer that masks by the highest scores keep.

    Args:
      kept: the share at first.
    """

    def __init__(self, kept: Array | float):
        self.kept = nnx.Param(jnp.asarray(kept, jnp.float32), logical=())


class Scored(ArrayModule):
    """A mask of scores, and where the array moves a difference.

    Args:
      leaf: the array.
      scores: at first, over `rate`.
      by: as `Supermask` has it.
      tau: the threshold.
      penalty: times the sum of sigmoid(scores), which is added to the loss.
      rate: what scores are multiplied with.
      moves: whether there is a difference.
    """

    def __init__(
        self,
        leaf: Leaf,
        scores: Array,
        *,
        by: By,
        tau: float,
        penalty: float,
        rate: float,
        moves: bool = False,
    ):
        self.stacked, self.moves = leaf.is_stacked, moves
        self.by, self.tau, self.weight, self.rate = by, tau, penalty, rate
        self.scores = nnx.Param(scores, logical=leaf.axes)
        if moves:
            self.difference = nnx.Param(jnp.zeros(leaf.shape, jnp.float32), logical=leaf.axes)

    def kept(self, share: Array | None) -> Bool[Array, "*axes"]:
        """The mask, where a share of each layer is kept."""
        scores = self._scores()
        rows = scores if self.stacked else scores[None]
        size = math.prod(rows.shape[1:])
        k: Any = math.ceil(_LEAST * size)
        if self.by == "top":
            wished = jnp.round(jnp.asarray(share, jnp.float32) * size).astype(jnp.int32)
            k = jnp.clip(wished, k, size)
        highest = jax.vmap(lambda row: top(row, k))(rows).reshape(scores.shape)
        if self.by == "top":
            return highest
        values = scores if self.by == "value" else jax.nn.sigmoid(scores)
        return (values > self.tau) | highest

    def masked(self, base: Float[Array, "*axes"], share: Array) -> Float[Array, "*axes"]:
        """The array and its difference where the mask is 1."""
        moved = base + self.difference[...].astype(jnp.float32) if self.moves else base
        return moved * straight_through(self.kept(share), self._scores())

    def masked_part(self, shape: tuple[int, ...], share: Array) -> Part:
        """The mask, after the difference."""
        mask = Mask.of(np.asarray(self.kept(share)).reshape(shape))
        if not self.moves:
            return mask
        return Dense(np.asarray(self.difference[...], np.float32)).then(mask)

    def penalty(self) -> Array | None:
        """The penalty of the scores; None where that is 0."""
        return self.weight * jnp.sum(jax.nn.sigmoid(self._scores())) if self.weight else None

    def _scores(self) -> Float[Array, "*axes"]:
        return self.rate * self.scores[...].astype(jnp.float32)


class ScoredModules(ArrayModules):
    """Masks by scores, of one share.

    Args:
      leaves: path in the model -> array.
      make: (path, array) -> its module.
      share: that each layer keeps.
    """

    def __init__(
        self,
        leaves: Mapping[str, Leaf],
        make: Callable[[str, Leaf], Scored],
        *,
        share: Array | float,
    ):
        super().__init__(leaves, make)
        self.share = Share(share)

    def read(self, model: Mapping[str, Array], *, key: Key | None = None) -> dict[str, Array]:
        """The masked arrays in float32."""
        del key
        share, each = self.share.kept[...], {path: self._scored(path) for path in self.arrays}
        return {p: x.masked(model[p].astype(jnp.float32), share) for p, x in each.items()}

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        """The masks as parts of a delta, by path in the model."""
        share, each = self.share.kept[...], {path: self._scored(path) for path in self.arrays}
        return {path: x.masked_part(shapes[path], share) for path, x in each.items()}

    def _scored(self, path: str) -> Scored:
        module = self.of(path)
        assert isinstance(module, Scored)
        return module


def _check_tau(by: By, tau: float) -> None:
    if by == "sigmoid" and not 0 < tau < 1:
        raise InputError(f"tau of by='sigmoid' must be between 0 and 1: got {tau}")


def _check_density(density: float) -> None:
    if not 0.0 < density <= 1.0:
        raise InputError(f"density must be above 0 and at most 1: got {density}")
