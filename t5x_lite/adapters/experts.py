"""Mixture-of-experts adapter: copies of the feed-forward block, routed by token.

    p_t = softmax(a_t W + b)            a_t: input of the block; W [D, E] starts as N(0, 0.02)
    y_t = sum_k w_tk FFN_{e_tk}(a_t)    the likeliest K experts; w: their p, normalized to sum 1

The experts start as the feed-forward block of the base model (sparse upcycling, Komatsuzaki et al.
2023, arXiv:2212.05055). Only their differences from this block are trained, which start as 0. With
K = 1 the weight is 1 and has the gradient of its probability (straight-through). Each token is
computed only by its own experts, and no token is dropped (`t5x_lite.nn.experts`). On a mesh, the
experts are split over the axis `tensor`. `balance` is the weight of the term of Fedus et al. 2022
(arXiv:2101.03961, section 2.2), as in `Route`. The metrics NAME_entropy and NAME_share_k describe
the router.

Experts do not apply the dropout of the block's hidden layer.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.adapter_tree import stacks_of
from t5x_lite.adapters.base import Adapter, Modules, Site
from t5x_lite.adapters.composition import ROUTER, told
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast
from t5x_lite.core.trees import Array
from t5x_lite.nn import experts
from t5x_lite.nn.dense import MLP, Activation, Dense
from t5x_lite.nn.experts import ExpertChanges, ExpertWeights, through_experts
from t5x_lite.nn.slots import Around

_SITE = "after_mlp"
_BLOCK = ("mlp/in", "mlp/gate", "mlp/out", "mlp/hidden")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts(Adapter):
    """Configuration of a mixture of experts made from copies of each feed-forward block.

    Attributes:
      sites: always "after_mlp", in encoder and decoder.
      num: number E of experts.
      top: number K of experts that each token uses.
      balance: loss weight of the load-balancing term (Fedus et al. 2022); 0 disables the term.
    """

    name: str = "experts"
    sites: tuple[str, ...] = (_SITE,)
    num: int = 4
    top: int = 1
    balance: Annotated[float, AtLeast(0)] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != (_SITE,):
            raise InputError(
                f"experts can only be added to the feed-forward block, sites ({_SITE!r},), "
                f"but sites is {self.sites}"
            )
        if self.num < 2 or not 1 <= self.top <= self.num:
            raise InputError(
                f"experts need num of at least 2 and top from 1 to num, got num {self.num} and "
                f"top {self.top}"
            )

    @property
    def router_balance(self) -> float | None:
        return self.balance

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "ExpertModules":
        """Build the routers, and the experts as differences from the block, which start as 0."""
        stacks: dict[str, Any] = stacks_of(model)

        def layer(site: Site, rngs: nnx.Rngs) -> ExpertLayer:
            block: MLP = stacks[site.stack].hidden_sites()["mlp/hidden"]
            sites = block.dense_sites()
            _, d_model, d_ff = sites["in"].kernel.shape
            bias = sites["in"].has_bias
            return ExpertLayer(self, d_model, d_ff, gated="gate" in sites, bias=bias, rngs=rngs)

        return ExpertModules(self.at_sites(model, block=layer, rngs=rngs))


class ExpertModules(Modules):
    """Routers and experts of one mixture-of-experts adapter, for all layers of a model."""

    alone = "replaces the feed-forward block"

    def claims(self) -> tuple[str, ...]:
        """Return the layer positions that no other adapter may use, as stack/site."""
        stacks = dict.fromkeys(stack for stack, _ in self.places)
        return (*super().claims(), *(f"{stack}/{site}" for stack in stacks for site in _BLOCK))

    def meet(self, stacks: Mapping[str, Any]) -> None:
        """Copy the base model's feed-forward arrays to the expert layers, in place."""
        for stack, site in self.places:
            layer: ExpertLayer = self.at(stack, site)
            block: MLP = stacks[stack].hidden_sites()["mlp/hidden"]
            layer.activation = block.activation
            layer.base = nnx.Dict(_arrays_of(block))


def _arrays_of(block: MLP) -> dict[str, nnx.Variable]:
    """Return the arrays of a feed-forward block, with an axis of size 1 for the experts."""
    sites = block.dense_sites()
    names = {"wi": "in", "wo": "out", "gate": "gate"}
    found = {ours: sites[site].kernel[...] for ours, site in names.items() if site in sites}
    if sites["in"].has_bias:
        found |= {"bi": sites["in"].bias[...], "bo": sites["out"].bias[...]}
    axes = ("layers", None, None, None)
    return {name: nnx.Variable(x[:, None], logical=axes[: x.ndim + 1]) for name, x in found.items()}


class ExpertLayer(nnx.Module):
    """Router and experts of one layer, which replace the layer's feed-forward block.

    Args:
      config: config of the adapter.
      d_model: hidden size D.
      d_ff: feed-forward size F.
      gated: True if the replaced feed-forward block has a gate.
      bias: True if the replaced feed-forward block has biases.
      rngs: random streams; "params" is used.
    """

    base: nnx.Dict | None = None  # the block's arrays, from `ExpertModules.meet`
    activation: Activation = "relu"

    def __init__(
        self,
        config: Experts,
        d_model: int,
        d_ff: int,
        *,
        gated: bool,
        bias: bool,
        rngs: nnx.Rngs,
    ):
        self.config = config
        init = jax.nn.initializers.normal(0.02)
        axes = ("embed", None)
        self.router = Dense(d_model, config.num, axes=axes, initializer=init, bias=True, rngs=rngs)
        self.changes = ExpertChanges(config.num, d_model, d_ff, gated=gated, bias=bias)

    def __call__(
        self,
        f: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        norm: Callable[[Array], Array] | None,
        around: Around,
    ) -> Float[Array, "B T D"]:
        if self.base is None:
            raise ValueError(
                "the expert layer has no base arrays; attach the adapter to a model first"
            )
        read = around.source
        logits = self.router.product(read)
        share = jax.nn.softmax(logits, axis=-1)
        if experts.is_collected():
            said = told(share, around.mask, length=x.shape[1])
            experts.add(f"{ROUTER}{self.config.name}", said)
        likeliest, chosen = jax.lax.top_k(share, self.config.top)
        if self.config.top == 1:
            weights = 1.0 + likeliest - jax.lax.stop_gradient(likeliest)
        else:
            weights = likeliest / jnp.sum(likeliest, axis=-1, keepdims=True)
        base = ExpertWeights(**{name: each[...] for name, each in self.base.items()})
        made = through_experts(
            read, chosen, weights, self.changes.of(base), activation=self.activation
        )
        total = x + made.astype(f.dtype)
        return total if norm is None else norm(total)
