"""Import and export of Hugging Face's and Microsoft's DeBERTa v2 and v3.

| part | tensors |
|---|---|
| encoder | deberta. |
| masked language model | lm_predictions.lm_head. (Microsoft's), cls.predictions. (transformers') |
| detection (v3) | mask_predictions. |

transformers has no enhanced mask decoder: it ignores the position embedding, and computes masked
language model logits from the encoder's output. A file with a position embedding and a masked
language model head, but without positions in the input, was trained by Microsoft's code with an
enhanced mask decoder; v3's generators are an example. Such a file is imported with this decoder
unless config.json has `"enhanced_mask_decoder": false`; an export writes this field. If a file has
both heads, as v3's discriminators do, the detection head is read. An export has transformers' names
and `"legacy": true`, because transformers 4.57 cannot run `"legacy": false`, and transformers 5
computes the same logits either way.

Source: transformers/models/deberta_v2/{configuration,modeling}_deberta_v2.py, 5.23;
microsoft/DeBERTa apps/models/{masked_language_model,replaced_token_detection_model}.py.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.interop.encoders import (
    MODEL,
    SUFFIXES,
    Family,
    check_activation,
    check_fixed,
    dense_rules,
    norm_rules,
    number,
    task_config,
    task_head,
    task_rules,
    with_prefix,
)
from t5x_lite.interop.rules import LAYER, Rule
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.heads import HEADS, ClassifierKind, Head, Mlm, Rtd

_PREFIX = "deberta."
_KIND = "deberta-v2"
_LM_HEADS = ("lm_predictions.lm_head", "cls.predictions")
_DETECTION = "mask_predictions"
_POSITIONS = "embeddings.position_embeddings.weight"
_CLASS = "DebertaV2"
_SUFFIXES = {"mlm": "ForMaskedLM", "rtd": "Model", **SUFFIXES}
_KINDS: dict[str, ClassifierKind] = {"classifier": "deberta", "choice": "deberta"}
_DROPOUT = "cls_dropout"
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}
_COUNTS = {
    "max_position_embeddings": ("max_positions", 512),
    "type_vocab_size": ("token_types", 0),
    "pad_token_id": ("pad_id", 0),
}
_RATES = {
    "hidden_dropout_prob": ("dropout_rate", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout_rate", 0.1),
    "layer_norm_eps": ("norm_epsilon", 1e-7),
    "initializer_range": ("initializer_stddev", 0.02),
}
# Their name -> our name, and the default of a config without the field.
_SWITCHES = {
    "share_att_key": ("share_position_projections", False),
    "position_biased_input": ("position_biased_input", True),
    "enhanced_mask_decoder": ("enhanced_mask_decoder", False),
}
_ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "tanh": "tanh",
    "swish": "swish",
}
_FIXED = {"is_decoder": False, "is_encoder_decoder": False, "pruned_heads": {}}
_POOLER = "gelu"
"""Activation of the pooler (first layer) of a task head."""
_NORMS = {"layer_norm": True, "none": False}

_logger = logging.getLogger(__name__)


def _to_model(where: Path, config: Mapping[str, Any]) -> DebertaConfig:
    if config.get("relative_attention", False) is not True:
        raise InputError(
            f"{where}: relative_attention must be true, because DeBERTa always has relative "
            "attention"
        )
    if config.get("conv_groups", 1) != 1:
        raise InputError(f"{where}: conv_groups {config['conv_groups']!r} is not supported, only 1")
    check_fixed(where, config, _FIXED)
    if "quantization_config" in config:
        raise InputError(f"{where}: quantized weights (quantization_config) are not supported")
    sizes = {ours: number(where, config, theirs) for theirs, ours in _SIZES.items()}
    counts = {
        ours: number(where, config, theirs, default=default)
        for theirs, (ours, default) in _COUNTS.items()
    }
    rates = {
        ours: float(number(where, config, theirs, default=default))
        for theirs, (ours, default) in _RATES.items()
    }
    switches: dict[str, Any] = {
        ours: _switch(where, config, theirs, default)
        for theirs, (ours, default) in _SWITCHES.items()
    }
    head_size = sizes["d_model"] // max(sizes["num_heads"], 1)
    if config.get("attention_head_size", head_size) != head_size:
        raise InputError(
            f"{where}: attention_head_size {config['attention_head_size']!r} is not supported, "
            f"only hidden_size / num_attention_heads, {head_size}"
        )
    embedding_size = number(where, config, "embedding_size", default=sizes["d_model"])
    farthest = number(where, config, "max_relative_positions", default=-1)
    try:
        return DebertaConfig(
            **sizes,
            **counts,
            **rates,
            **switches,
            activation=_choice(where, config, "hidden_act", _ACTIVATIONS, "gelu"),
            embedding_size=None if embedding_size == sizes["d_model"] else embedding_size,
            position_buckets=max(number(where, config, "position_buckets", default=-1), 0),
            max_relative_positions=farthest if farthest > 0 else None,
            position_terms=_terms(config),
            norm_relative=_choice(where, config, "norm_rel_ebd", _NORMS, "none"),
            conv_kernel_size=number(where, config, "conv_kernel_size", default=0),
            conv_activation=_choice(where, config, "conv_act", _ACTIVATIONS, "tanh"),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _terms(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Parse the attention terms of pos_att_type: "p2c|c2p" or ["p2c", "c2p"]."""
    terms = config.get("pos_att_type") or ()
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    if not isinstance(terms, list | tuple) or not all(isinstance(term, str) for term in terms):
        raise InputError(f"pos_att_type must be a list of strings, got {str(terms)[:60]!r}")
    return tuple(term.strip() for term in terms)


