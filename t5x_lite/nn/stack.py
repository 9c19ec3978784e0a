"""Stacks of layers: stacked parameters, the scan over them, and rematerialization.

A stack adds to its layers (`t5x_lite.nn.layers`) the relative bias (one table for all of them,
unless each has its own), the dropout of its input, the final norm and the final dropout. How the
layers are run is `t5x_lite.nn.stack`'s.

Decoding is `Decoder.prefill`, once, and `Decoder.step` for each new token; `t5x_lite.nn.cache` has
what goes between them.

`unroll` is a setting because a scan compiles fast and is the right choice on TPU and GPU, while on
CPU straight-line code is 1.2 to 1.6 times faster. It does not change the results.

Rematerialization policies, by what a layer's forward pass keeps for its backward pass:

none           all that the backward pass reads
full           only the layer's input; the rest is computed again, a third more of the FLOPs
dots           the input and the results of all matrix products, attention logits among them
dots_no_batch  the input and the results of the products with weights: no array of T * S elements
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
from t5x_lite.core.trees import Array, Key
from t5x_lite.nn import cache as caching
from t5x_lite.nn import experts
from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.bind import bind, split, stacked
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.dropout import dropout, hidden_dropout, split_key
from t5x_lite.nn.layers import DecoderLayer, EncoderLayer, LayerConfig, by_head
from t5x_lite.nn.masks import Visibility

POLICIES: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.checkpoint_dots,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
"""Name -> jax.checkpoint's policy; None keeps all."""


def check_remat(name: str) -> None:
    """Raise InputError for a name that `POLICIES` does not have."""
    if name not in POLICIES:
        raise InputError(
            f"model.remat must be one of {', '.join(POLICIES)}: got {name!r}"
            f"{did_you_mean(name, POLICIES)}"
        )


def more_remat(name: str) -> tuple[str, ...]:
    """Return the policies that keep less than one, the one that computes least again first."""
    if name == "full":
        return ()
    return ("full",) if name == "dots_no_batch" else ("dots_no_batch", "full")


def rematerialise(
    function: Callable[..., Any], name: str, *, in_loop: bool = True
) -> Callable[..., Any]:
    """Return the function with less to remember.

    Args:
      function: a layer.
      name: name of the policy.
      in_loop: True if it is the body of a loop. In straight-line code the compiler would find the
        second computation equal to the first, and merge them, were it not prevented.

    Raises:
      InputError: unknown name.
    """
    check_remat(name)
    policy = POLICIES[name]
    if policy is None:
        return function
    return jax.checkpoint(function, policy=policy, prevent_cse=not in_loop)


AttentionKind = Literal["auto", "plain", "heads", "blocked", "pallas", "cudnn"]
"""The fastest for the devices (`choose_attention`); over all keys at once; one head of one row at a
time, for CPUs; over blocks of keys; the same as a kernel for TPUs, elsewhere blocked; cuDNN's on
NVIDIA GPUs, elsewhere plain, where nothing is trained."""

Unroll = int | bool | Literal["auto"]
"""Layers per iteration of the scan; True for straight-line code; "auto" as `choose_unroll`."""

_LONG = 2048
"""Row length in tokens from which logits are too large to keep, 16 MiB per head and row."""
_KERNEL_BLOCK = 256
_STRAIGHT = {"cpu": 12}
"""Device kind -> maximum layers that are compiled as straight-line code; 24 for others."""


def choose_attention(
    kind: str,
    *,
    dtype: str,
    length: int,
    d_kv: int,
    dropout: Literal["none", "shared", "each"] = "none",
    distances: bool = False,
) -> tuple[AttentionKind, str]:
    """Return the resolved `attention` "auto" of a run, and the reason.

    Args:
      kind: kind of the devices, as JAX names it.
      dtype: the compute dtype.
      length: length of the longest row, in tokens.
      d_kv: size of a head.
      dropout: dropout of the attention weights: none, shared by all queries of a head, or per
        query.
      distances: True if logits depend on the distance and the query, as DeBERTa's.
    """
    whole, why = ("plain", "") if length < _LONG else ("blocked", f" at {length} tokens")
    if distances:
        return whole, f"disentangled attention has no kernel{why}"
    if is_nvidia(kind):
        if dropout == "each":
            return whole, f"cuDNN has no draw of dropout for each query and key{why}"
        if dtype == "float32":
            return whole, f"cuDNN takes no float32{why}"
        if d_kv % 8 or d_kv > 256:
            return whole, f"cuDNN takes no heads of {d_kv}{why}"
        return "cudnn", f"{kind}, {dtype}"
    if kind.startswith("TPU"):
        return "pallas", kind
    if kind == "cpu" and dtype == "float32" and whole == "plain" and dropout != "each":
        return "heads", f"{kind}, {dtype}"
    return whole, f"{kind}{why}"


