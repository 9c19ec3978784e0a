"""Post-norm layers, as BERT, RoBERTa and ELECTRA have them (Devlin et al. 2019).

    y = LayerNorm(x + dropout(attention(x)))
    y = LayerNorm(y + dropout(mlp(y)))

All products have a bias, and logits are scaled by 1 / sqrt(head size). Sums, statistics, softmax
and activations are float32 whatever the compute dtype. Dropout of hidden states draws for each
element, that of attention weights for each query and key, or once for all queries
(`share_attention_dropout`).
"""

import dataclasses
from typing import Any

from flax import nnx
from jaxtyping import Float

from t5x_lite.nn.activations import Activation
from t5x_lite.nn.attention import Attention
from t5x_lite.nn.block import residual
from t5x_lite.nn.dense import Dense, truncated_normal
from t5x_lite.nn.dropout import split_key
from t5x_lite.nn.mlp import MLP
from t5x_lite.nn.norms import LayerNorm
from t5x_lite.nn.pattern import Pattern
from t5x_lite.nn.slots import BlockSlot, named
from t5x_lite.types import Array, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostNormConfig:
    """Sizes and choices of one layer.

    Attributes:
      d_model: size of the hidden states.
      d_ff: size of the feed-forward hidden layer.
      num_heads: attention heads, each of d_model / num_heads.
      activation: of the feed-forward block.
      dropout_rate: of both blocks' outputs.
      attention_dropout_rate: dropout rate of the attention weights.
      share_attention_dropout: whether all queries of a head drop the same keys, as in T5.
      norm_epsilon: added to the variance.
      initializer_stddev: of the kernels.

    Raises:
      ValueError: d_model is not a multiple of num_heads.
    """

    d_model: int
    d_ff: int
    num_heads: int
    activation: Activation = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    share_attention_dropout: bool = False
    norm_epsilon: float = 1e-12
    initializer_stddev: float = 0.02

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads: got {self.d_model} and {self.num_heads}"
            )

    @property
    def attention(self) -> dict[str, Any]:
        """The arguments of `Attention`."""
        return {
            "num_heads": self.num_heads,
            "d_kv": self.d_model // self.num_heads,
            "dropout_rate": self.attention_dropout_rate,
            "share_dropout": self.share_attention_dropout,
            "bias": True,
            "scaled": True,
            "stddev": self.initializer_stddev,
        }


class PostNormLayer(nnx.Module):
    """Attention and feed-forward, each followed by residual and norm.

    Args:
      config: its sizes.
      rngs: the stream "params" is used.
    """

    after_attention: BlockSlot | None = None
    after_mlp: BlockSlot | None = None

    def __init__(self, config: PostNormConfig, *, rngs: nnx.Rngs):
        self.attention = self.make_attention(config, rngs=rngs)
        self.attention_norm = LayerNorm(config.d_model, config.norm_epsilon)
        self.mlp = MLP(
            config.d_model,
            config.d_ff,
            activation=config.activation,
            bias=True,
            initializer=truncated_normal(config.initializer_stddev),
            rngs=rngs,
        )
        self.mlp_norm = LayerNorm(config.d_model, config.norm_epsilon)
        self.dropout_rate = config.dropout_rate

    def make_attention(self, config: PostNormConfig, *, rngs: nnx.Rngs) -> Attention:
        """The layer's attention."""
        return Attention(config.d_model, **config.attention, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        keys_from: Float[Array, "B S D"] | None = None,
        pattern: Pattern,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies the layer.

        Args:
          x: what asks, and what the residual follows.
          keys_from: what keys and values are made of; None is x.
          pattern: which keys a query sees, and what is added to its scaled logits. A query that
            sees none attends to all of them equally.
          key: turns dropout on.
        """
        attention_key, attended_key, mlp_key = split_key(key, 3)
        source = x if keys_from is None else keys_from
        attended = self.attention(x, source, pattern=pattern, key=attention_key)
        x = residual(
            x,
            attended,
            rate=self.dropout_rate,
            key=attended_key,
            norm=self.attention_norm,
            slot=self.after_attention,
            mask=pattern.mask,
        )
        return self.feed_forward(x, mask=pattern.mask, key=mlp_key)

    def feed_forward(
        self, x: Float[Array, "B T D"], *, mask: Any = None, key: Key | None = None
    ) -> Float[Array, "B T D"]:
        """The second half: LayerNorm(x + dropout(mlp(x))); the mask is for an adapter."""
        return residual(
            x,
            self.mlp(x, seen=mask),
            rate=self.dropout_rate,
            key=key,
            norm=self.mlp_norm,
            slot=self.after_mlp,
            mask=mask,
        )

    def dense_sites(self) -> dict[str, Dense]:
        """The dense layers by the names of their sites."""
        attention, mlp = self.attention.dense_sites(), self.mlp.dense_sites()
        return {**named("attention", attention), **named("mlp", mlp)}

    def hidden_sites(self) -> dict[str, Any]:
        """The blocks by the names of their hidden sites."""
        return {"attention/hidden": self.attention, "mlp/hidden": self.mlp}

    def key_sites(self) -> dict[str, Attention]:
        """The attention by the name of its site."""
        return {"attention/prefix": self.attention}

    def block_sites(self) -> tuple[str, ...]:
        """The names of its slots."""
        return ("after_attention", "after_mlp")
