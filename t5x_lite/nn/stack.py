"""Stacks of layers: parameters have a leading layer axis, the forward pass is a scan.

A stack adds to its layers (`t5x_lite.nn.layers`) the relative bias (one table for all of them,
unless each has its own), the dropout of its input, the final norm and the final dropout. How the
layers are run is `t5x_lite.nn.scan`'s.

Decoding is `Decoder.prefill`, once, and `Decoder.step` for each new token; `t5x_lite.nn.cache` has
what goes between them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.nn import cache as caching
from t5x_lite.nn.bind import bind, split, stacked
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.dropout import dropout, hidden_dropout, split_key
from t5x_lite.nn.layers import DecoderLayer, EncoderLayer, LayerConfig, by_head
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.pattern import Pattern
from t5x_lite.nn.scan import Running, scan_layers
from t5x_lite.nn.slots import is_per_row
from t5x_lite.types import Array, Key

SelfMask = Bool[Array, "#B 1 #T T"] | Visibility
CrossMask = Bool[Array, "#B 1 #T S"] | Visibility
"""Arrays, or what they are made of."""

PLAIN = Running()


class Encoder(nnx.Module):
    """A stack of encoder layers with T5's bidirectional relative bias.

    Args:
      config: sizes of a layer.
      num_layers: number of layers.
      running: how they are run; the default is a plain scan.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        config: LayerConfig,
        *,
        num_layers: int,
        running: Running = PLAIN,
        rngs: nnx.Rngs,
    ):
        self.bias_per_layer = config.relative_bias_per_layer
        if not self.bias_per_layer:
            self.relative_bias = config.relative_bias(rngs)
        self.layers = stacked(lambda rngs: EncoderLayer(config, rngs=rngs), rngs, num=num_layers)
        self.final_norm = config.norm()
        self.dropout_rate = config.dropout_rate
        self.num_layers = num_layers
        self.running = running

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        mask: SelfMask,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Encodes embedded tokens.

        Args:
          x: embeddings.
          mask: True where a position may see another.
          key: turns dropout on.
        """
        in_key, out_key, layer_key = split_key(key, 3)
        pattern = self.running.pattern(mask, x.shape[1])
        if not self.bias_per_layer:
            pattern = pattern.biased(self.relative_bias, bidirectional=True)

        def call(layer: EncoderLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, pattern=pattern, key=key), None

        layer_keys = None if layer_key is None else jax.random.split(layer_key, self.num_layers)
        x = hidden_dropout(x, self.dropout_rate, in_key)
        x, _ = scan_layers(self.layers, call, x, inputs=layer_keys, running=self.running)
        # The one hidden-state dropout whose mask T5 does not share over the length.
        return dropout(self.final_norm(x), self.dropout_rate, key=out_key)


class Decoder(nnx.Module):
    """A stack of decoder layers with T5's causal relative bias.

    Args:
      config: as `Encoder`, like num_layers, running and rngs.
      num_layers: number of layers.
      running: how they are run.
      cross_attention: False for a language model.
      bidirectional: whether the relative bias has buckets for keys to the right.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        config: LayerConfig,
        *,
        num_layers: int,
        running: Running = PLAIN,
        cross_attention: bool = True,
        bidirectional: bool = False,
        rngs: nnx.Rngs,
    ):
        self.bidirectional = bidirectional
        self.bias_per_layer = config.relative_bias_per_layer
        if not self.bias_per_layer:
            self.relative_bias = config.relative_bias(rngs)

        def layer(rngs: nnx.Rngs) -> DecoderLayer:
            return DecoderLayer(
                config, cross_attention=cross_attention, bidirectional=bidirectional, rngs=rngs
            )

        self.layers = stacked(layer, rngs, num=num_layers)
        self.final_norm = config.norm()
        self.dropout_rate = config.dropout_rate
        self.num_layers = num_layers
        self.running = running
        self.laid_out = False

    def lay_out(self, *, join: bool = True) -> None:
        """Takes the layers apart, for decoding as straight-line code; in place.

        XLA does not take the slices of stacked parameters out of a loop, and would copy all weights
        at every token.

        Args:
          join: whether the products of one input become one; not where rows have other ones.
        """
        stacked_layers: Any = self.layers
        sites = {**stacked_layers.dense_sites(), **stacked_layers.hidden_sites()}
        join = join and not any(is_per_row(host.slot) for host in sites.values())
        graphdef, params, _ = split(self.layers)
        layers = [bind(graphdef, one) for one in caching.unstack(params, self.num_layers)]
        if join:
            for layer in layers:
                layer.join()
        self.layers = nnx.List(layers)
        self.laid_out = True

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"] | None,
        *,
        mask: SelfMask,
        cross_mask: CrossMask | None,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Decodes whole targets (teacher forcing).

        Args:
          x: embeddings of the decoder inputs.
          encoded: the encoder's output; None without cross-attention.
          mask: causal, and within segments.
          cross_mask: True where a target may see an input; None without cross-attention.
          key: turns dropout on.
        """
        in_key, out_key, layer_key = split_key(key, 3)
        pattern = self._biased(self.running.pattern(mask, x.shape[1]))
        across = self.running.pattern(cross_mask, x.shape[1])

        def call(layer: DecoderLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, encoded, pattern=pattern, across=across, key=key), None

        layer_keys = None if layer_key is None else jax.random.split(layer_key, self.num_layers)
        x = hidden_dropout(x, self.dropout_rate, in_key)
        x, _ = scan_layers(self.layers, call, x, inputs=layer_keys, running=self.running)
        return hidden_dropout(self.final_norm(x), self.dropout_rate, out_key)

    def prefill(
        self,
        x: Float[Array, "B P D"],
        encoded: Float[Array, "B S D"] | None = None,
        *,
        valid: Bool[Array, "B P"],
        cross_mask: Bool[Array, "B 1 1 S"] | None = None,
        both_ways: Bool[Array, "B P"] | None = None,
        max_length: int,
    ) -> tuple[Float[Array, "B P D"], Cache]:
        """Decodes the start token and a prompt in one pass and makes the cache.

        Args:
          x: embeddings, right-aligned (`cache.align`): the last one is every row's last.
          encoded: the encoder's output; None without cross-attention.
          valid: False at the padding on the left.
          cross_mask: the inputs that may be seen; None without cross-attention.
          both_ways: positions that see each other whatever their order (a prefix LM's inputs).
          max_length: new tokens at most.

        Returns:
          The stack's output, and the cache with room for max_length new tokens.
        """
        positions = (jnp.arange(x.shape[1]), jnp.arange(x.shape[1]))
        prefix = caching.prefix_mask(valid, both_ways)
        pattern = self._biased(Pattern(prefix, positions=positions, valid=valid))
        seen = Pattern(cross_mask)

        def call(layer: DecoderLayer, x: Array, _: None) -> tuple[Array, Any]:
            x, own, across = layer.project_and_apply(x, encoded, pattern=pattern, across=seen)
            return x, (by_head(own), None if across is None else by_head(across))

        if self.laid_out:
            made = []
            for layer in self.layers:
                x, keys_and_values = call(layer, x, None)
                made.append(keys_and_values)
            own, across = zip(*made, strict=True)
        else:
            running = dataclasses.replace(self.running, remat="none")
            x, (own, across) = scan_layers(self.layers, call, x, running=running)
        cache = caching.start(
            own, across, cross_mask=cross_mask, valid=valid, max_length=max_length
        )
        return self.final_norm(x), cache

    def step(self, x: Float[Array, "B W D"], cache: Cache) -> tuple[Float[Array, "B W D"], Cache]:
        """Decodes one token of each of the W rows of every input.

        The cache's arrays are written in place if they are the carry of a loop; more tokens than
        the cache has room for overwrite the last one.

        Args:
          x: embeddings of the tokens.
          cache: from `prefill` or an earlier step.

        Returns:
          The stack's output for the new tokens, and the cache that includes them.
        """
        slot, mask, positions = caching.view(cache)
        pattern = self._biased(Pattern(mask, positions=positions, valid=cache.valid))
        seen = Pattern(cache.cross_mask)

        def call(layer: Any, x: Array, write: Callable, inputs: Any) -> Array:
            return layer.step(x, write, inputs, pattern=pattern, across=seen)

        if self.laid_out:
            x, own = _straight_step(call, x, self.layers, cache, slot)
        else:
            x, own = _scanned_step(call, x, self.layers, cache, slot, unroll=self.running.unroll)
        return self.final_norm(x), caching.advance(cache, own)

    def _biased(self, pattern: Pattern) -> Pattern:
        """The pattern with the bias of the stack's table, where it has one for all layers."""
        if self.bias_per_layer:
            return pattern
        return pattern.biased(self.relative_bias, bidirectional=self.bidirectional)


def _straight_step(
    call: Callable, x: Array, layers: Any, cache: Cache, slot: Array
) -> tuple[Array, tuple]:
    """Calls the layers one by one; returns x, and what the cache shall have as own."""
    written = []
    for layer, own, across in zip(layers, cache.own, cache.across, strict=True):

        def write(new: tuple, own: tuple = own) -> tuple:
            written.append(caching.put(own, new, slot))
            return written[-1]

        x = call(layer, x, write, across)
    return x, tuple(written)


def _scanned_step(
    call: Callable, x: Array, layers: Any, cache: Cache, slot: Array, *, unroll: int
) -> tuple[Array, tuple]:
    """As `_straight_step`, by a scan that carries all layers' keys and values."""
    graphdef, params, _ = split(layers)

    def body(carry: tuple, slices: tuple) -> tuple[tuple, None]:
        (x, own), (params, across, layer) = carry, slices
        written = []

        def write(new: tuple) -> tuple:
            written.extend(caching.put(own, new, slot, layer))
            return tuple(jax.lax.dynamic_index_in_dim(w, layer, keepdims=False) for w in written)

        x = call(bind(graphdef, params), x, write, across)
        return (x, tuple(written)), None

    numbers = jnp.arange(cache.own[0].shape[0])
    (x, own), _ = jax.lax.scan(body, (x, cache.own), (params, cache.across, numbers), unroll=unroll)
    return x, own
