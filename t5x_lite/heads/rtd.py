"""The heads that detect replaced tokens: ELECTRA's and DeBERTaV3's."""

import dataclasses
from typing import Literal, get_args

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, dense, encoder_of
from t5x_lite.models.base import ModelConfig
from t5x_lite.nn.activations import Activation, activate
from t5x_lite.nn.norms import LayerNorm
from t5x_lite.types import Array

RtdKind = Literal["electra", "deberta"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rtd(Head):
    """Whether a token was replaced.

    Attributes:
      kind: "electra" or "deberta".
    """

    name: str = "rtd"
    kind: RtdKind = "electra"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in get_args(RtdKind):
            raise InputError(f"kind must be one of {get_args(RtdKind)}: got {self.kind!r}")

    def build(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "ElectraRtdHead | DebertaRtdHead":
        """Makes the module."""
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
    """Whether a token was replaced: dense -> activation -> one number (Clark et al. 2020).

    Args:
      d_model: size of the hidden states.
      activation: after the first layer.
      stddev: of the kernels at the start.
      rngs: the stream "params" is used.
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
        """The logit of "replaced" at each position."""
        x = activate(self.dense.product(hidden), self.activation).astype(hidden.dtype)
        return self.out.product(x)[..., 0]


class DebertaRtdHead(nnx.Module):
    """DeBERTaV3's detection: w2 activation(W1 LayerNorm(h_i + h_CLS)) (He et al. 2021).

    Source: microsoft/DeBERTa, apps/models/replaced_token_detection_model.py.

    Args:
      d_model: size of the hidden states.
      activation: after the first layer.
      norm_epsilon: of the norm.
      stddev: of the kernels at the start.
      rngs: the stream "params" is used.
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
        """The logit of "replaced" at each position.

        Args:
          hidden: the encoder's states.
          positions: from 0 within each packed document, which begins with its own [CLS]; None is
            one document a row.
        """
        if positions is None:
            first = hidden[:, :1]
        else:
            starts = jnp.arange(hidden.shape[1])[None] - positions
            first = jnp.take_along_axis(hidden, starts[..., None], axis=1)
        x = self.norm(hidden + first)
        x = activate(self.dense.product(x), self.activation).astype(hidden.dtype)
        return self.out.product(x)[..., 0]
