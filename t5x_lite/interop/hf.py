"""Import and export of Hugging Face's T5, mT5, umT5, ByT5, Flan-T5 and UL2.

    checkpoint = read_hf("flan-t5-small")
    checkpoint.config                        T5Config(d_model=512, ...), from its config.json
    checkpoint.array("lm_head/kernel")       reads the array in t5x_lite's layout

One table of names covers all variants and file formats, because `tensor_files` converts Flax's
tensor names to PyTorch's. Kernels are transposed, and the names have layer numbers.

Two properties of the output layer depend on the version of transformers: whether it is tied to the
embedding, and whether logits are scaled by d_model**-0.5.

    transformers 4   tie_word_embeddings decides both; 1.1, mT5, umT5 and ByT5 have false
    transformers 5   a separate weight `lm_head.weight` means that it is not tied. Scaling is
                     decided in t5 by scale_decoder_outputs (tie_word_embeddings in older files),
                     in umt5 by tie_word_embeddings, which transformers 5 always writes as true;
                     mt5 is never scaled

Source: transformers/models/{t5,mt5,umt5}/{configuration,modeling}_*.py, 4.57 and 5.23.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, overload

import jax.numpy as jnp
import numpy as np

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import plain_json
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
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.t5 import StackConfig, T5Config, T5EncoderConfig
from t5x_lite.nn.dense import FEED_FORWARDS, FeedForward
from t5x_lite.nn.slots import shapes

CONFIG = "config.json"
LARGEST = 1 << 31
"""Exclusive limit of numbers in config.json: JAX's shapes and indices have 32 bits."""
NOT_KEPT = (
    *("architectures", "_name_or_path", "_commit_hash", "transformers_version", "auto_map"),
    *("dtype", "torch_dtype", "tie_word_embeddings", "legacy", "model_type"),
)
"""Fields of config.json that describe how a directory was written and not the computation."""
_DEFAULT_FEED_FORWARD = {"t5": "relu", "mt5": "gated-gelu", "umt5": "gated-gelu"}
_ACTIVATIONS: dict[FeedForward, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
    "gated-relu": "relu",
    "gated-gelu": "gelu_new",
    "gated-silu": "silu",
}
"""Values of config.json's dense_act_fn, by its feed_forward_proj."""
_SYNONYMS: dict[str, FeedForward] = {
    "swish": "silu",
    "gated-swish": "gated-silu",
    "gated-gelu_new": "gated-gelu",
}
_ARCHITECTURES = {
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}
MODEL_TYPES = tuple(_ARCHITECTURES)
"""Values of `model_type` of the T5 family."""
_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "d_kv": "d_kv",
    "d_ff": "d_ff",
    "num_heads": "num_heads",
    "num_layers": "num_encoder_layers",
}
# Values of config.json that our T5 requires.
_FIXED = {
    "is_encoder_decoder": True,
    "is_decoder": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """Properties of T5's output layer in the version of transformers that wrote config.json.

    Attributes:
      declared_tied: value of tie_word_embeddings in config.json; True if missing.
      scaled: True if the decoder's output is multiplied by d_model**-0.5.
      lenient: True if the embedding replaces a missing `lm_head.weight`, as in transformers 5.
    """

    declared_tied: bool
    scaled: bool
    lenient: bool


def is_tied_t5(model: ModelConfig) -> bool:
    """Return True if a model config is a T5 with a tied output layer."""
    return isinstance(model, T5Config) and model.tie_embeddings


def is_t5_encoder(model: ModelConfig) -> bool:
    """Return True if a model config is a T5 encoder without a decoder."""
    return isinstance(model, T5EncoderConfig)


def read_config(directory: Path) -> dict[str, Any]:
    """Read config.json of a Hugging Face directory."""
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory")
    path = directory / CONFIG
    if not path.is_file():
        raise InputError(
            f"{directory}: contains no {CONFIG}; pass a directory that save_pretrained wrote"
        )
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object."""
    try:
        found = plain_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({' '.join(str(error).split())})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a JSON object")
    return found


@overload
def to_model(where: Path, config: Mapping[str, Any]) -> T5Config: ...


@overload
def to_model(
    where: Path, config: Mapping[str, Any], *, encoder: bool
) -> T5Config | T5EncoderConfig: ...


def to_model(
    where: Path, config: Mapping[str, Any], *, encoder: bool = False
) -> T5Config | T5EncoderConfig:
    """Convert config.json to a T5 config."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        raise InputError(
            f"{where}: model_type {kind!r} is not supported, only {', '.join(_ARCHITECTURES)}"
        )
    feed_forward = config.get("feed_forward_proj", _DEFAULT_FEED_FORWARD[kind])
    if isinstance(feed_forward, str):
        feed_forward = _SYNONYMS.get(feed_forward, feed_forward)
    if feed_forward not in tuple(_ACTIVATIONS):  # a file may have a list there
        raise InputError(
            f"{where}: feed_forward_proj {feed_forward!r} is not supported, only "
            f"{', '.join(_ACTIVATIONS)}"
        )
    activation = _ACTIVATIONS[feed_forward]
    stated = config.get("dense_act_fn")
    fixed = {
        **_FIXED,
        "dense_act_fn": "swish" if (activation, stated) == ("silu", "swish") else activation,
        "is_gated_act": feed_forward.startswith("gated"),
        "tie_encoder_decoder": False,
        "pruned_heads": {},
    }
    if encoder:
        del fixed["is_encoder_decoder"]
    for name, value in fixed.items():
        if config.get(name, value) not in (value, None):
            raise InputError(
                f"{where}: {name} {repr(config[name])[:60]} is not supported, only {value!r}"
            )
    if "quantization_config" in config:
        raise InputError(f"{where}: quantized weights (quantization_config) are not supported")
    sizes: dict[str, Any] = {
        ours: _number(where, config, theirs) for theirs, ours in _SIZES.items()
    }
    layers = sizes["num_encoder_layers"]
    if encoder:
        sizes["num_layers"] = sizes.pop("num_encoder_layers")
    else:
        sizes["num_decoder_layers"] = _number(where, config, "num_decoder_layers", default=layers)
        sizes["tie_embeddings"] = output(config).declared_tied
    try:
        return (T5EncoderConfig if encoder else T5Config)(
            **sizes,
            feed_forward=feed_forward,
            dropout_rate=float(_number(where, config, "dropout_rate", default=0.1)),
            relative_buckets=_number(where, config, "relative_attention_num_buckets", default=32),
            relative_max_distance=_number(
                where, config, "relative_attention_max_distance", default=128
            ),
            relative_bias_per_layer=kind == "umt5",
            norm_epsilon=float(_number(where, config, "layer_norm_epsilon", default=1e-6)),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _number(
    where: Path, config: Mapping[str, Any], name: str, *, default: int | float | None = None
) -> Any:
    value = config.get(name)
    value = default if value is None else value
    if value is None:
        raise InputError(f"{where}: {name} is missing")
    whole = default is None or isinstance(default, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise InputError(f"{where}: {name} must be a {'whole ' * whole}number, got {value!r}")
    if not abs(value) < LARGEST:
        raise InputError(f"{where}: {name} is {str(value)[:40]}, but must be below {LARGEST}")
    return value


def output(config: Mapping[str, Any]) -> Output:
    version = re.match(r"\d{1,9}", str(config.get("transformers_version")))
    lenient = version is not None and int(version[0]) >= 5
    declared = config.get("tie_word_embeddings", True) is not False
    scaled = {
        "t5": config.get("scale_decoder_outputs", declared) is not False,
        "mt5": declared and not lenient,
        "umt5": declared,
    }
    return Output(declared_tied=declared, scaled=scaled[config["model_type"]], lenient=lenient)


_OF_OUTPUT = ("tie_word_embeddings", "scale_decoder_outputs", "is_encoder_decoder")


def with_kept(
    config: Mapping[str, Any], kept: Mapping[str, Any], *, model: T5Config | T5EncoderConfig
) -> dict[str, Any]:
    """Add fields of the imported config.json to an exported config.json."""
    if kept.get("model_type") != config["model_type"]:
        return dict(config)
    rest = {name: value for name, value in kept.items() if name not in NOT_KEPT}
    own = {name: config[name] for name in _OF_OUTPUT if name in config}
    try:
        earlier = to_model(Path(CONFIG), kept, encoder=isinstance(model, T5EncoderConfig))
    except InputError:
        return {**rest, **config}
    tied = {} if isinstance(model, T5EncoderConfig) else {"tie_embeddings": model.tie_embeddings}
    unchanged = earlier.replace(**tied) == model
    return {**({**config, **rest} if unchanged else {**rest, **config}), **own}


def written(model: ModelConfig, *, where: object) -> T5Config | T5EncoderConfig:
    """Return the T5 config to export, in which no layers are shared."""
    if isinstance(model, T5EncoderConfig):
        return model
    if not isinstance(model, T5Config):
        raise InputError(
            f"checkpoint {where} is a {type(model).__name__}; only a T5Config or an encoder can be "
            "exported"
        )
    return model.without_views()


def from_model(
    model: T5Config | T5EncoderConfig, *, model_type: str | None, dtype: str
) -> dict[str, Any]:
    """Return the content of config.json for transformers 4 and 5."""
    is_encoder = isinstance(model, T5EncoderConfig)
    if not is_encoder and model.share_layers:
        raise InputError(
            "transformers has no T5 with layers shared by encoder and decoder (model.share_layers)"
        )
    tied = is_encoder or model.tie_embeddings
    if model.relative_bias_per_layer:
        kind = "umt5"
    else:
        # transformers 5 does not scale the logits of a tied mt5.
        kind = "mt5" if model_type == "mt5" and (is_encoder or not tied) else "t5"
    architecture = _ARCHITECTURES[kind]
    if is_encoder:
        architecture = architecture.replace("ForConditionalGeneration", "EncoderModel")
    num_layers = model.num_layers if is_encoder else model.num_encoder_layers
    sizes = {theirs: ours for theirs, ours in _SIZES.items() if theirs != "num_layers"}
    return {
        "architectures": [architecture],
        "model_type": kind,
        **{theirs: getattr(model, ours) for theirs, ours in sizes.items()},
        "num_layers": num_layers,
        "num_decoder_layers": num_layers if is_encoder else model.num_decoder_layers,
        "relative_attention_num_buckets": model.relative_buckets,
        "relative_attention_max_distance": model.relative_max_distance,
        "dropout_rate": model.dropout_rate,
        "layer_norm_epsilon": model.norm_epsilon,
        "initializer_factor": 1.0,
        "feed_forward_proj": model.feed_forward,
        "dense_act_fn": _ACTIVATIONS[model.feed_forward],
        "is_gated_act": model.feed_forward.startswith("gated"),
        "tie_word_embeddings": tied,
        **({"scale_decoder_outputs": tied} if kind == "t5" else {}),
        **{name: value for name, value in _FIXED.items() if name != "is_decoder"},
        "is_encoder_decoder": not is_encoder,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Names of tensors that are copies of the token embedding."""
# Mesh TensorFlow's T5 had this array and never used it; some releases still have it.
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
    """Return the rules that map the parameters of a T5 or its encoder to PyTorch's tensor names."""
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
    """Return T5's parameter shapes by path, and the Hugging Face tensors of each parameter."""
    abstract = shapes(lambda rngs: config.build(rngs=rngs))[1]
    ours = {path: tuple(leaf.shape) for path, leaf in trees.flatten(abstract).items()}
    return ours, pieces(table(config), ours)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HFCheckpoint(Source):
    """Hugging Face T5 directory with tensor names that match its config.

    Attributes:
      config: config of the model.
      hf_config: content of config.json.
    """

    config: T5Config | T5EncoderConfig
    hf_config: Mapping[str, Any]

    def read(self, piece: Piece) -> np.ndarray:
        tensor = value_of(self.tensors[piece.name])
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def read_hf(source: str | Path) -> HFCheckpoint:
    """Read the config and the tensor names of a T5 directory; load arrays only when needed."""
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
            raise InputError(
                f"{tensors.where}: {piece.name} has dtype {array.dtype}, but weights must be "
                "floating-point"
            )
    for copy in (name for name in COPIES if name in arrays):
        if not is_same(arrays[names[EMBEDDING]], arrays[copy]):
            raise InputError(
                f"{tensors.where}: the tensor {copy} differs from {names[EMBEDDING]}; separate "
                "embeddings of encoder and decoder are not supported"
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
    """Return True if a directory contains a T5 encoder without a decoder (T5EncoderModel)."""
    classes = hf_config.get("architectures")
    names = [str(each) for each in classes] if isinstance(classes, list) else []
    said = hf_config.get("is_encoder_decoder") is False
    said = said or any(name.endswith("EncoderModel") for name in names)
    return said and not any(name.startswith(("decoder.block.", HEAD)) for name in arrays)


def _with_output(
    where: Path, config: T5Config, hf_config: Mapping[str, Any], arrays: Arrays
) -> tuple[T5Config, Arrays]:
    how = output(hf_config)
    arrays = dict(arrays)
    embedding = next((arrays[name] for name in (EMBEDDING, *COPIES) if name in arrays), None)
    head = arrays.get(HEAD)
    if embedding is None or (head is None and not how.declared_tied and not how.lenient):
        return config, arrays  # the caller lists the missing tensors
    separate = head is not None and not (how.declared_tied and is_same(embedding, head))
    if separate and how.declared_tied and not how.lenient:
        raise InputError(
            f"{where}: {HEAD} differs from {EMBEDDING}, but tie_word_embeddings in {CONFIG} is "
            "true; set tie_word_embeddings to false if the decoder output is not scaled, or remove "
            f"{HEAD}"
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
    """Return the Hugging Face tensors to export, by name, as lazy arrays."""
    ours, wanted = model_pieces(config)
    if difference := trees.difference(ours, arrays):
        raise InputError(f"the parameters do not match the model: {difference}")
    return lazy_tensors(wanted, arrays, where=where)


def common_dtype(arrays: Iterable[LazyArray]) -> str:
    """Return the most frequent dtype of a model's parameters, for config.json."""
    sizes: dict[str, int] = {}
    for array in arrays:
        sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.size
    return max(sizes, key=lambda name: sizes[name])
