"""Sparse fine-tuning: K numbers of the model train, and all others stay as they are, bit for bit.

    W + scatter(values)         values [k] and their places, int32 [k], for each array

Training in phases chooses the places (`t5x_lite.run.phases`), and `entries` says how many each
array has. The optimizer's state is of [K] numbers; the dense gradient of an array lives within
the step.

| select | score of an entry | phases |
|---|---|---|
| `lottery`, `change` | abs(theta_T - theta_0) (LT-SFT, arXiv:2110.07560) | full, sparse |
| `magnitude` | abs(theta_T); without full_steps abs(theta_0) | full, sparse |
| `fisher` | mean squared gradient of an example (FISH, arXiv:2111.09839) | sparse |
| `random` | drawn by the seed | sparse |

`Diff` is diff pruning (Guo et al. 2021, arXiv:2012.07463): z w, where z in [0, 1] is drawn of a
hard concrete distribution (Louizos et al. 2018) whose log alpha trains; the K largest products are
then the values of a sparse phase.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.arrays import Leaf
from t5x_lite.adapters.base import Modules
from t5x_lite.adapters.whole_arrays import (
    MOST_ROUNDS,
    ArrayAdapter,
    ArrayModule,
    ArrayModules,
)
from t5x_lite.deltas import parts
from t5x_lite.errors import InputError
from t5x_lite.types import Array, Key

Select = Literal["lottery", "change", "magnitude", "fisher", "random"]
Scope = Literal["global", "per_tensor"]
Entries = tuple[tuple[str, int], ...]

VALUES, INDICES = "values", "indices"
_DRAWS = 1e-4
"""u is drawn from U(1e-4, 1 - 1e-4)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen(ArrayAdapter):
    """Base of the adapters that end as K values at chosen places.

    Attributes:
      density: K is round(density * entries of the arrays).
      scope: whether the K highest scores of all arrays are chosen, or a share of each array.
      entries: how many numbers each array has, by its path in the model; training states it when
        the places are chosen.
    """

    density: float = 0.005
    scope: Scope = "global"
    entries: Entries = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.density <= 1.0:
            raise InputError(f"density must be above 0 and at most 1: got {self.density}")
        if any(number < 1 for _, number in self.entries):
            raise InputError("entries has arrays with at least one number each")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The values; their places stay."""
        return self.trains_leaves((VALUES,))

    def chosen(self, model: nnx.Module, *, l1: float = 0.0) -> ArrayModules:
        """The modules of `entries`.

        Raises:
          InputError: there are none yet, or the model has no such arrays.
        """
        if not self.entries:
            raise InputError(
                f"adapter {self.name!r}: its entries are not chosen yet, which `t5x-lite train` "
                "does"
            )
        numbers, leaves = dict(self.entries), self.leaves(model)
        for path, number in numbers.items():
            if path not in leaves or number > leaves[path].size:
                raise InputError(
                    f"adapter {self.name!r}: the model has no array {path} with {number} entries"
                )
        total = sum(leaf.size for leaf in leaves.values())
        return ArrayModules(
            {path: leaves[path] for path in numbers},
            lambda path, leaf: Places(numbers[path], l1=l1 / total),
            exclusive=False,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseTuning(Chosen):
    """K numbers of the model.

    Attributes:
      select: by what score they are chosen.
      full_steps: steps of the phase that trains all arrays and is then undone; 0 is those of the
        run, where the score needs such a phase, and none where it does not.
      rounds: times that K / rounds entries are chosen more, of `lottery`.
      sparse_steps: steps of the sparse phase of each round before the last; 0 is those of the run.
      l1: times the mean of |theta - theta_0| over all arrays, which is added to the loss.
      examples: n, of `fisher`.
      labels: of `fisher`: those of the data, or all classes, each by its probability.
    """

    name: str = "sparse"
    select: Select = "lottery"
    full_steps: int = 0
    rounds: int = 1
    sparse_steps: int = 0
    l1: float = 0.0
    examples: int = 1024
    labels: Literal["empirical", "expected"] = "empirical"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.full_steps < 0 or self.sparse_steps < 0 or self.l1 < 0:
            raise InputError("full_steps, sparse_steps and l1 must be at least 0")
        if self.rounds < 1 or self.examples < 1:
            raise InputError("rounds and examples must be at least 1")
        if self.rounds > MOST_ROUNDS:
            raise InputError(f"rounds must be at most {MOST_ROUNDS}: got {self.rounds}")
        if self.rounds > 1 and self.select != "lottery":
            raise InputError(f"rounds are those of select='lottery': got {self.select!r}")
        if self.full_steps and self.select in ("fisher", "random"):
            raise InputError(f"select={self.select!r} has no full phase: leave out full_steps")

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the values, which are 0.

        Raises:
          InputError: the entries are not chosen yet.
        """
        return self.chosen(model, l1=self.l1)


