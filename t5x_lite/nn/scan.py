"""How a stack of layers is run: a scan over stacked parameters, with less to remember if wanted.

`unroll` is a setting because a scan compiles fast and is the right choice on TPU and GPU, while on
CPU straight-line code is 1.2 to 1.6 times faster. Nothing here changes what is computed.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_lite.chips import is_nvidia
from t5x_lite.errors import InputError
from t5x_lite.nn import tally
from t5x_lite.nn.bind import bind, split
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.pattern import Pattern
from t5x_lite.nn.remat import check_remat, rematerialise
from t5x_lite.sharding import constrain
from t5x_lite.types import Array

AttentionKind = Literal["auto", "plain", "heads", "blocked", "pallas", "cudnn"]
"""The fastest for the devices (`choose_attention`); over all keys at once; one head of one row at a
time, for CPUs; over blocks of keys; the same as a kernel for TPUs, elsewhere blocked; cuDNN's on
NVIDIA GPUs, elsewhere plain, where nothing is trained."""

Unroll = int | bool | Literal["auto"]
"""Layers per iteration of the scan; True for straight-line code; "auto" as `choose_unroll`."""

_LONG = 2048
"""Rows of so many tokens have logits that are too large to be kept, 16 MiB a head and row."""
_KERNEL_BLOCK = 256
_STRAIGHT = {"cpu": 12}
"""Device kind -> the layers that are compiled as straight-line code at most; others: 24."""


def choose_attention(
    kind: str,
    *,
    dtype: str,
    length: int,
    d_kv: int,
    dropout: Literal["none", "shared", "each"] = "none",
    distances: bool = False,
) -> tuple[AttentionKind, str]:
    """What `attention` "auto" is for a run, and why.

    Args:
      kind: of the devices, as JAX names it.
      dtype: the compute dtype.
      length: of the longest row, in tokens.
      d_kv: size of a head.
      dropout: of the attention weights: none, one draw for all queries of a head, or each its own.
      distances: whether logits depend on the distance and the query, as DeBERTa's.
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
    """What `unroll` "auto" is: straight-line code, or a loop where compiling would take long.

    Args:
      kind: of the devices.
      num_layers: of the deeper stack.
    """
    return True if num_layers <= _STRAIGHT.get(kind, 24) else 1


def chosen(
    model: Any, kind: str, *, num_layers: int, one_text_rows: bool, **facts: Any
) -> tuple[Any, str]:
    """A model's config with `attention` and `unroll` as they are run, and what was chosen.

    Args:
      model: has the fields attention, attention_block, unroll and one_text_rows.
      kind: of the devices.
      num_layers: of the deeper stack.
      one_text_rows: whether each row of a batch holds one text with its padding behind it.
      facts: the arguments of `choose_attention`.

    Returns:
      The config, and a line; "" where the config says everything itself.
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
    """Refuses a precision for which the compiler for TPUs has no products inside kernels.

    Args:
      attention: the kind of it.
      precision: of float32 products: "default", "high" or "highest".
      dtype: the compute dtype.

    Raises:
      InputError: with what to set.
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
      remat: activations that a layer keeps for its backward pass (`t5x_lite.nn.remat`).
      attention_block: keys at a time (a DeBERTa's: queries), in memory linear in length
        (`t5x_lite.nn.blocked_attention`); None is plain attention. Decoding is plain.
      attention_kernel: whether the kernel for TPUs takes them (`t5x_lite.nn.pallas_attention`).
      attention_fused: whether cuDNN takes all keys at once (`t5x_lite.nn.cudnn_attention`).
      one_text_rows: whether each row holds one text with its padding behind it.
      attention_by_head: whether one head of one row is attended at a time.

    Raises:
      InputError: remat is no policy's name.
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
        """The choices as a model's config has them.

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
        """What the layers attend to, in the form that their attention takes: blocks, or an array.

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
        """Whether no loop is left of so many layers."""
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
    """Runs a stacked module layer after layer.

    Args:
      layers: a module made by `bind.stacked`.
      call: (layer, x, this layer's inputs) -> (x, this layer's outputs).
      x: the first layer's input.
      inputs: arrays with a leading layer axis, or None.
      running: unroll and remat are used.
      part: the layers [first, last) that are run; None is all of them.

    Returns:
      x after the last of these layers, and the layers' outputs stacked; None where there are none.
    """
    graphdef, params, _ = split(layers)
    if part is not None:
        if part[0] == part[1]:
            return x, None
        params, inputs = jax.tree.map(lambda leaf: leaf[slice(*part)], (params, inputs))

    def body(carry: Array, slices: tuple[Any, Any]) -> tuple[Array, Any]:
        layer_params, layer_inputs = slices
        collects = tally.collecting() if told else contextlib.nullcontext({})
        with collects as found:
            carry, outputs = call(bind(graphdef, layer_params), carry, layer_inputs)
        carry = constrain(carry, "batch", "length", "activation_embed")
        return carry, (outputs, dict(found))

    told = tally.is_collected()
    num_layers = jax.tree.leaves(params)[0].shape[0]
    body = rematerialise(body, running.remat, in_loop=not running.is_straight(num_layers))
    x, (outputs, found) = jax.lax.scan(body, x, (params, inputs), unroll=running.unroll)
    for name, each in found.items():
        tally.add(name, jnp.sum(each, axis=0))
    return x, outputs
