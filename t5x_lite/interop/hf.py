"""Weights of Hugging Face's T5, mT5, umT5, ByT5, Flan-T5 and UL2 directories, in and out.

    checkpoint = read_hf("flan-t5-small")
    checkpoint.config                        T5Config(d_model=512, ...), from its config.json
    checkpoint.array("lm_head/kernel")       read now, in our layout

The names are one table, for all variants and all file formats (`tensor_files` gives Flax's tensors
under PyTorch's names). Kernels are transposed, and layers are numbered in the names.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from t5x_lite import trees
from t5x_lite.errors import InputError
from t5x_lite.interop.hf_config import CONFIG, output, read_config, to_model
from t5x_lite.interop.rules import (
    LAYER,
    LazyArray,
    Piece,
    Rule,
    Source,
    check_finite,
    check_layers,
    check_names,
    check_shape,
    is_same,
    lazy_tensors,
    pieces,
    value_of,
)
from t5x_lite.interop.tensor_files import Arrays, read_tensors
from t5x_lite.models.t5 import StackConfig, T5Config
from t5x_lite.models.t5_encoder import T5EncoderConfig
from t5x_lite.nn.bind import shapes
from t5x_lite.nn.mlp import FEED_FORWARDS

EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Copies of the embedding."""
# Mesh TensorFlow's T5 had it and never used it; some releases hold it.
_IGNORED = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "out": "o"}
_SUBLAYERS = {
    "encoder": {"attention": "0.SelfAttention", "mlp": "1.DenseReluDense"},
    "decoder": {
        "self_attention": "0.SelfAttention",
        "cross_attention": "1.EncDecAttention",
        "mlp": "2.DenseReluDense",
    },
}


def table(config: StackConfig) -> list[Rule]:
    """The rules for a T5 or its encoder: ours -> PyTorch's names."""
    rules = [Rule("token_embedding/table", EMBEDDING, aliases=COPIES)]
    is_encoder = isinstance(config, T5EncoderConfig)
    for stack, sublayers in _SUBLAYERS.items():
        if is_encoder and stack != "encoder":
            continue
        for ours, theirs in sublayers.items():
            rules += _sublayer_rules(config, f"{stack}/layers/{ours}", stack, theirs)
        bias = "layer.0.SelfAttention.relative_attention_bias.weight"
        if config.relative_bias_per_layer:
            name = f"{stack}.block.{LAYER}.{bias}"
            rules.append(Rule(f"{stack}/layers/relative_bias/table", name))
        else:
            rules.append(Rule(f"{stack}/relative_bias/table", f"{stack}.block.0.{bias}"))
        rules.append(Rule(f"{stack}/final_norm/scale", f"{stack}.final_layer_norm.weight"))
    if isinstance(config, T5Config) and not config.tie_embeddings:
        rules.append(Rule("lm_head/kernel", HEAD, transpose=True))
    return rules


def _sublayer_rules(config: StackConfig, ours: str, stack: str, theirs: str) -> list[Rule]:
    """One sublayer's norm and kernels."""
    layer = f"{stack}.block.{LAYER}.layer"
    rules = [Rule(f"{ours}_norm/scale", f"{layer}.{theirs[0]}.layer_norm.weight")]
    if ours.endswith("mlp"):
        gated = FEED_FORWARDS[config.feed_forward][1]
        kernels = {name: name for name in (("wi_0", "wi_1") if gated else ("wi",))} | {"wo": "wo"}
    else:
        kernels = _PROJECTIONS
    for kernel, name in kernels.items():
        name = f"{layer}.{theirs}.{name}.weight"
        rules.append(Rule(f"{ours}/{kernel}/kernel", name, transpose=True))
    return rules


