"""Stacks of layers: parameters have a leading layer axis, the forward pass is a scan.

A stack adds to its layers (`t5x_lite.nn.layers`) the relative bias (one table for all of them,
unless each has its own), the dropout of its input, the final norm and the final dropout. `unroll`
is a setting because a scan compiles fast and is the right choice on TPU and GPU, while on CPU
straight-line code is 1.2 to 1.6 times faster.

Decoding is `Decoder.prefill`, once, and `Decoder.step` for each new token; `t5x_lite.nn.cache` has
what goes between them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.nn import cache as caching
from t5x_lite.nn import masks
from t5x_lite.nn.bind import bind, split, stacked
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.dropout import dropout
from t5x_lite.nn.layers import (
    DecoderLayer,
    EncoderLayer,
    LayerConfig,
    Positions,
    by_head,
    hidden_dropout,
    split_key,
)
from t5x_lite.sharding import constrain
from t5x_lite.types import Array, Key


def scan_layers(
    layers: nnx.Module,
    call: Callable[[Any, Array, Any], tuple[Array, Any]],
    x: Array,
    *,
    shared: nnx.Module | None = None,
    inputs: Any = None,
    unroll: int | bool = 1,
) -> tuple[Array, Any]:
    """Runs a stacked module layer after layer.

    Args:
      layers: a module made by `bind.stacked`.
      call: (layer, x, this layer's inputs) -> (x, this layer's outputs).
      x: the first layer's input.
      shared: stacked encoder layers from which decoder layers borrow.
      inputs: arrays with a leading layer axis, or None.
      unroll: layers per iteration of the scan; True for straight-line code.

    Returns:
      x after the last layer, and the layers' outputs stacked.
    """
    assemble, params = _take_apart(layers, shared)

    def body(carry: Array, slices: tuple[Any, Any]) -> tuple[Array, Any]:
        layer_params, layer_inputs = slices
        carry, outputs = call(assemble(layer_params), carry, layer_inputs)
        return constrain(carry, "batch", "length", "activation_embed"), outputs

    return jax.lax.scan(body, x, (params, inputs), unroll=unroll)


def _take_apart(
    layers: nnx.Module, shared: nnx.Module | None
) -> tuple[Callable[[list], Any], list]:
    """A function from one layer's parameters to the layer, and all layers' parameters, stacked."""
    parts = [split(module) for module in (layers, shared) if module is not None]
    graphdefs, params = [part[0] for part in parts], [part[1] for part in parts]

    def assemble(params: list) -> Any:
        layer, *lenders = map(bind, graphdefs, params)
        for lender in lenders:
            layer.borrow(lender)
        return layer

    return assemble, params


class Encoder(nnx.Module):
    """A stack of encoder layers with T5's bidirectional relative bias.

    Args:
      config: sizes of a layer.
      num_layers: how many.
      unroll: see `scan_layers`.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: LayerConfig, *, num_layers: int, unroll: int | bool, rngs: nnx.Rngs):
        self.bias_per_layer = config.relative_bias_per_layer
        if not self.bias_per_layer:
            self.relative_bias = config.relative_bias(rngs)
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
        in_key, out_key, layer_key = split_key(key, 3)
        positions = (jnp.arange(x.shape[1]), jnp.arange(x.shape[1]))
        bias = None
        if not self.bias_per_layer:
            bias = self.relative_bias(*positions, bidirectional=True)

        def call(layer: EncoderLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, mask=mask, bias=bias, positions=positions, key=key), None

        layer_keys = None if layer_key is None else jax.random.split(layer_key, self.num_layers)
        x = hidden_dropout(x, self.dropout_rate, in_key)
        x, _ = scan_layers(self.layers, call, x, inputs=layer_keys, unroll=self.unroll)
        # The one hidden-state dropout whose mask T5 does not share over the length.
        return dropout(self.final_norm(x), self.dropout_rate, key=out_key)


