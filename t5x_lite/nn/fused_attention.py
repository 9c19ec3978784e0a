"""Attention without all logits in memory: in blocks of keys, by head, and by cuDNN.

Attention with memory linear in length: keys in blocks, as in FlashAttention.

    out = blocked_attention(query, key, value, visible=masks.of_decoder())

The result equals `t5x_lite.nn.attention.softmax_attention`. Mask and bias are computed block by
block from segment ids and the bias table, so no array of T * S elements is made in the forward or
backward pass. The softmax runs over the blocks of keys in sequence, with all queries at once (Dao
et al. 2022, FlashAttention, section 3.1; Rabe and Staats 2021), with memory [B, H, T, block]. The
backward pass keeps the output and, for each query, the largest logit and the sum of the
exponentials, and recomputes the weights of each block.

cuDNN's fused attention for NVIDIA GPUs, with T5's relative bias and its gradient.

    out = cudnn_attention(query, key, value, visible=masks.of_decoder(segments), bias=table)

The result equals `t5x_lite.nn.attention.softmax_attention`, computed by
`jax.nn.dot_product_attention`. Logits and weights are never in the GPU's memory, but bias and mask
are. Together they are one array of the compute dtype, [1, H, T, S], or [B, H, T, S] if rows have
different masks. It is rebuilt in each layer and in its backward pass, and the gradient of the bias
has the same size. If each row is known to hold one text (`Visibility.one_text`), no mask is needed:
cuDNN reads the number of keys of each row and supports causal attention. The bias is then [1, H, T,
S]. A row of only padding attends to its first position. Padding before a token gives NaN, so that
the error is visible.

cuDNN supports bfloat16 and float16, and head sizes that are multiples of 8. Dropout shared by all
queries of a head, as in T5, scales the values outside this module; dropout sampled for each query
and key is not supported. The program is selected during tracing: on devices other than NVIDIA GPUs,
or with float32, plain attention runs instead (`check` rejects both before training).
"""

import dataclasses
import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Bool, Float, Int

from t5x_lite.core.accelerators import is_nvidia
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import check_whole_rows, partition_spec
from t5x_lite.core.trees import Array
from t5x_lite.nn.attention_pattern import RelativeTable
from t5x_lite.nn.dense import ATTENTION, WeightDropout, einsum, kept_keys, sum_leading, thinned
from t5x_lite.nn.masks import MASKED, Visibility

Rows = tuple[Array | None, ...]
"""Per-position arrays of one attention call.

The arrays are `keys`, `queries` and `both_ways` of a `Visibility`; its `hidden` and `picked`, if
supported; and the dropout streams [B, H, T], if dropout is sampled for each query and key.
"""

Pair = tuple[Array, Array]
"""Keys and values of a prefix."""


