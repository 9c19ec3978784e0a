"""T5's adapter layers: a feed-forward block of its own after each one (Raffel et al. 2020, 3.5.1).

    x + dropout(wo(dropout(relu(wi(norm(x))))))          after each feed-forward block

It begins as the model's layers do, and so not as the identity. The paper trains the adapters and
all layer norms; its code (mesh_tensorflow's task_adapter.gin) the adapters alone, with their norms.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.base import Adapter, Modules, Site
from t5x_lite.adapters.parts import norms_of
from t5x_lite.errors import InputError
from t5x_lite.nn.block import residual
from t5x_lite.nn.dropout import split_key
from t5x_lite.nn.mlp import MLP
from t5x_lite.nn.norms import RMSNorm
from t5x_lite.nn.slots import Around
from t5x_lite.types import Array

Norms = Literal["all", "own"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Adapter(Adapter):
    """A feed-forward block after each one of the model.

    Attributes:
      width: size of its hidden layer; the paper has 32, 128, 512 and 2048.
      norms: which norms train: "all" of the model, or the adapter's "own".
      zero: whether the second layer begins as 0, so that nothing changes at the start.
      dropout_rate: dropout rate of the hidden layer and of the result.
    """

    name: str = "t5_adapter"
    sites: tuple[str, ...] = ("after_mlp",)
    width: int = 128
    norms: Norms = "all"
    zero: bool = False
    dropout_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise InputError(f"width must be at least 1: got {self.width}")
        if not 0.0 <= self.dropout_rate < 1.0:
            raise InputError(f"dropout_rate must be in [0, 1): got {self.dropout_rate}")
        if self.norms not in get_args(Norms):
            raise InputError(f"norms must be one of {get_args(Norms)}: got {self.norms!r}")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The adapter, and by the paper all norms."""
        paths = tuple(paths)
        return (*super().trains(paths), *(norms_of(paths) if self.norms == "all" else ()))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the blocks."""

        def block(site: Site, rngs: nnx.Rngs) -> T5AdapterBlock:
            return T5AdapterBlock(self, site.d_model, rngs=rngs)

        return Modules(self.at_sites(model, block=block, rngs=rngs))


def t5_adapter(
    *, d: int, norms: Norms = "all", zero: bool = False, name: str = "t5_adapter"
) -> T5Adapter:
    """T5's adapter layers of width d."""
    return T5Adapter(name=name, width=d, norms=norms, zero=zero)


class T5AdapterBlock(nnx.Module):
    """A `BlockSlot`.

    Args:
      config: config of the adapter.
      d_model: size of the states.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: T5Adapter, d_model: int, *, rngs: nnx.Rngs):
        self.norm = RMSNorm(d_model)
        self.mlp = MLP(d_model, config.width, dropout_rate=config.dropout_rate, rngs=rngs)
        if config.zero:
            kernel = self.mlp.wo.kernel
            kernel[...] = jnp.zeros_like(kernel[...])
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """The block's result and what the adapter adds to it."""
        x = residual(x, f, norm=norm)
        keys: Any = split_key(around.key, 2)
        y = self.mlp(self.norm(x), key=keys[0])
        return residual(x, y, rate=self.dropout_rate, key=keys[1], over_length=True)

    def after(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """The state after it: what the block leaves is state + x.

        Args:
          h: the state before it: f, or what other modules have made of it.
          x: as of the call, like norm and around.
          norm: of a post-norm block, which is refused.
          around: the rest.

        Raises:
          InputError: a norm would follow the adapter.
        """
        if norm is not None:
            raise InputError(
                "t5_adapter stands behind the norm of a post-norm layer, so no block has a place "
                "for it there: use it alone"
            )
        return self(h, x, None, around) - x

    @property
    def is_here(self) -> bool:
        """It is in all layers."""
        return True

    def contribution(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """What it adds to the state; the arguments are those of `after`."""
        return self.after(h, x, norm, around) - h

    def reads(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """The sum that it reads; the arguments are those of `after`."""
        return x + h

    def skip(
        self,
        h: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        """The state; the arguments are those of `after`."""
        return h
