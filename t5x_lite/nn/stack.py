"""Pre-norm transformer layers, stacked: parameters have a leading layer axis, forward is a scan.

    x = x + dropout(attention(norm(x)))
    x = x + dropout(attention(norm(x), encoded))     decoder only
    x = x + dropout(mlp(norm(x)))

A stack adds the relative bias (one table for all its layers), the dropout of its input, the final
norm and the final dropout. `unroll` is a setting because a scan compiles fast and is the right
choice on TPU and GPU, while on CPU straight-line code is 1.2 to 1.6 times faster.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.nn import masks
from t5x_lite.nn.attention import Attention
from t5x_lite.nn.bind import bind, split, stacked
from t5x_lite.nn.dropout import dropout
from t5x_lite.nn.mlp import MLP, FeedForward
from t5x_lite.nn.norms import RMSNorm
from t5x_lite.nn.positions import RelativeBias
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Key

Cache = dict[str, Any]
"""Decoding state: "self" and "cross" keys and values [N, B, S, H, K], "cross_mask", "index"."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Sizes of one layer; the dimension key is in `t5x_lite.types`."""

    d_model: int
    d_kv: int
    d_ff: int
    num_heads: int
    feed_forward: FeedForward
    dropout_rate: float
    norm_epsilon: float
    relative_buckets: int
    relative_max_distance: int

    def attention(self, rngs: nnx.Rngs) -> Attention:
        """An attention block of these sizes."""
        return Attention(
            self.d_model,
            num_heads=self.num_heads,
            d_kv=self.d_kv,
            dropout_rate=self.dropout_rate,
            rngs=rngs,
        )

    def mlp(self, rngs: nnx.Rngs) -> MLP:
        """A feed-forward block of these sizes."""
        return MLP(
            self.d_model,
            self.d_ff,
            feed_forward=self.feed_forward,
            dropout_rate=self.dropout_rate,
            rngs=rngs,
        )

    def norm(self) -> RMSNorm:
        """A norm of d_model."""
        return RMSNorm(self.d_model, epsilon=self.norm_epsilon)


def _split_key(key: Key | None, num: int) -> list[Key | None]:
    return [None] * num if key is None else list(jax.random.split(key, num))


def _hidden_dropout(x: Array, rate: float, key: Key | None) -> Array:
    return dropout(x, rate, key=key, broadcast_axes=(-2,))


