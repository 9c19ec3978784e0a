"""The head of a masked language model: tokens from hidden states.

The table that its output shares with the embedding comes in as an array, so that no module has two
parents.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float

from t5x_lite.heads.base import Head, dense, encoder_of
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.activations import Activation, activate
from t5x_lite.nn.norms import LayerNorm
from t5x_lite.nn.products import einsum
from t5x_lite.nn.slots import InvertibleSlot
from t5x_lite.sharding import constrain
from t5x_lite.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mlm(Head):
    """The head of a masked language model; its sizes are the model's."""

    name: str = "mlm"

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "MaskedLMHead":
        """Makes the module."""
        encoder = encoder_of(self, model)
        return MaskedLMHead(
            encoder.d_model,
            encoder.table_size,
            encoder.vocab_size,
            activation=encoder.activation,
            norm_epsilon=encoder.norm_epsilon,
            stddev=encoder.initializer_stddev,
            rngs=rngs,
        )


class MaskedLMHead(nnx.Module):
    """Tokens from hidden states: LayerNorm(activation(dense(hidden))) table^T + bias.

    Source: google-research/bert run_pretraining.py, get_masked_lm_output.

    Args:
      d_model: size of the hidden states.
      embedding_size: columns of the table.
      vocab_size: rows of the table.
      activation: after the dense layer.
      norm_epsilon: of the norm.
      stddev: of the kernel at the start.
      rngs: the stream "params" is used.
    """

    inverse: InvertibleSlot | None = None

    def __init__(
        self,
        d_model: int,
        embedding_size: int,
        vocab_size: int,
        *,
        activation: Activation = "gelu",
        norm_epsilon: float = 1e-12,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        # Whole on each device of "tensor": the norm that follows sums over the features.
        self.dense = dense(
            d_model,
            embedding_size,
            axes=("embed", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.norm = LayerNorm(embedding_size, norm_epsilon)
        self.bias = nnx.Param(jnp.zeros((vocab_size,), jnp.float32), logical=("vocab",))
        self.activation: Activation = activation

    def __call__(
        self, hidden: Float[Array, "*batch D"], table: Float[Array, "V E"]
    ) -> Float[Array, "*batch V"]:
        """Logits of all tokens of the table.

        Args:
          hidden: states of the positions to predict.
          table: the embedding's.
        """
        x = self.transform(hidden).astype(table.dtype)
        batch = "ABCF"[: x.ndim - 1]
        logits = einsum(f"{batch}E,VE->{batch}V", x, table) + self.bias[...].astype(jnp.float32)
        return constrain(logits, "batch", "length", "vocab") if logits.ndim == 3 else logits

    def transform(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch E"]:
        """What is multiplied with the table."""
        x = activate(self.dense.product(hidden), self.activation)
        x = self.norm(x.astype(hidden.dtype))
        return x if self.inverse is None else self.inverse.inverse(x)