def stored(*arrays: Array) -> tuple[Array, ...]:
    """Mark the results of attention in blocks for rematerialization policies (`nn.stack`)."""
    return tuple(checkpoint_name(array, ATTENTION) for array in arrays)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Static settings of one call of blocked attention.

    Attributes:
      block: number of keys per block.
      causal: True if a query attends only to itself and earlier keys.
      bidirectional: True if the relative bias has buckets for later keys.
      max_distance: largest relative distance of the bias; None without a bias.
      itself: True if a query may attend to its own position.
      dropout_rate: dropout rate of the weights, if dropout is sampled for each query and key.
    """

    block: int
    causal: bool
    bidirectional: bool
    max_distance: int | None
    itself: bool = True
    dropout_rate: float = 0.0

    @classmethod
    def of(cls, visible: Visibility, bias: RelativeTable | None, *, num_keys: int) -> "Rules":
        """Return the settings of blocked attention for a mask and a relative bias."""
        if visible.block_size < 1:
            raise ValueError(f"block_size is {visible.block_size}, but must be at least 1 key")
        return cls(
            block=min(visible.block_size, num_keys),
            causal=visible.causal,
            bidirectional=bias is not None and bias.bidirectional,
            max_distance=None if bias is None else bias.max_distance,
            itself=visible.itself,
        )


def blocked_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K"],
    *,
    visible: Visibility,
    bias: RelativeTable | None = None,
    draws: WeightDropout | None = None,
    prefix: tuple[Float[Array, "B P H K"], Float[Array, "B P H K"]] | None = None,
) -> Float[Array, "B T H K"]:
    """Compute softmax(query key^T + bias) value in blocks of keys, with a float32 softmax.

    As in `softmax_attention`, logits are unscaled, and products take operands in the dtype of value
    and accumulate in float32. A query without visible keys attends to all keys equally and passes
    no gradient to its logits.

    Args:
      query: projected queries.
      key: projected keys.
      value: projected values.
      visible: keys that each query attends to, and the number of keys per block; S need not be a
        multiple.
      bias: relative bias; its table gets a gradient.
      draws: dropout for each query and key, sampled again in the backward pass. Values are already
        scaled.
      prefix: keys and values that all queries attend to, without a bias, processed before the first
        block.
    """
    rules = Rules.of(visible, bias, num_keys=key.shape[1])
    rows = (visible.keys, visible.queries, visible.both_ways, visible.hidden, visible.picked)
    if draws is not None:
        rules = dataclasses.replace(rules, dropout_rate=draws.rate)
        batch, num_queries, heads, _ = query.shape
        rows = (*rows, draws.streams(batch, heads, num_queries))
    table = None if bias is None else bias.table
    return _attend(rules, query, key, value, table, rows, prefix)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    rules: Rules,
    query: Array,
    key: Array,
    value: Array,
    table: Array | None,
    rows: Rows,
    prefix: Pair | None = None,
) -> Array:
    return forward(rules, query, key, value, table, rows, prefix)[0]


def _num_blocks(rules: Rules, num_keys: int) -> int:
    return -(-num_keys // rules.block)


def _padded(rules: Rules, keys: Array) -> Array:
    missing = _num_blocks(rules, keys.shape[1]) * rules.block - keys.shape[1]
    return jnp.pad(keys, ((0, 0), (0, missing), (0, 0), (0, 0))) if missing else keys


def _slice(rules: Rules, keys: Array, start: Int[Array, ""]) -> Array:
    return jax.lax.dynamic_slice_in_dim(keys, start, rules.block, axis=1)


def _bias(rules: Rules, table: Array, num_queries: int, start: Int[Array, ""]) -> Array:
    assert rules.max_distance is not None
    reading = RelativeTable(
        table=table, bidirectional=rules.bidirectional, max_distance=rules.max_distance
    )
    return reading.block(num_queries, start, rules.block)


def _seen(rules: Rules, rows: Rows, num_queries: int, start: Int[Array, ""]) -> Array | None:
    keys, queries, both_ways, hidden, picked = (*rows[:5], None, None)[:5]
    visible = Visibility(
        keys=keys,
        queries=queries,
        causal=rules.causal,
        both_ways=both_ways,
        hidden=hidden,
        picked=picked,
        itself=rules.itself,
    )
    return visible.block(num_queries, start, rules.block)


def _kept(rules: Rules, rows: Rows, start: Array) -> Array | None:
    streams = (*rows, None, None, None)[5]
    if streams is None:
        return None
    return kept_keys(rules.dropout_rate, streams, start, rules.block)


def _logits(
    rules: Rules,
    query: Array,
    key: Array,
    table: Array | None,
    seen: Array | None,
    start: Int[Array, ""],
    num_keys: int,
) -> Array:
    """Compute the logits of one block of keys; -inf for keys that pad the last block."""
    logits = einsum("BTHK,BSHK->BHTS", query, key)
    if table is not None:
        logits = logits + _bias(rules, table, query.shape[1], start)
    if seen is not None:
        logits = jnp.where(seen, logits, MASKED)
    if num_keys % rules.block:
        logits = jnp.where(start + jnp.arange(rules.block) < num_keys, logits, -jnp.inf)
    return logits


def _by_query(x: Array) -> Array:
    return x.swapaxes(1, 2)[..., None]


def _begin(query: Array, prefix: Pair | None, dtype: jnp.dtype) -> tuple[Array, Array, Array]:
    batch, num_queries, heads, _ = query.shape
    if prefix is None:
        return (
            jnp.full((batch, heads, num_queries), -jnp.inf, jnp.float32),
            jnp.zeros((batch, heads, num_queries), jnp.float32),
            jnp.zeros(query.shape, jnp.float32),
        )
    logits = einsum("BTHK,BPHK->BHTP", query, prefix[0])
    largest = jnp.max(logits, axis=-1)
    weights = jnp.exp(logits - largest[..., None])
    mixed = einsum("BHTP,BPHK->BTHK", weights.astype(dtype), prefix[1])
    return largest, jnp.sum(weights, axis=-1), mixed


def forward(
    rules: Rules,
    query: Array,
    key: Array,
    value: Array,
    table: Array | None,
    rows: Rows,
    prefix: Pair | None = None,
) -> tuple[Array, tuple]:
    """Return the output of blocked attention, and the residuals for `backward`."""
    num_queries, num_keys, dtype = query.shape[1], key.shape[1], value.dtype
    keys, values = _padded(rules, key), _padded(rules, value)

    def add_block(state: tuple) -> tuple:
        index, largest, normaliser, total = state
        start = index * rules.block
        seen = _seen(rules, rows, num_queries, start)
        logits = _logits(rules, query, _slice(rules, keys, start), table, seen, start, num_keys)
        # Every block has a key, and a masked logit is finite: so is the largest.
        now = jnp.maximum(largest, jnp.max(logits, axis=-1))
        shrink = jnp.exp(largest - now)
        weights = jnp.exp(logits - now[..., None])
        normaliser = normaliser * shrink + jnp.sum(weights, axis=-1)
        weights = thinned(weights, _kept(rules, rows, start))
        mixed = einsum("BHTS,BSHK->BTHK", weights.astype(dtype), _slice(rules, values, start))
        return index + 1, now, normaliser, total * _by_query(shrink) + mixed

    # A while loop and not a scan: rematerialization policies reach into a scan, and "dots" would
    # keep every block's logits.
    num_blocks = _num_blocks(rules, num_keys)
    _, largest, normaliser, total = jax.lax.while_loop(
        lambda state: state[0] < num_blocks,
        add_block,
        (jnp.int32(0), *_begin(query, prefix, dtype)),
    )
    # Not their logarithm: where all is masked, 1e10 + log(S) is 1e10 in float32.
    scale = 1.0 / normaliser
    out = (total * _by_query(scale)).astype(dtype)
    out, largest, scale = stored(out, largest, scale)
    return out, (query, key, value, table, rows, out, largest, scale)


def backward(rules: Rules, saved: tuple, g: Array, prefix: Pair | None = None) -> tuple:
    """Return the gradients of the inputs of blocked attention, from the residuals of `forward`."""
    query, key, value, table, rows, out, largest, scale = saved
    num_queries, num_keys, dtype = query.shape[1], key.shape[1], value.dtype
    keys, values = _padded(rules, key), _padded(rules, value)
    g32 = g.astype(jnp.float32) * _by_query(scale)
    inner = jnp.sum(g32 * out.astype(jnp.float32), axis=-1).swapaxes(1, 2)[..., None]
    g = g32.astype(dtype)

    def add_block(carry: tuple, index: Array) -> tuple[tuple, tuple]:
        grad_query, grad_table = carry
        start = index * rules.block
        here = _slice(rules, keys, start)
        seen = _seen(rules, rows, num_queries, start)
        logits = _logits(rules, query, here, table, seen, start, num_keys)
        weights = jnp.exp(logits - largest[..., None]).astype(dtype)
        kept = _kept(rules, rows, start)
        grad_value = einsum("BHTS,BTHK->BSHK", thinned(weights, kept), g)
        grad_weights = thinned(einsum("BTHK,BSHK->BHTS", g, _slice(rules, values, start)), kept)
        grad_logits = weights.astype(jnp.float32) * (grad_weights - inner)
        if seen is not None:
            grad_logits = jnp.where(seen, grad_logits, 0.0)
        grad_logits = grad_logits.astype(dtype)
        grad_query = grad_query + einsum("BHTS,BSHK->BTHK", grad_logits, here)
        grad_key = einsum("BHTS,BTHK->BSHK", grad_logits, query)
        if table is not None:
            _, pullback = jax.vjp(lambda t: _bias(rules, t, num_queries, start), table)
            (grad,) = pullback(sum_leading(grad_logits.astype(jnp.float32)))
            grad_table = grad_table + grad
        return (grad_query, grad_table), (grad_key.astype(dtype), grad_value.astype(dtype))

    before, grad_prefix = jnp.zeros(query.shape, jnp.float32), None
    if prefix is not None:
        logits = einsum("BTHK,BPHK->BHTP", query, prefix[0])
        weights = jnp.exp(logits - largest[..., None]).astype(dtype)
        grad_weights = einsum("BTHK,BPHK->BHTP", g, prefix[1])
        grad_logits = (weights.astype(jnp.float32) * (grad_weights - inner)).astype(dtype)
        before = einsum("BHTP,BPHK->BTHK", grad_logits, prefix[0])
        grad_prefix = (
            einsum("BHTP,BTHK->BPHK", grad_logits, query).astype(dtype),
            einsum("BHTP,BTHK->BPHK", weights, g).astype(dtype),
        )
    zeros = before, None if table is None else jnp.zeros_like(table)
    (grad_query, grad_table), blocks = jax.lax.scan(
        add_block, zeros, jnp.arange(_num_blocks(rules, num_keys))
    )
    grad_key, grad_value = (
        jnp.moveaxis(grad, 0, 1).reshape(keys.shape)[:, :num_keys] for grad in blocks
    )
    return grad_query.astype(dtype), grad_key, grad_value, grad_table, None, grad_prefix


def _forward(rules: Rules, *given: Any) -> tuple[Array, tuple]:
    out, saved = forward(rules, *given)
    return out, (saved, given[-1])


def _backward(rules: Rules, saved: tuple, g: Array) -> tuple:
    return backward(rules, saved[0], g, saved[1])


_attend.defvjp(_forward, _backward)


_SMALL_HEAD, _LARGE_HEAD = 128 * 128, 512 * 512
"""Numbers of logits of a head between which `headwise_attention` computes 4 heads at a time."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(6,))
def headwise_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K"],
    bias: Float[Array, "#B H T S"] | None,
    mask: Bool[Array, "#B 1 #T S"] | None,
    streams: Int[Array, "B H T"] | None = None,
    dropout_rate: float = 0.0,
) -> Float[Array, "B T H K"]:
    """Compute `softmax_attention` with products of one head of one row, which is faster on CPUs.

    XLA multiplies batches of small matrices at a quarter of the speed, and bfloat16 more slowly
    than float32. A head's logits stay in the cache; the backward pass recomputes them. `streams`
    (`WeightDropout.streams`) sample the dropped weights, as in blocked attention.
    """
    return _headwise_forward(query, key, value, bias, mask, streams, dropout_rate)[0]


