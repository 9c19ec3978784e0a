"""Compacter: bottlenecks of Kronecker products (Karimi Mahabadi et al. 2021, arXiv:2106.04647).

    kernel [in, out] = sum_i kron(A_i, L_i R_i)          i < n

A_i [n, n] is one array of the adapter, for all layers, sites and both projections; L_i [in / n, k]
and R_i [k, out / n] are each projection's own. With x as [n, in / n] the product is

    y[j] = sum_i sum_h A_i[h, j] (x[h] L_i) R_i          and no kernel is made

compacter is double_seq_bn's, compacter_plus_plus seq_bn's. The activation is the authors' gelu_new;
the library `adapters` has the exact gelu, and draws L and R from a normal distribution though its
config says glorot-uniform.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Site
from t5x_lite.adapters.bottleneck import (
    Bottleneck,
    BottleneckBlock,
    BottleneckModules,
    double_seq_bn,
    seq_bn,
)
from t5x_lite.errors import InputError
from t5x_lite.nn.activations import Activation
from t5x_lite.nn.products import einsum
from t5x_lite.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compacter(Bottleneck):
    """Bottlenecks whose kernels are sums of Kronecker products; and as `Bottleneck`.

    Attributes:
      phm_dim: n.
      phm_rank: k.
    """

    name: str = "compacter"
    reduction: float = 32.0
    activation: Activation = "gelu_new"
    phm_dim: int = 4
    phm_rank: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.phm_dim < 1 or self.phm_rank < 1:
            raise InputError(
                f"phm_dim and phm_rank must be at least 1: got {self.phm_dim} and {self.phm_rank}"
            )
        if self.reductions or self.leave_out:
            raise InputError("a compacter has one reduction for all layers and leaves none out")

    def block(self, site: Site, rngs: nnx.Rngs) -> "CompacterBlock":
        """One layer's block."""
        return CompacterBlock(self, site.d_model, rngs=rngs)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "CompacterModules":
        """Makes the blocks, and A."""
        return CompacterModules(self._blocks(model, rngs=rngs), dim=self.phm_dim, rngs=rngs)

    @property
    def _is_plain(self) -> bool:
        """Whether its parameters are two dense layers: they are factors."""
        return False


def compacter(*, name: str = "compacter", cross: bool = False, **changes: Any) -> Compacter:
    """After attention and feed-forward block, on their outputs."""
    return _of(double_seq_bn(cross=cross), name, {"reads": "output", **changes})


def compacter_plus_plus(
    *, name: str = "compacter", cross: bool = False, **changes: Any
) -> Compacter:
    """After the feed-forward block, on the normed sum."""
    return _of(seq_bn(cross=cross), name, changes)


def _of(like: Bottleneck, name: str, changes: dict[str, Any]) -> Compacter:
    return Compacter(name=name, **{"sites": like.sites, **changes})


class CompacterModules(BottleneckModules):
    """The blocks, and A at adapters/NAME/rule.

    Args:
      found: as of `Modules`.
      dim: n.
      rngs: the stream "params" is used.
    """

    def __init__(self, found: Any, *, dim: int, rngs: nnx.Rngs):
        super().__init__(found)
        rule = 1e-4 * jax.random.normal(rngs.params(), (dim, dim, dim), jnp.float32)
        self.rule = nnx.Param(rule, logical=(None, None, None))

    def complete(self) -> None:
        """Puts A into the blocks, once for each layer; in place."""
        rule = self.rule[...]
        for place in self.places:
            block: CompacterBlock = self.at(*place)
            num = block.down.left.shape[0]
            for phm in (block.down, block.up):
                layers = jnp.broadcast_to(rule, (num, *rule.shape))
                phm.rule = nnx.Variable(layers, logical=("layers", None, None, None))


class CompacterBlock(BottleneckBlock):
    """A bottleneck whose projections are `PHM`s."""

    config: Compacter

    def projection(
        self,
        features_in: int,
        features_out: int,
        axes: tuple[str | None, str | None],
        *,
        last: bool = False,
        rngs: nnx.Rngs,
    ) -> "PHM":
        """A sum of Kronecker products."""
        dim, rank = self.config.phm_dim, self.config.phm_rank
        return PHM(features_in, features_out, dim=dim, rank=rank, rngs=rngs)

    def clear_unused(self) -> None:
        """Nothing is unused."""

    def num_unused(self) -> int:
        """Nothing is unused."""
        return 0


class PHM(nnx.Module):
    """A parametrised hypercomplex multiplication (Zhang et al. 2021, arXiv:2102.08597), and a bias.

    Args:
      features_in: size of the input's last axis.
      features_out: size of the output's.
      dim: n.
      rank: k.
      rngs: the stream "params" is used.

    Raises:
      InputError: n does not divide the sizes.
    """

    rule: nnx.Variable | None = None  # A [n, n, n], from `CompacterModules.complete`

    def __init__(self, features_in: int, features_out: int, *, dim: int, rank: int, rngs: nnx.Rngs):
        if features_in % dim or features_out % dim:
            raise InputError(
                f"phm_dim {dim} must divide d_model and the width of a compacter: got "
                f"{max(features_in, features_out)} and {min(features_in, features_out)}"
            )
        init = jax.nn.initializers.glorot_uniform(batch_axis=(0,))
        left, right = (dim, features_in // dim, rank), (dim, rank, features_out // dim)
        axes = (None, None, None)
        self.left = nnx.Param(init(rngs.params(), left, jnp.float32), logical=axes)
        self.right = nnx.Param(init(rngs.params(), right, jnp.float32), logical=axes)
        self.bias = nnx.Param(jnp.zeros((features_out,), jnp.float32), logical=(None,))

    def product(self, x: Float[Array, "B T I"]) -> Float[Array, "B T O"]:
        """The result in float32."""
        left, right, rule = self.left[...], self.right[...], self.rule
        if rule is None:
            raise ValueError("a PHM needs the adapter's rule: complete the modules first")
        dtype = left.dtype
        parts = x.astype(dtype).reshape(*x.shape[:-1], left.shape[0], -1)
        low = einsum("BTHP,NPK->BTHNK", parts, left).astype(dtype)
        mixed = einsum("BTHNK,NHJ->BTJNK", low, rule[...].astype(dtype)).astype(dtype)
        out = einsum("BTJNK,NKQ->BTJQ", mixed, right)
        return out.reshape(*x.shape[:-1], -1) + self.bias[...].astype(jnp.float32)