def _switch(where: Path, config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"{where}: {name} must be true or false, got {value!r}")
    return value


def _choice(
    where: Path, config: Mapping[str, Any], name: str, choices: Mapping[str, Any], default: str
) -> Any:
    value = config.get(name, default)
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{where}: {name} {value!r} is not supported, only {', '.join(choices)}")
    return choices[value]


def _from_model(model: DebertaConfig, head: Head | None, model_type: str | None) -> dict[str, Any]:
    activations = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    factored = model.table_size != model.d_model
    farthest = model.max_relative_positions
    architecture = _CLASS + ("Model" if head is None else _SUFFIXES[head.name])
    check_activation(head, wanted=_POOLER, architecture=architecture)
    pooled = head is not None and head.name in _KINDS
    return {
        "architectures": [architecture],
        "model_type": _KIND,
        **{theirs: getattr(model, ours) for theirs, ours in _SIZES.items()},
        **{theirs: getattr(model, ours) for theirs, (ours, _) in {**_COUNTS, **_RATES}.items()},
        **{theirs: getattr(model, ours) for theirs, (ours, _) in _SWITCHES.items()},
        "hidden_act": activations[model.activation],
        **({"embedding_size": model.table_size} if factored else {}),
        "relative_attention": True,
        "position_buckets": model.position_buckets or -1,
        "max_relative_positions": -1 if farthest is None else farthest,
        "pos_att_type": "|".join(model.position_terms),
        "norm_rel_ebd": "layer_norm" if model.norm_relative else "none",
        **_convolution(model, activations),
        "legacy": True,
        "pooler_hidden_size": model.d_model,
        "pooler_hidden_act": _POOLER if pooled else activations[model.activation],
        "pooler_dropout": 0,
        "tie_word_embeddings": True,
        **task_config(head, dropout=_DROPOUT),
    }


def _convolution(model: DebertaConfig, activations: Mapping[str, str]) -> dict[str, Any]:
    if not model.conv_kernel_size:
        return {}
    return {
        "conv_kernel_size": model.conv_kernel_size,
        "conv_act": activations[model.conv_activation],
    }


def _table(model: DebertaConfig, head: Head | None, model_type: str) -> list[Rule]:
    """Return the rules that map DeBERTa's parameter paths to PyTorch's tensor names."""
    embeddings = "embeddings"
    rules = [
        Rule(f"{MODEL}embedding/token", f"{embeddings}.word_embeddings.weight"),
        *norm_rules(f"{MODEL}embedding/norm", f"{embeddings}.LayerNorm"),
        Rule(f"{MODEL}relative_table", "encoder.rel_embeddings.weight"),
    ]
    if model.position_rows:
        rules.append(Rule(f"{MODEL}embedding/position", _POSITIONS))
    if model.token_types:
        name = f"{embeddings}.token_type_embeddings.weight"
        rules.append(Rule(f"{MODEL}embedding/token_type", name))
    if model.table_size != model.d_model:
        name = f"{embeddings}.embed_proj.weight"
        rules.append(Rule(f"{MODEL}projection/kernel", name, transpose=True))
    if model.norm_relative:
        rules += norm_rules(f"{MODEL}relative_norm", "encoder.LayerNorm")
    if model.conv_kernel_size:
        ours, theirs = f"{MODEL}convolution", "encoder.conv"
        # Their kernel is [out, in, width], ours [width, in, out].
        name = f"{theirs}.conv.weight"
        rules.append(Rule(f"{ours}/kernel", name, transpose=True, stack_axis=2))
        rules.append(Rule(f"{ours}/bias", f"{theirs}.conv.bias"))
        rules += norm_rules(f"{ours}/norm", f"{theirs}.LayerNorm")
    rules += _layer_rules(model, f"{MODEL}layers", f"encoder.layer.{LAYER}")
    prefixed = with_prefix(rules, _PREFIX, written=head is not None)
    return [*prefixed, *_head_rules(head)]


