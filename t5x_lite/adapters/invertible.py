"""Invertible adapters after the embeddings (Pfeiffer et al. 2020, MAD-X, arXiv:2005.00052).

    y1 = x1 + F(x2)      y2 = x2 + G(y1)          x1, x2: the halves of an embedded token
    x2 = y2 - G(y1)      x1 = y1 - F(x2)          the inverse, exact

F and G are two dense layers with a relu between. A language gets an embedding of its own without a
table: the encoder reads y, and the head of a masked language model applies the inverse to what it
multiplies with the table of tokens. After norm and dropout in BERT, before a projection to d_model;
in T5 the encoder's input alone. `seq_bn_inv` is a module of a language: trained as a masked
language model, then frozen below one of a task, as `Stack(language, task)`.

The library `adapters` has a second kind, GLOW, which divides the sequence in place of the features,
and of composed modules it inverts the first alone; here the inverses of a Stack follow one another.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Adapter
from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.places import Modules
from t5x_lite.adapters.union import Union
from t5x_lite.errors import InputError
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import TokenHost
from t5x_lite.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Invertible(Adapter):
    """NICE after the embeddings of an encoder; its inverse before a tied output.

    Attributes:
      sites: "invertible".
      reduction: F and G are as wide as a half divided by this.
    """

    name: str = "inv"
    sites: tuple[str, ...] = ("invertible",)
    reduction: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != ("invertible",):
            raise InputError(f"the site of an invertible adapter is 'invertible': got {self.sites}")
        if self.reduction < 1:
            raise InputError(f"reduction must be at least 1: got {self.reduction}")

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the two networks.

        Raises:
          InputError: the model has no encoder, or its embeddings are too small.
        """
        if not isinstance(model, TokenHost):
            raise InputError(f"a {type(model).__name__} has no encoder whose embeddings it changes")
        columns = model.token_table().shape[1]
        if columns // 2 // self.reduction < 1:
            raise InputError(
                f"embeddings of {columns} have no halves that a reduction of {self.reduction} "
                "leaves anything of"
            )
        nice = Nice(columns, reduction=self.reduction, rngs=rngs)
        return Modules({"encoder": {"invertible": nice}})


class Nice(nnx.Module):
    """An `InvertibleSlot`.

    Args:
      size: E of what it changes.
      reduction: F and G are as wide as a half divided by this.
      rngs: the stream "params" is used.
    """

    def __init__(self, size: int, *, reduction: int, rngs: nnx.Rngs):
        self.first = size // 2
        rest = size - self.first
        self.f = Coupling(rest, rest // reduction, self.first, rngs=rngs)
        self.g = Coupling(self.first, self.first // reduction, rest, rngs=rngs)

    def __call__(self, x: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """y, in the dtype of x."""
        x1, x2 = self._halves(x)
        y1 = x1 + self.f(x2)
        return jnp.concatenate([y1, x2 + self.g(y1)], axis=-1).astype(x.dtype)

    def inverse(self, y: Float[Array, "*batch E"]) -> Float[Array, "*batch E"]:
        """The x that gives y, in the dtype of y."""
        y1, y2 = self._halves(y)
        x2 = y2 - self.g(y1)
        return jnp.concatenate([y1 - self.f(x2), x2], axis=-1).astype(y.dtype)

    def kind(self) -> Hashable:
        """Equal for modules of one size."""
        return (type(self), self.first)

    def _halves(self, x: Array) -> tuple[Array, Array]:
        x = x.astype(jnp.float32)
        return x[..., : self.first], x[..., self.first :]


class Coupling(nnx.Module):
    """Two dense layers with a relu between; kernels N(0, 0.02), biases 0 at first.

    Args:
      size: numbers of the input.
      width: numbers between the layers.
      out: numbers of the output.
      rngs: the stream "params" is used.
    """

    def __init__(self, size: int, width: int, out: int, *, rngs: nnx.Rngs):
        def dense(features_in: int, features_out: int) -> Dense:
            init = jax.nn.initializers.normal(0.02)
            sizes = (features_in, features_out)
            return Dense(*sizes, axes=(None, None), initializer=init, bias=True, rngs=rngs)

        self.down, self.up = dense(size, width), dense(width, out)

    def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        """The result in float32."""
        dtype = self.down.kernel.dtype
        return self.up.product(jax.nn.relu(self.down.product(x.astype(dtype))).astype(dtype))


def seq_bn_inv(*, name: str = "seq_bn_inv", reduction: float = 16.0, **changes: Any) -> Union:
    """A module of a language: `seq_bn`, and an invertible adapter."""
    bottleneck = seq_bn(name=name, reduction=reduction, **changes)
    return Union(name=name, members=(bottleneck, Invertible(name=name)))
