"""Training of some values of the base: sparse, selected entries, BitFit, a random subspace.

Adapters that train some values of the base model: sparse fine-tuning, diff pruning, BitFit.

Sparse fine-tuning: K values of the model are trained; all others do not change, bit for bit.

    W + scatter(values)         values [k] and their indices, int32 [k], for each array

Training in phases chooses the indices (`t5x_lite.train.phases`), and `entries` holds the number of
them in each array. The optimizer state has size [K]; the dense gradient of an array exists only
within the step.

| select | score of an entry | phases |
|---|---|---|
| `lottery`, `change` | abs(theta_T - theta_0) (LT-SFT, arXiv:2110.07560) | full, sparse |
| `magnitude` | abs(theta_T); without full_steps abs(theta_0) | full, sparse |
| `fisher` | mean squared gradient of an example (FISH, arXiv:2111.09839) | sparse |
| `random` | random, by the seed | sparse |

`Diff` is diff pruning (Guo et al. 2021, arXiv:2012.07463): z w, where z in [0, 1] is sampled from a
hard concrete distribution (Louizos et al. 2018) with a trained log alpha. The K largest products
are then the values of a sparse phase.

`choose` selects by score the entries of several arrays to train or, in pruning, to keep.

    choose(scores, 100)                   path -> sorted flat indices; exactly 100 entries in all

Ties are broken by path, then by flat index (`t5x_lite.adapters.delta`). Scores are computed one
array at a time; they are float32 and not negative.

The last adapters train existing parameters: biases (BitFit), norms, or paths by pattern.

BitFit (Ben Zaken et al. 2022, arXiv:2106.10199) trains biases and, like all adapters, heads. T5 has
no biases: each dense layer then gets one that starts as 0, and the scales of the norms are trained,
as in t-few (Liu et al. 2022). A T5 has no arrays for such biases, so they are not merged into it.

Training in a random low-dimensional subspace, to measure a task's intrinsic dimension.

    fastfood(d=1000)       theta_0 + P(z), z [1000] from 0
    said(d=1000)           theta_0 + lambda_i P_i(z): a lambda for each layer of each array, from 1

A run of `said` trains d numbers in total: m lambdas, and d - m numbers of z. The intrinsic
dimension d_90 is the smallest d with 90 % of the score of full fine-tuning;
`scripts/bench/intrinsic_study.py` measures it. `t5x_lite.adapters.delta_parts` defines P.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters import delta_parts
from t5x_lite.adapters import delta_parts as deltas
from t5x_lite.adapters.base import Adapter, Modules, Site, check_patterns
from t5x_lite.adapters.delta import Lazy, largest
from t5x_lite.adapters.delta_parts import Part, Projection, Subspace, padded, project_all
from t5x_lite.adapters.whole_arrays import (
    MODEL,
    MOST_ROUNDS,
    ArrayAdapter,
    ArrayModule,
    ArrayModules,
    Leaf,
)
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, Count, In, Whole
from t5x_lite.core.trees import Array, Key, covers

Select = Literal["lottery", "change", "magnitude", "fisher", "random"]
Scope = Literal["global", "per_tensor"]
Entries = tuple[tuple[str, int], ...]

VALUES, INDICES = "values", "indices"
_DRAWS = 1e-4
"""Margin of the uniform random numbers for mask samples, which are from U(1e-4, 1 - 1e-4)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen(ArrayAdapter):
    """Base class of the adapters that train K selected entries of the model's arrays.

    Attributes:
      density: fraction of the arrays' entries to select.
      scope: "global" selects the K highest scores over all arrays, "per_tensor" the same fraction
        of each array.
      entries: number of selected entries of each array, by its path in the model; training sets it.
    """

    density: Annotated[float, In(0, 1, "(]")] = 0.005
    scope: Scope = "global"
    entries: Entries = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(number < 1 for _, number in self.entries):
            raise InputError("option entries must select at least one entry of each listed array")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        return self.trains_leaves((VALUES,))

    def chosen(self, model: nnx.Module, *, l1: float = 0.0) -> ArrayModules:
        """Build the adapter modules of the arrays with selected entries.

        Raises:
          InputError: if no entries are selected yet, or the model lacks one of the arrays.
        """
        if not self.entries:
            raise InputError(
                f"adapter {self.name!r}: the entries to train are not selected yet; `t5x-lite "
                "train` selects the entries"
            )
        numbers, leaves = dict(self.entries), self.leaves(model)
        for path, number in numbers.items():
            if path not in leaves or number > leaves[path].size:
                raise InputError(
                    f"adapter {self.name!r} needs {number} entries of the array {path}, but the "
                    "model has no such array"
                )
        total = sum(leaf.size for leaf in leaves.values())
        return ArrayModules(
            {path: leaves[path] for path in numbers},
            lambda path, leaf: Places(numbers[path], l1=l1 / total),
            exclusive=False,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseTuning(Chosen):
    """Configuration of sparse fine-tuning: trains K selected entries of the model's arrays.

    Attributes:
      select: score of an entry: "magnitude", "fisher" (mean squared gradient), "random", or its
        change when all arrays are trained ("lottery", "change").
      full_steps: number of steps of a first phase that trains all arrays to compute scores; its
        changes are then undone. 0 means the number of steps of the run, or no first phase if the
        score does not need it.
      rounds: number of selection rounds, for "lottery"; each round selects K / rounds more entries.
      sparse_steps: number of sparse training steps in each round before the last; 0 is the number
        of steps of the run.
      l1: loss weight of the mean of |theta - theta_0| over all arrays.
      examples: number of examples for the score `fisher`.
      labels: labels for the score `fisher`: "empirical", from the data; or "expected", all classes,
        each weighted by its probability.
    """

    name: str = "sparse"
    select: Select = "lottery"
    full_steps: Whole = 0
    rounds: Count = 1
    sparse_steps: Whole = 0
    l1: Annotated[float, AtLeast(0)] = 0.0
    examples: Count = 1024
    labels: Literal["empirical", "expected"] = "empirical"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds > MOST_ROUNDS:
            raise InputError(
                f"adapter {self.name!r}: rounds must be at most {MOST_ROUNDS}, got {self.rounds}"
            )
        if self.rounds > 1 and self.select != "lottery":
            raise InputError(
                f"adapter {self.name!r}: rounds above 1 require select='lottery', but select is "
                f"{self.select!r}"
            )
        if self.full_steps and self.select in ("fisher", "random"):
            raise InputError(
                f"adapter {self.name!r}: full_steps is not supported with select={self.select!r}; "
                "remove full_steps"
            )

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the trained values, initially 0, for the selected entries.

        Raises:
          InputError: if the entries are not selected yet.
        """
        return self.chosen(model, l1=self.l1)


class Places(ArrayModule):
    """Adapter module with trained values at the selected entries of one array.

    Args:
      number: number k of selected entries.
      l1: weight of the L1 penalty of the values.
    """

    def __init__(self, number: int, *, l1: float = 0.0):
        self.l1 = l1
        self.values = nnx.Param(jnp.zeros((number,), jnp.float32), logical=(None,))
        self.indices = nnx.Param(jnp.arange(number, dtype=jnp.int32), logical=(None,))

    def __call__(self, base: Float[Array, "*axes"], *, key: Key | None) -> Float[Array, "*axes"]:
        """Return the base array with the trained values added at the selected entries."""
        del key
        flat = base.reshape(-1).at[self.indices[...]]
        values = self.values[...].astype(jnp.float32)
        return flat.add(values, unique_indices=True, indices_are_sorted=True).reshape(base.shape)

    def part(self, shape: tuple[int, ...]) -> delta_parts.Part:
        values = np.asarray(self.values[...], np.float32)
        return delta_parts.Sparse(np.asarray(self.indices[...]), values, shape)

    def penalty(self) -> Array | None:
        """Return the L1 penalty of the values; None if `l1` is 0."""
        return self.l1 * jnp.sum(jnp.abs(self.values[...])) if self.l1 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diff(Chosen):
    """Configuration of diff pruning: a phase with relaxed masks, then K trained entries.

    Attributes:
      relaxed_steps: number of steps of the phase with relaxed masks; 0 is the number of steps of
        the run.
      l: lower end of the stretched interval of the hard concrete distribution, below 0.
      r: upper end of the stretched interval of the hard concrete distribution, above 1.
      alpha0: initial value of log alpha.
      penalty: loss weight of the expected number of nonzero entries.
      alpha_rate: learning rate of log alpha, as a multiple of the run's learning rate: with 1000,
        1e-4 becomes 0.1.
      structured: True for one more mask for each layer of an array, which can prune the layer.
    """

    name: str = "diff"
    relaxed_steps: Whole = 0
    l: float = -1.5  # noqa: E741
    r: float = 1.5
    alpha0: float = 5.0
    penalty: Annotated[float, AtLeast(0)] = 1.25e-7
    alpha_rate: Annotated[float, Above(0)] = 1000.0
    structured: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.l < 0.0 or not self.r > 1.0:
            raise InputError(
                f"adapter {self.name!r}: option l must be below 0 and option r above 1, got l "
                f"{self.l} and r {self.r}"
            )

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        if self.entries:
            return super().trains(paths)
        return (f"adapters/{self.name}",)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the relaxed masks or, after K entries have been selected, their trained values."""
        if self.entries:
            return self.chosen(model)
        return ArrayModules(self.leaves(model), lambda path, leaf: Relaxed(leaf, self))


class Relaxed(ArrayModule):
    """Adapter module of diff pruning: adds a difference w, masked by a relaxed mask z.

    Args:
      leaf: shape and axes of the array.
      diff: config of the method.
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
        """Return the base array plus the masked difference; with `key`, the mask is random."""
        return base + self._product(key)

    def part(self, shape: tuple[int, ...]) -> delta_parts.Part:
        del shape
        return delta_parts.Dense(np.asarray(self._product(None)))

    def penalty(self) -> Array | None:
        """Return the loss term for the expected number of nonzero entries and layers, or None."""
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
    """Return masks z in [0, 1] from the hard concrete distribution (arXiv:1712.01312).

    Args:
      alpha: log alpha.
      l: lower end of the stretched interval.
      r: upper end of the stretched interval.
      key: random key for sampling; None gives the deterministic mask, as in evaluation.
    """
    logits = alpha
    if key is not None:
        u = jax.random.uniform(key, alpha.shape, jnp.float32, _DRAWS, 1.0 - _DRAWS)
        logits = jnp.log(u) - jnp.log1p(-u) + alpha
    return jnp.clip(jax.nn.sigmoid(logits) * (r - l) + l, 0.0, 1.0)


Numbers = int | Mapping[str, int]
"""Number of selected entries: a total over all arrays, or a number for each path."""
ChosenEntries = dict[str, np.ndarray]
"""Selected entries: path -> sorted flat indices; arrays without selected entries are absent."""


def numbers_of(
    sizes: Mapping[str, int], density: float, *, scope: Literal["global", "per_tensor"]
) -> Numbers:
    """Return the number of entries to select: in total, or for each array by path.

    Raises:
      InputError: if no entry would be selected.
    """
    total = round(density * sum(sizes.values()))
    each = {path: round(density * size) for path, size in sizes.items()}
    if not (total if scope == "global" else sum(each.values())):
        raise InputError(
            f"density {density:g} of {sum(sizes.values())} entries selects no entry; increase "
            "density"
        )
    return total if scope == "global" else each


def share(numbers: Numbers, part: int, of: int) -> Numbers:
    """Return the numbers of entries, multiplied by `part / of` and rounded."""
    if isinstance(numbers, int):
        return round(numbers * part / of)
    return {path: round(number * part / of) for path, number in numbers.items()}


def choose(
    scores: Lazy, numbers: Numbers, *, taken: Mapping[str, np.ndarray] | None = None
) -> ChosenEntries:
    """Select the entries with the highest scores; return their sorted flat indices by path.

    Args:
      scores: path -> function that computes the scores.
      numbers: number of entries to return, including the entries in `taken`; one total, or by path.
      taken: path -> sorted flat indices of entries that are selected already; the result contains
        them.
    """
    had = dict(taken or {})
    if isinstance(numbers, int):
        return _chosen(scores, numbers, had)
    picked: ChosenEntries = {}
    for path, number in numbers.items():
        own = {path: had[path]} if path in had else {}
        picked |= _chosen({path: scores[path]}, number, own)
    return picked


def _chosen(scores: Lazy, number: int, had: Mapping[str, np.ndarray]) -> ChosenEntries:
    left = {path: _without(make, had.get(path)) for path, make in scores.items()}
    more = number - sum(map(len, had.values()))
    picked = dict(had)
    for path, _, places in largest(left, more):
        if not places.size:
            continue
        if path in had:
            places = _among(scores[path]().size, had[path])[places]
        picked[path] = np.union1d(had[path], places) if path in had else places
    return picked


def _without(make: Callable[[], np.ndarray], had: np.ndarray | None) -> Callable[[], np.ndarray]:
    return make if had is None else lambda: np.delete(make().reshape(-1), had)


def _among(size: int, had: np.ndarray) -> np.ndarray:
    free = np.ones(size, bool)
    free[had] = False
    return np.flatnonzero(free)


def kept(
    scores: Lazy,
    density: float,
    *,
    scope: Literal["global", "per_tensor"],
    before: Mapping[str, np.ndarray] | None = None,
    structure: Literal["entries", "rows", "columns"] = "entries",
) -> dict[str, np.ndarray]:
    """Return boolean masks by path that keep the entries, rows or columns with the highest scores.

    Args:
      scores: path -> function that computes the scores.
      density: fraction of all entries to keep.
      scope: "global" for a fraction over all arrays, or "per_tensor" for a fraction of each array.
      before: path -> mask of the previous round; dropped entries stay dropped. None in the first
        round.
      structure: unit to keep: "entries", "rows" or "columns"; rows and columns are scored by the
        norm of their entries' scores.
    """
    groups = {path: _grouped(make, structure) for path, make in scores.items()}
    shapes = {path: make().shape for path, make in groups.items()}
    left = {
        path: np.ones(shape, bool) if before is None else _any(before[path], structure)
        for path, shape in shapes.items()
    }
    sizes = {path: math.prod(shape) for path, shape in shapes.items()}
    numbers = numbers_of(sizes, density, scope=scope)
    # Dropped entries have score 0, and remaining ones a score above 0.
    alive = {
        path: (lambda path=path, make=make: np.where(left[path], make() + _TINY, np.float32(0)))
        for path, make in groups.items()
    }
    chosen = choose(alive, numbers)
    masks = {}
    for path, make in scores.items():
        flat = np.zeros(sizes[path], bool)
        flat[chosen.get(path, np.zeros(0, np.int64))] = True
        mask = flat.reshape(shapes[path]) & left[path]
        masks[path] = np.broadcast_to(_spread(mask, structure), make().shape)
    return masks


_TINY = np.float32(1e-30)
_AXES = {"rows": -1, "columns": -2}


def _grouped(make: Callable[[], np.ndarray], structure: str) -> Callable[[], np.ndarray]:
    if structure == "entries":
        return make
    return lambda: np.linalg.norm(make(), axis=_AXES[structure]).astype(np.float32)


def _any(mask: np.ndarray, structure: str) -> np.ndarray:
    return mask if structure == "entries" else np.asarray(mask.any(axis=_AXES[structure]))


def _spread(mask: np.ndarray, structure: str) -> np.ndarray:
    return mask if structure == "entries" else np.expand_dims(mask, _AXES[structure])


_MODEL = "model/"
_NORM = re.compile(r"model/(.*/)?(\w*_)?norm/(scale|bias)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BitFit(Adapter):
    """Configuration of BitFit: trains only biases; layers without a bias get a new one.

    Attributes:
      sites: names of dense layers that get a new bias if they have none.
    """

    name: str = "bitfit"
    sites: tuple[str, ...] = ("(cross_)?attention/.*", "mlp/(in|gate|out)")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return the paths of all biases, and of the scales of norms without biases."""
        paths = set(paths)
        found = [path for path in paths if path.startswith(_MODEL) and path.endswith("/bias")]
        for path in paths:
            norm = _NORM.fullmatch(path)
            if norm and norm[3] == "scale" and f"{path.removesuffix('scale')}bias" not in paths:
                found.append(path)
        return (*super().trains(paths), *sorted(found))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build a new bias for each selected dense layer without a bias."""

        def bias(site: Site, rngs: nnx.Rngs) -> AddedBias:
            return AddedBias(site.dense.kernel.shape[-1], site.dense.axes[1])

        return Modules(
            self.at_sites(model, dense=bias, where=lambda site: not site.dense.has_bias, rngs=rngs)
        )


class AddedBias(nnx.Module):
    """Adapter module with a new trained bias for a dense layer that has none in the model.

    Args:
      size: size of the layer's output.
      axis: logical name of the output's axis.
    """

    def __init__(self, size: int, axis: str | None):
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), logical=(axis,))

    def __call__(
        self,
        x: Float[Array, "*batch I"],
        y: Float[Array, "*batch O"],
        kernel: Float[Array, "I O"],
    ) -> Float[Array, "*batch O"]:
        """Return y unchanged; the dense layer adds the bias."""
        return y

    def kind(self) -> Hashable:
        return (type(self), self.bias.shape)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        return kernel

    def of_bias(self, bias: Float[Array, "*layers O"] | None) -> Float[Array, "*layers O"]:
        """Return the sum of the layer's bias, if any, and the new bias."""
        own = self.bias[...]
        return own if bias is None else bias + own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Params(Adapter):
    """Configuration that trains existing parameters of the model, selected by path.

    Attributes:
      train: parameter paths, or regular expressions for them, such as "model/encoder/.*/kernel".
    """

    name: str = "params"
    sites: tuple[str, ...] = (".*",)
    train: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_patterns("train", self.train)

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return the model parameter paths that match the patterns in `train`.

        Raises:
          InputError: if `train` is empty, or a pattern matches no model parameter.
        """
        if not self.train:
            raise InputError(f"adapter {self.name!r} selects no parameters; set train='model/...'")
        base = [path for path in paths if path.startswith(_MODEL)]
        for pattern in self.train:
            if not any(covers(pattern, path) for path in base):
                raise InputError(
                    f"adapter {self.name!r}: {pattern!r} matches no parameter of the model"
                )
        return tuple(p for p in base if any(covers(pattern, p) for pattern in self.train))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        return Modules()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norms(Adapter):
    """Configuration that trains the scales and biases of the model's layer norms."""

    name: str = "norms"
    sites: tuple[str, ...] = (".*",)

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        return norms_of(paths)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        return Modules()


def norms_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that belong to layer norms of the model."""
    return tuple(path for path in paths if _NORM.fullmatch(path))


_LARGEST_MATRIX = 1 << 28


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fastfood(ArrayAdapter):
    """Configuration that trains a vector of d numbers, projected to the model's arrays.

    Attributes:
      d: total number of trained values, without heads.
      lambdas: True to also train a factor ("lambda") for each layer of each array; d includes the
        number of factors.
      seed: random seed of the projection.
      fold: True to sum chunks of the vector if it is longer than an array; False to raise
        InputError.
      projection: "fastfood", or "dense", a dense matrix for few and small arrays.
    """

    name: str = "fastfood"
    d: Count = 1000
    lambdas: bool = False
    seed: Whole = 0
    fold: bool = False
    projection: Projection = "fastfood"

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the trained vector, initially 0, and the factors `lambdas`, initially 1.

        Raises:
          InputError: if d does not exceed the number of factors, or the vector is longer than an
            array.
        """
        leaves = self.leaves(model)
        num = sum(leaf.rows[0] for leaf in leaves.values()) if self.lambdas else 0
        size = self.d - num
        if size < 1:
            raise InputError(
                f"adapter {self.name!r}: d must be above {num}, the number of layer factors "
                f"(lambdas), but is {self.d}"
            )
        spaces = {path: self._space(path, leaf, size=size) for path, leaf in leaves.items()}
        return FastfoodModules(leaves, spaces, size=size, lambdas=self.lambdas)

    def _space(self, path: str, leaf: Leaf, *, size: int) -> Subspace:
        space = Subspace(MODEL + path, leaf.shape, leaf.is_stacked, self.seed, self.projection)
        _, entries = space.rows
        if self.projection == "dense" and entries * size > _LARGEST_MATRIX:
            raise InputError(
                f"adapter {self.name!r}: a dense projection matrix for array {space.path} would "
                f"have {entries} x {size} entries, but the maximum is {_LARGEST_MATRIX}; set "
                "projection='fastfood'"
            )
        if self.projection == "fastfood" and not self.fold and size > padded(entries):
            raise InputError(
                f"adapter {self.name!r}: the trained vector has {size} values, but array "
                f"{space.path} has only {entries} entries per layer; exclude the array with the "
                "option targets, or set fold=True"
            )
        return space


def said(*, name: str = "said", **changes: Any) -> Fastfood:
    """Return the config for structure-aware intrinsic dimension (SAID, arXiv:2012.13255)."""
    return Fastfood(**{"name": name, "lambdas": True, **changes})


class Projected(ArrayModule):
    """Adapter module that adds a random projection of a trained vector z to one array.

    Args:
      space: random projection from z to the array.
      has_lambda: True if each layer has a trained factor.
    """

    def __init__(self, space: Subspace, *, has_lambda: bool):
        self.space, self.has_lambda = space, has_lambda
        if has_lambda:
            ones = jnp.ones((space.rows[0],), jnp.float32)
            self.factor = nnx.Param(ones, logical=("layers",) if space.stacked else (None,))

    @property
    def scale(self) -> Array:
        """Trained factor of each layer of the array."""
        return self.factor[...] if self.has_lambda else jnp.ones((self.space.rows[0],), jnp.float32)


class FastfoodModules(ArrayModules):
    """Adapter modules of several arrays that share one trained vector z of few dimensions.

    Args:
      leaves: path in the model -> shape and axes of the array.
      spaces: path -> random projection from z to the array.
      size: number of dimensions of z.
      lambdas: True if each layer has a trained factor.
    """

    def __init__(
        self,
        leaves: Mapping[str, Leaf],
        spaces: Mapping[str, Subspace],
        *,
        size: int,
        lambdas: bool,
    ):
        super().__init__(
            leaves,
            lambda path, leaf: Projected(spaces[path], has_lambda=lambdas),
            exclusive=False,
        )
        self.z = nnx.Param(jnp.zeros((size,), jnp.float32), logical=(None,))

    def read(self, model: Mapping[str, Array], *, key: Key | None = None) -> dict[str, Array]:
        """Return the model arrays plus projections of the trained vector, by path, in float32."""
        del key
        z, each = self.z[...].astype(jnp.float32), {p: self._projected(p) for p in self.arrays}
        scales = {path: one.scale.astype(jnp.float32) for path, one in each.items()}
        moved = project_all({path: one.space for path, one in each.items()}, z, scales)
        return {path: model[path].astype(jnp.float32) + x for path, x in moved.items()}

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        z = np.asarray(self.z[...], np.float32)
        each = {path: self._projected(path) for path in self.arrays}
        return {p: deltas.Fastfood(z, np.asarray(x.scale), x.space) for p, x in each.items()}

    def _projected(self, path: str) -> Projected:
        module = self.of(path)
        assert isinstance(module, Projected)
        return module
