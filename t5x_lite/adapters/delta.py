"""Deltas: changes of a base model, from fine-tuning, from adapters or from delta arithmetic.

    tau = Delta.of(tuned, base)                      # a task vector (Ilharco et al. 2022)
    params = (a + 0.5 * b - c).apply(base)           # arXiv:2212.04089
    small = tau.sparsify(density=0.01)

`parts` holds the changes of arrays by path; all other arrays of the base model do not change.
`extra` holds arrays that the base model lacks: heads, and adapters that cannot be merged into
kernels, with their configs in `config`. Deltas of different bases cannot be combined.

`largest` selects the K entries of largest magnitude from several arrays: exactly K, with one array
at a time. Ties are broken by path and then by flat index. Magnitudes are compared as bits: of two
nonnegative float32 numbers, the larger one has the larger bits. Two histograms of 2^16 counts find
the K-th magnitude, so arrays are not sorted, and only one of them is in memory.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.adapters.delta_parts import Dense, Part, Sparse, factored, is_kernel
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Params

_HALF = 1 << 16

Lazy = Mapping[str, Callable[[], np.ndarray]]
"""Path -> function that computes the array at the path; it is called three times."""


def count_of(total: int, *, k: int | None = None, density: float | None = None) -> int:
    """Return the number of entries to select, from a number `k` or from a fraction `density`.

    Args:
      total: number of all entries.
      k: number of entries.
      density: fraction of the entries; the number is round(density * total).

    Raises:
      InputError: if neither or both of `k` and `density` are given, or the value is out of range.
    """
    if (k is None) == (density is None):
        raise InputError(
            "exactly one of k (number of entries) and density (fraction of the entries) must be set"
        )
    if density is not None:
        if not 0.0 <= density <= 1.0:
            raise InputError(f"density must be from 0 to 1, got {density}")
        return round(density * total)
    assert k is not None
    if not 0 <= k <= total:
        raise InputError(f"k must be from 0 to the number of entries ({total}), got {k}")
    return k


def largest(arrays: Lazy, k: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the K entries of largest magnitude of several arrays.

    Args:
      arrays: path -> function that computes the float32 array; zeros can be selected, too.
      k: number of entries K.

    Yields:
      path, array, and the sorted flat indices of its selected entries; the paths are sorted.
    """
    if k == 0:
        return
    limit, ties = _limit(arrays, k)
    for path in sorted(arrays):
        array = arrays[path]()
        bits = _bits(array)
        chosen = bits > limit
        equal = np.flatnonzero(bits == limit)[:ties]
        ties -= equal.size
        chosen[equal] = True
        yield path, array, np.flatnonzero(chosen)


def _bits(array: np.ndarray) -> np.ndarray:
    return np.abs(np.asarray(array, np.float32)).reshape(-1).view(np.uint32)


def _limit(arrays: Lazy, k: int) -> tuple[int, int]:
    high = np.zeros(_HALF, np.int64)
    for make in arrays.values():
        high += np.bincount(_bits(make()) >> 16, minlength=_HALF)
    first, rest = _from_above(high, k)
    low = np.zeros(_HALF, np.int64)
    for make in arrays.values():
        bits = _bits(make())
        low += np.bincount(bits[bits >> 16 == first] & (_HALF - 1), minlength=_HALF)
    second, ties = _from_above(low, rest)
    return (first << 16) + second, ties


def _from_above(counts: np.ndarray, k: int) -> tuple[int, int]:
    """Return the histogram bin of the K-th largest entry, and the entry's rank within the bin."""
    above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(above, k))
    before = int(above[place - 1]) if place else 0
    return len(counts) - 1 - place, k - before


_LARGEST = float(np.finfo(np.float32).max)

MODULES = "adapters/"
"""Prefix of adapter paths in `Delta.extra`, which are adapters/NAME/..."""


