"""Delta parts: changes of single arrays of a base model, from which deltas are composed.

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
computed in float32. They are frozen pytrees, and `read` works under jax.jit.

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
They are generated from the seed, the array's path and the layer's number, and are not stored. JAX's
reverse mode gives the adjoint, P'. Sources: Le et al. 2013 (Fastfood); Li et al. 2018,
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

_REMEDY = (
    "convert the delta to a difference first with delta.materialise(base) or `materialize(NAME)`"
)


class Part:
    """Base class of the changes of one array of a base model, such as `LowRank`.

    Attributes:
      order: number by which changes of one array are sorted: replace 0, add 1, scale 2, mask 3.
      additive: True if the change adds values to the base array, so that changes can be summed.
    """

    order: ClassVar[int] = 1
    additive: ClassVar[bool] = True

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Return the base array with this change applied; `base` is float32."""
        return base + jnp.asarray(self.dense())

    def dense(self) -> np.ndarray:
        """Return the values that this change adds, as a dense float32 array.

        Raises:
          InputError: if this change, such as a mask, is not an addition.
        """
        raise InputError(
            f"a delta with a {_name(self)} change is not a difference from the base; {_REMEDY}"
        )

    def times(self, factor: float | int) -> "Part":
        """Return this change multiplied by a number.

        Raises:
          InputError: if this change, such as a mask, is not an addition.
        """
        raise InputError(
            f"a delta with a {_name(self)} change cannot be multiplied by a number; {_REMEDY}"
        )

    def plus(self, other: "Part") -> "Part":
        """Return the sum of two changes of one array.

        Raises:
          InputError: if one of the changes, such as a mask, cannot be added, or the shapes differ.
        """
        for part in (self, other):
            if not part.additive:
                raise InputError(
                    f"a delta with a {_name(part)} change cannot be added to another delta; "
                    f"{_REMEDY}"
                )
        if self.shape != other.shape:
            raise InputError(
                f"two changes of the same array have different shapes, {self.shape} and "
                f"{other.shape}"
            )
        return self._plus(other)

    def _plus(self, other: "Part") -> "Part":
        return Dense(self.dense() + other.dense())

    def then(self, other: "Part") -> "Part":
        """Return a single change that applies this change first and the other change second.

        Raises:
          InputError: if the other change cannot follow this change.
        """
        if self.additive and other.additive:
            return self.plus(other)
        if other.order < self.order:
            raise InputError(
                f"a delta with a {_name(other)} change cannot follow a delta with a {_name(self)} "
                f"change; {_REMEDY}"
            )
        return Several((*_all(self), *_all(other)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the base array; () if this change fits arrays of several shapes."""
        return ()

    @property
    def nbytes(self) -> int:
        return sum(np.asarray(x).nbytes for x in self.arrays().values())

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of this change by name."""
        raise NotImplementedError


def _name(part: Part) -> str:
    return type(part).__name__


def _all(part: Part) -> tuple[Part, ...]:
    return part.parts if isinstance(part, Several) else (part,)


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(Part):
    """Change that adds a dense array to an array of the base model.

    Attributes:
      value: float32 array of the base array's shape.
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
    """Change that adds values to some entries of an array of the base model.

    Attributes:
      indices: flat indices [K] in C order, sorted and unique; int32, or int64 for larger arrays.
      values: float32 values [K].
      size: shape of the base array.
    """

    indices: Any
    values: Any
    size: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray, indices: np.ndarray) -> "Sparse":
        """Return a change that adds `array` at the given flat indices, and 0 at all others."""
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
    """Change that adds a low-rank product scale * a b, as in LoRA, to a kernel of the base model.

    Attributes:
      a: float32 factor [..., I, R].
      b: float32 factor [..., R, O].
      scale: factor of the product a b.
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
        return self.a.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.a.shape[:-1], self.b.shape[-1])

    def arrays(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b}


@dataclasses.dataclass(frozen=True, eq=False)
class Scale(Part):
    """Change that multiplies an array of the base model by factors along one axis, as in (IA)^3.

    Attributes:
      value: factors [..., size of the axis]; the other axes are the first axes of the array.
      axis: -1 for the columns of a kernel and for a bias, -2 for the rows of a kernel.
    """

    value: Any
    axis: int = -1

    order: ClassVar[int] = 2
    additive: ClassVar[bool] = False

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        """Return the base array multiplied by the factors; `base` is float32.

        Raises:
          InputError: if the shape of the factors does not fit the array.
        """
        value = jnp.asarray(self.value, jnp.float32)
        layers, size = tuple(value.shape[:-1]), value.shape[-1]
        fits = base.ndim >= len(layers) - self.axis and base.shape[self.axis] == size
        if not fits or tuple(base.shape[: len(layers)]) != layers:
            raise InputError(
                f"scale factors of shape {tuple(value.shape)} along axis {self.axis} do not fit "
                f"an array of shape {tuple(base.shape)}"
            )
        shape = [*value.shape[:-1], *[1] * (base.ndim - value.ndim + 1)]
        shape[self.axis] = value.shape[-1]
        return base * value.reshape(shape)

    def then(self, other: "Part") -> "Part":
        if isinstance(other, Scale) and other.axis == self.axis:
            return Scale(np.asarray(self.value) * np.asarray(other.value), self.axis)
        return super().then(other)

    def arrays(self) -> dict[str, Any]:
        return {"value": self.value}


@dataclasses.dataclass(frozen=True, eq=False)
class Dora(Part):
    """DoRA change of a kernel W (arXiv:2402.09353) to W + scale a b with columns of norm m.

    Attributes:
      a: float32 factor [..., I, R].
      b: float32 factor [..., R, O].
      m: float32 column norms [..., O].
      scale: factor of the product a b.
      relative: True if m is the difference from the norms of W's columns.
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
    """Change that replaces an array of the base model.

    Attributes:
      value: new array, of the base array's shape.
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
    """Change that applies several changes to one array, one after the other.

    Attributes:
      parts: changes in order of application.
    """

    parts: tuple[Part, ...]

    additive: ClassVar[bool] = False

    @property
    def order(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.parts[-1].order

    @property
    def shape(self) -> tuple[int, ...]:
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
    """Change that keeps some entries of an array of the base model and sets the rest to 0.

    Attributes:
      bits: packed mask, uint8 [ceil(entries / 8)]; entries in C order, the highest bit first.
      size: shape of the base array.
    """

    bits: Any
    size: tuple[int, ...]

    order: ClassVar[int] = 3
    additive: ClassVar[bool] = False

    @classmethod
    def of(cls, kept: Bool[np.ndarray, "*axes"]) -> "Mask":
        """Return the mask that keeps the entries where a boolean array is True."""
        return cls(np.packbits(np.asarray(kept, bool)), tuple(kept.shape))

    def kept(self) -> np.ndarray:
        """Return the mask as a boolean array, True for kept entries."""
        flat = np.unpackbits(np.asarray(self.bits), count=math.prod(self.size))
        return flat.astype(bool).reshape(self.size)

    def read(self, base: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
        return jnp.where(unpacked(jnp.asarray(self.bits), self.size), base, 0.0)

    def then(self, other: "Part") -> "Part":
        if not isinstance(other, Mask):
            return super().then(other)
        if other.size != self.size:
            raise InputError(
                f"two masks of the same array have different shapes, {self.size} and {other.size}"
            )
        return Mask(np.asarray(self.bits) & np.asarray(other.bits), self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size

    def arrays(self) -> dict[str, Any]:
        return {"bits": self.bits}


def unpacked(bits: UInt8[Array, " bytes"], shape: tuple[int, ...]) -> Bool[Array, "*axes"]:
    """Convert a packed bit mask to a boolean array; works under jax.jit."""
    flat = jnp.unpackbits(bits, count=math.prod(shape))
    return flat.astype(bool).reshape(shape)


jax.tree_util.register_dataclass(Mask, data_fields=["bits"], meta_fields=["size"])


_VECTORS = ("bias", "scale")
"""Last path components of vector parameters, in which an extra first axis is the layer axis."""


def is_kernel(path: str, shape: tuple[int, ...]) -> bool:
    """Return True if the last two axes of a parameter form a matrix."""
    return len(shape) >= 2 and path.rpartition("/")[2] not in _VECTORS


def factored(part: Part, rank: int) -> LowRank:
    """Return the low-rank product of a given rank that is nearest to a kernel's change (SVD).

    Both factors contain the square roots of the singular values. Source: Eckart and Young 1936.

    Args:
      part: change of a kernel, [..., I, O].
      rank: maximum rank; min(I, O) gives the exact change.
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
"""Maximum number of rows of the Hadamard matrix in one product."""
_DENSE_DEVIATION = 0.01
_ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Subspace:
    """Random projection from a vector z of few dimensions to an array (intrinsic dimension).

    Attributes:
      path: path of the array, such as "model/encoder/...".
      shape: shape of the array.
      stacked: True if the first axis is the layer axis; each layer has its own projection.
      seed: random seed of the projection.
      projection: "fastfood", or "dense", a dense matrix of N(0, 0.01^2).
    """

    path: str
    shape: tuple[int, ...]
    stacked: bool
    seed: int = 0
    projection: Projection = "fastfood"

    @property
    def rows(self) -> tuple[int, int]:
        """Number of layers (1 if not stacked), and number of entries of one layer."""
        layers = self.shape[0] if self.stacked else 1
        return layers, math.prod(self.shape[1:] if self.stacked else self.shape)

    @property
    def keys(self) -> Array:
        """Random key of each layer."""
        base = jax.random.fold_in(jax.random.key(self.seed), zlib.crc32(self.path.encode()))
        return jax.vmap(functools.partial(jax.random.fold_in, base))(jnp.arange(self.rows[0]))

    def project(self, z: Float[Array, " d"], scale: Float[Array, "*N"]) -> Float[Array, "*axes"]:
        """Return the scaled projection of z, in the shape of the array.

        Args:
          z: vector z; `folded` shortens a vector that is too long.
          scale: one factor for each layer of a stacked array, else a scalar.
        """
        return project_all({"": self}, z, {"": scale})[""]


def project_all(
    spaces: Mapping[str, Subspace], z: Float[Array, " d"], scales: Mapping[str, Array]
) -> dict[str, Array]:
    """Project a vector z to several arrays of a model, and return the projections by path.

    Arrays with equal padded length share a compiled function, which runs once for each layer.
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
    """Return the Fastfood projection of a vector z to an array with `size` entries."""
    length = padded(size)
    return transformed(z, key, length=length)[:size] / math.sqrt(size / length)


def transformed(z: Float[Array, " d"], key: Key, *, length: int) -> Float[Array, " L"]:
    """Return the Fastfood projection of a vector z to a length that is a power of 2."""
    signs, order, normal = draws(key, length)
    x = hadamard(hadamard(folded(z, length) * signs)[order] * normal)
    return x / jnp.sqrt(length * jnp.sum(normal**2))


def dense(z: Float[Array, " d"], key: Key, *, size: int) -> Float[Array, " D"]:
    """Return a vector z multiplied by a random dense matrix with entries from N(0, 0.01^2)."""
    matrix = _DENSE_DEVIATION * jax.random.normal(key, (size, z.shape[0]), jnp.float32)
    return jnp.matmul(matrix, z, precision="highest")


def padded(size: int) -> int:
    """Return the next power of 2, to which Fastfood pads an array of this size."""
    return 1 << max(0, (size - 1).bit_length())


def draws(key: Key, length: int) -> tuple[Array, Array, Array]:
    """Sample the random signs, permutation and normal numbers of one Fastfood projection."""
    of_signs, of_order, of_normal = jax.random.split(key, 3)
    signs = jax.random.rademacher(of_signs, (length,), jnp.float32)
    return signs, shuffled(of_order, length), jax.random.normal(of_normal, (length,), jnp.float32)


def shuffled(key: Key, length: int) -> Int32[Array, " L"]:
    """Return a random permutation of 0 .. length - 1 without sorting; length is a power of 2.

    Each round maps index i to (odd * i + added) mod length, and then XORs the high bits of i into
    its low bits. Both steps are invertible.
    """
    bits = max(0, length.bit_length() - 1)
    numbers = jax.random.bits(key, (_ROUNDS, 2), jnp.uint32)
    place, last = jnp.arange(length, dtype=jnp.uint32), jnp.uint32(length - 1)
    for odd, added in numbers:
        place = (place * (odd | 1) + added) & last
        place = place ^ (place >> max(1, bits // 2))
    return place.astype(jnp.int32)


def folded(z: Float[Array, " d"], length: int) -> Float[Array, " L"]:
    """Zero-pad a vector z to a length, or sum its chunks of this length if z is longer."""
    times = max(1, -(-z.shape[0] // length))
    return jnp.sum(jnp.pad(z, (0, times * length - z.shape[0])).reshape(times, length), axis=0)


def hadamard(x: Float[Array, " L"]) -> Float[Array, " L"]:
    """Apply the unnormalized Walsh-Hadamard transform to a vector with a power of 2 as its length.

    The transform is a sequence of matrix products with small Hadamard matrices.
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
    """Return the Hadamard matrix of a power-of-2 size, in natural order."""
    matrix = np.ones((1, 1), np.float32)
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@dataclasses.dataclass(frozen=True, eq=False)
class Fastfood(Part):
    """Change that adds a scaled random projection of a vector z of few dimensions.

    Attributes:
      z: float32 vector [d].
      scale: float32 factors, one for each layer of a stacked array, else a scalar.
      of: random projection from z to the base array.
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
