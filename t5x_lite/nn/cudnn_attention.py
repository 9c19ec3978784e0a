"""cuDNN's fused attention for NVIDIA GPUs, with T5's relative bias and its gradient.

    out = cudnn_attention(query, key, value, visible=masks.of_decoder(segments), bias=table)

What `t5x_lite.nn.attention.softmax_attention` computes, by `jax.nn.dot_product_attention`: logits
and weights are never in the GPU's memory. The bias and the mask are: together one array of the
compute dtype, [1, H, T, S], or [B, H, T, S] where rows differ in what they see, made anew in each
layer and in its backward pass, and the bias's gradient is as large. A decoder whose rows are not
packed needs no mask: cuDNN knows the causal one.

cuDNN takes bfloat16 and float16, and heads of a multiple of 8. Dropout that all queries of a head
share, as T5's, is a scaling of the values and outside of this; a draw for each query and key has no
implementation. The program is chosen when it is traced: where the devices are no NVIDIA GPUs, or
the numbers float32, plain attention runs in its place (`check` refuses both before training).
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from t5x_lite.errors import InputError
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.positions import RelativeTable
from t5x_lite.sharding import check_whole_rows, partition_spec
from t5x_lite.types import Array

_LEAST = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}
"""Compute dtype -> a masked logit; of larger ones cuDNN may subtract two and get NaN (JAX)."""

_LARGEST_HEAD = 256


def check_sizes(*, d_kv: int) -> None:
    """Refuses, by an InputError, heads that cuDNN's attention does not take."""
    if d_kv % 8 or d_kv > _LARGEST_HEAD:
        raise InputError(
            "model.attention 'cudnn' needs heads of a multiple of 8 and at most "
            f"{_LARGEST_HEAD}: got {d_kv}; set --model.attention blocked"
        )


def check(*, kind: str, dtype: str) -> None:
    """Refuses devices and dtypes for which plain attention would run in its place.

    Args:
      kind: of the devices, as JAX names it.
      dtype: the compute dtype.

    Raises:
      InputError: with what to set.
    """
    if not is_nvidia(kind):
        raise InputError(
            "model.attention 'cudnn' needs NVIDIA GPUs, and the devices are of the kind "
            f"{kind!r}: set --model.attention plain, blocked or pallas"
        )
    if dtype not in _LEAST:
        raise InputError(
            f"model.attention 'cudnn' needs bfloat16, and compute_dtype is {dtype!r}: set "
            "--compute-dtype bfloat16, or --model.attention blocked"
        )


def is_nvidia(kind: str) -> bool:
    """Whether devices of a kind are those of CUDA: "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2"."""
    return kind.startswith(("NVIDIA", "Tesla", "Quadro", "GeForce"))


def is_taken(kind: str, dtype: Any) -> bool:
    """Whether cuDNN takes numbers of this dtype on devices of this kind."""
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
    """softmax(query key^T + bias) value, the softmax in float32.

    As `softmax_attention` in all else: unscaled logits, and a query that may see no key attends to
    all of them equally and passes no gradient to its logits. The bias is rounded to the dtype of
    the queries before it is added.

    Args:
      query: projected queries, bfloat16 or float16.
      key: projected keys.
      value: projected values.
      visible: which keys a query sees.
      bias: a relative bias; its table gets a gradient.
      implementation: "xla" computes the same by plain operations, in float32 too; for tests.

    Raises:
      InputError: the mesh splits the length.
    """
    check_whole_rows("cuDNN's attention", instead="--model.attention plain")
    num_queries, num_keys = query.shape[1], key.shape[1]
    least = _LEAST.get(query.dtype.name, -1e10)
    is_causal = visible.is_only_causal and num_queries == num_keys and not _fill(num_keys)
    mask = None if is_causal else visible.dense(num_queries)
    logits = None if bias is None else bias.block(num_queries, 0, num_keys)[None]

    def attend(query: Array, key: Array, value: Array, mask: Any, logits: Any) -> Array:
        sees = None
        if mask is not None:
            sees = jnp.any(mask, axis=-1)
            mask = mask | ~sees[..., None]
        queries, keys = (_fill(length) for length in (num_queries, num_keys))
        mask = _whole(mask, (num_queries, num_keys), (queries, keys))
        added = None if logits is None else _added(mask, logits, least=least)
        out = jax.nn.dot_product_attention(
            _longer(query, queries),
            _longer(key, keys),
            _longer(value, keys),
            bias=None if added is None else added.astype(query.dtype),
            mask=mask if added is None else None,
            scale=1.0,
            is_causal=is_causal,
            implementation=implementation,
        )[:, :num_queries]
        if sees is None:
            return out
        mean = jnp.mean(value, axis=1, keepdims=True, dtype=jnp.float32).astype(value.dtype)
        return jnp.where(sees.swapaxes(1, 2)[..., None], out, mean)

    # Of a layer its inputs and the kernel's results are kept: not the bias, which is as large as
    # the weights that the kernel spares.
    attend = jax.checkpoint(attend, policy=_is_the_kernel)
    return _on_mesh(attend, query, key, value, mask, logits)


def _is_the_kernel(primitive: Any, *_: Any, **__: Any) -> bool:
    return "dot_product_attention" in primitive.name


def _fill(length: int) -> int:
    """Positions that are put behind a row: cuDNN's backward pass needs an even number of them.

    Of 64 more than a multiple of 128 some versions give NaN for queries whose logits are all below
    -88 (pytorch/pytorch issue 196678); of two more they do not.
    """
    return 2 if length % 128 == 64 else length % 2


def _longer(x: Array, fill: int) -> Array:
    return jnp.pad(x, ((0, 0), (0, fill), (0, 0), (0, 0))) if fill else x


def _whole(
    mask: Bool[Array, "#B 1 #T S"] | None, lengths: tuple[int, int], fill: tuple[int, int]
) -> Bool[Array, "_ 1 _ _"] | None:
    """The mask with all of its queries and with what is put behind rows; None where all is seen.

    Args:
      mask: every query sees a key.
      lengths: T and S.
      fill: positions behind them; no query sees such a key.
    """
    if mask is None and not any(fill):
        return None
    mask = jnp.ones((1, 1, *lengths), bool) if mask is None else mask
    mask = jnp.broadcast_to(mask, (mask.shape[0], 1, *lengths))
    mask = jnp.pad(mask, ((0, 0), (0, 0), (0, fill[0]), (0, 0)), constant_values=True)
    return jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (0, fill[1])))


def _added(
    mask: Bool[Array, "_ 1 T S"] | None, logits: Float[Array, "1 H _ _"], *, least: float
) -> Float[Array, "_ H T S"]:
    """What is added to the logits, in float32: the bias, or the least where a key is not seen."""
    if mask is None:
        return logits
    behind = [
        (0, size - length) for size, length in zip(mask.shape[2:], logits.shape[2:], strict=True)
    ]
    return jnp.where(mask, jnp.pad(logits, ((0, 0), (0, 0), *behind)), least)


def _on_mesh(function: Any, query: Array, key: Array, value: Array, mask: Any, bias: Any) -> Array:
    """Calls a function on each device's rows and heads; as it is without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function(query, key, value, mask, bias)
    rows = partition_spec(("batch", None, "heads", "kv"))
    seen = None
    if mask is not None:
        seen = partition_spec(("batch" if mask.shape[0] > 1 else None, None, None, None))
    mapped = jax.shard_map(
        function,
        in_specs=(*3 * (rows,), seen, partition_spec((None, "heads", None, None))),
        out_specs=rows,
        check_vma=False,
    )
    return mapped(query, key, value, mask, bias)
