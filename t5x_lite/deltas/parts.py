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
| `Mask(bits)` (`deltas.mask`) | W where bits are 1, else 0 |
| `Fastfood(z, scale)` (`deltas.fastfood`) | W + scale P(z) |

The first three and the last are additive: they add, and a number multiplies them. A stacked array
has the axis of its layers first, and so have its parts. All are computed in float32. Frozen
pytrees; `read` may be traced.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.types import Array

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