class EncoderLayer(nnx.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs):
        self.attention_norm = config.norm()
        self.attention = config.attention(rngs)
        self.mlp_norm = config.norm()
        self.mlp = config.mlp(rngs)
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        mask: Bool[Array, "#B 1 #T T"],
        bias: Float[Array, "1 H T T"],
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies the layer; a key turns dropout on."""
        keys = _split_key(key, 4)
        y = self.attention(self.attention_norm(x), mask=mask, bias=bias, key=keys[0])
        x = x + _hidden_dropout(y, self.dropout_rate, keys[1])
        y = self.mlp(self.mlp_norm(x), key=keys[2])
        return x + _hidden_dropout(y, self.dropout_rate, keys[3])


class DecoderLayer(nnx.Module):
    """Self-attention, cross-attention and feed-forward."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs):
        self.self_attention_norm = config.norm()
        self.self_attention = config.attention(rngs)
        self.cross_attention_norm = config.norm()
        self.cross_attention = config.attention(rngs)
        self.mlp_norm = config.norm()
        self.mlp = config.mlp(rngs)
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"],
        *,
        mask: Bool[Array, "#B 1 T T"],
        bias: Float[Array, "1 H T T"],
        cross_mask: Bool[Array, "#B 1 #T S"],
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Applies the layer to whole targets; a key turns dropout on."""
        keys = _split_key(key, 6)
        y = self.self_attention(self.self_attention_norm(x), mask=mask, bias=bias, key=keys[0])
        x = x + _hidden_dropout(y, self.dropout_rate, keys[1])
        y = self.cross_attention(
            self.cross_attention_norm(x), encoded, mask=cross_mask, key=keys[2]
        )
        x = x + _hidden_dropout(y, self.dropout_rate, keys[3])
        y = self.mlp(self.mlp_norm(x), key=keys[4])
        return x + _hidden_dropout(y, self.dropout_rate, keys[5])

    def step(
        self,
        x: Float[Array, "B T D"],
        cache: Cache,
        *,
        index: Int[Array, ""],
        mask: Bool[Array, "#B 1 T L"],
        bias: Float[Array, "1 H T L"],
        cross_mask: Bool[Array, "#B 1 #T S"],
    ) -> tuple[Float[Array, "B T D"], Cache]:
        """Applies the layer to T new tokens at `index`, with this layer's part of the cache.

        Returns:
          x, and the new "self" keys and values of this layer [B, L, H, K].
        """
        normed = self.self_attention_norm(x)
        new = self.self_attention.project(normed)
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(old, fresh, index, axis=1)
            for old, fresh in zip(cache["self"], new, strict=True)
        )
        x = x + self.self_attention.attend(normed, keys, values, mask=mask, bias=bias)
        normed = self.cross_attention_norm(x)
        x = x + self.cross_attention.attend(normed, *cache["cross"], mask=cross_mask)
        return x + self.mlp(self.mlp_norm(x)), {"self": (keys, values)}


def scan_layers(
    layers: nnx.Module,
    call: Callable[[Any, Array, Any], tuple[Array, Any]],
    x: Array,
    *,
    inputs: Any = None,
    unroll: int | bool = 1,
) -> tuple[Array, Any]:
    """Runs a stacked module layer after layer.

    Args:
      layers: a module made by `bind.stacked`.
      call: (layer, x, this layer's inputs) -> (x, this layer's outputs).
      x: the first layer's input.
      inputs: arrays with a leading layer axis, or None.
      unroll: layers per iteration of the scan; True for straight-line code.

    Returns:
      x after the last layer, and the layers' outputs stacked.
    """
    graphdef, params, _ = split(layers)

    def body(carry: Array, slices: tuple[Any, Any]) -> tuple[Array, Any]:
        layer_params, layer_inputs = slices
        carry, outputs = call(bind(graphdef, layer_params), carry, layer_inputs)
        return constrain(carry, "batch", "length", "activation_embed"), outputs

    return jax.lax.scan(body, x, (params, inputs), unroll=unroll)


class Encoder(nnx.Module):
    """A stack of encoder layers with T5's bidirectional relative bias.

    Args:
      config: sizes of a layer.
      num_layers: how many.
      unroll: see `scan_layers`.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: LayerConfig, *, num_layers: int, unroll: int | bool, rngs: nnx.Rngs):
        self.relative_bias = _relative_bias(config, bidirectional=True, rngs=rngs)
        self.layers = stacked(lambda rngs: EncoderLayer(config, rngs=rngs), rngs, num=num_layers)
        self.final_norm = config.norm()
        self.dropout_rate = config.dropout_rate
        self.num_layers = num_layers
        self.unroll = unroll

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        mask: Bool[Array, "#B 1 #T T"],
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Encodes embedded tokens.

        Args:
          x: embeddings.
          mask: True where a position may see another.
          key: turns dropout on.
        """
        in_key, out_key, layer_key = _split_key(key, 3)
        positions = jnp.arange(x.shape[1])
        bias = self.relative_bias(positions, positions)

        def call(layer: EncoderLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, mask=mask, bias=bias, key=key), None

        layer_keys = None if layer_key is None else jax.random.split(layer_key, self.num_layers)
        x = _hidden_dropout(x, self.dropout_rate, in_key)
        x, _ = scan_layers(self.layers, call, x, inputs=layer_keys, unroll=self.unroll)
        # The one hidden-state dropout whose mask T5 does not share over the length.
        return dropout(self.final_norm(x), self.dropout_rate, key=out_key)


class Decoder(nnx.Module):
    """A stack of decoder layers with T5's causal relative bias.

    Args: as `Encoder`.
    """

    def __init__(self, config: LayerConfig, *, num_layers: int, unroll: int | bool, rngs: nnx.Rngs):
        self.relative_bias = _relative_bias(config, bidirectional=False, rngs=rngs)
        self.layers = stacked(lambda rngs: DecoderLayer(config, rngs=rngs), rngs, num=num_layers)
        self.final_norm = config.norm()
        self.dropout_rate = config.dropout_rate
        self.num_layers = num_layers
        self.unroll = unroll

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"],
        *,
        mask: Bool[Array, "#B 1 T T"],
        cross_mask: Bool[Array, "#B 1 #T S"],
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Decodes whole targets (teacher forcing).

        Args:
          x: embeddings of the decoder inputs.
          encoded: the encoder's output.
          mask: causal, and within segments.
          cross_mask: True where a target may see an input.
          key: turns dropout on.
        """
        in_key, out_key, layer_key = _split_key(key, 3)
        positions = jnp.arange(x.shape[1])
        bias = self.relative_bias(positions, positions)

        def call(layer: DecoderLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            y = layer(x, encoded, mask=mask, bias=bias, cross_mask=cross_mask, key=key)
            return y, None

        layer_keys = None if layer_key is None else jax.random.split(layer_key, self.num_layers)
        x = _hidden_dropout(x, self.dropout_rate, in_key)
        x, _ = scan_layers(self.layers, call, x, inputs=layer_keys, unroll=self.unroll)
        return _hidden_dropout(self.final_norm(x), self.dropout_rate, out_key)

    def init_cache(
        self,
        encoded: Float[Array, "B S D"],
        *,
        cross_mask: Bool[Array, "#B 1 1 S"],
        max_length: int,
    ) -> Cache:
        """An empty cache for `max_length` tokens, with the cross keys and values projected."""

        def call(layer: DecoderLayer, x: Array, _: None) -> tuple[Array, Any]:
            return x, layer.cross_attention.project(encoded)

        _, cross = scan_layers(self.layers, call, encoded, unroll=self.unroll)
        shape = (*cross[0].shape[:2], max_length, *cross[0].shape[3:])
        empty = jnp.zeros(shape, cross[0].dtype)
        return {
            "self": (empty, empty),
            "cross": cross,
            "cross_mask": cross_mask,
            "index": jnp.zeros((), jnp.int32),
        }

    def step(self, x: Float[Array, "B T D"], cache: Cache) -> tuple[Float[Array, "B T D"], Cache]:
        """Decodes T tokens that follow those in the cache.

        Args:
          x: embeddings of the new decoder inputs.
          cache: from `init_cache` or an earlier step.

        Returns:
          The stack's output for the new tokens, and the cache that includes them.
        """
        index = cache["index"]
        queries = index + jnp.arange(x.shape[1])
        keys = jnp.arange(cache["self"][0].shape[2])
        bias = self.relative_bias(queries, keys)
        mask = (keys[None, :] <= queries[:, None])[None, None]

        def call(layer: DecoderLayer, x: Array, layer_cache: Cache) -> tuple[Array, Cache]:
            return layer.step(
                x,
                layer_cache,
                index=index,
                mask=mask,
                bias=bias,
                cross_mask=cache["cross_mask"],
            )

        inputs = {"self": cache["self"], "cross": cache["cross"]}
        x, new = scan_layers(self.layers, call, x, inputs=inputs, unroll=self.unroll)
        cache = {**cache, "self": new["self"], "index": index + x.shape[1]}
        return self.final_norm(x), cache


def _relative_bias(config: LayerConfig, *, bidirectional: bool, rngs: nnx.Rngs) -> RelativeBias:
    return RelativeBias(
        config.num_heads,
        bidirectional=bidirectional,
        num_buckets=config.relative_buckets,
        max_distance=config.relative_max_distance,
        rngs=rngs,
    )


def encoder_mask(
    tokens: Int[Array, "B S"], segment_ids: Int[Array, "B S"] | None = None
) -> Bool[Array, "B 1 #S S"]:
    """What an encoder position may see: all that is not padding, or its own segment."""
    if segment_ids is None:
        return masks.padding(tokens)
    return masks.segments(segment_ids, segment_ids)


def decoder_mask(
    length: int, segment_ids: Int[Array, "B T"] | None = None
) -> Bool[Array, "#B 1 T T"]:
    """What a decoder position may see: itself and what is before it, in its own segment."""
    own = None if segment_ids is None else masks.segments(segment_ids, segment_ids)
    mask = masks.combine(masks.causal(length), own)
    assert mask is not None
    return mask
