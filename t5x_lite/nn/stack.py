"""Stacks of layers: stacked parameters, the scan over layers, and rematerialization.

A stack adds to its layers (`t5x_lite.nn.layers`) the relative bias (one table for all layers,
unless each layer has its own), the dropout of the input, the final norm and the final dropout.

For decoding, call `Decoder.prefill` once, and `Decoder.step` for each new token. Both return a
cache (`t5x_lite.nn.cache`), which the next step reads.

A scan over layers compiles fast; straight-line code (`unroll`) is faster, with the same results.

Rematerialization policies, by the arrays that a layer's forward pass stores for its backward pass:

    none           all arrays that the backward pass reads
    full           only the layer's input; the rest is recomputed, for a third more FLOPs
    attention      the input, and the results of attention in blocks ("blocked" or "pallas")
    products       as "attention", and the results of dense layers in the compute dtype
    dots_no_batch  as "attention", and the products with weights in float32
    dots           the input and the results of all matrix products, including attention logits
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.core.accelerators import is_nvidia
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Key, Size
from t5x_lite.nn import cache as caching
from t5x_lite.nn import experts
from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.dense import ATTENTION, PRODUCT, dropout, hidden_dropout, split_key
from t5x_lite.nn.layers import DecoderLayer, EncoderLayer, LayerConfig, by_head
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import bind, split, stacked

_ATTENTION = jax.checkpoint_policies.save_only_these_names(ATTENTION)
_both = jax.checkpoint_policies.save_from_both_policies
POLICIES: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "attention": _ATTENTION,
    "products": jax.checkpoint_policies.save_only_these_names(ATTENTION, PRODUCT),
    "dots": _both(jax.checkpoint_policies.checkpoint_dots, _ATTENTION),
    "dots_no_batch": _both(jax.checkpoint_policies.dots_with_no_batch_dims_saveable, _ATTENTION),
}
"""Policy of `jax.checkpoint` by name; None stores all arrays."""


def check_remat(name: str) -> None:
    """Raise InputError if the name of a rematerialization policy is unknown."""
    if name not in POLICIES:
        raise InputError(
            f"model.remat must be one of {', '.join(POLICIES)}: got {name!r}"
            f"{did_you_mean(name, POLICIES)}"
        )


def more_remat(name: str, *, attention: "AttentionKind") -> tuple[str, ...]:
    """Return the policies that store less than `name`, fastest first."""
    policies = ("dots_no_batch", "products", "attention", "full")
    rest = policies[policies.index(name) + 1 :] if name in policies else policies
    return tuple(p for p in rest if p != "attention" or attention in ("blocked", "pallas"))


def rematerialise(
    function: Callable[..., Any], name: str, *, in_loop: bool = True
) -> Callable[..., Any]:
    """Apply a rematerialization policy to a layer, so that it stores less for the backward pass.

    Args:
      function: layer to rematerialize.
      name: name of the policy.
      in_loop: True if the function is the body of a loop. In straight-line code, the compiler must
        be kept from merging the recomputation with the first computation.
    """
    check_remat(name)
    policy = POLICIES[name]
    if policy is None:
        return function
    return jax.checkpoint(function, policy=policy, prevent_cse=not in_loop)


AttentionKind = Literal["auto", "plain", "heads", "blocked", "pallas", "cudnn"]
"""Implementation of attention.

