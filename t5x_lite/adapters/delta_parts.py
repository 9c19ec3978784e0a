"""Parts of a delta: changes of one array of the base.

| part | the array W becomes |
|---|---|
| `Dense(v)` | W + v |
| `Sparse(indices, values)` | W + values at flat indices |
| `LowRank(a, b, scale)` | W + scale a b |
| `Scale(v, axis)` | W * v along an axis |
| `Dora(a, b, scale, m)` | m (W + scale a b) / its columns' norms |
| `Replace(v)` | v |
| `Several((p, q))` | W changed by p, then by q |
| `Mask(bits)` | W where bits are 1, else 0 |
| `Fastfood(z, scale)` | W + scale P(z) |

`Dense`, `Sparse`, `LowRank` and `Fastfood` are additive: they can be added, and multiplied by a
number. Parts of a stacked array have the layer axis first, like the array itself. All parts are
computed in float32. They are frozen pytrees; `read` may be traced.

`Mask` keeps some entries of an array and sets the others to 0: a subnetwork.

    Mask.of(kept)        kept: booleans of the array's shape, stored as one bit each

It is applied last, so it also masks what other parts add. It is not additive: use `materialise`
before + and *. Source: Zhou et al. 2019, arXiv:1905.01067.

`factored` computes the singular value decomposition of a low-rank product from its core Ra Rb^T,
which is [R, R]; the product itself is not formed.

    a b = Qa Ra (Qb Rb)^T = Qa (Ra Rb^T) Qb^T

`Fastfood` is a random projection of few numbers to an array: intrinsic dimension.

    W + scale * P(z)                       z [d], equal for every array of the model

    P(z) = (H G Pi H B pad(z))[:D] / (sqrt(L sum G^2) sqrt(D / L))       L = 2^ceil(log2 D)

H is the Walsh-Hadamard transform without a factor, B signs, Pi a permutation and G normal numbers.
They are generated from the seed, the array's path and the layer's number, and are not stored.
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

_REMEDY = "make it an ordinary difference first, by delta.materialise(base) or `materialize(NAME)`"


class Part:
    """Base class of the parts of a delta; a part changes one array.

    Attributes:
      order: order in which parts of one array are applied: replace, add, scale, mask.
      additive: True if the part is added to the base's array.
    """

    order: ClassVar[int] = 1
    additive: ClassVar[bool] = True

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Return the changed array; `base` is float32."""
        return base + jnp.asarray(self.dense())

    def dense(self) -> np.ndarray:
        """Return the addition as one float32 array.

        Raises:
          InputError: if the part is not additive.
        """
        raise InputError(f"a {_name(self)} part cannot be added to its base: {_REMEDY}")

    def times(self, factor: float | int) -> "Part":
        """Return the part times a number.

        Raises:
          InputError: if the part is not additive.
        """
        raise InputError(f"a {_name(self)} part cannot be multiplied: {_REMEDY}")

    def plus(self, other: "Part") -> "Part":
        """Return the sum of two parts of one array; different kinds become one dense array.

        Raises:
          InputError: if one of them is not additive, or their shapes differ.
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
        """Return this part followed by another one.

        Raises:
          InputError: if their kinds cannot be applied in this order.
        """
        if self.additive and other.additive:
            return self.plus(other)
        if other.order < self.order:
            raise InputError(f"a {_name(other)} part cannot follow a {_name(self)} part: {_REMEDY}")
        return Several((*_all(self), *_all(other)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the base's array; () if the part does not determine it."""
        return ()

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(np.asarray(x).nbytes for x in self.arrays().values())

    def arrays(self) -> dict[str, Any]:
        """Return the part's arrays by name."""
        raise NotImplementedError


def _name(part: Part) -> str:
    return type(part).__name__