def _heads_at_once(total: int, num_logits: int) -> int:
    # On two cores, 4 are up to 1.5 times faster between the two sizes, and no faster elsewhere.
    return math.gcd(total, 4 if _SMALL_HEAD < num_logits < _LARGE_HEAD else 2)


def _of_head(x: Array, row: Array, head: Array) -> Array:
    sizes = (1, x.shape[1], 1, x.shape[3])
    return jax.lax.dynamic_slice(x, (row, 0, head, 0), sizes).reshape(x.shape[1], x.shape[3])


def _with_head(x: Array, new: Array, row: Array, head: Array) -> Array:
    return jax.lax.dynamic_update_slice(x, new.astype(x.dtype)[None, :, None], (row, 0, head, 0))


def _part(x: Array | None, row: Array, head: Array) -> Array | None:
    if x is None:
        return None
    place = [index if size > 1 else 0 for index, size in zip((row, head), x.shape, strict=False)]
    return jax.lax.dynamic_slice(x, (*place, 0, 0), (1, 1, *x.shape[2:]))[0, 0]


def _logits_of_head(query: Array, key: Array, bias: Array | None, mask: Array | None) -> Array:
    logits = einsum("TK,SK->TS", query, key)
    logits = logits if bias is None else logits + bias
    return logits if mask is None else jnp.where(mask, logits, MASKED)


