"""Heads for pretraining: masked language modeling and replaced token detection.

The token embedding, which the output layer shares, is passed as an array, so that no module has two
parents.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.heads import Head, dense, encoder_of
from t5x_lite.nn.dense import Activation, activate, einsum
from t5x_lite.nn.dropout import LayerNorm
from t5x_lite.nn.slots import InvertibleSlot


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mlm(Head):
    """Config of the head for masked language modeling, with sizes from the model config."""

    name: str = "mlm"

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "MaskedLMHead":
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
    """Module that computes token logits: LayerNorm(activation(dense(hidden))) table^T + bias.

    Source: google-research/bert run_pretraining.py, get_masked_lm_output.

    Args:
      d_model: size of the hidden states.
      embedding_size: number of columns of the token embedding.
      vocab_size: number of rows of the token embedding.
      activation: activation after the dense layer.
      norm_epsilon: epsilon of the norm.
      stddev: standard deviation of the initial kernel.
      rngs: random streams; "params" is used.
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
        """Return the logits of all tokens of the vocabulary.

        Args:
          hidden: hidden states of the positions to predict.
          table: token embedding.
        """
        x = self.transform(hidden).astype(table.dtype)
        batch = "ABCF"[: x.ndim - 1]
        logits = einsum(f"{batch}E,VE->{batch}V", x, table) + self.bias[...].astype(jnp.float32)
        return constrain(logits, "batch", "length", "vocab") if logits.ndim == 3 else logits

    def transform(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch E"]:
        """Apply dense layer and norm; the result is multiplied by the token embedding."""
        x = activate(self.dense.product(hidden), self.activation)
        x = self.norm(x.astype(hidden.dtype))
        return x if self.inverse is None else self.inverse.inverse(x)


RtdKind = Literal["electra", "deberta"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rtd(Head):
    """Config of the head for replaced token detection.

    Attributes:
      kind: architecture of the head, "electra" or "deberta".
    """

    name: str = "rtd"
    kind: RtdKind = "electra"

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ElectraRtdHead | DebertaRtdHead":
        encoder = encoder_of(self, model)
        activation, stddev = encoder.activation, encoder.initializer_stddev
        if self.kind == "electra":
            return ElectraRtdHead(encoder.d_model, activation=activation, stddev=stddev, rngs=rngs)
        return DebertaRtdHead(
            encoder.d_model,
            activation=activation,
            norm_epsilon=encoder.norm_epsilon,
            stddev=stddev,
            rngs=rngs,
        )


class ElectraRtdHead(nnx.Module):
    """ELECTRA's replaced token detection: dense -> activation -> one logit (Clark et al. 2020).

    Args:
      d_model: size of the hidden states.
      activation: activation after the first layer.
      stddev: standard deviation of the initial kernels.
      rngs: random streams; "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        *,
        activation: Activation = "gelu",
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.dense = dense(
            d_model,
            d_model,
            axes=("embed", "mlp"),
            stddev=stddev,
            rngs=rngs,
        )
        self.out = dense(
            d_model,
            1,
            axes=("mlp", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.activation: Activation = activation

    def __call__(self, hidden: Float[Array, "B S D"]) -> Float[Array, "B S"]:
        """Return the logit of "replaced" for each token."""
        x = activate(self.dense.product(hidden), self.activation).astype(hidden.dtype)
        return self.out.product(x)[..., 0]


class DebertaRtdHead(nnx.Module):
    """DeBERTaV3's replaced token detection: w2 activation(W1 LayerNorm(h_i + h_CLS)).

    Source: He et al. 2021; microsoft/DeBERTa, apps/models/replaced_token_detection_model.py.

    Args:
      d_model: size of the hidden states.
      activation: activation after the first layer.
      norm_epsilon: epsilon of the norm.
      stddev: standard deviation of the initial kernels.
      rngs: random streams; "params" is used.
    """

    def __init__(
        self,
        d_model: int,
        *,
        activation: Activation = "gelu",
        norm_epsilon: float = 1e-7,
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        self.norm = LayerNorm(d_model, norm_epsilon)
        self.dense = dense(
            d_model,
            d_model,
            axes=("embed", "mlp"),
            stddev=stddev,
            rngs=rngs,
        )
        self.out = dense(
            d_model,
            1,
            axes=("mlp", None),
            stddev=stddev,
            rngs=rngs,
        )
        self.activation: Activation = activation

    def __call__(
        self, hidden: Float[Array, "B S D"], *, positions: Int[Array, "B S"] | None = None
    ) -> Float[Array, "B S"]:
        """Return the logit of "replaced" for each token.

        Args:
          hidden: hidden states of the encoder.
          positions: positions from 0 within each packed document, which begins with its own [CLS];
            None for one document per row.
        """
        if positions is None:
            first = hidden[:, :1]
        else:
            starts = jnp.arange(hidden.shape[1])[None] - positions
            first = jnp.take_along_axis(hidden, starts[..., None], axis=1)
        x = self.norm(hidden + first)
        x = activate(self.dense.product(x), self.activation).astype(hidden.dtype)
        return self.out.product(x)[..., 0]
