"""Parts of a delta: how one array of the base changes.

| part | the array W becomes |
|---|---|
| `Dense(v)` | W + v |
| `Sparse(indices, values)` | W + values at flat places, 0 elsewhere |
| `LowRank(a, b, scale)` | W + scale a b |
| `Scale(v, axis)` | W * v along an axis |
| `Dora(a, b, scale, m)` | m (W + scale a b) / its columns' norms |
| `Replace(v)` | v |
| `Several((p, q))` | q of p of W |
| `Mask(bits)` (`adapters.delta_parts`) | W where bits are 1, else 0 |
| `Fastfood(z, scale)` (`adapters.delta_parts`) | W + scale P(z) |

The first three and the last are additive: they add, and a number multiplies them. A stacked array
has the axis of its layers first, and so have its parts. All are computed in float32. Frozen
pytrees; `read` may be traced.

A part that keeps some numbers of an array and makes the others 0: a subnetwork.

    Mask.of(kept)        kept: booleans of the array's shape, stored as one bit each

It is applied last: what is added to the array is masked with it. It is no sum, so `materialise`
comes before + and *. Source: Zhou et al. 2019, arXiv:1905.01067.

Singular value decompositions of what is added to kernels.

    a b = Qa Ra (Qb Rb)^T = Qa (Ra Rb^T) Qb^T        the core Ra Rb^T is [R, R]

so that a product of low rank is decomposed without being made.

A part that is a random projection of few numbers: intrinsic dimension.

    W + scale * P(z)                       z [d], for every array of the model the same

    P(z) = (H G Pi H B pad(z))[:D] / (sqrt(L sum G^2) sqrt(D / L))       L = 2^ceil(log2 D)

H is the Walsh-Hadamard transform without a factor, B signs, Pi a permutation and G normal numbers.
They follow from the seed, the array's path and the number of its layer, and are stored nowhere.
JAX's reverse mode gives the adjoint, P'. Sources: Le et al. 2013 (Fastfood); Li et al. 2018,
arXiv:1804.08838; Aghajanyan et al. 2020, arXiv:2012.13255.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int32, UInt8

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import Array, Key

_REMEDY = "make it an ordinary difference first, by delta.materialise(base) or `materialise(NAME)`"


class Part:
    """Base of the parts.

    Attributes:
      order: parts of one array are applied in this order: replaced, added to, scaled, masked.
      additive: whether it is a sum with the base's array.
    """

    order: ClassVar[int] = 1
    additive: ClassVar[bool] = True

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """The changed array, of one in float32."""
        return base + jnp.asarray(self.dense())

    def dense(self) -> np.ndarray:
        """What is added, as one float32 array.

        Raises:
          InputError: the part is not additive.
        """
        raise InputError(f"a {_name(self)} part cannot be added to its base: {_REMEDY}")

    def times(self, factor: float | int) -> "Part":
        """The part times a number.

        Raises:
          InputError: the part is not additive.
        """
        raise InputError(f"a {_name(self)} part cannot be multiplied: {_REMEDY}")

    def plus(self, other: "Part") -> "Part":
        """The sum of two parts of one array; parts of different kinds become one dense array.

        Raises:
          InputError: one of them is not additive, or they are of different shapes.
        """
        for part in (self, other):
            if not part.additive:
                raise InputError(f"a {_name(part)} part cannot be added to another: {_REMEDY}")
        if self.shape != other.shape:
            raise InputError(f"parts of one array have shapes {self.shape} and {other.shape}")
        return self._plus(other)

    def _plus(self, other: "Part") -> "Part":
        return Dense(self.dense() + other.dense())

    def then(self, other: "Part") -> "Part":
        """This part, and then another one.

        Raises:
          InputError: they would not be applied in the order of their kinds.
        """
        if self.additive and other.additive:
            return self.plus(other)
        if other.order < self.order:
            raise InputError(f"a {_name(other)} part cannot follow a {_name(self)} part: {_REMEDY}")
        return Several((*_all(self), *_all(other)))

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the base's array; of a part that does not say it, ()."""
        return ()

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(np.asarray(x).nbytes for x in self.arrays().values())

    def arrays(self) -> dict[str, Any]:
        """Its arrays by name."""
        raise NotImplementedError


