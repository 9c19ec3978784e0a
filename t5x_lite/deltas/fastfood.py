"""A part that is a random projection of few numbers: intrinsic dimension.

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
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int32

from t5x_lite.deltas.parts import Part
from t5x_lite.types import Array, Key

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