@runtime_checkable
class Module(Protocol):
    """Protocol of adapter configs that can be scaled and added."""

    @property
    def name(self) -> str: ...

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """Multiply the adapter's output by a factor, and return the new parameters by path."""
        ...

    def joined(
        self, params: Mapping[str, Any], other: Any, others: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Add two adapters, and return the config and the parameters of the sum."""
        ...


@dataclasses.dataclass(frozen=True)
class Identity:
    """Identity of a delta's base model: its checkpoint directory and the digests of its arrays.

    Attributes:
      checkpoint: checkpoint directory of the base model.
      arrays: path -> digest of the array's values.
      sources: path in the model -> path in the checkpoint, for arrays with different paths.
    """

    checkpoint: str
    arrays: Mapping[str, str]
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 digest of all array paths and array digests."""
        lines = (f"{path} {digest}\n" for path, digest in sorted(self.arrays.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def check(self, other: "Identity") -> None:
        """Raise InputError if this and another identity belong to different base models."""
        common = self.arrays.keys() & other.arrays.keys()
        wrong = sorted(path for path in common if self.arrays[path] != other.arrays[path])
        if wrong or not common:
            why = f", which differ in the array {wrong[0]}" if wrong else " without a common array"
            raise InputError(
                f"the deltas have different base models{why}; base {self.checkpoint} has digest "
                f"{self.digest[:16]}, base {other.checkpoint} has digest {other.digest[:16]}"
            )

    def with_(self, other: "Identity | None") -> "Identity":
        """Merge the array digests of two identities of the same base model.

        Raises:
          InputError: if the identities belong to different base models.
        """
        if other is None:
            return self
        self.check(other)
        new = {path: theirs for path, theirs in other.sources.items() if path not in self.arrays}
        arrays, sources = {**other.arrays, **self.arrays}, {**new, **self.sources}
        return Identity(self.checkpoint, arrays, sources)


@dataclasses.dataclass(frozen=True, eq=False)
class Delta:
    """Change of a base model's arrays, with the operators +, - and *; a frozen pytree.

    Attributes:
      parts: path in the base model -> change of the array.
      extra: path -> array that the base model lacks, such as heads.
      base: identity of the base model; None is compatible with every model.
      config: configs of the adapters in `extra`.
    """

    parts: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    base: Identity | None = None
    config: tuple[Module, ...] = ()

    computes: ClassVar[bool] = True

    @classmethod
    def of(cls, tuned: Params, base: Params, *, identity: Identity | None = None) -> "Delta":
        """Return the task vector tuned - base, without the arrays that are equal in both.

        Args:
          tuned: nested dict of fine-tuned arrays.
          base: nested dict of base arrays; arrays that exist only in `tuned` become `extra`.
          identity: identity of the base model.

        Raises:
          InputError: if `tuned` lacks an array of `base`, or the shapes of an array differ.
        """
        ours, theirs = trees.flatten(tuned), trees.flatten(base)
        if absent := sorted(theirs.keys() - ours.keys()):
            raise InputError(f"the fine-tuned parameters lack the array {absent[0]} of the base")
        parts, extra = {}, {}
        for path, array in ours.items():
            if path not in theirs:
                extra[path] = array
            elif (part := difference(path, array, theirs[path])) is not None:
                parts[path] = part
        return cls(parts, extra, identity)

    def apply(self, base: Params, *, keep_float32: bool = False) -> Params:
        """Return the base model's parameters with this delta applied, plus the arrays of `extra`.

        Sums are computed in float32 and cast to the base model's dtypes. Unchanged arrays are not
        copied.

        Args:
          base: nested dict of the base model's arrays.
          keep_float32: True to return the sums in float32.

        Raises:
          InputError: if the base model lacks an array that the delta changes, or its shape differs.
        """
        flat = dict(trees.flatten(base))
        for path in self.parts:
            if path not in flat:
                raise InputError(f"the base has no array {path}, which the delta changes")
            flat[path] = self.changed(path, flat[path], keep_float32=keep_float32)
        return trees.unflatten({**flat, **self.extra})

    def changed(self, path: str, array: Any, *, keep_float32: bool = False) -> Any:
        """Return one array of the base model with this delta applied."""
        if path not in self.parts:
            return array
        part = self.parts[path]
        if part.shape and part.shape != tuple(array.shape):
            raise InputError(
                f"the delta changes {path} of shape {part.shape}, but the base's array has shape "
                f"{tuple(array.shape)}"
            )
        read = part.read(jnp.asarray(array, jnp.float32))
        return read if keep_float32 else read.astype(array.dtype)

    def materialise(self, base: Params) -> "Delta":
        """Return this delta as dense differences from a base model's arrays."""
        flat = trees.flatten(base)
        parts: dict[str, Part] = {}
        for path in self.parts:
            if path not in flat:
                raise InputError(f"the base has no array {path}, which the delta changes")
            before = np.asarray(flat[path], np.float32)
            parts[path] = Dense(np.asarray(self.changed(path, before)) - before)
        return dataclasses.replace(self, parts=parts)

    def sparsify(self, *, k: int | None = None, density: float | None = None) -> "Delta":
        """Return a delta that changes only the K entries with the largest changes over all arrays.

        Exactly K entries remain. Ties are broken by path, then by flat index.

        Args:
          k: number K of entries.
          density: fraction of the delta's entries; K = round(density * entries).

        Raises:
          InputError: if neither or both of `k` and `density` are given, or a change cannot be
            added.
        """
        self.check_additive()
        lazy = {path: part.dense for path, part in self.parts.items()}
        count = count_of(self.size, k=k, density=density)
        parts: dict[str, Part] = {
            path: Sparse.of(array, chosen)
            for path, array, chosen in largest(lazy, count)
            if chosen.size
        }
        return dataclasses.replace(self, parts=parts)

    def factor(self, rank: int) -> "Delta":
        """Return a delta with kernel changes approximated by low-rank products (truncated SVD).

        Changes of vectors, such as biases, stay exact.

        Raises:
          InputError: if the rank is below 1, or a change, such as a mask, is not an addition.
        """
        if rank < 1:
            raise InputError(f"rank must be at least 1, got {rank}")
        self.check_additive()
        parts = {
            path: factored(part, rank) if is_kernel(path, part.shape) else part
            for path, part in self.parts.items()
        }
        return dataclasses.replace(self, parts=parts)

    def then(self, other: "Delta") -> "Delta":
        """Return a delta that applies this delta and then the other delta."""
        parts = dict(self.parts)
        for path, part in other.parts.items():
            parts[path] = parts[path].then(part) if path in parts else part
        return self._joined(other, parts)

    def mask(self, which: str | Callable[[str], bool] | Mapping[str, Any]) -> "Delta":
        """Return a delta restricted to some arrays, or to some entries of arrays.

        Args:
          which: selection of arrays or entries: a path prefix, or a regular expression for whole
            paths; a function from a path to True or False; or boolean arrays by path, where an
            absent path selects nothing.

        Raises:
          InputError: if a pattern matches nothing or is invalid, a selected change is not an
            addition, a boolean array has the wrong shape, or it selects only some entries of an
            extra array.
        """
        if isinstance(which, Mapping):
            parts, extra = self._chosen(trees.flatten(which))
        else:
            keeps = which if callable(which) else _pattern(which)
            parts = {path: part for path, part in self.parts.items() if keeps(path)}
            extra = {path: array for path, array in self.extra.items() if keeps(path)}
        if isinstance(which, str) and not (parts or extra):
            raise InputError(f"the delta has no array that matches {which!r}")
        config = tuple(m for m in self.config if any(p.startswith(_at(m)) for p in extra))
        return Delta(parts, extra, self.base, config)

    def _chosen(self, mask: Mapping[str, Any]) -> tuple[dict[str, Part], dict[str, Any]]:
        parts: dict[str, Part] = {}
        for path, part in self.parts.items():
            if path in mask:
                value = part.dense()
                parts[path] = Dense(np.where(_booleans(path, mask, value.shape), value, 0.0))
        extra = {}
        for path, array in self.extra.items():
            chosen = _booleans(path, mask, tuple(array.shape)) if path in mask else np.zeros(1)
            if chosen.all():
                extra[path] = array
            elif chosen.any():
                raise InputError(
                    f"the mask must keep all entries of {path} or none, because {path} is not an "
                    "array of the base"
                )
        return parts, extra

    def without_heads(self) -> "Delta":
        """Return a delta without the arrays of heads; the arrays of adapters remain."""
        extra = {path: x for path, x in self.extra.items() if path.startswith(MODULES)}
        return dataclasses.replace(self, extra=extra)

    def check_additive(self) -> None:
        """Raise InputError if a change, such as a mask, does not add values to an array."""
        for path, part in self.parts.items():
            if not part.additive:
                raise InputError(
                    f"the delta changes {path} by a {type(part).__name__} instead of a difference; "
                    "convert the delta first with delta.materialise(base) or `materialize(NAME)`"
                )

    @property
    def size(self) -> int:
        """Total number of entries of all changed arrays."""
        return sum(int(np.prod(part.shape)) for part in self.parts.values())

    @property
    def nbytes(self) -> int:
        extra = sum(np.asarray(array).nbytes for array in self.extra.values())
        return extra + sum(part.nbytes for part in self.parts.values())

    def __add__(self, other: "Delta") -> "Delta":
        if not isinstance(other, Delta):
            return NotImplemented
        parts = dict(self.parts)
        for path, part in other.parts.items():
            try:
                parts[path] = parts[path].plus(part) if path in parts else part
            except InputError as error:
                raise InputError(f"{path}: {error}") from error
        return self._joined(other, parts)

    def __mul__(self, factor: float | int) -> "Delta":
        if not isinstance(factor, int | float | np.number):
            return NotImplemented
        if not abs(factor) <= _LARGEST:
            raise InputError(f"the factor of a delta must be a finite float32 number, got {factor}")
        factor = float(factor)
        self.check_additive()
        parts = {path: part.times(factor) for path, part in self.parts.items()} if factor else {}
        extra, config = dict(self.extra), self.config
        for module in config:
            own = self._own(module)
            extra = {path: x for path, x in extra.items() if path not in own}
            extra |= module.scaled(own, factor) if factor else {}
        return Delta(parts, extra, self.base, config if factor else ())

    __rmul__ = __mul__

    def __neg__(self) -> "Delta":
        return self * -1.0

    def __sub__(self, other: "Delta") -> "Delta":
        if not isinstance(other, Delta):
            return NotImplemented
        return self + -other

    def _own(self, module: Module) -> dict[str, Any]:
        return {path: x for path, x in self.extra.items() if path.startswith(_at(module))}

    def _joined(self, other: "Delta", parts: Mapping[str, Part]) -> "Delta":
        base = other.base if self.base is None else self.base.with_(other.base)
        heads = {p: x for p, x in self.extra.items() if not p.startswith(MODULES)}
        for path, array in other.extra.items():
            if path.startswith(MODULES):
                continue
            if path in heads and not np.array_equal(np.asarray(heads[path]), np.asarray(array)):
                raise InputError(
                    f"both deltas have the head parameter {path}, but heads cannot be added; "
                    "remove the heads of one delta with delta.without_heads() or "
                    "`without_heads(NAME)`"
                )
            heads[path] = array
        modules, arrays = _modules(self, other)
        return Delta(parts, {**heads, **arrays}, base, modules)

    # As a view: the base is stored, and the base with the delta is read.

    def stored(
        self, shapes: Mapping[str, Any], axes: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the given shapes and axes of the base model.

        Raises:
          InputError: if the base model lacks an array that the delta changes.
        """
        for path in self.parts:
            if path not in shapes:
                raise InputError(f"the base has no array {path}, which the delta changes")
        return dict(shapes), dict(axes)

    def fresh(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        return dict(seen)

    def read(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the base model's arrays with this delta applied, by path."""
        changed = {path: self.changed(path, stored[path]) for path in self.parts}
        return {**stored, **changed}

    def write(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Subtract this delta from the arrays of a model, and return the arrays by path."""
        return (-self).read(seen)

    def mentions(self, path: str) -> bool:
        return path in self.parts


jax.tree_util.register_dataclass(
    Delta, data_fields=["parts", "extra"], meta_fields=["base", "config"]
)


def difference(path: str, tuned: Any, base: Any) -> Dense | None:
    """Return the difference of one array between two models; None if the arrays are equal."""
    after, before = np.asarray(tuned, np.float32), np.asarray(base, np.float32)
    if after.shape != before.shape:
        raise InputError(
            f"array {path} has shape {after.shape}, but the base's array has shape {before.shape}"
        )
    return None if np.array_equal(after, before) else Dense(after - before)


def _pattern(text: str) -> Callable[[str], bool]:
    trees.check("pattern", text)
    return lambda path: trees.covers(text, path)


def _booleans(path: str, mask: Mapping[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    booleans = np.asarray(mask[path], bool)
    if booleans.shape != shape:
        raise InputError(
            f"the mask of {path} has shape {booleans.shape}, but the array has shape {shape}"
        )
    return booleans


def _at(module: Module) -> str:
    return f"{MODULES}{module.name}/"


def _modules(one: Delta, two: Delta) -> tuple[tuple[Module, ...], dict[str, Any]]:
    """Return the adapter configs of two deltas, and the arrays of these adapters."""
    modules = {module.name: module for module in one.config}
    arrays = {path: x for path, x in one.extra.items() if path.startswith(MODULES)}
    for module in two.config:
        theirs = two._own(module)
        places = {path.removeprefix(_at(module)) for path in theirs}
        host = next(
            (m for m in modules.values() if any(_at(m) + place in arrays for place in places)), None
        )
        if host is None and module.name in modules:
            raise InputError(
                f"two adapters are called {module.name} but have different sites, so they cannot "
                "be added; rename one of them"
            )
        if host is None:
            modules[module.name] = module
            arrays |= theirs
            continue
        own = {path: x for path, x in arrays.items() if path.startswith(_at(host))}
        joined, both = host.joined(own, module, theirs)
        modules[host.name] = joined
        arrays = {path: x for path, x in arrays.items() if path not in own} | both
    return tuple(modules.values()), arrays
