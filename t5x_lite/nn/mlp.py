"""Feed-forward blocks of T5 (paper section 2.1) and T5 1.1 (Shazeer 2020, GLU variants)."""

from typing import Literal

import jax
from flax import nnx
from jaxtyping import Float

from t5x_lite.nn.dropout import dropout
from t5x_lite.nn.linear import FAN_IN_TRUNCATED, Linear
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Key

FeedForward = Literal["relu", "gated-gelu"]


class MLP(nnx.Module):
    """wo(relu(wi x)), or wo(gelu(wi_0 x) * wi_1 x) with the tanh approximation of gelu.

    Args:
      d_model: size of input and output.
      d_ff: size of the hidden layer.
      feed_forward: "relu" (T5 1.0) or "gated-gelu" (T5 1.1).
      dropout_rate: of the hidden layer, its mask shared over the length.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        feed_forward: FeedForward,
        dropout_rate: float,
        rngs: nnx.Rngs,
    ):
        def linear(features_in: int, features_out: int, *axes: str) -> Linear:
            return Linear(
                features_in,
                features_out,
                axes=(axes[0], axes[1]),
                initializer=FAN_IN_TRUNCATED,
                rngs=rngs,
            )

        self.gated = feed_forward == "gated-gelu"
        if self.gated:
            self.wi_0 = linear(d_model, d_ff, "embed", "mlp")
            self.wi_1 = linear(d_model, d_ff, "embed", "mlp")
        else:
            self.wi = linear(d_model, d_ff, "embed", "mlp")
        self.wo = linear(d_ff, d_model, "mlp", "embed")
        self.dropout_rate = dropout_rate

    def __call__(
        self, x: Float[Array, "B T D"], *, key: Key | None = None
    ) -> Float[Array, "B T D"]:
        """Applies the block; a key turns dropout on."""
        if self.gated:
            hidden = jax.nn.gelu(self.wi_0(x), approximate=True) * self.wi_1(x)
        else:
            hidden = jax.nn.relu(self.wi(x))
        hidden = constrain(hidden, "batch", "length", "mlp")
        hidden = dropout(hidden, self.dropout_rate, key=key, broadcast_axes=(-2,))
        return constrain(self.wo(hidden), "batch", "length", "activation_embed")
