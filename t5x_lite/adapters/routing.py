"""Routing: which of several modules a token gets, by a router that is trained with them.

    w = softmax((mean of x) W + b)       or of each token's x; W [D, K] begins as N(0, 0.02), b as 0
    h + sum_k w_k (h_k - h)              h_k what child k makes of the state h

"hard" takes the likeliest child alone; its weight is 1, and has the gradient of its probability
(straight through). "free" are K trained numbers, 1 / K at first: a linear combination of modules.
Where a row has one choice and the children are alike, the arrays of the chosen module are gathered
and nothing else is computed; else all children are, and weighed.

The loss has the metrics NAME_entropy, of w in nats, and NAME_share_k, the mean of w_k, over the
tokens of all sites and layers, and with `balance` the term NAME_balance, a sum over them. Of a
batch in microbatches that is the mean of those of its parts. Tokens are those that are no padding;
a decoder, which does not know, counts all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.adapters.composition import Block, Route, trained_of
from t5x_lite.adapters.gates import mean_of_seen
from t5x_lite.nn import tally
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.masks import Visibility
from t5x_lite.types import Array

ROUTER = "router/"
"""Beginning of the names by which `tally` has what a router says."""


class RouterLayer(nnx.Module):
    """The router of a site.

    Args:
      block: its config.
      features: D, of what it reads.
      axis: the logical name of that.
      rngs: the stream "params" is used.
    """

    def __init__(self, block: Route, features: int, *, axis: str | None, rngs: nnx.Rngs):
        num = len(block.children)
        if block.kind == "free":
            self.weights = nnx.Param(jnp.full((num,), 1.0 / num, jnp.float32), logical=(None,))
            return
        init = jax.nn.initializers.normal(0.02)
        axes = (axis, None)
        self.logits = Dense(features, num, axes=axes, initializer=init, bias=True, rngs=rngs)

    def __call__(
        self, block: Route, x: Float[Array, "B T D"], seen: Any
    ) -> Float[Array, "#B #T K"]:
        """The weights of the children, in float32.

        Args:
          block: its config.
          x: what the site reads.
          seen: which positions of the row a position sees, as of `slots.Around.mask`.
        """
        if block.kind == "free":
            return self.weights[...].astype(jnp.float32)[None, None]
        logits = self.logits.product(x)
        if block.by == "example" and seen is not None:
            logits = mean_of_seen(logits, seen)[:, :1]  # what the first token sees is the row
        weights = jax.nn.softmax(logits / block.temperature, axis=-1)
        if tally.is_collected():
            tally.add(f"{ROUTER}{block.title}", told(weights, seen, length=x.shape[1]))
        if block.kind == "soft":
            return weights
        chosen = jax.nn.one_hot(jnp.argmax(weights, axis=-1), weights.shape[-1])
        return chosen * (1.0 + weights - jax.lax.stop_gradient(weights))

    def penalty(self) -> Float[Array, ""]:
        """None."""
        return jnp.float32(0)


def told(weights: Float[Array, "B _ K"], seen: Any, *, length: int) -> Float[Array, " _"]:
    """What a router says of a batch: 1, the balance, the entropy, and the mean of each w_k.

    Args:
      weights: of each token, or of each row, which add up to 1.
      seen: which positions of the row a position sees, as of `slots.Around.mask`.
      length: T.
    """
    num = weights.shape[-1]
    real = jnp.ones((weights.shape[0], length), bool) if seen is None else _real(seen, length)
    if weights.shape[1] == 1:
        real = jnp.any(real, axis=1, keepdims=True)
    count = real.astype(jnp.float32)[..., None] / jnp.maximum(jnp.sum(real), 1)
    shares = jnp.sum(count * weights, axis=(0, 1))
    likeliest = jax.nn.one_hot(jnp.argmax(weights, axis=-1), num)
    balance = num * jnp.sum(jnp.sum(count * likeliest, axis=(0, 1)) * shares)
    entropy = -jnp.sum(count * weights * jnp.log(jnp.maximum(weights, 1e-30)))
    return jnp.concatenate([jnp.stack([jnp.float32(1), balance, entropy]), shares])


def _real(seen: Any, length: int) -> Bool[Array, "B T"]:
    """Which tokens are no padding: they see themselves."""
    mask: Array = jnp.asarray(seen.dense(length) if isinstance(seen, Visibility) else seen)
    return mask[:, 0, 0] if mask.shape[2] == 1 else jnp.diagonal(mask[:, 0], axis1=1, axis2=2)


def routers_of(adapters: Sequence[Any], use: Sequence[str | Block]) -> dict[str, float]:
    """The routers of a composition and of its modules: name -> the weight of its balance.

    Args:
      adapters: configs of the modules.
      use: the trees.
    """
    blocks = trained_of(use).get(Route.part, {})
    found = {title: block.balance for title, block in blocks.items() if isinstance(block, Route)}
    own = {each.name: each.router_balance for each in adapters}
    return found | {name: balance for name, balance in own.items() if balance is not None}


def metrics_of(
    found: Mapping[str, Array], routers: Mapping[str, float]
) -> dict[str, tuple[Array, Array]]:
    """The metrics of routers: name -> (total, weight).

    Args:
      found: what was said while a loss was made, by `tally`.
      routers: from `routers_of`.
    """
    metrics: dict[str, tuple[Array, Array]] = {}
    for title, (count, _, entropy, *shares) in _said(found, routers).items():
        metrics[f"{title}_entropy"] = (entropy, count)
        metrics |= {f"{title}_share_{k}": (share, count) for k, share in enumerate(shares)}
    return metrics


def penalties_of(
    found: Mapping[str, Array], routers: Mapping[str, float]
) -> dict[str, tuple[Array, float]]:
    """The terms that balance routers: name -> (total, scale); as `metrics_of`."""
    said = _said(found, routers)
    return {f"{title}_balance": (each[1], routers[title]) for title, each in said.items()
            if routers[title]}  # fmt: skip


def _said(found: Mapping[str, Array], routers: Mapping[str, float]) -> dict[str, Array]:
    """What routers have said, by their names."""
    return {name: found[f"{ROUTER}{name}"] for name in routers if f"{ROUTER}{name}" in found}