class Decoder(nnx.Module):
    """A stack of decoder layers with T5's causal relative bias.

    Args:
      config: as `Encoder`, like num_layers, unroll and rngs.
      num_layers: how many.
      unroll: see `scan_layers`.
      cross_attention: False for a language model.
      shared: True where cross-attention is all that the decoder has of its own; every call gets
        the encoder, `shared`, for the rest: each layer's other parts, the relative bias table (read
        as a decoder's) and the final norm.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        config: LayerConfig,
        *,
        num_layers: int,
        unroll: int | bool,
        cross_attention: bool = True,
        shared: bool = False,
        rngs: nnx.Rngs,
    ):
        self.bias_per_layer = config.relative_bias_per_layer
        if not self.bias_per_layer and not shared:
            self.relative_bias = config.relative_bias(rngs)

        def layer(rngs: nnx.Rngs) -> DecoderLayer:
            return DecoderLayer(config, cross_attention=cross_attention, shared=shared, rngs=rngs)

        self.layers = stacked(layer, rngs, num=num_layers)
        if not shared:
            self.final_norm = config.norm()
        self.dropout_rate = config.dropout_rate
        self.num_layers = num_layers
        self.unroll = unroll

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"] | None,
        *,
        mask: Bool[Array, "#B 1 T T"],
        cross_mask: Bool[Array, "#B 1 #T S"] | None,
        shared: Encoder | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Decodes whole targets (teacher forcing).

        Args:
          x: embeddings of the decoder inputs.
          encoded: the encoder's output; None without cross-attention.
          mask: causal, and within segments.
          cross_mask: True where a target may see an input; None without cross-attention.
          shared: the encoder, where its parameters are shared.
          key: turns dropout on.
        """
        in_key, out_key, layer_key = split_key(key, 3)
        positions = (jnp.arange(x.shape[1]), jnp.arange(x.shape[1]))
        bias = self._bias(positions, shared)

        def call(layer: DecoderLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            y = layer(
                x,
                encoded,
                mask=mask,
                bias=bias,
                positions=positions,
                cross_mask=cross_mask,
                key=key,
            )
            return y, None

        layer_keys = None if layer_key is None else jax.random.split(layer_key, self.num_layers)
        x = hidden_dropout(x, self.dropout_rate, in_key)
        x, _ = scan_layers(
            self.layers,
            call,
            x,
            shared=None if shared is None else shared.layers,
            inputs=layer_keys,
            unroll=self.unroll,
        )
        return hidden_dropout(self._norm(x, shared), self.dropout_rate, out_key)

    def prefill(
        self,
        x: Float[Array, "B P D"],
        encoded: Float[Array, "B S D"] | None = None,
        *,
        valid: Bool[Array, "B P"],
        cross_mask: Bool[Array, "B 1 1 S"] | None = None,
        both_ways: Bool[Array, "B P"] | None = None,
        shared: Encoder | None = None,
        max_length: int,
    ) -> tuple[Float[Array, "B P D"], Cache]:
        """Decodes the start token and a prompt in one pass and makes the cache.

        Args:
          x: embeddings, right-aligned (`cache.align`): the last one is every row's last.
          encoded: the encoder's output; None without cross-attention.
          valid: False at the padding on the left.
          cross_mask: the inputs that may be seen; None without cross-attention.
          both_ways: positions that see each other whatever their order (a prefix LM's inputs).
          shared: the encoder, where its parameters are shared.
          max_length: new tokens at most.

        Returns:
          The stack's output, and the cache with room for max_length new tokens.
        """
        positions = (jnp.arange(x.shape[1]), jnp.arange(x.shape[1]))
        bias, mask = self._bias(positions, shared), caching.prefix_mask(valid, both_ways)

        def call(layer: DecoderLayer, x: Array, _: None) -> tuple[Array, Any]:
            x, own, across = layer.project_and_apply(
                x, encoded, mask=mask, bias=bias, positions=positions, cross_mask=cross_mask
            )
            return x, (by_head(own), None if across is None else by_head(across))

        lenders = None if shared is None else shared.layers
        x, (own, across) = scan_layers(self.layers, call, x, shared=lenders, unroll=self.unroll)
        layers = None
        if self.unroll is True or self.unroll >= self.num_layers:
            _, params = _take_apart(self.layers, lenders)
            layers, own, across = (
                caching.unstack(tree, self.num_layers) for tree in (params, own, across)
            )
        cache = caching.start(
            own, across, cross_mask=cross_mask, layers=layers, valid=valid, max_length=max_length
        )
        return self._norm(x, shared), cache

    def step(
        self, x: Float[Array, "B W D"], cache: Cache, *, shared: Encoder | None = None
    ) -> tuple[Float[Array, "B W D"], Cache]:
        """Decodes one token of each of the W rows of every input.

        The cache's arrays are written in place if they are the carry of a loop; more tokens than
        the cache has room for overwrite the last one.

        Args:
          x: embeddings of the tokens.
          cache: from `prefill` or an earlier step.
          shared: the encoder, where its parameters are shared.

        Returns:
          The stack's output for the new tokens, and the cache that includes them.
        """
        slot, mask, positions = caching.view(cache)
        bias = self._bias(positions, shared)
        lenders = None if shared is None else shared.layers
        assemble, params = _take_apart(self.layers, lenders)

        def call(params: Any, x: Array, write: Callable, across: Any) -> Array:
            return assemble(params).step(
                x,
                write,
                across,
                mask=mask,
                bias=bias,
                positions=positions,
                cross_mask=cache.cross_mask,
            )

        if cache.layers is None:
            x, own = _scanned_step(call, x, params, cache, slot, unroll=self.unroll)
        else:
            x, own = _straight_step(call, x, cache, slot)
        return self._norm(x, shared), caching.advance(cache, own)

    def _bias(self, positions: Positions, shared: Encoder | None) -> Float[Array, "1 H T S"] | None:
        if self.bias_per_layer:
            return None
        owner = self if shared is None else shared
        return owner.relative_bias(*positions, bidirectional=False)

    def _norm(self, x: Float[Array, "B T D"], shared: Encoder | None) -> Float[Array, "B T D"]:
        return (self if shared is None else shared).final_norm(x)


def _straight_step(call: Callable, x: Array, cache: Cache, slot: Array) -> tuple[Array, tuple]:
    """Calls the layers of a cache one by one; returns x, and what the cache shall have as own."""
    written = []
    for params, own, across in zip(cache.layers, cache.own, cache.across, strict=True):

        def write(new: tuple, own: tuple = own) -> tuple:
            written.append(caching.put(own, new, slot))
            return written[-1]

        x = call(params, x, write, across)
    return x, tuple(written)


def _scanned_step(
    call: Callable, x: Array, params: list, cache: Cache, slot: Array, *, unroll: int
) -> tuple[Array, tuple]:
    """As `_straight_step`, by a scan that carries all layers' keys and values."""

    def body(carry: tuple, slices: tuple) -> tuple[tuple, None]:
        (x, own), (params, across, layer) = carry, slices
        written = []

        def write(new: tuple) -> tuple:
            written.extend(caching.put(own, new, slot, layer))
            return tuple(jax.lax.dynamic_index_in_dim(w, layer, keepdims=False) for w in written)

        x = call(params, x, write, across)
        return (x, tuple(written)), None

    layers = jnp.arange(cache.own[0].shape[0])
    (x, own), _ = jax.lax.scan(body, (x, cache.own), (params, cache.across, layers), unroll=unroll)
    return x, own


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
