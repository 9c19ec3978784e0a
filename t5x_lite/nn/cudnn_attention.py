"""cuDNN's fused attention for NVIDIA GPUs, with T5's relative bias and its gradient.

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

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from t5x_lite.core.accelerators import is_nvidia
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import check_whole_rows, partition_spec
from t5x_lite.core.trees import Array
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.positions import RelativeTable

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
    """Return the number of keys of each row, and True for rows in which a key follows padding."""
    real = keys > 0
    lengths = jnp.sum(real, axis=1, dtype=jnp.int32)
    behind = jnp.arange(keys.shape[1])[None] >= lengths[:, None]
    return lengths, jnp.any(real & behind, axis=1)


def _is_the_kernel(primitive: Any, *_: Any, **__: Any) -> bool:
    return "dot_product_attention" in primitive.name


def _fill(length: int) -> int:
    """Return the number of positions to append: cuDNN's backward pass needs an even length.

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
    """Return the float32 term added to the logits: the bias, or `least` at masked keys."""
    if mask is not None:
        fill = (mask.shape[2] - logits.shape[2], mask.shape[3] - logits.shape[3])
    if any(fill):
        logits = jnp.pad(logits, ((0, 0), (0, 0), (0, fill[0]), (0, fill[1])))
    return logits if mask is None else jnp.where(mask, logits, least)


def on_mesh(
    function: Any, query: Array, key: Array, value: Array, mask: Any, lengths: Any, bias: Any
) -> Array:
    """Run a function on each device's rows and heads; without a mesh, call it directly."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function(query, key, value, mask, lengths, bias)
    rows = partition_spec(("batch", None, "heads", "kv"))
    seen = None
    if mask is not None:
        seen = partition_spec(("batch" if mask.shape[0] > 1 else None, None, None, None))
    each = None if lengths is None else partition_spec(("batch",))
    mapped = jax.shard_map(
        function,
        in_specs=(*3 * (rows,), seen, each, partition_spec((None, "heads", None, None))),
        out_specs=rows,
        check_vma=False,
    )
    return mapped(query, key, value, mask, lengths, bias)