"auto" selects the fastest for the devices (`choose_attention`). "plain" computes all keys at once;
"heads", for CPUs, one head of one row at a time; "blocked", blocks of keys. "pallas" is a TPU
kernel ("blocked" elsewhere), "cudnn" one for NVIDIA GPUs ("plain" elsewhere, except in training).
"""

Unroll = int | bool | Literal["auto"]
"""Layers per iteration of the scan; True for straight-line code; "auto" calls `choose_unroll`."""

_LONG = 2048
"""Row length in tokens from which on logits are too large to store: 16 MiB per head and row."""
_KERNEL_BLOCK = 512  # by the compiler's schedule, half the cycles of blocks of 256
_STRAIGHT = {"cpu": 12}
"""Maximum number of layers compiled as straight-line code, by device kind; 24 for others."""


def choose_attention(
    kind: str,
    *,
    dtype: str,
    length: int,
    d_kv: int,
    dropout: Literal["none", "shared", "each"] = "none",
    distances: bool = False,
) -> tuple[AttentionKind, str]:
    """Return the fastest attention implementation for the devices and sizes, and the reason.

    Args:
      kind: kind of the devices, as JAX names it.
      dtype: compute dtype.
      length: length of the longest row, in tokens.
      d_kv: size of a head.
      dropout: none, shared by all queries of a head, or sampled for each query and key.
      distances: True for disentangled attention, where logits depend on distance and query.
    """
    whole, why = ("plain", "") if length < _LONG else ("blocked", f" at {length} tokens")
    if distances and kind.startswith("TPU"):
        from t5x_lite.nn.pallas_disentangled import supports  # late: imports Pallas

        if supports(kind, length=length, d_kv=d_kv, itemsize=jnp.dtype(dtype).itemsize):
            return "pallas", kind
    if distances:
        return whole, f"{kind} has no kernel for disentangled attention{why}"
    if is_nvidia(kind):
        if dropout == "each":
            return whole, f"cuDNN cannot sample dropout for each query and key{why}"
        if dtype == "float32":
            return whole, f"cuDNN does not support float32{why}"
        if d_kv % 8 or d_kv > 256:
            return whole, f"cuDNN does not support a head size of {d_kv}{why}"
        return "cudnn", f"{kind}, {dtype}"
    if kind.startswith("TPU"):
        return "pallas", kind
    if kind == "cpu" and dtype == "float32" and whole == "plain":
        return "heads", f"{kind}, {dtype}"
    return whole, f"{kind}{why}"


def choose_unroll(kind: str, num_layers: int) -> int | bool:
    """Return True to compile layers as straight-line code, or 1 to compile a loop over layers."""
    return True if num_layers <= _STRAIGHT.get(kind, 24) else 1


def chosen(
    model: Any, kind: str, *, num_layers: int, one_text_rows: bool, **facts: Any
) -> tuple[Any, str]:
    """Replace "auto" in the fields `attention` and `unroll` of a model config.

    Args:
      model: config with the fields attention, attention_block, unroll and one_text_rows.
      kind: kind of the devices.
      num_layers: number of layers of the deeper stack.
      one_text_rows: True if each row of a batch holds one text followed by padding.
      facts: keyword arguments of `choose_attention`.

    Returns:
      The config, and a line that describes the choices; "" if nothing was "auto".
    """
    changes, said = {}, []
    if model.attention == "auto":
        attention, why = choose_attention(kind, **facts)
        changes["attention"] = attention
        if attention == "pallas":
            changes["attention_block"] = max(_KERNEL_BLOCK, model.attention_block)
        if attention == "cudnn" and one_text_rows:
            changes["one_text_rows"] = True
        said.append(f"attention {attention} ({why})")
    if model.unroll == "auto":
        changes["unroll"] = choose_unroll(kind, num_layers)
        said.append(f"unroll {changes['unroll']} ({num_layers} layers)")
    return dataclasses.replace(model, **changes), ", ".join(said)


def check_precision(attention: AttentionKind, precision: str, *, dtype: str) -> None:
    """Raise InputError if the TPU kernel for attention does not support a matmul precision.

    Args:
      attention: implementation of attention.
      precision: precision of float32 products: "default", "high" or "highest".
      dtype: compute dtype.
    """
    possible = precision == "default" or (precision, dtype) == ("highest", "float32")
    if attention == "pallas" and not possible:
        raise InputError(
            f"model.attention pallas cannot multiply {dtype} numbers at --matmul-precision "
            f"{precision}; set --matmul-precision default or --model.attention blocked"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Running:
    """Settings of a stack that change its speed and memory, but not its results.

    Attributes:
      unroll: layers per iteration of the scan; True for straight-line code.
      remat: name of the rematerialization policy (`t5x_lite.nn.stack`).
      attention_block: number of keys per block (in DeBERTa, of queries), for attention with memory
        linear in length (`t5x_lite.nn.fused_attention`); None for plain attention. Decoding
        always uses plain attention.
      attention_kernel: True to compute attention blocks by the TPU kernel.
      attention_fused: True to use cuDNN's attention (`t5x_lite.nn.fused_attention`).
      one_text_rows: True if each row holds one text followed by padding.
      attention_by_head: True to compute one head of one row at a time.
    """

    unroll: int | bool = 1
    remat: str = "none"
    attention_block: int | None = None
    attention_kernel: bool = False
    attention_fused: bool = False
    one_text_rows: bool = False
    attention_by_head: bool = False

    def __post_init__(self) -> None:
        check_remat(self.remat)

    @classmethod
    def of(
        cls,
        *,
        unroll: Unroll,
        remat: str,
        attention: AttentionKind,
        attention_block: int,
        one_text_rows: bool = False,
    ) -> "Running":
        """Build the settings from the fields of a model config.

        "auto" selects a loop over the layers, and cuDNN's attention on NVIDIA GPUs.
        """
        return cls(
            unroll=1 if unroll == "auto" else unroll,
            remat=remat,
            attention_block=attention_block if attention in ("blocked", "pallas") else None,
            attention_kernel=attention == "pallas",
            attention_fused=attention in ("auto", "cudnn"),
            one_text_rows=one_text_rows,
            attention_by_head=attention == "heads",
        )

    def pattern(self, mask: Array | Visibility | None, length: Size) -> Pattern:
        """Convert a mask to a `Pattern` for the configured implementation of attention.

        Args:
          mask: mask as an array, or as a `Visibility`.
          length: number of queries, at positions 0, 1, 2, ...
        """
        if isinstance(mask, Visibility) and self.attention_fused:
            mask = dataclasses.replace(mask, fused=True, one_text=self.one_text_rows)
        elif isinstance(mask, Visibility) and self.attention_block is None:
            mask = mask.dense(length)
        elif isinstance(mask, Visibility):
            block, kernel = self.attention_block, self.attention_kernel
            mask = dataclasses.replace(mask, block_size=block, kernel=kernel)
        places = jnp.arange(length)
        return Pattern(mask, positions=(places, places), by_head=self.attention_by_head)

    def is_straight(self, num_layers: int) -> bool:
        """Return True if `num_layers` layers are compiled without a loop."""
        return self.unroll is True or self.unroll >= num_layers


def scan_layers(
    layers: nnx.Module,
    call: Callable[[Any, Array, Any], tuple[Array, Any]],
    x: Array,
    *,
    inputs: Any = None,
    running: Running,
    part: tuple[int, int] | None = None,
) -> tuple[Array, Any]:
    """Apply stacked layers one after the other, by a scan.

    Args:
      layers: module made by `slots.stacked`.
      call: function (layer, x, inputs of the layer) -> (x, outputs of the layer).
      x: input of the first layer.
      inputs: arrays with a leading axis of layers, or None.
      running: speed and memory settings; `unroll` and `remat` are used.
      part: range of layers to run, as (first, last + 1); None for all layers.

    Returns:
      The output of the last layer, and the stacked outputs of the layers, or None without outputs.
    """
    graphdef, params, _ = split(layers)
    if part is not None:
        if part[0] == part[1]:
            return x, None
        params, inputs = jax.tree.map(lambda leaf: leaf[slice(*part)], (params, inputs))

    def body(carry: Array, slices: tuple[Any, Any]) -> tuple[Array, Any]:
        layer_params, layer_inputs = slices
        collects = experts.collecting() if told else contextlib.nullcontext({})
        with collects as found:
            carry, outputs = call(bind(graphdef, layer_params), carry, layer_inputs)
        carry = constrain(carry, "batch", "length", "activation_embed")
        return carry, (outputs, dict(found))

    told = experts.is_collected()
    num_layers = jax.tree.leaves(params)[0].shape[0]
    body = rematerialise(body, running.remat, in_loop=not running.is_straight(num_layers))
    x, (outputs, found) = jax.lax.scan(body, x, (params, inputs), unroll=running.unroll)
    for name, each in found.items():
        experts.add(name, jnp.sum(each, axis=0))
    return x, outputs


SelfMask = Bool[Array, "#B 1 #T T"] | Visibility
CrossMask = Bool[Array, "#B 1 #T S"] | Visibility
"""Mask as an array, or as a compact `Visibility`."""

PLAIN = Running()


class Encoder(nnx.Module):
    """Stack of encoder layers with T5's bidirectional relative bias.

    Args:
      config: sizes of a layer.
      num_layers: number of layers.
      running: speed and memory settings; default: a plain scan over the layers.
      rngs: random streams; "params" is used.
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
        """Encode embedded tokens.

        Args:
          x: embeddings.
          mask: True where a position attends to another.
          key: random key of dropout; None disables dropout.
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
        # T5 does not share the mask of this hidden-state dropout over the length.
        return dropout(self.final_norm(x), self.dropout_rate, key=out_key)


class Decoder(nnx.Module):
    """Stack of decoder layers with T5's causal relative bias.

    Args:
      config: sizes of a layer.
      num_layers: number of layers.
      running: speed and memory settings; default: a plain scan over the layers.
      cross_attention: False for a language model.
      bidirectional: True if the relative bias has buckets for keys to the right.
      rngs: random streams; "params" is used.
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
        """Unstack the layers for decoding by straight-line code, in place.

        XLA does not move the slices of stacked parameters out of a loop, and would copy all weights
        for every token.

        Args:
          join: True to fuse dense layers of the same input (such as query, key and value) into one
            product. Layers with an adapter that differs between rows stay separate.
        """
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
        """Apply the decoder to complete targets (teacher forcing).

        Args:
          x: embeddings of the decoder inputs.
          encoded: the encoder's output; None without cross-attention.
          mask: mask of the targets, causal and within segments.
          cross_mask: True where a target attends to an input; None without cross-attention.
          key: random key of dropout; None disables dropout.
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
        """Decode the start token and a prompt in one pass, and create the cache.

        Args:
          x: embeddings, right-aligned (`cache.align`), so that the last column has every row's last
            token.
          encoded: the encoder's output; None without cross-attention.
          valid: False for the padding on the left.
          cross_mask: True for inputs that may be attended to; None without cross-attention.
          both_ways: True for positions that attend to each other in both directions (the inputs of
            a prefix LM).
          max_length: maximum number of new tokens.

        Returns:
          The output of the stack, and the cache with room for max_length new tokens.
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
        """Decode one new token in each row.

        The cache's arrays are updated in place if they are the carry of a loop. If the cache is
        full, further tokens overwrite the last token.

        Args:
          x: embeddings of the tokens.
          cache: cache from `prefill` or from an earlier step.

        Returns:
          The output of the stack for the new tokens, and the updated cache.
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
        if self.bias_per_layer:
            return pattern
        return pattern.biased(self.relative_bias, bidirectional=self.bidirectional)


def _straight_step(
    call: Callable, x: Array, layers: Any, cache: Cache, slot: Array
) -> tuple[Array, tuple]:
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