def _dropped(weights: Array, streams: Array | None, rate: float, row: Array, head: Array) -> Array:
    if streams is None:
        return weights
    own = jax.lax.dynamic_slice(streams, (row, head, 0), (1, 1, weights.shape[0]))[0, 0]
    return thinned(weights, kept_keys(rate, own, 0, weights.shape[1]))


def _headwise_forward(*given: Any) -> tuple[Array, tuple]:
    query, key, value, bias, mask, streams, rate = given
    batch_size, length, num_heads, _ = query.shape
    # Whole arrays: a conversion of one head's slice takes longer than its products.
    inputs = [x.astype(jnp.float32) for x in (query, key, value)]

    def attend(index: Array) -> tuple[Array, Array]:
        row, head = index // num_heads, index % num_heads
        q, k, v = (_of_head(x, row, head) for x in inputs)
        logits = _logits_of_head(q, k, _part(bias, row, head), _part(mask, row, head))
        largest = jnp.max(logits, axis=-1, keepdims=True)
        weights = jnp.exp(logits - largest)
        normaliser = jnp.sum(weights, axis=-1, keepdims=True)
        mixed = einsum("TS,SK->TK", _dropped(weights, streams, rate, row, head), v) / normaliser
        # The two apart: the sum of their logarithms loses small ones next to a masked logit.
        return mixed, jnp.concatenate([largest, normaliser], axis=1)

    def attend_some(index: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        out, all_sums = found
        indices = [index * at_once + i for i in range(at_once)]
        # All are computed before the first is stored, so that none waits for a store.
        for each, (mixed, sums) in [(each, attend(each)) for each in indices]:
            row, head = each // num_heads, each % num_heads
            out = _with_head(out, mixed, row, head)
            place = (row, head, 0, 0)
            all_sums = jax.lax.dynamic_update_slice(all_sums, sums[None, None], place)
        return out, all_sums

    total = batch_size * num_heads
    at_once = _heads_at_once(total, length * key.shape[1])
    empty = (jnp.zeros_like(inputs[0]), jnp.zeros((batch_size, num_heads, length, 2), jnp.float32))
    out, sums = jax.lax.fori_loop(0, total // at_once, attend_some, empty)
    out = out.astype(value.dtype)
    return out, (query, key, value, bias, mask, streams, out, sums)


def _headwise_backward(rate: float, saved: tuple, g: Array) -> tuple[Array | None, ...]:
    query, key, value, bias, mask, streams, out, sums = saved
    batch_size, length, num_heads, _ = query.shape
    inputs = [x.astype(jnp.float32) for x in (query, key, value, g)]
    inner = jnp.sum(inputs[3] * out.astype(jnp.float32), axis=-1)

    def differentiate(index: Array) -> tuple[Array, ...]:
        row, head = index // num_heads, index % num_heads
        q, k, v, cotangent = (_of_head(x, row, head) for x in inputs)
        seen = _part(mask, row, head)
        logits = _logits_of_head(q, k, _part(bias, row, head), seen)
        own_sums = jax.lax.dynamic_slice(sums, (row, head, 0, 0), (1, 1, length, 2))[0, 0]
        weights = jnp.exp(logits - own_sums[:, :1]) / own_sums[:, 1:]
        own = jax.lax.dynamic_slice(inner, (row, 0, head), (1, length, 1)).reshape(length, 1)
        grad_weights = _dropped(einsum("TK,SK->TS", cotangent, v), streams, rate, row, head)
        grad_logits = weights * (grad_weights - own)
        grad_logits = grad_logits if seen is None else jnp.where(seen, grad_logits, 0.0)
        return (
            einsum("TS,SK->TK", grad_logits, k),
            einsum("TS,TK->SK", grad_logits, q),
            einsum("TS,TK->SK", _dropped(weights, streams, rate, row, head), cotangent),
            grad_logits,
        )

    def differentiate_some(index: Array, found: tuple) -> tuple:
        *grads, grad_bias = found
        indices = [index * at_once + i for i in range(at_once)]
        for each, (*new, grad_logits) in [(each, differentiate(each)) for each in indices]:
            row, head = each // num_heads, each % num_heads
            grads = [_with_head(x, y, row, head) for x, y in zip(grads, new, strict=True)]
            if grad_bias is not None:
                place = (row if bias.shape[0] > 1 else 0, head, 0, 0)
                before = jax.lax.dynamic_slice(grad_bias, place, (1, 1, *grad_logits.shape))
                grad_bias = jax.lax.dynamic_update_slice(grad_bias, before + grad_logits, place)
        return (*grads, grad_bias)

    empty = (
        *(jnp.zeros_like(x) for x in inputs[:3]),
        None if bias is None else jnp.zeros(bias.shape, jnp.float32),
    )
    total = batch_size * num_heads
    at_once = _heads_at_once(total, length * key.shape[1])
    *grads, grad_bias = jax.lax.fori_loop(0, total // at_once, differentiate_some, empty)
    grads = [x.astype(y.dtype) for x, y in zip(grads, (query, key, value), strict=True)]
    return (*grads, grad_bias, None, None)


headwise_attention.defvjp(_headwise_forward, _headwise_backward)


_LEAST = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}
"""Value of masked logits per compute dtype; with larger magnitudes cuDNN may give NaN (JAX)."""

_LARGEST_HEAD = 256


def check_sizes(*, d_kv: int) -> None:
    """Raise InputError if cuDNN's attention does not support the head size."""
    if d_kv % 8 or d_kv > _LARGEST_HEAD:
        raise InputError(
            "model.attention 'cudnn' needs a head size that is a multiple of 8 and at most "
            f"{_LARGEST_HEAD}, but d_kv is {d_kv}; set --model.attention blocked"
        )


def check(*, kind: str, dtype: str) -> None:
    """Raise InputError if cuDNN's attention does not support the devices or the compute dtype."""
    if not is_nvidia(kind):
        raise InputError(
            "model.attention 'cudnn' needs NVIDIA GPUs, but the devices are of the kind "
            f"{kind!r}; set --model.attention plain, blocked or pallas"
        )
    if dtype not in _LEAST:
        raise InputError(
            f"model.attention 'cudnn' needs bfloat16, but compute_dtype is {dtype!r}; set "
            "--compute-dtype bfloat16, or --model.attention blocked"
        )


def is_taken(kind: str, dtype: Any) -> bool:
    """Return True if cuDNN's attention supports this dtype on devices of this kind."""
    return is_nvidia(kind) and jnp.dtype(dtype).name in _LEAST


def cudnn_attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S H K"],
    value: Float[Array, "B S H K"],
    *,
    visible: Visibility,
    bias: RelativeTable | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B T H K"]:
    """Compute softmax(query key^T + bias) value by cuDNN, with a float32 softmax.

    As in `softmax_attention`, logits are unscaled, and a query without visible keys attends to all
    keys equally and passes no gradient to its logits. The bias is rounded to the dtype of the
    queries before it is added.

    Args:
      query: projected queries, bfloat16 or float16.
      key: projected keys.
      value: projected values.
      visible: keys that each query attends to.
      bias: relative bias; its table gets a gradient.
      implementation: "xla" computes the same result by plain operations, also in float32, for
        tests.
    """
    check_whole_rows("cuDNN's attention", instead="--model.attention plain")
    num_queries, num_keys = query.shape[1], key.shape[1]
    least = _LEAST.get(query.dtype.name, -1e10)
    fill = (_fill(num_queries), _fill(num_keys))
    logits = None if bias is None else bias.block(num_queries, 0, num_keys)[None]
    is_causal = visible.is_only_causal and num_queries == num_keys and not any(fill)
    lengths = mask = None
    if visible.has_lengths and visible.keys is not None:
        lengths, wrong = _lengths(visible.keys)
        # NaN is added to the bias, or else to the queries, which costs no extra pass.
        if logits is not None:
            logits = logits + jnp.where(jnp.any(wrong), jnp.nan, 0.0)
        else:
            query = query + jnp.where(wrong, jnp.nan, 0.0).astype(query.dtype)[:, None, None, None]
        is_causal = visible.causal and num_queries == num_keys
    elif not is_causal:
        mask = visible.dense(num_queries)

    def attend(
        query: Array, key: Array, value: Array, mask: Any, lengths: Any, logits: Any
    ) -> Array:
        added, sees = None, None
        if mask is not None:
            sees = jnp.any(mask, axis=-1)
            mask = mask | ~sees[..., None]
        if lengths is None:
            mask = _whole(mask, (num_queries, num_keys), fill)
        if logits is not None:
            added = _added(mask, logits, least=least, fill=fill).astype(query.dtype)
        out = jax.nn.dot_product_attention(
            _longer(query, fill[0]),
            _longer(key, fill[1]),
            _longer(value, fill[1]),
            bias=added,
            mask=mask if added is None else None,
            scale=1.0,
            is_causal=is_causal,
            key_value_seq_lengths=None if lengths is None else jnp.maximum(lengths, 1),
            implementation=implementation,
        )[:, :num_queries]
        if sees is None:
            return out
        mean = jnp.mean(value, axis=1, keepdims=True, dtype=jnp.float32).astype(value.dtype)
        return jnp.where(sees.swapaxes(1, 2)[..., None], out, mean)

    # The inputs and the kernel's results are kept for the backward pass. The bias is not, because
    # it is as large as the weights that the kernel avoids.
    attend = jax.checkpoint(attend, policy=_is_the_kernel)
    return on_mesh(attend, query, key, value, mask, lengths, logits)


def _lengths(keys: Int[Array, "B S"]) -> tuple[Int[Array, " B"], Bool[Array, " B"]]:
    real = keys > 0
    lengths = jnp.sum(real, axis=1, dtype=jnp.int32)
    behind = jnp.arange(keys.shape[1])[None] >= lengths[:, None]
    return lengths, jnp.any(real & behind, axis=1)


def _is_the_kernel(primitive: Any, *_: Any, **__: Any) -> bool:
    return "dot_product_attention" in primitive.name


def _fill(length: int) -> int:
    """Return the number of positions to append for cuDNN, which needs an even length.

    If the length is 64 more than a multiple of 128, some versions give NaN for queries with all
    logits below -88 (pytorch/pytorch issue 196678). Two more positions avoid this.
    """
    return 2 if length % 128 == 64 else length % 2


def _longer(x: Array, fill: int) -> Array:
    return jnp.pad(x, ((0, 0), (0, fill), (0, 0), (0, 0))) if fill else x


def _whole(
    mask: Bool[Array, "#B 1 #T S"] | None, lengths: tuple[int, int], fill: tuple[int, int]
) -> Bool[Array, "_ 1 _ _"] | None:
    if mask is None and not any(fill):
        return None
    mask = jnp.ones((1, 1, *lengths), bool) if mask is None else mask
    mask = jnp.broadcast_to(mask, (mask.shape[0], 1, *lengths))
    mask = jnp.pad(mask, ((0, 0), (0, 0), (0, fill[0]), (0, 0)), constant_values=True)
    return jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (0, fill[1])))