def _name(part: Part) -> str:
    return type(part).__name__


def _all(part: Part) -> tuple[Part, ...]:
    return part.parts if isinstance(part, Several) else (part,)


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(Part):
    """What is added to each number.

    Attributes:
      value: float32, of the array's shape.
    """

    value: Any

    def dense(self) -> np.ndarray:
        return np.asarray(self.value, np.float32)

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        return base + jnp.asarray(self.value, jnp.float32)

    def times(self, factor: float | int) -> "Part":
        return Dense(np.float32(factor) * self.dense())

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    def arrays(self) -> dict[str, Any]:
        return {"value": self.value}


@dataclasses.dataclass(frozen=True, eq=False)
class Sparse(Part):
    """What is added at some places.

    Attributes:
      indices: [K], flat in C order, sorted, none twice; int32, or int64 of an array with more.
      values: float32 [K].
      size: shape of the array.
    """

    indices: Any
    values: Any
    size: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray, indices: np.ndarray) -> "Sparse":
        """Some numbers of an array, by their sorted flat places."""
        kind = np.int32 if array.size <= np.iinfo(np.int32).max else np.int64
        values = np.asarray(array, np.float32).reshape(-1)[indices]
        return cls(indices.astype(kind), values, tuple(array.shape))

    def dense(self) -> np.ndarray:
        whole = np.zeros(math.prod(self.size), np.float32)
        whole[np.asarray(self.indices)] = self.values
        return whole.reshape(self.size)

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        indices = self.indices
        if indices.dtype == np.int64:  # JAX counts to 2^31
            places: Any = np.unravel_index(np.asarray(indices), self.size)
            return base.at[tuple(p.astype(np.int32) for p in places)].add(self.values)
        flat = base.reshape(-1)
        added = flat.at[indices].add(self.values, unique_indices=True, indices_are_sorted=True)
        return added.reshape(base.shape)

    def times(self, factor: float | int) -> "Part":
        values = np.float32(factor) * np.asarray(self.values, np.float32)
        return Sparse(self.indices, values, self.size)

    def _plus(self, other: "Part") -> "Part":
        if not isinstance(other, Sparse):
            return super()._plus(other)
        both = np.union1d(np.asarray(self.indices), np.asarray(other.indices))
        values = np.zeros(both.size, np.float32)
        for one in (self, other):
            values[np.searchsorted(both, np.asarray(one.indices))] += np.asarray(one.values)
        return Sparse(both.astype(self.indices.dtype), values, self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    def arrays(self) -> dict[str, Any]:
        return {"indices": self.indices, "values": self.values}


@dataclasses.dataclass(frozen=True, eq=False)
class LowRank(Part):
    """A product that is added: LoRA's, or what is left of a singular value decomposition.

    Attributes:
      a: float32 [..., I, R].
      b: float32 [..., R, O].
      scale: of the product.
    """

    a: Any
    b: Any
    scale: float = 1.0

    def dense(self) -> np.ndarray:
        product = np.matmul(np.asarray(self.a, np.float32), np.asarray(self.b, np.float32))
        return product if self.scale == 1.0 else np.float32(self.scale) * product

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        a, b = jnp.asarray(self.a), jnp.asarray(self.b)
        product = jnp.matmul(a, b, preferred_element_type=jnp.float32, precision="highest")
        return base + self.scale * product

    def times(self, factor: float | int) -> "Part":
        return LowRank(self.a, self.b, self.scale * factor)

    def _plus(self, other: "Part") -> "Part":
        if not isinstance(other, LowRank):
            return super()._plus(other)
        scale = self.scale if self.scale == other.scale else 1.0
        mine, theirs = (np.asarray(p.b, np.float32) for p in (self, other))
        if self.scale != other.scale:
            mine, theirs = np.float32(self.scale) * mine, np.float32(other.scale) * theirs
        a = np.concatenate([np.asarray(self.a), np.asarray(other.a)], axis=-1)
        return LowRank(a, np.concatenate([mine, theirs], axis=-2), scale)

    @property
    def rank(self) -> int:
        """R."""
        return self.a.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.a.shape[:-1], self.b.shape[-1])

    def arrays(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b}


