"""Multi-head attention with an additive bias and a float32 softmax.

Logits, bias and softmax are float32 whatever the compute dtype (t5x computes them in bfloat16).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import constrain, traced_kind
from t5x_lite.core.trees import Array, Key, Size
from t5x_lite.nn import fused_attention as cudnn
from t5x_lite.nn.attention_pattern import EVERYTHING, Pattern
from t5x_lite.nn.dense import (
    FAN_IN_NORMAL,
    Dense,
    FusedDense,
    WeightDropout,
    dropout,
    einsum,
    saves_bytes,
    stored_product,
    sum_leading,
    thinned,
    truncated_normal,
)
from t5x_lite.nn.fused_attention import blocked_attention, headwise_attention
from t5x_lite.nn.masks import MASKED, Visibility
from t5x_lite.nn.slots import GatedKeySlot, HiddenSlot, KeySlot, PlacedKeySlot

Prefix = tuple[Float[Array, "*#B P H K"], Float[Array, "*#B P H K"]]
"""Prefix keys and values: [P, H, K] shared by all rows, or [B, P, H, K] for each row."""

_PREFIX = 1  # fold_in constant for the dropout key of a prefix


def _masked_logits(query: Array, key: Array, bias: Array | None, mask: Array | None) -> Array:
    logits = einsum("BTHK,BSHK->BHTS", query, key)
    if bias is not None:
        logits = logits + bias
    return logits if mask is None else jnp.where(mask, logits, MASKED)


@jax.custom_vjp
def softmax_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K"],
    bias: Float[Array, "#B H T S"] | None,
    mask: Bool[Array, "#B 1 #T S"] | None,
    kept: Bool[Array, "B H T S"] | None = None,
) -> Float[Array, "B T H K"]:
    """Compute softmax(query key^T + bias) value with a float32 softmax.

    Weights are 0 where `kept` is False. The two matrix products take operands in the dtype of
    value. To save passes over [B, H, T, S], the softmax's division follows the second product, and
    the backward pass is written by hand (Dao et al. 2022, FlashAttention, appendix B.2). A query
    without visible keys attends to all keys equally and passes no gradient to its logits.
    """
    return _attention_forward(query, key, value, bias, mask, kept)[0]


def _attention_forward(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    kept: Array | None = None,
) -> tuple[Array, tuple]:
    logits = _masked_logits(query, key, bias, mask)
    exponentials = jnp.exp(logits - jax.lax.stop_gradient(jnp.max(logits, -1, keepdims=True)))
    normaliser = jnp.sum(exponentials, axis=-1)
    weights = exponentials.astype(value.dtype)
    scale = 1.0 / normaliser.swapaxes(1, 2)[..., None]
    out = einsum("BHTS,BSHK->BTHK", thinned(weights, kept), value)
    out = (out * scale).astype(value.dtype)
    biases = 0 if bias is None else len(bias)
    return out, (query, key, value, weights, scale, out, biases, mask, kept)


def _attention_backward(saved: tuple, g: Array) -> tuple[Array | None, ...]:
    query, key, value, weights, scale, out, biases, mask, kept = saved
    dtype = value.dtype
    g32 = g.astype(jnp.float32) * scale
    inner = jnp.sum(g32 * out.astype(jnp.float32), axis=-1).swapaxes(1, 2)[..., None]
    g = g32.astype(dtype)
    grad_value = einsum("BHTS,BTHK->BSHK", thinned(weights, kept), g).astype(dtype)
    grad_weights = thinned(einsum("BTHK,BSHK->BHTS", g, value), kept)
    grad_logits = weights.astype(jnp.float32) * (grad_weights - inner)
    if mask is not None:
        grad_logits = jnp.where(mask, grad_logits, 0.0)
    grad_logits = grad_logits.astype(dtype)
    grad_query = einsum("BHTS,BSHK->BTHK", grad_logits, key).astype(dtype)
    grad_key = einsum("BHTS,BTHK->BSHK", grad_logits, query).astype(dtype)
    grad_bias = grad_logits.astype(jnp.float32) if biases else None
    if grad_bias is not None and biases == 1:
        grad_bias = sum_leading(grad_bias)[None]
    return grad_query, grad_key, grad_value, grad_bias, None, None


softmax_attention.defvjp(_attention_forward, _attention_backward)


_LEAST_LOGITS = 64 * 64
"""Minimum number of logits per head, T * S, for which `headwise_attention` is used."""


def dot_product_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K"],
    *,
    pattern: Pattern = EVERYTHING,
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
    share_dropout: bool = True,
    prefix: Prefix | None = None,
    prefix_bias: Float[Array, "#B H #T P"] | None = None,
) -> Float[Array, "B T H K"]:
    """Compute unscaled dot-product attention, by the implementation that `pattern` selects.

    If `pattern.mask` is an array or None, plain attention runs; if it is a `Visibility` (compact
    mask), its fields select blocked attention, the TPU kernel or cuDNN's attention. If
    `share_dropout` is True, all implementations drop the same weights. If not, attention in blocks
    or by head and the TPU kernel drop the same, plain attention others, and cuDNN's cannot run.

    Args:
      query: projected queries.
      key: projected keys.
      value: projected values.
      pattern: keys that each query attends to, and the bias of its logits.
      dropout_rate: dropout rate of the attention weights.
      dropout_key: random key of dropout; None disables dropout.
      share_dropout: True if all queries of a head drop the same keys, as in T5; if False, dropout
        is sampled for each query and key, as in BERT.
      prefix: keys and values that all queries attend to; dropout drops the same prefix keys for all
        queries of a head. A prefix disables the TPU kernel and cuDNN's attention.
      prefix_bias: bias added to the logits of the prefix keys; None adds nothing.

    Returns:
      The weighted values, in the dtype of value.

    Raises:
      InputError: if a prefix has a bias, but attention is computed in blocks.
    """
    mask: Any = pattern.mask
    bias: Any = pattern.bias
    before = None
    if prefix is not None:
        before = of_rows(prefix, value.shape[0], dropout_rate, key=dropout_key)
    value, draws = dropped_values(value, dropout_rate, key=dropout_key, share=share_dropout)
    if isinstance(mask, Visibility) and mask.fused:
        if draws is None and before is None and cudnn.is_taken(traced_kind(), value.dtype):
            return cudnn.cudnn_attention(query, key, value, visible=mask, bias=bias)
        bias = None if bias is None else bias.block(query.shape[1], 0, key.shape[1])[None]
        mask = mask.dense(query.shape[1])
    if isinstance(mask, Visibility):
        takes = mask.hidden is None and mask.itself and before is None
        if mask.kernel and takes:
            # Late: importing Pallas takes as long as importing this package.
            from t5x_lite.nn.pallas_attention import pallas_attention

            return pallas_attention(query, key, value, visible=mask, bias=bias, draws=draws)
        if prefix_bias is not None:
            raise InputError(
                "blocked attention does not support a prefix with a relative bias; set "
                "--model.attention plain"
            )
        return blocked_attention(
            query, key, value, visible=mask, bias=bias, draws=draws, prefix=before
        )
    by_head = pattern.by_head and query.shape[1] * key.shape[1] >= _LEAST_LOGITS
    by_head = by_head and (draws is None or before is None)
    kept = None
    if draws is not None and not by_head:
        kept = draws.kept((query.shape[0], query.shape[2], query.shape[1], key.shape[1]))
    if before is not None:
        key, value = (jnp.concatenate(pair, 1) for pair in zip(before, (key, value), strict=True))
        mask, kept = (with_room(each, before[0].shape[1], True) for each in (mask, kept))
        bias = with_room(bias, before[0].shape[1], 0)
        if prefix_bias is not None:
            rest = bias.shape[-1] - prefix_bias.shape[-1]
            bias = bias + jnp.pad(prefix_bias, [(0, 0)] * 3 + [(0, rest)])
    if by_head:
        streams = None if draws is None else draws.streams(len(query), *query.shape[2:0:-1])

        def attend(q: Array, k: Array, v: Array, mask: Any, streams: Any, bias: Any) -> Array:
            return headwise_attention(q, k, v, bias, mask, streams, dropout_rate)

        return cudnn.on_mesh(attend, query, key, value, mask, streams, bias)
    return softmax_attention(query, key, value, bias, mask, kept)


def of_rows(
    prefix: Prefix, num: Size, rate: float, *, key: Key | None
) -> tuple[Float[Array, "B P H K"], Float[Array, "B P H K"]]:
    """Broadcast prefix keys and values to all rows of a batch, and apply dropout to the values.

    Args:
      prefix: keys and values that a prefix adapter returns.
      num: number of rows B.
      rate: dropout rate of the attention weights.
      key: random key of dropout; None disables dropout.
    """
    keys, values = (jnp.broadcast_to(x, (num, *x.shape[-3:])) for x in prefix)
    own = None if key is None else jax.random.fold_in(key, _PREFIX)
    return keys, dropped_values(values, rate, key=own, share=True)[0]


def with_room(x: Array | None, num: int, value: bool | int) -> Array | None:
    """Prepend `num` columns filled with `value` to the last axis of a mask or bias."""
    if x is None:
        return None
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(num, 0)], constant_values=value)


def dropped_values(
    value: Float[Array, "B S H K"], rate: float, *, key: Key | None, share: bool
) -> tuple[Float[Array, "B S H K"], WeightDropout | None]:
    """Apply shared attention dropout to the values, or only scale them for dropout of the weights.

    Args:
      value: projected values.
      rate: dropout rate of the attention weights.
      key: random key of dropout; None disables dropout.
      share: True if all queries of a head drop the same keys. Dropout then zeroes or scales
        complete values, without a pass over [B, H, T, S]. If False, values are only scaled, and the
        returned `WeightDropout` samples the dropped weights.
    """
    if key is None or rate == 0.0:
        return value, None
    if share:
        kept = dropout(jnp.ones((*value.shape[:-1], 1), value.dtype), rate, key=key)
        return value * kept, None
    draws = WeightDropout(key, rate)
    return value * jnp.asarray(draws.scale, value.dtype), draws


def attention_by_head(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B G K _"],
    value: Float[Array, "B H S K"],
    *,
    pattern: Pattern = EVERYTHING,
    prefix: Prefix | None = None,
    prefix_bias: Float[Array, "#B H #T P"] | None = None,
) -> Float[Array, "B T H K"]:
    """Compute `dot_product_attention` for few queries over the keys and values of a decoding cache.

    The operations have the order of `softmax_attention`, so that incremental decoding equals the
    full forward pass; no backward pass is defined. Positions are the last axis of the keys, because
    logits are then two to four times faster on CPUs.
    """
    mask: Any = pattern.mask
    bias: Any = pattern.bias
    batch_size, length, num_heads, _ = query.shape
    queries = query.swapaxes(1, 2)
    query = jnp.tile(queries, (1, key.shape[1] // num_heads, 1, 1))
    logits = einsum("BGTK,BGKS->BGTS", query, key)
    logits = logits.reshape(batch_size, -1, num_heads, length, key.shape[-1])
    logits = jnp.moveaxis(logits, 1, 3).reshape(batch_size, num_heads, length, -1)
    logits = logits[..., : value.shape[2]]
    logits = logits if bias is None else logits + bias
    logits = logits if mask is None else jnp.where(mask, logits, MASKED)
    if prefix is not None:
        before = einsum("BHTK,PHK->BHTP", queries, prefix[0])
        before = before if prefix_bias is None else before + prefix_bias
        logits = jnp.concatenate([logits, before], axis=-1)
    weights = jnp.exp(logits - jnp.max(logits, -1, keepdims=True))
    scale = 1.0 / jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights.astype(value.dtype)
    mixed = einsum("BHTS,BHSK->BHTK", weights[..., : value.shape[2]], value)
    if prefix is not None:
        mixed = mixed + einsum("BHTP,PHK->BHTK", weights[..., value.shape[2] :], prefix[1])
    return (mixed * scale).astype(value.dtype).swapaxes(1, 2)


class Attention(nnx.Module):
    """Multi-head self-attention or cross-attention, with its four projections.

    T5's projections have no bias, and the query's initializer contains the scale of the logits (t5x
    layers.py). BERT's projections have biases, and logits are divided by the square root of the
    head size.

    Args:
      d_model: size D of the inputs and the output.
      num_heads: number of heads H.
      d_kv: size K of a head; H * K need not equal D.
      dropout_rate: dropout rate of the attention weights.
      bias: True if the projections have biases.
      scaled: True if logits are multiplied by the attribute `scale`, initially 1 / sqrt(K).
      share_dropout: True if all queries of a head drop the same keys.
      stddev: standard deviation of the initial kernels; if None, T5's initializers.
      rngs: random streams; "params" is used.
    """

    slot: HiddenSlot | None = None  # an adapter's scale of the mixed values
    prefix: KeySlot | None = None  # an adapter's keys and values
    joint: FusedDense | None = None  # after `join`, instead of query, key and value
    joint_out: FusedDense | None = None  # and of out

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int,
        d_kv: int,
        dropout_rate: float,
        bias: bool = False,
        scaled: bool = False,
        stddev: float | None = None,
        share_dropout: bool = True,
        rngs: nnx.Rngs,
    ):
        joined = num_heads * d_kv
        initializer = FAN_IN_NORMAL if stddev is None else truncated_normal(stddev)

        def query_initializer(*arguments):
            start = initializer(*arguments)
            return start / math.sqrt(d_kv) if stddev is None else start

        def dense(axes: tuple[str, str], *, query: bool = False) -> Dense:
            sizes = (d_model, joined) if axes[0] == "embed" else (joined, d_model)
            init = query_initializer if query else initializer
            return Dense(*sizes, axes=axes, initializer=init, bias=bias, rngs=rngs)

        self.query = dense(("embed", "joined_kv"), query=True)
        self.key = dense(("embed", "joined_kv"))
        self.value = dense(("embed", "joined_kv"))
        self.out = dense(("joined_kv", "embed"))
        self.num_heads = num_heads
        self.d_kv = d_kv
        self.dropout_rate = dropout_rate
        self.share_dropout = share_dropout
        self.scale = 1.0 / math.sqrt(d_kv) if scaled else None

    def dense_sites(self) -> dict[str, Dense]:
        """Return the four dense layers by name: "query", "key", "value" and "out"."""
        return {name: getattr(self, name) for name in ("query", "key", "value", "out")}

    def join(self, *, crosses: bool = False) -> None:
        """Fuse the query, key and value projections into one matrix product for decoding, in place.

        Args:
          crosses: True for cross-attention, where key and value projections stay separate.
        """
        if self.scale is not None or self.query.has_bias:
            raise ValueError("attention with biases or scaled logits cannot be fused for decoding")
        names = ("query",) if crosses else ("query", "key", "value")
        layers = [getattr(self, name) for name in names]
        self.joint = FusedDense.of(layers, axes=("joined_kv", "embed"))
        self.joint_out = FusedDense.of([self.out], axes=("embed", "joined_kv"), slot=self.slot)
        for name in (*names, "out"):
            delattr(self, name)

    def heads(
        self, joined: Float[Array, "B T J"], length: str | None = "length"
    ) -> Float[Array, "B T H K"]:
        """Split the last axis into heads. `length` is the logical name of the token axis."""
        heads = joined.reshape(*joined.shape[:-1], self.num_heads, self.d_kv)
        return constrain(heads, "batch", length, "heads", "kv")

    def scaled_queries(
        self, x: Float[Array, "*batch D"], seen: Any = None
    ) -> Float[Array, "*batch J"]:
        """Return the queries of x, scaled in float32, before the split into heads."""
        if self.scale is None:
            return self.query(x, seen)
        product = self.query(x, seen) if saves_bytes() else self.query.product(x, seen)
        return stored_product((product.astype(jnp.float32) * self.scale).astype(x.dtype))

    def close(self, mixed: Float[Array, "B T H K"], seen: Any = None) -> Float[Array, "B T D"]:
        """Merge the heads of the weighted values and apply the output projection."""
        mixed = constrain(mixed, "batch", "length", "heads", "kv")
        joined = mixed.reshape(*mixed.shape[:-2], self.num_heads * self.d_kv)
        if self.slot is not None and self.joint_out is None:
            joined = self.slot(joined)
        out = self.out(joined, seen) if self.joint_out is None else self.joint_out(joined)[0]
        return constrain(out, "batch", "length", "activation_embed")

    def project(
        self, source: Float[Array, "B S D"], seen: Any = None
    ) -> tuple[Float[Array, "B S H K"], Float[Array, "B S H K"]]:
        """Project hidden states to keys and values, which a decoding cache can store."""
        return self.heads(self.key(source, seen)), self.heads(self.value(source, seen))

    def queries(self, x: Float[Array, "B T D"], seen: Any = None) -> Float[Array, "B T H K"]:
        """Project x to queries, split into heads."""
        return self.heads(self.scaled_queries(x, seen) if self.joint is None else self.joint(x)[0])

    def project_all(
        self, x: Float[Array, "B T D"]
    ) -> tuple[Float[Array, "B T H K"], tuple[Float[Array, "B T H K"], Float[Array, "B T H K"]]]:
        """Return queries, keys and values of x for self-attention."""
        if self.joint is not None:
            query, key, value = map(self.heads, self.joint(x))
            return query, (key, value)
        own = self.project(x)
        return self.queries(x), own

    def attend(
        self,
        queries: Float[Array, "B T H K"],
        keys: Float[Array, "B S H K"],
        values: Float[Array, "B S H K"],
        *,
        pattern: Pattern = EVERYTHING,
        key: Key | None = None,
        prefix: Prefix | None = None,
        seen: Any = None,
    ) -> Float[Array, "B T D"]:
        """Attend from projected queries to keys and values, and apply the output projection.

        If `prefix` is None, the keys and values of the layer's prefix adapter are used, if any.
        """
        # If the length is split over devices, each device has some of the queries and all keys.
        keys, values = (constrain(y, "batch", None, "heads", "kv") for y in (keys, values))
        before = self.own_prefix() if prefix is None else prefix
        mixed = dot_product_attention(
            queries,
            keys,
            values,
            pattern=pattern,
            dropout_rate=self.dropout_rate,
            dropout_key=key,
            share_dropout=self.share_dropout,
            prefix=before,
            prefix_bias=self.prefix_bias(pattern),
        )
        return self.close(mixed, seen)

    def own_prefix(self, x: Array | None = None, seen: Any = None) -> Prefix | None:
        """Return the keys and values of the prefix adapter, or None without a prefix adapter.

        If the hidden states `x` are given, an adapter with a gate computes the gate from x.
        """
        if isinstance(self.prefix, GatedKeySlot) and x is not None:
            return self.prefix.gated(x, seen)
        return None if self.prefix is None else self.prefix()

    def prefix_bias(self, pattern: Pattern) -> Float[Array, "#B H #T P"] | None:
        slot = self.prefix
        return pattern.bias_before(slot.num_before) if isinstance(slot, PlacedKeySlot) else None

    def attend_by_head(
        self,
        queries: Float[Array, "B T H K"],
        keys: Float[Array, "B G K _"],
        values: Float[Array, "B H S K"],
        *,
        pattern: Pattern = EVERYTHING,
    ) -> Float[Array, "B T D"]:
        mixed = attention_by_head(
            queries,
            keys,
            values,
            pattern=pattern,
            prefix=self.own_prefix(),
            prefix_bias=self.prefix_bias(pattern),
        )
        return self.close(mixed)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        source: Float[Array, "B S D"] | None = None,
        *,
        pattern: Pattern = EVERYTHING,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Attend from x to `source` and apply the output projection. `source` defaults to x."""
        seen: Any = pattern.mask
        keys, values = self.project(x if source is None else source, seen)
        before = self.own_prefix(x, seen)
        return self.attend(
            self.queries(x, seen),
            keys,
            values,
            pattern=pattern,
            key=key,
            prefix=before,
            seen=seen,
        )
