"""t5x checkpoints: names, layouts and sizes of google-research/t5x and flaxformer.

    checkpoint = read_t5x("t5_1_1_small/checkpoint_1000000")
    checkpoint.config                        T5Config(d_model=512, ...), from the arrays' shapes
    checkpoint.array("lm_head/kernel")       read now, in our layout

Where each thing is (N layers, D d_model, H heads, K d_kv, F d_ff):

    examples/t5, flaxformer                        encoder/layers_0/mlp/wo/kernel    [F, D]
    examples/scalable_t5, its layers scanned       encoder/layers/mlp/wo/kernel      [F, N, D]
    flaxformer, scanned (the released umT5)        encoder/encoder/mlp/wo/kernel     [F, N, D]

    attention kernels                              [D, H K] or [D, H, K]; out [H K, D] or [H, K, D]
    relative bias, one for a stack                 encoder/relpos_bias/rel_embedding [H, buckets]
    relative bias, one for a layer                 .../relpos_bias/ or .../relative_posemb/ in each

The names are those of T5 1.0, 1.1 and LM-adapted, mT5, ByT5, umT5, Flan-T5 and T0. Other models of
the code base have other tensors (LongT5's local attention, the experts of Switch), which are
refused by name, and so are checkpoints without an encoder. No checkpoint says how it was trained:
the dropout rate, and distances from which on the relative bias is the same, are T5's unless given.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from t5x_lite import trees
from t5x_lite.errors import InputError
from t5x_lite.interop.rules import (
    LAYER,
    Piece,
    Rule,
    Source,
    check_finite,
    check_names,
    check_shape,
    pieces,
)
from t5x_lite.interop.t5x_files import StoredTensor, find_checkpoint, read_target
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.bind import shapes
from t5x_lite.nn.mlp import FEED_FORWARDS

_EMBEDDING = "token_embedder/embedding"
_HEAD = "decoder/logits_dense/kernel"
_NORMS = {
    "encoder": {"attention": "pre_attention_layer_norm", "mlp": "pre_mlp_layer_norm"},
    "decoder": {
        "self_attention": "pre_self_attention_layer_norm",
        "cross_attention": "pre_cross_attention_layer_norm",
        "mlp": "pre_mlp_layer_norm",
    },
}
_ATTENTIONS = {
    "encoder": {"attention": "attention"},
    "decoder": {
        "self_attention": "self_attention",
        "cross_attention": "encoder_decoder_attention",
    },
}
_SCAN_AXIS = 1
"""T5Config.param_scan_axis of scalable_t5, and what flaxformer's T5 uses."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5XCheckpoint(Source):
    """A checkpoint whose names and shapes are those of its config; no array has been read.

    Attributes:
      config: the model that the shapes make.
      step: the N of its directory checkpoint_N; None of another name.
    """

    config: T5Config
    step: int | None = None

    def read(self, piece: Piece) -> np.ndarray:
        """One piece in our layout, read now."""
        ours = piece.to_ours(self.tensors[piece.name].read(piece.rule.stack_axis))
        check_finite(self.where, piece.name, ours)
        return ours