class Places(ArrayModule):
    """Values at some places of an array.

    Args:
      number: k.
      l1: times the sum of their magnitudes, which is a penalty.
    """

    def __init__(self, number: int, *, l1: float = 0.0):
        self.l1 = l1
        self.values = nnx.Param(jnp.zeros((number,), jnp.float32), logical=(None,))
        self.indices = nnx.Param(jnp.arange(number, dtype=jnp.int32), logical=(None,))

    def __call__(self, base: Float[Array, "*axes"], *, key: Key | None) -> Float[Array, "*axes"]:
        """The array with the values added."""
        del key
        flat = base.reshape(-1).at[self.indices[...]]
        values = self.values[...].astype(jnp.float32)
        return flat.add(values, unique_indices=True, indices_are_sorted=True).reshape(base.shape)

    def part(self, shape: tuple[int, ...]) -> parts.Part:
        """A sparse sum."""
        values = np.asarray(self.values[...], np.float32)
        return parts.Sparse(np.asarray(self.indices[...]), values, shape)

    def penalty(self) -> Array | None:
        """The penalty of l1; None where that is 0."""
        return self.l1 * jnp.sum(jnp.abs(self.values[...])) if self.l1 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diff(Chosen):
    """Diff pruning: a relaxed phase, and then K numbers of the model.

    Attributes:
      relaxed_steps: steps of the relaxed phase; 0 is those of the run.
      l: lower end of the stretched interval, below 0.
      r: its upper end, above 1.
      alpha0: log alpha at first.
      penalty: times the expected number of entries that are not 0.
      alpha_rate: how many times faster than the run's rate log alpha moves: 1000 is a rate of 0.1
        where AdamW's is 1e-4.
      structured: whether each layer of an array has a z of its own besides, and is 0 with it.
    """

    name: str = "diff"
    relaxed_steps: int = 0
    l: float = -1.5  # noqa: E741
    r: float = 1.5
    alpha0: float = 5.0
    penalty: float = 1.25e-7
    alpha_rate: float = 1000.0
    structured: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.l < 0.0 or not self.r > 1.0:
            raise InputError(f"l must be below 0 and r above 1: got {self.l} and {self.r}")
        if self.penalty < 0 or self.relaxed_steps < 0 or self.alpha_rate <= 0:
            raise InputError("penalty and relaxed_steps must be at least 0, alpha_rate above 0")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """All of the relaxed phase, and then the values."""
        if self.entries:
            return super().trains(paths)
        return (f"adapters/{self.name}",)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the relaxed differences, or the chosen ones, which are 0."""
        if self.entries:
            return self.chosen(model)
        return ArrayModules(self.leaves(model), lambda path, leaf: Relaxed(leaf, self))


class Relaxed(ArrayModule):
    """A difference z w from an array.

    Args:
      leaf: the array.
      diff: the method's numbers.
    """

    def __init__(self, leaf: Leaf, diff: Diff):
        self.diff = diff
        num, _ = leaf.rows
        zeros = jnp.zeros(leaf.shape, jnp.float32)
        self.difference = nnx.Param(zeros, logical=leaf.axes)
        self.alpha = nnx.Param(zeros, logical=leaf.axes)
        self.has_group = diff.structured
        if diff.structured:
            group = (num, *[1] * (len(leaf.shape) - 1)) if leaf.is_stacked else ()
            self.group = nnx.Param(jnp.zeros(group, jnp.float32), logical=(None,) * len(group))

    def _alphas(self) -> tuple[Array, ...]:
        """log alpha of each entry, and of each layer."""
        own = (self.alpha[...], *((self.group[...],) if self.has_group else ()))
        raised = (self.diff.alpha_rate * jnp.asarray(x, jnp.float32) for x in own)
        return tuple(self.diff.alpha0 + x for x in raised)

    def _product(self, key: Key | None) -> Array:
        product = self.difference[...].astype(jnp.float32)
        for number, alpha in enumerate(self._alphas()):
            own = None if key is None else jax.random.fold_in(key, number)
            product = product * gate(alpha, l=self.diff.l, r=self.diff.r, key=own)
        return product

    def __call__(self, base: Float[Array, "*axes"], *, key: Key | None) -> Float[Array, "*axes"]:
        """The array with z w; without a key z is that of evaluation."""
        return base + self._product(key)

    def part(self, shape: tuple[int, ...]) -> parts.Part:
        """The difference as in evaluation."""
        del shape
        return parts.Dense(np.asarray(self._product(None)))

    def penalty(self) -> Array | None:
        """The expected number of entries, and of layers, that are not 0, times `penalty`."""
        shift = math.log(-self.diff.l / self.diff.r)
        total = sum((jnp.sum(jax.nn.sigmoid(a - shift)) for a in self._alphas()), jnp.float32(0))
        return self.diff.penalty * total if self.diff.penalty else None


def gate(
    alpha: Float[Array, "*axes"],
    *,
    l: float,  # noqa: E741
    r: float,
    key: Key | None,
) -> Float[Array, "*axes"]:
    """z in [0, 1] of a hard concrete distribution (Louizos et al. 2018, arXiv:1712.01312).

    Args:
      alpha: its log alpha.
      l: lower end of the stretched interval.
      r: upper end.
      key: of the draw; None is the middle, as in evaluation.
    """
    logits = alpha
    if key is not None:
        u = jax.random.uniform(key, alpha.shape, jnp.float32, _DRAWS, 1.0 - _DRAWS)
        logits = jnp.log(u) - jnp.log1p(-u) + alpha
    return jnp.clip(jax.nn.sigmoid(logits) * (r - l) + l, 0.0, 1.0)
