"""A delta: what a training, an adapter or their algebra changes of a base.

    tau = Delta.of(tuned, base)                      # a task vector (Ilharco et al. 2022)
    params = (a + 0.5 * b - c).apply(base)           # arXiv:2212.04089
    small = tau.sparsify(density=0.01)

`parts` change arrays that the base has, and a path that is absent changes nothing. `extra` are
arrays that it lacks: heads, and adapters that no kernel can hold, whose configs are in `config`.
Two deltas of different bases never mix.

The K numbers of largest magnitude among several arrays: exactly K, found one array at a time.

Ties go by path and then by flat index. Magnitudes are compared as bits: of two float32 numbers that
are not negative, the larger one has the larger bits. Two histograms of 2^16 counts find the K-th,
so no array is sorted, and no two are in memory.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.adapters.delta_parts import Dense, Part, Sparse, factored, is_kernel
from t5x_lite.core import patterns, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Params

_HALF = 1 << 16

Lazy = Mapping[str, Callable[[], np.ndarray]]
"""Path -> what makes the array; called three times."""


def count_of(total: int, *, k: int | None = None, density: float | None = None) -> int:
    """K, of which one of the two arguments is given.

    Args:
      total: of all numbers.
      k: itself.
      density: K = round(density * total).

    Raises:
      InputError: none or both are given, or they are out of range.
    """
    if (k is None) == (density is None):
        raise InputError("give one of k, a number of entries, and density, a share of them")
    if density is not None:
        if not 0.0 <= density <= 1.0:
            raise InputError(f"density must be from 0 to 1: got {density}")
        return round(density * total)
    assert k is not None
    if not 0 <= k <= total:
        raise InputError(f"k must be from 0 to the {total} entries that there are: got {k}")
    return k


def largest(arrays: Lazy, k: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The K numbers of largest magnitude.

    Args:
      arrays: float32; zeros count like other numbers.
      k: how many.

    Yields:
      path, array, and the sorted flat indices of those that are chosen; the paths are sorted.
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
    """The bits of the K-th largest magnitude, and how many of exactly that are chosen."""
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
    """The bin in which the K-th lies, counted from the last bin, and K less what is above it."""
    above = np.cumsum(counts[::-1])
    place = int(np.searchsorted(above, k))
    before = int(above[place - 1]) if place else 0
    return len(counts) - 1 - place, k - before


_LARGEST = float(np.finfo(np.float32).max)

MODULES = "adapters/"
"""Beginning of the paths of modules in `extra`; the name of one follows."""


@runtime_checkable
class Module(Protocol):
    """The config of a module that stays beside the base, such as a bottleneck."""

    @property
    def name(self) -> str:
        """Its parameters are at adapters/NAME."""
        ...

    def scaled(self, params: Mapping[str, Any], factor: float | int) -> dict[str, Any]:
        """Its parameters by path, of a module whose branch is this one's times a number."""
        ...

    def joined(
        self, params: Mapping[str, Any], other: Any, others: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """A module, and its parameters, whose branch is the sum of two."""
        ...


@dataclasses.dataclass(frozen=True)
class Identity:
    """The base of a delta.

    Attributes:
      checkpoint: the step directory in which it was.
      arrays: path -> digest of the numbers.
      sources: path -> the array's path there, where that is another one.
    """

    checkpoint: str
    arrays: Mapping[str, str]
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the paths and digests."""
        lines = (f"{path} {digest}\n" for path, digest in sorted(self.arrays.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def check(self, other: "Identity") -> None:
        """Refuses, by an InputError, another base; arrays that both know are compared."""
        common = self.arrays.keys() & other.arrays.keys()
        wrong = sorted(path for path in common if self.arrays[path] != other.arrays[path])
        if wrong or not common:
            why = f": {wrong[0]} differs" if wrong else " without an array in common"
            raise InputError(
                f"these deltas have different bases{why}; {self.checkpoint} has the digest "
                f"{self.digest[:16]}, {other.checkpoint} {other.digest[:16]}"
            )

    def with_(self, other: "Identity | None") -> "Identity":
        """What both know of one base.

        Raises:
          InputError: they are of different ones.
        """
        if other is None:
            return self
        self.check(other)
        new = {path: theirs for path, theirs in other.sources.items() if path not in self.arrays}
        arrays, sources = {**other.arrays, **self.arrays}, {**new, **self.sources}
        return Identity(self.checkpoint, arrays, sources)


@dataclasses.dataclass(frozen=True, eq=False)
class Delta:
    """A change of a base; frozen, a pytree and a view (`t5x_lite.core.tied_parameters`).

    Attributes:
      parts: path in the base -> part.
      extra: path -> array that the base lacks.
      base: what it is a change of; None fits every base.
      config: of the modules in `extra`.
    """

    parts: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    base: Identity | None = None
    config: tuple[Module, ...] = ()

    computes: ClassVar[bool] = True

    @classmethod
    def of(cls, tuned: Params, base: Params, *, identity: Identity | None = None) -> "Delta":
        """The task vector tuned - base; arrays that are equal are left out.

        Args:
          tuned: nested dict of arrays.
          base: the same; what it lacks becomes `extra`.
          identity: of the base.

        Raises:
          InputError: the base has an array that `tuned` lacks, or one has another shape.
        """
        ours, theirs = trees.flatten(tuned), trees.flatten(base)
        if absent := sorted(theirs.keys() - ours.keys()):
            raise InputError(f"the tuned parameters lack {absent[0]}, which the base has")
        parts, extra = {}, {}
        for path, array in ours.items():
            if path not in theirs:
                extra[path] = array
            elif (part := difference(path, array, theirs[path])) is not None:
                parts[path] = part
        return cls(parts, extra, identity)

    def apply(self, base: Params, *, keep_float32: bool = False) -> Params:
        """The base with the delta: float32 sums in the base's dtypes, and `extra` beside them.

        Arrays that no part changes are the same objects.

        Args:
          base: nested dict of arrays.
          keep_float32: leaves the sums in float32.

        Raises:
          InputError: the base lacks an array, or has another shape.
        """
        flat = dict(trees.flatten(base))
        for path in self.parts:
            if path not in flat:
                raise InputError(f"the base has no array {path}, which the delta changes")
            flat[path] = self.changed(path, flat[path], keep_float32=keep_float32)
        return trees.unflatten({**flat, **self.extra})

    def changed(self, path: str, array: Any, *, keep_float32: bool = False) -> Any:
        """One array of the base with the delta; see `apply`."""
        if path not in self.parts:
            return array
        part = self.parts[path]
        if part.shape and part.shape != tuple(array.shape):
            raise InputError(
                f"the delta changes {path} of shape {part.shape}, and the base's has "
                f"{tuple(array.shape)}"
            )
        read = part.read(jnp.asarray(array, jnp.float32))
        return read if keep_float32 else read.astype(array.dtype)

    def materialise(self, base: Params) -> "Delta":
        """The same change of this base as sums alone: every part is dense."""
        flat = trees.flatten(base)
        parts: dict[str, Part] = {}
        for path in self.parts:
            if path not in flat:
                raise InputError(f"the base has no array {path}, which the delta changes")
            before = np.asarray(flat[path], np.float32)
            parts[path] = Dense(np.asarray(self.changed(path, before)) - before)
        return dataclasses.replace(self, parts=parts)

    def sparsify(self, *, k: int | None = None, density: float | None = None) -> "Delta":
        """The entries of largest magnitude: exactly K of all arrays together.

        Ties go by path, then by flat index.

        Args:
          k: how many.
          density: a share of the delta's entries, K = round(density * entries).

        Raises:
          InputError: neither or both are given, or a part is not additive.
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
        """The nearest products of a rank in place of what is added to kernels; the rest stays.

        Raises:
          InputError: the rank is below 1, or a part is not additive.
        """
        if rank < 1:
            raise InputError(f"rank must be at least 1: got {rank}")
        self.check_additive()
        parts = {
            path: factored(part, rank) if is_kernel(path, part.shape) else part
            for path, part in self.parts.items()
        }
        return dataclasses.replace(self, parts=parts)

    def then(self, other: "Delta") -> "Delta":
        """This change, and then another one: scales of one array are multiplied."""
        parts = dict(self.parts)
        for path, part in other.parts.items():
            parts[path] = parts[path].then(part) if path in parts else part
        return self._joined(other, parts)

    def mask(self, which: str | Callable[[str], bool] | Mapping[str, Any]) -> "Delta":
        """The parts and extra arrays of some paths, or some entries of them.

        Args:
          which: a path above them, or a regular expression that matches whole paths; a function
            of a path; or booleans of the arrays' shapes by path, where an absent path means none.

        Raises:
          InputError: nothing is left by a pattern, or it is not a regular expression; a masked part
            is not additive, booleans are of another shape, or some of an extra array's are false.
        """
        if isinstance(which, Mapping):
            parts, extra = self._chosen(trees.flatten(which))
        else:
            keeps = which if callable(which) else _pattern(which)
            parts = {path: part for path, part in self.parts.items() if keeps(path)}
            extra = {path: array for path, array in self.extra.items() if keeps(path)}
        if isinstance(which, str) and not (parts or extra):
            raise InputError(f"the delta has no array that {which!r} means")
        config = tuple(m for m in self.config if any(p.startswith(_at(m)) for p in extra))
        return Delta(parts, extra, self.base, config)

    def _chosen(self, mask: Mapping[str, Any]) -> tuple[dict[str, Part], dict[str, Any]]:
        """The parts and extra arrays that booleans by path leave."""
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
                    f"{path} does not change the base: a mask has all of it or nothing"
                )
        return parts, extra

    def without_heads(self) -> "Delta":
        """Without the arrays of `extra` that are no modules."""
        extra = {path: x for path, x in self.extra.items() if path.startswith(MODULES)}
        return dataclasses.replace(self, extra=extra)

    def check_additive(self) -> None:
        """Refuses, by an InputError, parts that are no sums."""
        for path, part in self.parts.items():
            if not part.additive:
                raise InputError(
                    f"{path} is changed by a {type(part).__name__} part, which cannot be added to "
                    "the base: make it one first, by delta.materialise(base) or `materialise(NAME)`"
                )

    @property
    def size(self) -> int:
        """Entries of the arrays that the parts change."""
        return sum(int(np.prod(part.shape)) for part in self.parts.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that it holds."""
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
            raise InputError(f"a delta is multiplied by finite float32 numbers: got {factor}")
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
        """The parts with what both have besides."""
        base = other.base if self.base is None else self.base.with_(other.base)
        heads = {p: x for p, x in self.extra.items() if not p.startswith(MODULES)}
        for path, array in other.extra.items():
            if path.startswith(MODULES):
                continue
            if path in heads and not np.array_equal(np.asarray(heads[path]), np.asarray(array)):
                raise InputError(
                    f"both deltas have {path}, and heads are not added: take one of them without, "
                    "by delta.without_heads() or `without_heads(NAME)`"
                )
            heads[path] = array
        modules, arrays = _modules(self, other)
        return Delta(parts, {**heads, **arrays}, base, modules)

    # As a view: what is stored is the base, and what is read has the delta.

    def stored(
        self, shapes: Mapping[str, Any], axes: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Shapes and axes as they are.

        Raises:
          ValueError: the base lacks an array.
        """
        for path in self.parts:
            if path not in shapes:
                raise InputError(f"the base has no array {path}, which the delta changes")
        return dict(shapes), dict(axes)

    def fresh(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """The arrays as they are: a fresh model is the base."""
        return dict(seen)

    def read(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The base's arrays with the delta, by path."""
        changed = {path: self.changed(path, stored[path]) for path in self.parts}
        return {**stored, **changed}

    def write(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """The base of which `read` makes these, up to rounding."""
        return (-self).read(seen)

    def mentions(self, path: str) -> bool:
        """Whether it changes the array at a path."""
        return path in self.parts


jax.tree_util.register_dataclass(
    Delta, data_fields=["parts", "extra"], meta_fields=["base", "config"]
)


def difference(path: str, tuned: Any, base: Any) -> Dense | None:
    """One array of a task vector; None where both are equal."""
    after, before = np.asarray(tuned, np.float32), np.asarray(base, np.float32)
    if after.shape != before.shape:
        raise InputError(f"{path} has shape {after.shape}, and that of the base {before.shape}")
    return None if np.array_equal(after, before) else Dense(after - before)


def _pattern(text: str) -> Callable[[str], bool]:
    """Whether a path is below another one, or is matched by a regular expression."""
    patterns.check("pattern", text)
    return lambda path: trees.covers(text, path)


def _booleans(path: str, mask: Mapping[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """The booleans of an array of a shape."""
    booleans = np.asarray(mask[path], bool)
    if booleans.shape != shape:
        raise InputError(f"the mask of {path} has shape {booleans.shape}, and the array {shape}")
    return booleans


def _at(module: Module) -> str:
    return f"{MODULES}{module.name}/"


def _modules(one: Delta, two: Delta) -> tuple[tuple[Module, ...], dict[str, Any]]:
    """The modules of two deltas: those at the same places become one, which is their sum."""
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
                f"two modules are called {module.name} and stand at different places: they have "
                "no sum"
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
