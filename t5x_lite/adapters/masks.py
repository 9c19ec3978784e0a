"""Masks of weights, computed from scores, and masks of attention heads.

Masks of the model's weights: lottery tickets, supermasks, movement pruning, Piggyback.

    (W + difference) * mask

| method | difference | mask |
|---|---|---|
| `prune` | is trained | fixed, by the magnitude after each round (arXiv:1803.03635) |
| `supermask` | none: W is frozen | by trained scores (Ramanujan et al. 2020, arXiv:1911.13299) |
| `threshold` | none | by scores above 0.005, from 0.01 at first (Piggyback: Mallya et al. 2018) |
| `movement` | is trained | the fraction v of highest scores (Sanh et al. 2020, arXiv:2005.07683) |

The gradient of a score is taken as if the mask were the score itself: dL/d(W mask) * W. In a
stacked array, the fraction to keep applies to each layer by itself. Scores are part of a
checkpoint; a delta has only the mask, one bit for each entry.

Within a training step, a mask is computed from scores: the K highest, or all above a threshold.

    top(scores, k)          exactly k entries are True; ties are broken by flat index
    straight_through(mask, scores)      the mask; its gradient is passed to the scores unchanged

The K-th score is found by halving the range of the scores' bits 32 times, so nothing is sorted
and k may be traced.

Masks of attention heads (Michel et al. 2019, arXiv:1905.10650).

    mask_h Att_h(x)         one number for each head of each layer, 1 at first: nothing changes

A mask of 0 prunes the head: `t5x-lite merge` then writes the base with the head's rows of the
output layer set to 0. `t5x_lite.evaluate.results` measures the importance of heads. A trained mask
is a soft gate of its head.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, UInt32

from t5x_lite.adapters.adapter_tree import stacks_of
from t5x_lite.adapters.base import ADAPTERS, Adapter, Modules, Site
from t5x_lite.adapters.delta_parts import Dense, Mask, Part, Scale, unpacked
from t5x_lite.adapters.whole_arrays import (
    MOST_ROUNDS,
    ArrayAdapter,
    ArrayModule,
    ArrayModules,
    Leaf,
)
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, In, Whole
from t5x_lite.core.trees import Array, Key

_SIGN = np.uint32(1 << 31)


def top(scores: Float[Array, "*axes"], k: Array | int) -> Bool[Array, "*axes"]:
    """Return a boolean mask of the k entries with the highest scores.

    Args:
      scores: finite float32 scores.
      k: number of entries, an int32 scalar from 1 to the size of `scores`; may be traced.
    """
    keys = _ordered(scores.reshape(-1))
    limit = _kth(keys, jnp.asarray(k, jnp.int32))
    above, equal = keys > limit, keys == limit
    left = k - jnp.sum(above, dtype=jnp.int32)
    kept = above | (equal & (jnp.cumsum(equal, dtype=jnp.int32) <= left))
    return kept.reshape(scores.shape)


def straight_through(
    mask: Bool[Array, "*axes"], scores: Float[Array, "*axes"]
) -> Float[Array, "*axes"]:
    """Return the mask as floats; the gradient of the mask passes unchanged to the scores."""
    return _straight(scores, mask.astype(scores.dtype))


@jax.custom_jvp
def _straight(scores: Array, mask: Array) -> Array:
    del scores
    return mask


@_straight.defjvp
def _straight_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    return primals[1], tangents[0]


def _ordered(scores: Float[Array, " D"]) -> UInt32[Array, " D"]:
    """Map floats to unsigned integers with the same order; -0.0 equals 0.0."""
    bits = jax.lax.bitcast_convert_type(scores.astype(jnp.float32) + 0.0, jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _kth(keys: UInt32[Array, " D"], k: Array) -> UInt32[Array, ""]:
    """Return the k-th largest key by binary search over its 32 bits."""

    def bit(number: Array, limit: Array) -> Array:
        tried = limit | (_SIGN >> number.astype(jnp.uint32))
        return jnp.where(jnp.sum(keys >= tried, dtype=jnp.int32) >= k, tried, limit)

    return jax.lax.fori_loop(0, 32, bit, jnp.uint32(0))


By = Literal["top", "sigmoid", "value"]
_LEAST = 0.005
"""Minimum fraction of a layer's entries that a mask must keep."""
_KERNELS = (r"model/.*/kernel",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prune(ArrayAdapter):
    """Configuration of iterative magnitude pruning: train, prune, rewind the weights, and repeat.

    Attributes:
      targets: arrays to prune: paths, or regular expressions for paths; default: all kernels.
      density: fraction of the entries that remain after the last round.
      rounds: number of pruning rounds; each round prunes an equal fraction of the remaining
        entries. 0 is the smallest number of rounds that prune at most 20 % each.
      rewind_step: later rounds start from the weights after this step of the first round; 0 is the
        start of training.
      train_steps: number of training steps in each round before the last; 0 is the number of steps
        of the run.
      criterion: score after a round: "magnitude" of the entry, or absolute "change" from the base.
      scope: "global" prunes the lowest scores over all arrays, "per_tensor" a fraction of each
        array.
      structure: unit to prune: "entries", "rows" (inputs) or "columns" (outputs) of kernels; rows
        and columns are scored by their norms.
    """

    name: str = "prune"
    targets: tuple[str, ...] = _KERNELS
    density: Annotated[float, In(0, 1, "(]")] = 0.2
    rounds: Whole = 0
    rewind_step: Whole = 0
    train_steps: Whole = 0
    criterion: Literal["magnitude", "change"] = "magnitude"
    scope: Literal["global", "per_tensor"] = "global"
    structure: Literal["entries", "rows", "columns"] = "entries"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds > MOST_ROUNDS:
            raise InputError(
                f"adapter {self.name!r}: rounds must be at most {MOST_ROUNDS}, got {self.rounds}"
            )

    @property
    def densities(self) -> tuple[float, ...]:
        """Fraction of the entries that remains after each pruning round."""
        rounds = self.rounds or max(1, math.ceil(math.log(self.density) / math.log(0.8) - 1e-9))
        return tuple(self.density ** ((number + 1) / rounds) for number in range(rounds))

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return regular expressions for the trained weight differences; masks are not trained."""
        return self.trains_leaves(("difference",))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the weight differences, which start as 0, and masks that keep all entries.

        Raises:
          InputError: if `structure` is "rows" or "columns", but an array is a vector.
        """
        leaves = self.leaves(model)
        flat = [path for path, leaf in leaves.items() if len(leaf.rows[1]) < 2]
        if self.structure != "entries" and flat:
            raise InputError(
                f"adapter {self.name!r}: array {flat[0]} is a vector and has no {self.structure} "
                "to prune; exclude the array with the option targets"
            )
        return ArrayModules(leaves, lambda path, leaf: Pruned(leaf))


class Pruned(ArrayModule):
    """Adapter module that prunes one array: a fixed mask, and a trained weight difference.

    Args:
      leaf: shape and axes of the array.
    """

    def __init__(self, leaf: Leaf):
        self.difference = nnx.Param(jnp.zeros(leaf.shape, jnp.float32), logical=leaf.axes)
        whole = np.packbits(np.ones(leaf.size, bool))
        self.bits = nnx.Param(jnp.asarray(whole), logical=(None,))

    def __call__(self, base: Float[Array, "*axes"], *, key: Key | None) -> Float[Array, "*axes"]:
        """Return (base + difference) * mask, the pruned array."""
        del key
        moved = base + self.difference[...].astype(jnp.float32)
        return jnp.where(unpacked(self.bits[...], base.shape), moved, 0.0)

    def part(self, shape: tuple[int, ...]) -> Part:
        difference = Dense(np.asarray(self.difference[...], np.float32))
        return difference.then(Mask(np.asarray(self.bits[...]), shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supermask(ArrayAdapter):
    """Configuration of trained masks of frozen weights (supermasks).

    Attributes:
      targets: arrays to mask: paths, or regular expressions for paths; default: all kernels.
      by: rule of the mask: "top" keeps the highest scores, "sigmoid" keeps scores with a sigmoid
        above tau, "value" keeps scores above tau.
      density: fraction of each layer's entries that "top" keeps.
      tau: threshold of the rules "sigmoid" and "value".
      start: initial score; None samples U(+-1 / sqrt(inputs)), PyTorch's
        kaiming_uniform_(a=sqrt(5)).
      penalty: loss weight of the mean of sigmoid(scores).
      rate: learning rate of the scores, as a multiple of the run's learning rate.
    """

    name: str = "supermask"
    targets: tuple[str, ...] = _KERNELS
    by: By = "top"
    density: Annotated[float, In(0, 1, "(]")] = 0.5
    tau: float = 0.5
    start: float | None = None
    penalty: Annotated[float, AtLeast(0)] = 0.0
    rate: Annotated[float, Above(0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tau(self.by, self.tau)

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        return self.trains_leaves(("scores",))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the trained scores of the masked arrays."""
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
    """Return the config of Piggyback's thresholded masks (Mallya et al. 2018, arXiv:1801.06519)."""
    return Supermask(**{"name": name, "by": "value", "start": 1e-2, "tau": 5e-3, **changes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Movement(ArrayAdapter):
    """Configuration of movement pruning: trains weights together with scores of their importance.

    Attributes:
      targets: arrays to prune: paths, or regular expressions for paths; default: all kernels.
      density: final value of v, the fraction of each layer's entries to keep.
      by: rule of the mask: "top" keeps the fraction v of highest scores; "sigmoid" (soft movement
        pruning) keeps scores with a sigmoid above tau, and does not use v.
      tau: threshold of the rule "sigmoid".
      penalty: loss weight of the mean of sigmoid(scores), for the rule "sigmoid".
      rate: learning rate of the scores, as a multiple of the run's learning rate: with 100, 1e-4
        becomes 0.01.
      steps: number of steps of the run, over which v decreases; 0 is the number of steps of
        `t5x-lite train`.
      warmup: number of steps at the start with v = 1.
      cooldown: number of steps at the end with v = `density`.
    """

    name: str = "movement"
    targets: tuple[str, ...] = _KERNELS
    density: Annotated[float, In(0, 1, "(]")] = 0.15
    by: Literal["top", "sigmoid"] = "top"
    tau: float = 0.1
    penalty: Annotated[float, AtLeast(0)] = 0.0
    rate: Annotated[float, Above(0)] = 100.0
    steps: Whole = 0
    warmup: Whole = 0
    cooldown: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tau(self.by, self.tau)
        if self.steps and self.warmup + self.cooldown > self.steps:
            raise InputError(
                f"adapter {self.name!r}: warmup {self.warmup} plus cooldown {self.cooldown} "
                f"exceed the number of steps, {self.steps}"
            )

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return regular expressions for the trained scores and weight differences."""
        return self.trains_leaves(("scores", "difference"))

    def scheduled(self, step: Array) -> dict[str, Array]:
        return {f"{ADAPTERS}{self.name}/share/kept": self.kept(step)}

    def kept(self, step: Array) -> Array:
        """Return the fraction v of entries to keep at a step; cubic decay from 1 after warm-up."""
        length = max(1, self.steps - self.warmup - self.cooldown)
        progress = jnp.clip((step - self.warmup) / length, 0.0, 1.0)
        return jnp.float32(self.density + (1.0 - self.density) * (1.0 - progress) ** 3)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the trained scores and weight differences of pruned arrays; both start as 0."""
        leaves = self.leaves(model)
        mean = self.penalty / sum(leaf.size for leaf in leaves.values())

        def scored(path: str, leaf: Leaf) -> Scored:
            scores = jnp.zeros(leaf.shape, jnp.float32)
            return Scored(
                *(leaf, scores), by=self.by, tau=self.tau, penalty=mean, rate=self.rate, moves=True
            )

        return ScoredModules(leaves, scored, share=self.kept(jnp.int32(0)))


class Share(nnx.Module):
    """Parameter for the fraction of each layer's entries that masks keep.

    Args:
      kept: initial fraction.
    """

    def __init__(self, kept: Array | float):
        self.kept = nnx.Param(jnp.asarray(kept, jnp.float32), logical=())


class Scored(ArrayModule):
    """Adapter module of one array: a mask from trained scores, and possibly a weight difference.

    Args:
      leaf: shape and axes of the array.
      scores: initial value of the trained parameter; the mask's scores are `rate` times it.
      by: rule of the mask: "top" keeps the highest scores; "sigmoid" and "value" use tau.
      tau: threshold of the scores, or of their sigmoids.
      penalty: loss weight of the sum of sigmoid(scores).
      rate: number that multiplies the trained parameter.
      moves: True to train a weight difference as well.
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
        """Return the boolean mask. The rule "top" keeps the fraction `share` of each layer."""
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
        """Return (base + difference) * mask, or base * mask if no difference is trained."""
        moved = base + self.difference[...].astype(jnp.float32) if self.moves else base
        return moved * straight_through(self.kept(share), self._scores())

    def masked_part(self, shape: tuple[int, ...], share: Array) -> Part:
        """Return the change (base + difference) * mask, or base * mask without a difference."""
        mask = Mask.of(np.asarray(self.kept(share)).reshape(shape))
        if not self.moves:
            return mask
        return Dense(np.asarray(self.difference[...], np.float32)).then(mask)

    def penalty(self) -> Array | None:
        """Return the loss term of the scores; None if its weight is 0."""
        return self.weight * jnp.sum(jax.nn.sigmoid(self._scores())) if self.weight else None

    def _scores(self) -> Float[Array, "*axes"]:
        return self.rate * self.scores[...].astype(jnp.float32)


class ScoredModules(ArrayModules):
    """Modules of all arrays that one adapter masks, with a common fraction of kept entries.

    Args:
      leaves: path in the model -> shape and axes of the array.
      make: function (path, array) -> adapter module of the array.
      share: fraction of each layer's entries to keep.
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
        """Return the masked arrays of the model by path, in float32."""
        del key
        share, each = self.share.kept[...], {path: self._scored(path) for path in self.arrays}
        return {p: x.masked(model[p].astype(jnp.float32), share) for p, x in each.items()}

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        share, each = self.share.kept[...], {path: self._scored(path) for path in self.arrays}
        return {path: x.masked_part(shapes[path], share) for path, x in each.items()}

    def _scored(self, path: str) -> Scored:
        module = self.of(path)
        assert isinstance(module, Scored)
        return module


def _check_tau(by: By, tau: float) -> None:
    if by == "sigmoid" and not 0 < tau < 1:
        raise InputError(f"tau of a mask with by='sigmoid' must be between 0 and 1, got {tau}")


_HIDDEN = "attention/hidden"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heads(Adapter):
    """Configuration of attention head masks: one trained factor for each attention head.

    Attributes:
      sites: names of the attention layers with masks, or regular expressions for such names.
    """

    name: str = "heads"
    sites: tuple[str, ...] = ("(cross_)?attention/hidden",)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build one trained factor for each attention head that `sites` selects.

        Raises:
          InputError: if no attention layer matches `sites`.
        """
        stacks: dict[str, Any] = stacks_of(model)

        def mask(site: Site, rngs: nnx.Rngs) -> HeadMask:
            block = stacks[site.stack].hidden_sites()[site.name]
            return HeadMask(block.num_heads, block.d_kv)

        found = self.at_sites(
            model, hidden=mask, where=lambda site: site.name.endswith(_HIDDEN), rngs=rngs
        )
        if not found:
            raise InputError(
                f"adapter {self.name!r}: no attention layer matches sites {', '.join(self.sites)}"
            )
        return Modules(found)


class HeadMask(nnx.Module):
    """Adapter module that multiplies the output of each attention head by a trained factor.

    Args:
      num_heads: number H of attention heads.
      d_kv: size K of each head.
    """

    def __init__(self, num_heads: int, d_kv: int):
        self.mask = nnx.Param(jnp.ones((num_heads,), jnp.float32), logical=("heads",))
        self.d_kv = d_kv

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        return hidden * self._rows().astype(hidden.dtype)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """Return the output layer's kernel with each row multiplied by the factor of its head."""
        rows = self._rows().astype(jnp.float32)
        return (kernel.astype(jnp.float32) * rows[..., :, None]).astype(kernel.dtype)

    def parts(self) -> dict[str, Part]:
        return {"kernel": Scale(self._rows(), -2)}

    def _rows(self) -> Float[Array, "*layers I"]:
        return jnp.repeat(self.mask[...], self.d_kv, axis=-1)