def read_t5x(source: str | Path, *, step: int | None = None, **fields: Any) -> T5XCheckpoint:
    """Reads what a t5x checkpoint holds, but no large array.

    Args:
      source: a directory checkpoint_N, or the one above it; see `t5x_files.find_checkpoint`.
      step: which N.
      **fields: of T5Config, in place of what the shapes say or of the default.

    Raises:
      InputError: there is no checkpoint, it is damaged, or its arrays are not those of a T5: they
        are listed.
    """
    directory = find_checkpoint(source, step=step)
    where = f"t5x checkpoint {directory}"
    tensors = read_target(directory)
    stacks = [_find_stack(where, name, tensors) for name in ("encoder", "decoder")]
    sizes = _sizes(where, stacks, tensors)
    try:
        config = T5Config(**{**sizes, **fields})
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    abstract = shapes(lambda rngs: config.build(rngs=rngs))[1]
    ours = {path: tuple(leaf.shape) for path, leaf in trees.flatten(abstract).items()}
    wanted = pieces(table(config, stacks), ours)
    check_names(where, wanted, tensors)
    for piece in wanted:
        tensor = tensors[piece.name]
        check_shape(where, piece, tensor.shape)
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            raise InputError(f"{where}: {piece.name} holds {tensor.dtype}, which are not weights")
    number = re.fullmatch(r"checkpoint_(\d+)", Path(directory).name)
    return T5XCheckpoint(
        where=where,
        config=config,
        step=int(number[1]) if number else None,
        shapes=ours,
        pieces=wanted,
        tensors=tensors,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
    """How an encoder or a decoder is laid out there.

    Attributes:
      name: "encoder" or "decoder".
      layer: what a layer's names begin with; with "{layer}" where each has names of its own.
      axis: of all layers in one tensor; None where they are apart.
      num_layers: how many there are.
      joined: whether heads and their size are one axis of the attention's kernels.
      bias: the relative bias's name.
    """

    name: str
    layer: str
    axis: int | None
    num_layers: int
    joined: bool
    bias: str

    @property
    def bias_per_layer(self) -> bool:
        """Whether each layer has a relative bias of its own."""
        return self.bias.startswith(f"{self.layer}/")


def table(config: T5Config, stacks: Sequence[Stack]) -> list[Rule]:
    """The rules for a model in a layout.

    Args:
      config: the sizes, and which arrays there are.
      stacks: encoder and decoder.
    """
    rules = [Rule("token_embedding/table", _EMBEDDING)]
    for stack in stacks:
        rules += _stack_rules(config, stack)
    if not config.tie_embeddings:
        rules.append(Rule("lm_head/kernel", _HEAD))
    return rules


def _stack_rules(config: T5Config, stack: Stack) -> list[Rule]:
    def rule(ours: str, theirs: str, **how: Any) -> Rule:
        ours, theirs = f"{stack.name}/layers/{ours}", f"{stack.layer}/{theirs}"
        return Rule(ours, theirs, stack_axis=stack.axis, **how)

    rules = [
        rule(f"{ours}_norm/scale", f"{theirs}/scale") for ours, theirs in _NORMS[stack.name].items()
    ]
    heads = (config.num_heads, config.d_kv)
    into = None if stack.joined else (config.d_model, *heads)
    out = None if stack.joined else (*heads, config.d_model)
    for ours, theirs in _ATTENTIONS[stack.name].items():
        for kernel, shape in {"query": into, "key": into, "value": into, "out": out}.items():
            rules.append(rule(f"{ours}/{kernel}/kernel", f"{theirs}/{kernel}/kernel", shape=shape))
    gated = FEED_FORWARDS[config.feed_forward][1]
    for kernel in ("wi_0", "wi_1", "wo") if gated else ("wi", "wo"):
        rules.append(rule(f"mlp/{kernel}/kernel", f"mlp/{kernel}/kernel"))
    if stack.bias_per_layer:
        name = stack.bias.removeprefix(f"{stack.layer}/")
        rules.append(rule("relative_bias/table", name, transpose=True))
    else:
        rules.append(Rule(f"{stack.name}/relative_bias/table", stack.bias, transpose=True))
    rules.append(Rule(f"{stack.name}/final_norm/scale", f"{stack.name}/{stack.name}_norm/scale"))
    return rules


def _find_stack(where: str, name: str, tensors: Mapping[str, StoredTensor]) -> Stack:
    """How a stack is laid out, by the names that there are."""
    first_norm = next(iter(_NORMS[name].values()))
    matches = (re.match(rf"{name}/layers_(\d+)/", path) for path in tensors)
    numbers = sorted({int(match[1]) for match in matches if match})
    if numbers:
        layer, axis, num_layers = f"{name}/layers_{LAYER}", None, len(numbers)
        if numbers != list(range(num_layers)):
            raise InputError(f"{where}: the layers of its {name} are {numbers}: some are missing")
    else:
        scanned = (f"{name}/layers", f"{name}/{name}")
        found = [prefix for prefix in scanned if f"{prefix}/{first_norm}/scale" in tensors]
        if not found:
            raise InputError(
                f"{where}: holds no layers of a T5's {name}, such as {name}/layers_0/mlp; an "
                f"encoder-decoder is read, and this holds {', '.join(sorted(tensors)[:3])}, ..."
            )
        layer, axis = found[0], _SCAN_AXIS
        num_layers = _shape(where, tensors, f"{layer}/{first_norm}/scale")[axis]
    attention = next(iter(_ATTENTIONS[name].values()))
    query = f"{layer}/{attention}/query/kernel"
    own = [f"{layer}/{bias}/rel_embedding" for bias in ("relpos_bias", "relative_posemb")]
    biases = [bias for bias in own if bias.replace(LAYER, "0") in tensors]
    return Stack(
        name=name,
        layer=layer,
        axis=axis,
        num_layers=num_layers,
        joined=len(_shape(where, tensors, query, ranks=(2, 3), axis=axis)) == 2,
        bias=biases[0] if biases else f"{name}/relpos_bias/rel_embedding",
    )


def _sizes(
    where: str, stacks: Sequence[Stack], tensors: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """The fields of T5Config that the shapes say."""
    encoder, decoder = stacks
    if encoder.bias_per_layer != decoder.bias_per_layer:
        raise InputError(
            f"{where}: relative biases are per layer in one stack and not in the other: "
            f"{encoder.bias} and {decoder.bias}"
        )
    axis = encoder.axis
    vocab_size, d_model = _shape(where, tensors, _EMBEDDING)
    gated = f"{encoder.layer}/mlp/wi_0/kernel".replace(LAYER, "0") in tensors
    hidden = f"{encoder.layer}/mlp/{'wi_0' if gated else 'wi'}/kernel"
    query = f"{encoder.layer}/attention/query/kernel"
    query = _shape(where, tensors, query, ranks=(2, 3), axis=axis)
    num_heads, relative_buckets = _shape(
        where, tensors, encoder.bias, axis=axis if encoder.bias_per_layer else None
    )
    if encoder.joined and query[1] % num_heads:
        raise InputError(f"{where}: {num_heads} heads do not divide kernels of shape {query}")
    return {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": query[1] // num_heads if encoder.joined else query[2],
        "d_ff": _shape(where, tensors, hidden, axis=axis)[1],
        "num_heads": num_heads,
        "num_encoder_layers": encoder.num_layers,
        "num_decoder_layers": decoder.num_layers,
        "feed_forward": "gated-gelu" if gated else "relu",
        "tie_embeddings": _HEAD not in tensors,
        "relative_buckets": relative_buckets,
        "relative_bias_per_layer": encoder.bias_per_layer,
    }


def _shape(
    where: str,
    tensors: Mapping[str, StoredTensor],
    name: str,
    *,
    ranks: Sequence[int] = (2,),
    axis: int | None = None,
) -> tuple[int, ...]:
    """The shape of a tensor, or of its first layer: by name, or on the axis, which is left out."""
    name = name.replace(LAYER, "0")
    if name not in tensors:
        raise InputError(f"{where}: {name} is missing")
    shape = tensors[name].shape
    rest = shape if axis is None else (*shape[:axis], *shape[axis + 1 :])
    if len(rest) not in ranks or len(shape) - len(rest) != (axis is not None):
        raise InputError(f"{where}: {name} has shape {shape}, which is none of a T5's")
    return rest
