"""A part that keeps some numbers of an array and makes the others 0: a subnetwork.

    Mask.of(kept)        kept: booleans of the array's shape, stored as one bit each

It is applied last: what is added to the array is masked with it. It is no sum, so `materialise`
comes before + and *. Source: Zhou et al. 2019, arXiv:1905.01067.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, UInt8

from t5x_lite.deltas.parts import Part
from t5x_lite.errors import InputError
from t5x_lite.types import Array


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