def model_pieces(config: StackConfig) -> tuple[dict[str, tuple[int, ...]], list[Piece]]:
    """Our shapes by path, and all tensors that they are made of."""
    abstract = shapes(lambda rngs: config.build(rngs=rngs))[1]
    ours = {path: tuple(leaf.shape) for path, leaf in trees.flatten(abstract).items()}
    return ours, pieces(table(config), ours)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HFCheckpoint(Source):
    """A directory whose tensors are those of its config; no large array has been read.

    Attributes:
      config: the model.
      hf_config: the content of config.json.
    """

    config: T5Config | T5EncoderConfig
    hf_config: Mapping[str, Any]

    def read(self, piece: Piece) -> np.ndarray:
        """One piece in our layout, a view of the file where there can be one."""
        tensor = value_of(self.tensors[piece.name])
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def read_hf(source: str | Path) -> HFCheckpoint:
    """Reads what a directory holds, but no large array.

    Args:
      source: a directory of `save_pretrained`, or a clone of a model's repository.

    Raises:
      InputError: its config or weights are missing, damaged or not those of a T5; tensors that are
        missing, unexpected or of another shape are named.
    """
    directory = Path(source)
    hf_config = read_config(directory)
    tensors = read_tensors(directory)
    config = to_model(directory / CONFIG, hf_config, encoder=_is_encoder(hf_config, tensors.arrays))
    if isinstance(config, T5EncoderConfig):
        layers, arrays = {"num_layers": config.num_layers}, tensors.arrays
    else:
        layers = {
            "num_layers": config.num_encoder_layers,
            "num_decoder_layers": config.num_decoder_layers,
        }
        config, arrays = _with_output(tensors.where, config, hf_config, tensors.arrays)
    check_layers(directory / CONFIG, layers, tensors.arrays)
    ours, wanted = model_pieces(config)
    names = check_names(tensors.where, wanted, arrays, ignored=_IGNORED)
    for piece in wanted:
        array = arrays[names[piece.name]]
        check_shape(tensors.where, piece, array.shape)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise InputError(f"{tensors.where}: {piece.name} holds {array.dtype}, not weights")
    for copy in (name for name in COPIES if name in arrays):
        if not is_same(arrays[names[EMBEDDING]], arrays[copy]):
            raise InputError(
                f"{tensors.where}: {copy} differs from {names[EMBEDDING]}: a model with several "
                "embeddings is not supported"
            )
    return HFCheckpoint(
        where=tensors.where,
        config=config,
        hf_config=hf_config,
        shapes=ours,
        pieces=wanted,
        tensors={piece.name: arrays[names[piece.name]] for piece in wanted},
    )


def _is_encoder(hf_config: Mapping[str, Any], arrays: Arrays) -> bool:
    """Whether a directory holds T5's encoder alone (T5EncoderModel)."""
    classes = hf_config.get("architectures")
    names = [str(each) for each in classes] if isinstance(classes, list) else []
    said = hf_config.get("is_encoder_decoder") is False
    said = said or any(name.endswith("EncoderModel") for name in names)
    return said and not any(name.startswith(("decoder.block.", HEAD)) for name in arrays)


def _with_output(
    where: Path, config: T5Config, hf_config: Mapping[str, Any], arrays: Arrays
) -> tuple[T5Config, Arrays]:
    """Settles whether the output is the embedding, and gives it a tensor where it is not.

    A head that transformers scales is scaled here, in float32, because our untied head is not.
    """
    how = output(hf_config)
    arrays = dict(arrays)
    embedding = next((arrays[name] for name in (EMBEDDING, *COPIES) if name in arrays), None)
    head = arrays.get(HEAD)
    if embedding is None or (head is None and not how.declared_tied and not how.lenient):
        return config, arrays  # and the missing tensors are listed
    separate = head is not None and not (how.declared_tied and is_same(embedding, head))
    if separate and how.declared_tied and not how.lenient:
        raise InputError(
            f"{where}: {HEAD} differs from {EMBEDDING}, and tie_word_embeddings in {CONFIG} says "
            "that they are one; set it to false if the output is not scaled, or remove the tensor"
        )
    if not separate and how.scaled:
        arrays.pop(HEAD, None)
        return config.replace(tie_embeddings=True), arrays
    source = embedding if head is None else head
    arrays[HEAD] = _scaled(source, config.d_model**-0.5) if how.scaled else source
    return config.replace(tie_embeddings=False), arrays


def _scaled(array: np.ndarray | LazyArray, factor: float) -> LazyArray:
    dtype = np.dtype(np.float32)
    return LazyArray(
        tuple(array.shape), dtype, lambda: value_of(array).astype(dtype) * np.float32(factor)
    )


def their_tensors(
    config: T5Config | T5EncoderConfig, arrays: Mapping[str, LazyArray], *, where: object
) -> dict[str, LazyArray]:
    """The tensors of a `model.safetensors`, each made of our array when it is read.

    Args:
      config: the model.
      arrays: ours by path; each is read once, if its tensors are read one after another.
      where: they are from, for messages.

    Raises:
      InputError: the arrays are not those of the config; one that holds NaN or infinity is refused
        when it is read.
    """
    ours, wanted = model_pieces(config)
    if difference := trees.difference(ours, arrays):
        raise InputError(f"the parameters are not those of the model: {difference}")
    return lazy_tensors(wanted, arrays, where=where)


def common_dtype(arrays: Iterable[LazyArray]) -> str:
    """The name of the dtype that config.json states: that of most elements."""
    sizes: dict[str, int] = {}
    for array in arrays:
        sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.size
    return max(sizes, key=lambda name: sizes[name])