@dataclasses.dataclass(frozen=True, eq=False)
class Scale(Part):
    """Factors along one axis, as those of (IA)^3.

    Attributes:
      value: [..., size of the axis]; the axes before it are the first ones of the array.
      axis: -1 for the columns of a kernel and for a bias, -2 for the rows of a kernel.
    """

    value: Any
    axis: int = -1

    order: ClassVar[int] = 2
    additive: ClassVar[bool] = False

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """The changed array, of one in float32.

        Raises:
          InputError: the array has other axes.
        """
        value = jnp.asarray(self.value, jnp.float32)
        layers, size = tuple(value.shape[:-1]), value.shape[-1]
        fits = base.ndim >= len(layers) - self.axis and base.shape[self.axis] == size
        if not fits or tuple(base.shape[: len(layers)]) != layers:
            raise InputError(
                f"factors of shape {tuple(value.shape)} along axis {self.axis} do not fit an array "
                f"of shape {tuple(base.shape)}"
            )
        shape = [*value.shape[:-1], *[1] * (base.ndim - value.ndim + 1)]
        shape[self.axis] = value.shape[-1]
        return base * value.reshape(shape)

    def then(self, other: "Part") -> "Part":
        """The product, where both are along one axis."""
        if isinstance(other, Scale) and other.axis == self.axis:
            return Scale(np.asarray(self.value) * np.asarray(other.value), self.axis)
        return super().then(other)

    def arrays(self) -> dict[str, Any]:
        return {"value": self.value}


@dataclasses.dataclass(frozen=True, eq=False)
class Dora(Part):
    """Columns of length m in the direction of W + scale a b (Liu et al. 2024, arXiv:2402.09353).

    Attributes:
      a: float32 [..., I, R].
      b: float32 [..., R, O].
      m: float32 [..., O].
      scale: of the product.
      relative: whether the lengths are m and those of W's columns together.
    """

    a: Any
    b: Any
    m: Any
    scale: float = 1.0
    relative: bool = False

    additive: ClassVar[bool] = False

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        moved = LowRank(self.a, self.b, self.scale).read(base)
        norms = jnp.linalg.norm(moved, axis=-2, keepdims=True)
        size = jnp.asarray(self.m, jnp.float32)[..., None, :]
        if self.relative:
            size = size + jnp.linalg.norm(base, axis=-2, keepdims=True)
        return moved * (size / jnp.where(norms == 0.0, 1.0, norms))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.a.shape[:-1], self.b.shape[-1])

    def arrays(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b, "m": self.m}


