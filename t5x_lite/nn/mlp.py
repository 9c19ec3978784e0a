"""The feed-forward block of every family.

wo(relu(wi x))                  T5 (Raffel et al. 2020, section 2.1)
wo(gelu(wi_0 x) * wi_1 x)       T5 1.1: gated, the tanh approximation (Shazeer 2020, GLU variants)
wo(silu(wi_0 x) * wi_1 x)       UL2: gated, x sigmoid(x)
wo(gelu(wi x + b) + b)          BERT: biases, exact gelu in float32 (Devlin et al. 2019)
"""

from typing import Any, Literal

import jax
from flax import nnx
from jaxtyping import Float

from t5x_lite.nn.activations import Activation, activate, activated, gated
from t5x_lite.nn.dense import FAN_IN_TRUNCATED, Dense, FusedDense, Initializer
from t5x_lite.nn.dropout import dropout
from t5x_lite.nn.products import saves_bytes
from t5x_lite.nn.slots import HiddenSlot
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Key

FeedForward = Literal["relu", "gelu", "silu", "gated-relu", "gated-gelu", "gated-silu"]
"""Feed-forward block of a T5, in Hugging Face's words (feed_forward_proj)."""
FEED_FORWARDS: dict[FeedForward, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "silu": ("swish", False),
    "gated-relu": ("relu", True),
    "gated-gelu": ("gelu_new", True),
    "gated-silu": ("swish", True),
}
"""Feed-forward block -> its activation, and whether it has a gate."""


class MLP(nnx.Module):
    """Two dense layers with an activation between them, or a gate.

    Args:
      d_model: size of input and output.
      d_ff: size of the hidden layer.
      activation: of the hidden layer, in float32; relu is the same in any dtype.
      gated: multiplies a second product of the input with the activation, in the dtype of x.
      bias: whether the dense layers have biases.
      initializer: of the kernels.
      dropout_rate: of the hidden layer, its mask shared over the length.
      rngs: the stream "params" is used.
    """

    slot: HiddenSlot | None = None  # an adapter's scale of the hidden layer
    joint: FusedDense | None = None  # after `join`, in place of the layers of the input
    joint_out: FusedDense | None = None  # and of the output

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = False,
        initializer: Initializer = FAN_IN_TRUNCATED,
        dropout_rate: float = 0.0,
        rngs: nnx.Rngs,
    ):
        def dense(features_in: int, features_out: int, *axes: str) -> Dense:
            return Dense(
                features_in,
                features_out,
                axes=(axes[0], axes[1]),
                initializer=initializer,
                bias=bias,
                rngs=rngs,
            )

        self.activation: Activation = activation
        self.gated = gated
        if gated:
            self.wi_0 = dense(d_model, d_ff, "embed", "mlp")
            self.wi_1 = dense(d_model, d_ff, "embed", "mlp")
        else:
            self.wi = dense(d_model, d_ff, "embed", "mlp")
        self.wo = dense(d_ff, d_model, "mlp", "embed")
        self.dropout_rate = dropout_rate

    def dense_sites(self) -> dict[str, Dense]:
        """The layers by the names of their sites."""
        gated = {"in": self.wi_1, "gate": self.wi_0} if self.gated else {"in": self.wi}
        return {**gated, "out": self.wo}

    def join(self) -> None:
        """Makes one product of those of the input, for decoding; in place.

        Raises:
          ValueError: the layers have biases, for which a fused product has no place.
        """
        if self.wo.has_bias:
            raise ValueError("a feed-forward block with biases is not fused for decoding")
        names = ("wi_0", "wi_1") if self.gated else ("wi",)
        layers = [getattr(self, name) for name in names]
        self.joint = FusedDense.of(layers, axes=("mlp", "embed"))
        self.joint_out = FusedDense.of([self.wo], axes=("embed", "mlp"), slot=self.slot)
        for name in (*names, "wo"):
            delattr(self, name)

    def _hidden(self, x: Float[Array, "B T D"], seen: Any) -> Float[Array, "B T F"]:
        if self.gated:
            if self.joint is None:
                first, second = self.wi_0(x, seen), self.wi_1(x, seen)
            else:
                first, second = self.joint(x)
            return gated(first, second, self.activation)
        if self.joint is not None:
            return activate(self.joint.products(x)[0], self.activation).astype(x.dtype)
        if self.activation == "relu":  # in float32 its backward pass would keep twice the bytes
            return jax.nn.relu(self.wi(x, seen))
        first = self.wi(x, seen) if saves_bytes() else self.wi.product(x, seen)
        return activated(first, self.activation, dtype=x.dtype)

    def __call__(
        self, x: Float[Array, "B T D"], *, key: Key | None = None, seen: Any = None
    ) -> Float[Array, "B T D"]:
        """Applies the block; a key turns dropout on, and `seen` is that of `Dense.product`."""
        hidden = constrain(self._hidden(x, seen), "batch", "length", "mlp")
        if self.slot is not None and self.joint_out is None:
            hidden = self.slot(hidden)
        hidden = dropout(hidden, self.dropout_rate, key=key, broadcast_axes=(-2,))
        out = self.wo(hidden, seen) if self.joint_out is None else self.joint_out(hidden)[0]
        return constrain(out, "batch", "length", "activation_embed")
