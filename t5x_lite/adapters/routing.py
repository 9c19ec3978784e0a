"""Routing: which of several modules a token gets, by a router that is trained with them.

    w = softmax((mean of x) W + b)       or of each token's x; W [D, K] begins as N(0, 0.02), b as 0
    h + sum_k w_k (h_k - h)              h_k what child k makes of the state h

"hard" takes the likeliest child alone; its weight is 1, and has the gradient of its probability
(straight through). "free" are K trained numbers, 1 / K at first: a linear combination of modules.
Where a row has one choice and the children are alike, the arrays of the chosen module are gathered
and nothing else is computed; else all children are, and weighed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.composition import Route
from t5x_lite.adapters.gates import mean_of_seen
from t5x_lite.nn.dense import Dense
from t5x_lite.types import Array


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
        if block.kind == "soft":
            return weights
        chosen = jax.nn.one_hot(jnp.argmax(weights, axis=-1), weights.shape[-1])
        return chosen * (1.0 + weights - jax.lax.stop_gradient(weights))

    def penalty(self) -> Float[Array, ""]:
        """None."""
        return jnp.float32(0)