@dataclasses.dataclass(frozen=True, eq=False)
class Replace(Part):
    """Another array in place of the base's.

    Attributes:
      value: of the array's shape.
    """

    value: Any

    order: ClassVar[int] = 0
    additive: ClassVar[bool] = False

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        del base
        return jnp.asarray(self.value, jnp.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    def arrays(self) -> dict[str, Any]:
        return {"value": self.value}


@dataclasses.dataclass(frozen=True, eq=False)
class Several(Part):
    """Parts of one array, one after the other.

    Attributes:
      parts: in the order of their kinds.
    """

    parts: tuple[Part, ...]

    additive: ClassVar[bool] = False

    @property
    def order(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """That of the last."""
        return self.parts[-1].order

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the first part that says it."""
        return next((part.shape for part in self.parts if part.shape), ())

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        for part in self.parts:
            base = part.read(base)
        return base

    def arrays(self) -> dict[str, Any]:
        return {
            f"{number}_{name}": array
            for number, part in enumerate(self.parts)
            for name, array in part.arrays().items()
        }


jax.tree_util.register_dataclass(Dense, data_fields=["value"], meta_fields=[])
jax.tree_util.register_dataclass(Sparse, data_fields=["indices", "values"], meta_fields=["size"])
jax.tree_util.register_dataclass(LowRank, data_fields=["a", "b"], meta_fields=["scale"])
jax.tree_util.register_dataclass(Scale, data_fields=["value"], meta_fields=["axis"])
jax.tree_util.register_dataclass(
    Dora, data_fields=["a", "b", "m"], meta_fields=["scale", "relative"]
)
jax.tree_util.register_dataclass(Replace, data_fields=["value"], meta_fields=[])
jax.tree_util.register_dataclass(Several, data_fields=["parts"], meta_fields=[])


@dataclasses.dataclass(frozen=True, eq=False)
class Mask(Part):
    """The array where bits are 1, and 0 elsewhere.

    Attributes:
      bits: uint8 [ceil(entries / 8)]; entries in C order, the first one is the highest bit.
      size: shape of the array.
    """

    bits: Any
    size: tuple[int, ...]

    order: ClassVar[int] = 3
    additive: ClassVar[bool] = False

    @classmethod
    def of(cls, kept: Bool[np.ndarray, "*axes"]) -> "Mask":
        """The mask of booleans."""
        return cls(np.packbits(np.asarray(kept, bool)), tuple(kept.shape))

    def kept(self) -> np.ndarray:
        """Its booleans, of the array's shape."""
        flat = np.unpackbits(np.asarray(self.bits), count=math.prod(self.size))
        return flat.astype(bool).reshape(self.size)

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """The masked array."""
        return jnp.where(unpacked(jnp.asarray(self.bits), self.size), base, 0.0)

    def then(self, other: "Part") -> "Part":
        """What both keep, of two masks."""
        if not isinstance(other, Mask):
            return super().then(other)
        if other.size != self.size:
            raise InputError(f"masks of one array have shapes {self.size} and {other.size}")
        return Mask(np.asarray(self.bits) & np.asarray(other.bits), self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    def arrays(self) -> dict[str, Any]:
        return {"bits": self.bits}


def unpacked(bits: UInt8[Array, " bytes"], shape: tuple[int, ...]) -> Bool[Array, "*axes"]:
    """The booleans of bits; may be traced."""
    flat = jnp.unpackbits(bits, count=math.prod(shape))
    return flat.astype(bool).reshape(shape)


jax.tree_util.register_dataclass(Mask, data_fields=["bits"], meta_fields=["size"])


_VECTORS = ("bias", "scale")
"""Last names of arrays whose last axis alone is theirs: the one before it may be the layers'."""


def is_kernel(path: str, shape: tuple[int, ...]) -> bool:
    """Whether the last two axes of an array are a matrix."""
    return len(shape) >= 2 and path.rpartition("/")[2] not in _VECTORS


def factored(part: Part, rank: int) -> LowRank:
    """The product of a rank that is nearest to an additive part of a kernel.

    The singular values' square roots are on both sides. Source: Eckart and Young 1936.

    Args:
      part: [..., I, O].
      rank: at most; the smaller one of I and O is enough.
    """
    if isinstance(part, LowRank):
        qa, ra = np.linalg.qr(np.asarray(part.a, np.float32))
        qb, rb = np.linalg.qr(np.swapaxes(np.asarray(part.b, np.float32), -1, -2))
        core = np.float32(part.scale) * np.matmul(ra, np.swapaxes(rb, -1, -2))
        u, s, v = np.linalg.svd(core, full_matrices=False)
        u, v = np.matmul(qa, u), np.matmul(v, np.swapaxes(qb, -1, -2))
    else:
        u, s, v = np.linalg.svd(part.dense(), full_matrices=False)
    root = np.sqrt(s[..., :rank])
    return LowRank(u[..., :, :rank] * root[..., None, :], root[..., :, None] * v[..., :rank, :])


Projection = Literal["fastfood", "dense"]
_BLOCK = 64
"""Rows of the Hadamard matrix that one product has."""
_DENSE_DEVIATION = 0.01
_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Subspace:
    """How few numbers become an array.

    Attributes:
      path: of the array, as "model/encoder/...".
      shape: its shape.
      stacked: whether its first axis is that of layers, each of which has a projection of its own.
      seed: of what is drawn.
      projection: P, or a dense matrix of N(0, 0.01^2).
    """

    path: str
    shape: tuple[int, ...]
    stacked: bool
    seed: int = 0
    projection: Projection = "fastfood"

    @property
    def rows(self) -> tuple[int, int]:
        """Number of layers, 1 of an array that is not stacked, and D, the entries of one."""
        layers = self.shape[0] if self.stacked else 1
        return layers, math.prod(self.shape[1:] if self.stacked else self.shape)

    @property
    def keys(self) -> Array:
        """A key for each layer."""
        base = jax.random.fold_in(jax.random.key(self.seed), zlib.crc32(self.path.encode()))
        return jax.vmap(functools.partial(jax.random.fold_in, base))(jnp.arange(self.rows[0]))

    def project(self, z: Float[Array, " d"], scale: Float[Array, "*N"]) -> Float[Array, "*axes"]:
        """scale * P(z), of the array's shape.

        Args:
          z: numbers; of more than L, each L of them are added up.
          scale: one for each layer of a stacked array, else a scalar.
        """
        return project_all({"": self}, z, {"": scale})[""]


def project_all(
    spaces: Mapping[str, Subspace], z: Float[Array, " d"], scales: Mapping[str, Array]
) -> dict[str, Array]:
    """What `Subspace.project` gives, of several arrays.

    Arrays of one L are made by one program, which is compiled once, a layer at a time.

    Args:
      spaces: by path.
      z: the same of all.
      scales: by path.
    """
    groups: dict[int, list[str]] = {}
    made: dict[str, Array] = {}
    for path, space in spaces.items():
        _, size = space.rows
        if space.projection == "fastfood":
            groups.setdefault(padded(size), []).append(path)
        else:
            made[path] = jax.vmap(lambda key, size=size: dense(z, key, size=size))(space.keys)
    for length, paths in groups.items():
        keys = jnp.concatenate([spaces[path].keys for path in paths])
        rows = jax.lax.map(lambda key, length=length: transformed(z, key, length=length), keys)
        first = 0
        for path in paths:
            layers, size = spaces[path].rows
            made[path] = rows[first : first + layers, :size] / math.sqrt(size / length)
            first += layers
    return {
        path: (made[path] * scales[path].reshape(-1, 1)).reshape(space.shape)
        for path, space in spaces.items()
    }


def fastfood(z: Float[Array, " d"], key: Key, *, size: int) -> Float[Array, " D"]:
    """P(z) of one array.

    Args:
      z: d numbers; of more than L, each L of them are added up.
      key: of B, Pi and G.
      size: D.
    """
    length = padded(size)
    return transformed(z, key, length=length)[:size] / math.sqrt(size / length)


def transformed(z: Float[Array, " d"], key: Key, *, length: int) -> Float[Array, " L"]:
    """H G Pi H B pad(z) / sqrt(L sum G^2)."""
    signs, order, normal = draws(key, length)
    x = hadamard(hadamard(folded(z, length) * signs)[order] * normal)
    return x / jnp.sqrt(length * jnp.sum(normal**2))


def dense(z: Float[Array, " d"], key: Key, *, size: int) -> Float[Array, " D"]:
    """A matrix of N(0, 0.01^2) times z."""
    matrix = _DENSE_DEVIATION * jax.random.normal(key, (size, z.shape[0]), jnp.float32)
    return jnp.matmul(matrix, z, precision="highest")


def padded(size: int) -> int:
    """L, the power of 2 that an array is padded to."""
    return 1 << max(0, (size - 1).bit_length())


def draws(key: Key, length: int) -> tuple[Array, Array, Array]:
    """B, Pi and G of a length."""
    of_signs, of_order, of_normal = jax.random.split(key, 3)
    signs = jax.random.rademacher(of_signs, (length,), jnp.float32)
    return signs, shuffled(of_order, length), jax.random.normal(of_normal, (length,), jnp.float32)


def shuffled(key: Key, length: int) -> Int32[Array, " L"]:
    """A permutation of 0 .. L - 1 that needs no sort: L is a power of 2.

    Each of its rounds multiplies by an odd number and adds one, modulo L, and then adds the high
    bits to the low ones modulo 2. All three can be undone.
    """
    bits = max(0, length.bit_length() - 1)
    numbers = jax.random.bits(key, (_ROUNDS, 2), jnp.uint32)
    place, last = jnp.arange(length, dtype=jnp.uint32), jnp.uint32(length - 1)
    for odd, added in numbers:
        place = (place * (odd | 1) + added) & last
        place = place ^ (place >> max(1, bits // 2))
    return place.astype(jnp.int32)


def folded(z: Float[Array, " d"], length: int) -> Float[Array, " L"]:
    """Numbers with zeros behind them, or where they are more than L the sum of each L."""
    times = max(1, -(-z.shape[0] // length))
    return jnp.sum(jnp.pad(z, (0, times * length - z.shape[0])).reshape(times, length), axis=0)


def hadamard(x: Float[Array, " L"]) -> Float[Array, " L"]:
    """The Walsh-Hadamard transform, without a factor; L is a power of 2.

    H of L is the Kronecker product of those of the factors of L: one small product for each.
    """
    length, done = x.shape[0], 1
    while done < length:
        block = min(_BLOCK, length // done)
        y = x.reshape(length // (done * block), block, done)
        y = jnp.einsum("ij,ajb->aib", _matrix(block), y, precision="highest")
        x, done = y.reshape(length), done * block
    return x


@functools.cache
def _matrix(size: int) -> np.ndarray:
    """The Hadamard matrix of a power of 2, in natural order."""
    matrix = np.ones((1, 1), np.float32)
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@dataclasses.dataclass(frozen=True, eq=False)
class Fastfood(Part):
    """scale * P(z) is added.

    Attributes:
      z: float32 [d].
      scale: float32, [N] of a stacked array, else a scalar.
      of: the array, and what is drawn.
    """

    z: Any
    scale: Any
    of: Subspace

    def dense(self) -> np.ndarray:
        z, scale = (jnp.asarray(x, jnp.float32) for x in (self.z, self.scale))
        return np.asarray(jax.jit(self.of.project)(z, scale))

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        z, scale = (jnp.asarray(x, jnp.float32) for x in (self.z, self.scale))
        return base + self.of.project(z, scale)

    def times(self, factor: float | int) -> "Part":
        return Fastfood(self.z, np.float32(factor) * np.asarray(self.scale, np.float32), self.of)

    def _plus(self, other: "Part") -> "Part":
        """The sum of two of one subspace is of it, where their scales are the same."""
        if (
            isinstance(other, Fastfood)
            and other.of == self.of
            and np.shape(other.z) == np.shape(self.z)
            and np.array_equal(other.scale, self.scale)
        ):
            return Fastfood(np.asarray(self.z) + np.asarray(other.z), self.scale, self.of)
        return super()._plus(other)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of.shape

    def arrays(self) -> dict[str, Any]:
        return {"z": self.z, "scale": self.scale}


jax.tree_util.register_dataclass(Fastfood, data_fields=["z", "scale"], meta_fields=["of"])
