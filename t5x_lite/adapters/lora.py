"""LoRA: a product of low rank beside that of a dense layer (Hu et al. 2021, arXiv:2106.09685).

    y = x W + b + s (x A) B         s = alpha / rank, or with rank_stabilised alpha / sqrt(rank)

A [in, rank] begins uniform in +-1 / sqrt(in) (kaiming_uniform with a = sqrt 5, as in the paper's
code and in PEFT), B [rank, out] as 0: at the start nothing changes. The kernel W + s A B gives the
same without the branch.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Adapter, Modules
from t5x_lite.deltas.parts import LowRank, Part
from t5x_lite.errors import InputError
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.products import einsum
from t5x_lite.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora(Adapter):
    """Low-rank branches of dense layers.

    Attributes:
      rank: of the branches.
      alpha: the scale is alpha / rank.
      rank_stabilised: whether it is alpha / sqrt(rank) (Kalajdzievski 2023, arXiv:2312.03732).
    """

    name: str = "lora"
    sites: tuple[str, ...] = ("(cross_)?attention/(query|value)",)
    rank: int = 8
    alpha: float = 8.0
    rank_stabilised: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1:
            raise InputError(f"rank must be at least 1: got {self.rank}")

    @property
    def scale(self) -> float:
        """s."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the branches."""

        def branch(host: Dense, rngs: nnx.Rngs) -> LowRankBranch:
            return LowRankBranch(host, rank=self.rank, scale=self.scale, rngs=rngs)

        return self.at_sites(model, branch, blocks=False, rngs=rngs)


class LowRankBranch(nnx.Module):
    """A `DenseSlot`: s (x A) B.

    Args:
      host: the dense layer, one or stacked.
      rank: columns of A.
      scale: s.
      rngs: the stream "params" is used.
    """

    def __init__(self, host: Dense, *, rank: int, scale: float, rngs: nnx.Rngs):
        features_in, features_out = host.kernel.shape[-2:]
        axes = tuple(host.kernel.get_metadata()["logical"])[-2:]
        bound = features_in**-0.5
        a = jax.random.uniform(rngs.params(), (features_in, rank), jnp.float32, -bound, bound)
        self.a = nnx.Param(a, logical=(axes[0], None))
        self.b = nnx.Param(jnp.zeros((rank, features_out), jnp.float32), logical=(None, axes[1]))
        self.scale = scale

    def __call__(
        self, x: Float[Array, "*batch I"], y: Float[Array, "*batch O"]
    ) -> Float[Array, "*batch O"]:
        """y with the branch; both in float32."""
        a, b = self.a[...], self.b[...]
        batch = "ABCE"[: x.ndim - 1]
        low = einsum(f"{batch}I,IR->{batch}R", x.astype(a.dtype), a).astype(a.dtype)
        return y + self.scale * einsum(f"{batch}R,RO->{batch}O", low, b)

    def of_kernel(self, kernel: Float[Array, "*layers I O"]) -> Float[Array, "*layers I O"]:
        """W + s A B, in the dtype of W."""
        both = jnp.matmul(
            self.a[...], self.b[...], preferred_element_type=jnp.float32, precision="highest"
        )
        return (kernel.astype(jnp.float32) + self.scale * both).astype(kernel.dtype)

    def of_bias(self, bias: Float[Array, "*layers O"]) -> Float[Array, "*layers O"]:
        """As it is."""
        return bias

    def parts(self) -> dict[str, Part]:
        """What it changes of its host, as a part of a delta."""
        return {"kernel": LowRank(self.a[...], self.b[...], self.scale)}