def _added(
    mask: Bool[Array, "_ 1 T S"] | None,
    logits: Float[Array, "1 H _ _"],
    *,
    least: float,
    fill: tuple[int, int] = (0, 0),
) -> Float[Array, "_ H T S"]:
    if mask is not None:
        fill = (mask.shape[2] - logits.shape[2], mask.shape[3] - logits.shape[3])
    if any(fill):
        logits = jnp.pad(logits, ((0, 0), (0, 0), (0, fill[0]), (0, fill[1])))
    return logits if mask is None else jnp.where(mask, logits, least)


def on_mesh(
    function: Any, query: Array, key: Array, value: Array, mask: Any, per_row: Any, bias: Any
) -> Array:
    """Run a function on each device's rows and heads; `per_row` is [B], [B, H, T] or None."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function(query, key, value, mask, per_row, bias)
    rows = partition_spec(("batch", None, "heads", "kv"))
    seen = None
    if mask is not None:
        seen = partition_spec(("batch" if mask.shape[0] > 1 else None, None, None, None))
    each = None if per_row is None else partition_spec(("batch", "heads", None)[: per_row.ndim])
    mapped = jax.shard_map(
        function,
        in_specs=(*3 * (rows,), seen, each, partition_spec((None, "heads", None, None))),
        out_specs=rows,
        check_vma=False,
    )
    return mapped(query, key, value, mask, per_row, bias)