def choose_unroll(kind: str, num_layers: int) -> int | bool:
    """Resolve `unroll` "auto": straight-line code, or a loop if compilation would take long."""
    return True if num_layers <= _STRAIGHT.get(kind, 24) else 1


def chosen(
    model: Any, kind: str, *, num_layers: int, one_text_rows: bool, **facts: Any
) -> tuple[Any, str]:
    """Return a model's config with `attention` and `unroll` as they are run, and what was chosen.

    Args:
      model: has the fields attention, attention_block, unroll and one_text_rows.
      kind: kind of the devices.
      num_layers: number of layers of the deeper stack.
      one_text_rows: True if each row of a batch holds one text with its padding behind it.
      facts: the arguments of `choose_attention`.

    Returns:
      The config, and a line with the choices; "" without choices.
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
    """Reject a precision for which the compiler for TPUs has no products inside kernels.

    Args:
      attention: the kind of it.
      precision: precision of float32 products: "default", "high" or "highest".
      dtype: the compute dtype.
    """
    possible = precision == "default" or (precision, dtype) == ("highest", "float32")
    if attention == "pallas" and not possible:
        raise InputError(
            f"model.attention pallas cannot multiply {dtype} numbers at --matmul-precision "
            f"{precision}: set default, or --model.attention blocked"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Running:
    """The choices that cost or save time and memory.

    Attributes:
      unroll: layers per iteration of the scan; True for straight-line code.
      remat: activations that a layer keeps for its backward pass (`t5x_lite.nn.stack`).
      attention_block: keys at a time (a DeBERTa's: queries), in memory linear in length
        (`t5x_lite.nn.blocked_attention`); None for plain attention. Decoding is plain.
      attention_kernel: True if the kernel for TPUs takes them (`t5x_lite.nn.pallas_attention`).
      attention_fused: True if cuDNN takes all keys at once (`t5x_lite.nn.cudnn_attention`).
      one_text_rows: True if each row holds one text with its padding behind it.
      attention_by_head: True if one head of one row is attended at a time.

    Raises:
      InputError: remat is not the name of a policy.
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
        """Return the choices as a model's config has them.

        An "auto" that no run has chosen is a loop, and cuDNN's attention where that runs.
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

    def pattern(self, mask: Array | Visibility | None, length: int) -> Pattern:
        """Return the layers' pattern in the form that their attention takes: blocks, or an array.

        Args:
          mask: as an array, or what it is made of.
          length: number of the queries, at positions 0, 1, 2, ...; of self-attention's keys, too.
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
    """Run a stacked module layer after layer.

    Args:
      layers: a module made by `bind.stacked`.
      call: (layer, x, this layer's inputs) -> (x, this layer's outputs).
      x: the first layer's input.
      inputs: arrays with a leading layer axis, or None.
      running: unroll and remat are used.
      part: the layers [first, last) that are run; None for all layers.

    Returns:
      x after the last of these layers, and the layers' stacked outputs, or None without outputs.
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
"""Arrays, or what they are made of."""

PLAIN = Running()


class Encoder(nnx.Module):
    """A stack of encoder layers with T5's bidirectional relative bias.

    Args:
      config: sizes of a layer.
      num_layers: number of layers.
      running: settings of the run; the default is a plain scan.
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
        """Encode embedded tokens.

        Args:
          x: embeddings.
          mask: True where a position may see another.
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
    """A stack of decoder layers with T5's causal relative bias.

    Args:
      config: as `Encoder`, like num_layers, running and rngs.
      num_layers: number of layers.
      running: settings of the run.
      cross_attention: False for a language model.
      bidirectional: True if the relative bias has buckets for keys to the right.
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
        """Take the layers apart, for decoding as straight-line code; in place.

        XLA does not take the slices of stacked parameters out of a loop, and would copy all weights
        at every token.

        Args:
          join: True if the products of one input become one.
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
        """Decode whole targets (teacher forcing).

        Args:
          x: embeddings of the decoder inputs.
          encoded: the encoder's output; None without cross-attention.
          mask: causal, and within segments.
          cross_mask: True where a target may see an input; None without cross-attention.
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
        """Decode the start token and a prompt in one pass and make the cache.

        Args:
          x: embeddings, right-aligned (`cache.align`): the last one is every row's last.
          encoded: the encoder's output; None without cross-attention.
          valid: False at the padding on the left.
          cross_mask: the inputs that may be seen; None without cross-attention.
          both_ways: positions that see each other whatever their order (a prefix LM's inputs).
          max_length: maximum new tokens.

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
        """Decode one token of each of the W rows of every input.

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
        if self.bias_per_layer:
            return pattern
        return pattern.biased(self.relative_bias, bidirectional=self.bidirectional)


def _straight_step(
    call: Callable, x: Array, layers: Any, cache: Cache, slot: Array
) -> tuple[Array, tuple]:
    """Call the layers one by one; return x and the new value of the cache's `own`."""
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
    """Compute `_straight_step` by a scan that carries all layers' keys and values."""
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