def _layer_rules(model: DebertaConfig, ours: str, theirs: str) -> list[Rule]:
    projections = {"query": "query_proj", "key": "key_proj", "value": "value_proj"}
    if not model.share_position_projections:
        if "c2p" in model.position_terms:
            projections["position_key"] = "pos_key_proj"
        if "p2c" in model.position_terms:
            projections["position_query"] = "pos_query_proj"
    rules: list[Rule] = []
    for name, projection in projections.items():
        rules += dense_rules(f"{ours}/attention/{name}", f"{theirs}.attention.self.{projection}")
    rules += dense_rules(f"{ours}/attention/out", f"{theirs}.attention.output.dense")
    rules += norm_rules(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm")
    rules += dense_rules(f"{ours}/mlp/wi", f"{theirs}.intermediate.dense")
    rules += dense_rules(f"{ours}/mlp/wo", f"{theirs}.output.dense")
    return rules + norm_rules(f"{ours}/mlp_norm", f"{theirs}.output.LayerNorm")


def _head_rules(head: Head | None) -> list[Rule]:
    if head is None:
        return []
    if head.name in SUFFIXES:
        return task_rules(head, "pooler.dense", "classifier")
    start = f"{HEADS}{head.name}/"
    dense, norm = f"{start}dense", f"{start}norm"
    if head.name == "rtd":
        return [
            *norm_rules(norm, f"{_DETECTION}.LayerNorm"),
            *dense_rules(dense, f"{_DETECTION}.dense"),
            *dense_rules(f"{start}out", f"{_DETECTION}.classifier"),
        ]
    original, legacy = _LM_HEADS
    names = {
        f"{dense}/kernel": ("dense.weight", "transform.dense.weight"),
        f"{dense}/bias": ("dense.bias", "transform.dense.bias"),
        f"{norm}/scale": ("LayerNorm.weight", "transform.LayerNorm.weight"),
        f"{norm}/bias": ("LayerNorm.bias", "transform.LayerNorm.bias"),
        f"{start}bias": ("bias", "bias"),
    }
    rules = []
    for ours, (one, other) in names.items():
        first, second = f"{legacy}.{other}", f"{original}.{one}"
        more = (f"{legacy}.decoder.bias",) if ours == f"{start}bias" else ()
        transpose = ours.endswith("kernel")
        rules.append(Rule(ours, first, transpose=transpose, aliases=(second, *more)))
    return rules


def _head_of(where: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Head | None:
    if any(name.startswith(f"{_DETECTION}.") for name in tensors):
        return Rtd(kind="deberta")
    head = task_head(where, config, tensors, kinds=_KINDS, dropout=_DROPOUT)
    if head is not None:
        found = config.get("pooler_hidden_act", _POOLER)
        if head.name in _KINDS and found != _POOLER:
            raise InputError(
                f"{where}: pooler_hidden_act {found!r} is not supported, only {_POOLER!r}"
            )
        return head
    return Mlm() if _has_mlm(tensors) else None


def _has_mlm(names: Iterable[str]) -> bool:
    return any(name.startswith(tuple(f"{head}." for head in _LM_HEADS)) for name in names)


def _has(head: Head) -> bool:
    return head.name in _SUFFIXES and head != Rtd(kind="electra")


def _completed(
    where: Path, model: DebertaConfig, config: Mapping[str, Any], names: Iterable[str]
) -> DebertaConfig:
    """Add the enhanced mask decoder to a DeBERTa config if the model was trained with it."""
    names = tuple(names)
    detects = any(name.startswith(f"{_DETECTION}.") for name in names)
    table = any(name.removeprefix(_PREFIX) == _POSITIONS for name in names)
    is_one = table and _has_mlm(names) and not detects and not model.position_biased_input
    if not is_one or "enhanced_mask_decoder" in config:
        return model
    _logger.info(
        "%s: adding an enhanced mask decoder, because the position embedding was trained with one; "
        'set "enhanced_mask_decoder": false in config.json to import without it',
        where,
    )
    return dataclasses.replace(model, enhanced_mask_decoder=True)


DEBERTA = Family(
    model_types=(_KIND,),
    config=DebertaConfig,
    heads=_has,
    to_model=_to_model,
    from_model=_from_model,
    table=_table,
    head_of=_head_of,
    ignored=(
        r"(deberta\.)?embeddings\.(position_ids|position_embeddings\.weight)",
        # Gradient-disentangled sharing stores the discriminator's difference from the generator's
        # embedding in _weight; word_embeddings.weight is their sum.
        r"(deberta\.)?embeddings\.(word|position)_embeddings\._weight",
        r"pooler\.dense\.(weight|bias)",
        r"lm_predictions\..*|cls\.predictions\..*",
    ),
    copies={"cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight"},
    completed=_completed,
)
"""The family of DeBERTa v2 and v3."""
