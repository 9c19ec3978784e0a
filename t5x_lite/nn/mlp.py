"""Feed-forward blocks of T5 (paper section 2.1) and T5 1.1 (Shazeer 2020, GLU variants)."""

from typing import Literal

import jax
from flax import nnx
from jaxtyping import Float

from t5x_lite.nn.dense import FAN_IN_TRUNCATED, Dense, FusedDense
from t5x_lite.nn.dropout import dropout
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

    joint: FusedDense | None = None  # after `join`, in place of the layers of the input
    joint_out: FusedDense | None = None  # and of the output

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        feed_forward: FeedForward,
        dropout_rate: float,
        rngs: nnx.Rngs,
    ):
        def dense(features_in: int, features_out: int, *axes: str) -> Dense:
            return Dense(
                features_in,
                features_out,
                axes=(axes[0], axes[1]),
                initializer=FAN_IN_TRUNCATED,
                rngs=rngs,
            )

        self.gated = feed_forward == "gated-gelu"
        if self.gated:
            self.wi_0 = dense(d_model, d_ff, "embed", "mlp")
            self.wi_1 = dense(d_model, d_ff, "embed", "mlp")
        else:
            self.wi = dense(d_model, d_ff, "embed", "mlp")
        self.wo = dense(d_ff, d_model, "mlp", "embed")
        self.dropout_rate = dropout_rate

    def join(self) -> None:
        """Makes one product of those of the input, for decoding; in place."""
        names = ("wi_0", "wi_1") if self.gated else ("wi",)
        kernels = [getattr(self, name).kernel[...].T for name in names]
        self.joint = FusedDense(kernels, axes=("mlp", "embed"))
        self.joint_out = FusedDense([self.wo.kernel[...].T], axes=("embed", "mlp"))
        for name in (*names, "wo"):
            delattr(self, name)

    def _inputs(self, x: Float[Array, "B T D"]) -> list[Float[Array, "B T F"]]:
        if self.joint is not None:
            return self.joint(x)
        return [self.wi_0(x), self.wi_1(x)] if self.gated else [self.wi(x)]

    def __call__(
        self, x: Float[Array, "B T D"], *, key: Key | None = None
    ) -> Float[Array, "B T D"]:
        """Applies the block; a key turns dropout on."""
        first, *second = self._inputs(x)
        if self.gated:
            hidden = jax.nn.gelu(first, approximate=True) * second[0]
        else:
            hidden = jax.nn.relu(first)
        hidden = constrain(hidden, "batch", "length", "mlp")
        hidden = dropout(hidden, self.dropout_rate, key=key, broadcast_axes=(-2,))
        out = self.wo(hidden) if self.joint_out is None else self.joint_out(hidden)[0]
        return constrain(out, "batch", "length", "activation_embed")
