"""Masks: of weights by their scores, and of attention heads.

Masks of the model's weights: lottery tickets, supermasks, movement pruning, Piggyback.

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

Masks that are made of scores inside a step: the K highest, or those above a threshold.

    top(scores, k)          exactly k entries are True; equal scores go by the flat index
    straight_through(mask, scores)      mask, whose gradient goes to the scores as it is

The K-th score is looked for by halving the range of the numbers' bits, 32 times, so nothing is
sorted and k may be traced.

Masks of attention heads (Michel et al. 2019, arXiv:1905.10650).

    mask_h Att_h(x)         one number for each head of each layer, 1 at first: nothing changes

A mask of 0 prunes the head: `t5x-lite merge` writes the base with its rows of the output layer at
0. `t5x_lite.evaluate.loss` says which heads matter least. A mask that trains is a soft
gate of its head.
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
    """The k entries of highest score.

    Args:
      scores: float32, finite.
      k: int32 scalar, at least 1 and at most the number of entries.
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
    """The mask as 0 and 1; its gradient is that of the scores (Bengio et al. 2013)."""
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
    """Unsigned numbers in the order of the scores; -0.0 is 0.0."""
    bits = jax.lax.bitcast_convert_type(scores.astype(jnp.float32) + 0.0, jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _kth(keys: UInt32[Array, " D"], k: Array) -> UInt32[Array, ""]:
    """The k-th largest key: the highest one that k keys reach."""

    def bit(number: Array, limit: Array) -> Array:
        tried = limit | (_SIGN >> number.astype(jnp.uint32))
        return jnp.where(jnp.sum(keys >= tried, dtype=jnp.int32) >= k, tried, limit)

    return jax.lax.fori_loop(0, 32, bit, jnp.uint32(0))


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
    density: Annotated[float, In(0, 1, "(]")] = 0.5
    tau: float = 0.5
    start: float | None = None
    penalty: Annotated[float, AtLeast(0)] = 0.0
    rate: Annotated[float, Above(0)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tau(self.by, self.tau)

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


_HIDDEN = "attention/hidden"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heads(Adapter):
    """A mask of each attention head.

    Attributes:
      sites: the attentions, or regular expressions that match their hidden sites.
    """

    name: str = "heads"
    sites: tuple[str, ...] = ("(cross_)?attention/hidden",)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the masks.

        Raises:
          InputError: no attention is at a site.
        """
        stacks: dict[str, Any] = stacks_of(model)

        def mask(site: Site, rngs: nnx.Rngs) -> HeadMask:
            block = stacks[site.stack].hidden_sites()[site.name]
            return HeadMask(block.num_heads, block.d_kv)

        found = self.at_sites(
            model, hidden=mask, where=lambda site: site.name.endswith(_HIDDEN), rngs=rngs
        )
        if not found:
            raise InputError(f"adapter {self.name!r}: no attention is at {', '.join(self.sites)}")
        return Modules(found)


class HeadMask(nnx.Module):
    """A `HiddenSlot`: the mixed values of each head times its mask.

    Args:
      num_heads: H.
      d_kv: K.
    """

    def __init__(self, num_heads: int, d_kv: int):
        self.mask = nnx.Param(jnp.ones((num_heads,), jnp.float32), logical=("heads",))
        self.d_kv = d_kv

    def __call__(self, hidden: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """The masked values, in the dtype of the values."""
        return hidden * self._rows().astype(hidden.dtype)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """The rows times their heads' masks, in the dtype of W."""
        rows = self._rows().astype(jnp.float32)
        return (kernel.astype(jnp.float32) * rows[..., :, None]).astype(kernel.dtype)

    def parts(self) -> dict[str, Part]:
        """The change of the layer that reads the heads, as a part of a delta."""
        return {"kernel": Scale(self._rows(), -2)}

    def _rows(self) -> Float[Array, "*layers I"]:
        """The mask of each row of the layer that reads the heads, H K of them."""
        return jnp.repeat(self.mask[...], self.d_kv, axis=-1)