def _all(part: Part) -> tuple[Part, ...]:
    return part.parts if isinstance(part, Several) else (part,)


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(Part):
    """An addition to each entry.

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
    """An addition to some entries.

    Attributes:
      indices: [K], flat in C order, sorted, unique; int32, or int64 for arrays with more entries.
      values: float32 [K].
      size: shape of the array.
    """

    indices: Any
    values: Any
    size: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray, indices: np.ndarray) -> "Sparse":
        """Return the part of some entries of an array, by their sorted flat indices."""
        kind = np.int32 if array.size <= np.iinfo(np.int32).max else np.int64
        values = np.asarray(array, np.float32).reshape(-1)[indices]
        return cls(indices.astype(kind), values, tuple(array.shape))

    def dense(self) -> np.ndarray:
        whole = np.zeros(math.prod(self.size), np.float32)
        whole[np.asarray(self.indices)] = self.values
        return whole.reshape(self.size)

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        indices = self.indices
        if indices.dtype == np.int64:  # JAX indices are below 2^31
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
    """An addition of a low-rank product: LoRA's, or a truncated singular value decomposition.

    Attributes:
      a: float32 [..., I, R].
      b: float32 [..., R, O].
      scale: factor of the product.
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
        """Rank R of the product."""
        return self.a.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.a.shape[:-1], self.b.shape[-1])

    def arrays(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b}


@dataclasses.dataclass(frozen=True, eq=False)
class Scale(Part):
    """Factors along one axis, as in (IA)^3.

    Attributes:
      value: [..., size of the axis]; the axes before it are the first ones of the array.
      axis: -1 for the columns of a kernel and for a bias, -2 for the rows of a kernel.
    """

    value: Any
    axis: int = -1

    order: ClassVar[int] = 2
    additive: ClassVar[bool] = False

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Return the changed array; `base` is float32.

        Raises:
          InputError: if the array has other axes.
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
        """Return the product if both scale the same axis, else both parts in sequence."""
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
      scale: factor of the product a b.
      relative: True if a length is the sum of m and the norm of W's column.
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
    """A new array instead of the base's.

    Attributes:
      value: array of the base array's shape.
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
        """Order of the last part."""
        return self.parts[-1].order

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first part that determines it."""
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
        """Return the mask of booleans."""
        return cls(np.packbits(np.asarray(kept, bool)), tuple(kept.shape))

    def kept(self) -> np.ndarray:
        """Return the mask as booleans, of the array's shape."""
        flat = np.unpackbits(np.asarray(self.bits), count=math.prod(self.size))
        return flat.astype(bool).reshape(self.size)

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Return the masked array."""
        return jnp.where(unpacked(jnp.asarray(self.bits), self.size), base, 0.0)

    def then(self, other: "Part") -> "Part":
        """Return the intersection of two masks, or both parts in sequence."""
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
    """Return the booleans of packed bits; may be traced."""
    flat = jnp.unpackbits(bits, count=math.prod(shape))
    return flat.astype(bool).reshape(shape)


jax.tree_util.register_dataclass(Mask, data_fields=["bits"], meta_fields=["size"])


_VECTORS = ("bias", "scale")
"""Last names of vectors: the axis before the last one, if any, is the layer axis."""


def is_kernel(path: str, shape: tuple[int, ...]) -> bool:
    """Return True if the last two axes of an array are a matrix."""
    return len(shape) >= 2 and path.rpartition("/")[2] not in _VECTORS


def factored(part: Part, rank: int) -> LowRank:
    """Return the product of a rank that is nearest to an additive part of a kernel.

    Both factors contain the square roots of the singular values. Source: Eckart and Young 1936.

    Args:
      part: [..., I, O].
      rank: maximum rank; min(I, O) gives the exact part.
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
"""Maximum rows of the Hadamard matrix in one product."""
_DENSE_DEVIATION = 0.01
_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Subspace:
    """Projection of few numbers to an array.

    Attributes:
      path: path of the array, such as "model/encoder/...".
      shape: shape of the array.
      stacked: True if the first axis is the layer axis; each layer has its own projection.
      seed: random seed of the projection.
      projection: P, or a dense matrix of N(0, 0.01^2).
    """

    path: str
    shape: tuple[int, ...]
    stacked: bool
    seed: int = 0
    projection: Projection = "fastfood"

    @property
    def rows(self) -> tuple[int, int]:
        """Number of layers, 1 if the array is not stacked, and D, the entries of one layer."""
        layers = self.shape[0] if self.stacked else 1
        return layers, math.prod(self.shape[1:] if self.stacked else self.shape)

    @property
    def keys(self) -> Array:
        """Random key of each layer."""
        base = jax.random.fold_in(jax.random.key(self.seed), zlib.crc32(self.path.encode()))
        return jax.vmap(functools.partial(jax.random.fold_in, base))(jnp.arange(self.rows[0]))

    def project(self, z: Float[Array, " d"], scale: Float[Array, "*N"]) -> Float[Array, "*axes"]:
        """Return scale * P(z), in the array's shape.

        Args:
          z: numbers; if there are more than L, chunks of L are summed.
          scale: one for each layer of a stacked array, else a scalar.
        """
        return project_all({"": self}, z, {"": scale})[""]


