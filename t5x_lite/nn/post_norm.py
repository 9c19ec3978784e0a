"""Post-norm layers, as BERT, RoBERTa and ELECTRA have them (Devlin et al. 2019).

    y = LayerNorm(x + dropout(attention(x)))
    y = LayerNorm(y + dropout(wo(activation(wi(y)))))

All products have a bias, and logits are scaled by 1 / sqrt(head size). Sums, statistics, softmax
and activations are float32 whatever the compute dtype. The mask of attention dropout is shared over
the queries, as everywhere in this package; that of hidden states is not shared.
"""

import dataclasses
import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.nn.attention import dot_product_attention
from t5x_lite.nn.dropout import dropout
from t5x_lite.nn.layers import split_key
from t5x_lite.nn.linear import einsum
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.positions import RelativeTable
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Key

Activation = Literal["gelu", "relu", "gelu_new", "tanh"]
"""gelu is exact (by the error function), gelu_new its tanh approximation."""


def activate(x: Array, activation: Activation) -> Array:
    """The activation of that name, elementwise.

    Raises:
      ValueError: there is none of that name.
    """
    if activation == "gelu":
        return jax.nn.gelu(x, approximate=False)
    if activation == "gelu_new":
        return jax.nn.gelu(x, approximate=True)
    if activation == "relu":
        return jax.nn.relu(x)
    if activation == "tanh":
        return jnp.tanh(x)
    raise ValueError(f"activation must be one of {get_args(Activation)}: got {activation!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostNormConfig:
    """Sizes and choices of one layer.

    Attributes:
      d_model: size of the hidden states.
      d_ff: size of the feed-forward hidden layer.
      num_heads: attention heads, each of d_model / num_heads.
      activation: of the feed-forward block.
      dropout_rate: of both blocks' outputs.
      attention_dropout_rate: of the attention weights.
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
    norm_epsilon: float = 1e-12
    initializer_stddev: float = 0.02

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads: got {self.d_model} and {self.num_heads}"
            )


class LayerNorm(nnx.Module):
    """Layer normalisation (Ba et al. 2016): statistics, scale and bias in float32, rounded last.

    Args:
      size: of the last axis.
      epsilon: added to the variance.
    """

    def __init__(self, size: int, epsilon: float = 1e-12):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), logical=("embed",))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), logical=("embed",))
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        """Normalises the last axis."""
        x32 = x.astype(jnp.float32)
        centred = x32 - jnp.mean(x32, axis=-1, keepdims=True)
        variance = jnp.mean(jax.lax.square(centred), axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.epsilon)
        scale, bias = (p[...].astype(jnp.float32) for p in (self.scale, self.bias))
        return (normed * scale + bias).astype(x.dtype)


class Dense(nnx.Module):
    """A dense layer with bias.

    Args:
      d_in: size of the last axis of the input.
      d_out: size of the last axis of the output.
      axes: the logical names of the kernel's two axes; the bias has the second.
      stddev: of the kernel [d_in, d_out], truncated at two of it (google-research/bert
        modeling.py, create_initializer).
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        axes: tuple[str | None, str | None],
        stddev: float = 0.02,
        rngs: nnx.Rngs,
    ):
        init = jax.nn.initializers.truncated_normal(stddev)
        self.kernel = nnx.Param(init(rngs.params(), (d_in, d_out), jnp.float32), logical=axes)
        self.bias = nnx.Param(jnp.zeros((d_out,), jnp.float32), logical=axes[1:])

    def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        """The product and the bias in the dtype of x."""
        return self.product(x).astype(x.dtype)

    def product(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        """The same in float32, for what comes next."""
        batch = "ABCE"[: x.ndim - 1]
        kernel = self.kernel[...]
        product = einsum(f"{batch}I,IO->{batch}O", x.astype(kernel.dtype), kernel)
        return product + self.bias[...].astype(jnp.float32)


class PostNormAttention(nnx.Module):
    """Multi-head attention with biases and scaled logits; the residual is not part of it.

    Args:
      config: sizes of the layer.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: PostNormConfig, *, rngs: nnx.Rngs):
        size, stddev = config.d_model, config.initializer_stddev

        def dense(axes: tuple[str, str]) -> Dense:
            return Dense(size, size, axes=axes, stddev=stddev, rngs=rngs)

        self.query = dense(("embed", "joined_kv"))
        self.key = dense(("embed", "joined_kv"))
        self.value = dense(("embed", "joined_kv"))
        self.out = dense(("joined_kv", "embed"))
        self.num_heads = config.num_heads
        self.dropout_rate = config.attention_dropout_rate

    def __call__(
        self,
        x: Float[Array, "B T D"],
        source: Float[Array, "B S D"],
        *,
        mask: Bool[Array, "#B 1 #T S"] | Visibility | None,
        bias: Float[Array, "1 H T S"] | RelativeTable | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Attends from x to the source."""
        scale = 1.0 / math.sqrt(x.shape[-1] // self.num_heads)
        queries = (self.query.product(x) * scale).astype(x.dtype)
        # Where the length is split over devices, each has some of the queries and all of the keys.
        mixed = dot_product_attention(
            self._heads(queries, "length"),
            self._heads(self.key(source), None),
            self._heads(self.value(source), None),
            mask=mask,
            bias=bias,
            dropout_rate=self.dropout_rate,
            dropout_key=key,
        )
        mixed = constrain(mixed, "batch", "length", "heads", "kv")
        out = self.out(mixed.reshape(x.shape))
        return constrain(out, "batch", "length", "activation_embed")

    def _heads(self, joined: Float[Array, "B T D"], length: str | None) -> Array:
        heads = joined.reshape(*joined.shape[:-1], self.num_heads, -1)
        return constrain(heads, "batch", length, "heads", "kv")


class PostNormLayer(nnx.Module):
    """Attention and feed-forward, each followed by residual and norm.

    Args:
      config: its sizes.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: PostNormConfig, *, rngs: nnx.Rngs):
        stddev = config.initializer_stddev
        self.attention = PostNormAttention(config, rngs=rngs)
        self.attention_norm = LayerNorm(config.d_model, config.norm_epsilon)
        self.wi = Dense(
            config.d_model, config.d_ff, axes=("embed", "mlp"), stddev=stddev, rngs=rngs
        )
        self.wo = Dense(
            config.d_ff, config.d_model, axes=("mlp", "embed"), stddev=stddev, rngs=rngs
        )
        self.mlp_norm = LayerNorm(config.d_model, config.norm_epsilon)
        self.activation: Activation = config.activation
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        keys_from: Float[Array, "B S D"] | None = None,
        mask: Bool[Array, "#B 1 #T S"] | Visibility | None,
        bias: Float[Array, "1 H T S"] | RelativeTable | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies the layer.

        Args:
          x: what asks, and what the residual follows.
          keys_from: what keys and values are made of; None is x.
          mask: True where a query may see a key, None for all of them. A query that may see none
            attends to all of them equally.
          bias: float32, added to the scaled logits.
          key: turns dropout on.
        """
        attention_key, attended_key, mlp_key = split_key(key, 3)
        source = x if keys_from is None else keys_from
        attended = self.attention(x, source, mask=mask, bias=bias, key=attention_key)
        x = self.attention_norm(x + dropout(attended, self.dropout_rate, key=attended_key))
        return self.feed_forward(x, key=mlp_key)

    def feed_forward(
        self, x: Float[Array, "B T D"], *, key: Key | None = None
    ) -> Float[Array, "B T D"]:
        """The second half: LayerNorm(x + dropout(wo(activation(wi(x)))))."""
        hidden = activate(self.wi.product(x), self.activation).astype(x.dtype)
        out = self.wo(constrain(hidden, "batch", "length", "mlp"))
        out = constrain(out, "batch", "length", "activation_embed")
        return self.mlp_norm(x + dropout(out, self.dropout_rate, key=key))