def project_all(
    spaces: Mapping[str, Subspace], z: Float[Array, " d"], scales: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the result of `Subspace.project` for several arrays, by path.

    Arrays with the same L share one program, which is compiled once and runs layer by layer.
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
    """Return P(z) for one array of size D, with a random key of B, Pi and G."""
    length = padded(size)
    return transformed(z, key, length=length)[:size] / math.sqrt(size / length)


def transformed(z: Float[Array, " d"], key: Key, *, length: int) -> Float[Array, " L"]:
    """Return H G Pi H B pad(z) / sqrt(L sum G^2)."""
    signs, order, normal = draws(key, length)
    x = hadamard(hadamard(folded(z, length) * signs)[order] * normal)
    return x / jnp.sqrt(length * jnp.sum(normal**2))


def dense(z: Float[Array, " d"], key: Key, *, size: int) -> Float[Array, " D"]:
    """Return a matrix of N(0, 0.01^2) times z."""
    matrix = _DENSE_DEVIATION * jax.random.normal(key, (size, z.shape[0]), jnp.float32)
    return jnp.matmul(matrix, z, precision="highest")


def padded(size: int) -> int:
    """Return L, the power of 2 to which an array is padded."""
    return 1 << max(0, (size - 1).bit_length())


def draws(key: Key, length: int) -> tuple[Array, Array, Array]:
    """Sample B, Pi and G of a length."""
    of_signs, of_order, of_normal = jax.random.split(key, 3)
    signs = jax.random.rademacher(of_signs, (length,), jnp.float32)
    return signs, shuffled(of_order, length), jax.random.normal(of_normal, (length,), jnp.float32)


def shuffled(key: Key, length: int) -> Int32[Array, " L"]:
    """Return a permutation of 0 .. L - 1 without a sort; L is a power of 2.

    Each round multiplies by an odd number and adds a number, modulo L, and then adds the high bits
    to the low bits modulo 2. All three steps are invertible.
    """
    bits = max(0, length.bit_length() - 1)
    numbers = jax.random.bits(key, (_ROUNDS, 2), jnp.uint32)
    place, last = jnp.arange(length, dtype=jnp.uint32), jnp.uint32(length - 1)
    for odd, added in numbers:
        place = (place * (odd | 1) + added) & last
        place = place ^ (place >> max(1, bits // 2))
    return place.astype(jnp.int32)


def folded(z: Float[Array, " d"], length: int) -> Float[Array, " L"]:
    """Pad numbers with zeros to a length; if there are more, sum chunks of this length."""
    times = max(1, -(-z.shape[0] // length))
    return jnp.sum(jnp.pad(z, (0, times * length - z.shape[0])).reshape(times, length), axis=0)


def hadamard(x: Float[Array, " L"]) -> Float[Array, " L"]:
    """Apply the Walsh-Hadamard transform, without a factor; L is a power of 2.

    H of size L is the Kronecker product of small H; each of them is one small matrix product.
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
    """Return the Hadamard matrix of a power of 2, in natural order."""
    matrix = np.ones((1, 1), np.float32)
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@dataclasses.dataclass(frozen=True, eq=False)
class Fastfood(Part):
    """An addition of scale * P(z).

    Attributes:
      z: float32 [d].
      scale: float32, [N] for a stacked array, else a scalar.
      of: the array and its projection.
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
        """Return the sum in the same subspace if both have this subspace and equal scales."""
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
