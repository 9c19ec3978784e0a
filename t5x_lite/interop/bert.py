"""Import and export of Hugging Face's BERT, RoBERTa, XLM-R and ELECTRA.

| model_type | encoder | masked language model | detection |
|---|---|---|---|
| bert | bert. | cls.predictions. | |
| roberta, xlm-roberta | roberta. | lm_head. | |
| electra | electra. | generator_predictions., generator_lm_head. | discriminator_predictions. |

`interop.encoders` has the task heads. Two heads are skipped, because no objective of t5x_lite
trains them: a pooler without a classifier, and BERT's head for next sentence prediction. Source:
transformers/models/{bert,roberta,xlm_roberta,electra}/{configuration,modeling}_*.py, 5.23.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import LazyArray
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
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import HEADS, ClassifierKind, Head
from t5x_lite.models.pretraining_heads import Mlm, Rtd
from t5x_lite.nn.dense import Activation

_PREFIXES = {
    "bert": "bert.",
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
    "electra": "electra.",
}
_CLASSES = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "electra": "Electra"}
_SUFFIXES = {"mlm": "ForMaskedLM", "rtd": "ForPreTraining", **SUFFIXES}
_ROBERTA = ("roberta", "xlm-roberta")
_KINDS: dict[str, dict[str, ClassifierKind]] = {
    "bert": {"classifier": "bert", "choice": "bert"},
    "roberta": {"classifier": "roberta", "choice": "bert"},
    "xlm-roberta": {"classifier": "roberta", "choice": "bert"},
    "electra": {"classifier": "electra", "choice": "electra"},
}
_DROPOUT = "classifier_dropout"
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
}
_COUNTS = {
    "max_position_embeddings": ("max_positions", 512),
    "type_vocab_size": ("token_types", 2),
}
_RATES = {
    "hidden_dropout_prob": ("dropout_rate", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout_rate", 0.1),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "initializer_range": ("initializer_stddev", 0.02),
}
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "relu": "relu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "tanh": "tanh",
    "swish": "swish",
}
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}
_SUMMARY = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_proj_to_labels": False,
}
"""Required fields of the first layer of ELECTRA's multiple choice head."""


def _to_model(where: Path, config: Mapping[str, Any]) -> BertConfig:
    kind = config["model_type"]
    check_fixed(where, config, _FIXED)
    if "quantization_config" in config:
        raise InputError(f"{where}: quantized weights (quantization_config) are not supported")
    activation = config.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise InputError(
            f"{where}: hidden_act {activation!r} is not supported, only {', '.join(_ACTIVATIONS)}"
        )
    numbers: dict[str, Any] = {
        ours: number(where, config, theirs) for theirs, ours in _SIZES.items()
    }
    for theirs, (ours, default) in _COUNTS.items():
        numbers[ours] = number(where, config, theirs, default=default)
    for theirs, (ours, rate) in _RATES.items():
        numbers[ours] = float(number(where, config, theirs, default=rate))
    pad_id = number(where, config, "pad_token_id", default=1 if kind in _ROBERTA else 0)
    embedding_size = number(where, config, "embedding_size") if kind == "electra" else None
    try:
        return BertConfig(
            **numbers,
            activation=_ACTIVATIONS[activation],
            pad_id=pad_id,
            embedding_size=embedding_size,
            position_offset=pad_id + 1 if kind in _ROBERTA else 0,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _from_model(model: BertConfig, head: Head | None, model_type: str | None) -> dict[str, Any]:
    kind = _kind(model, head, model_type)
    architecture = _CLASSES[kind] + ("Model" if head is None else _SUFFIXES[head.name])
    check_activation(
        head, wanted="gelu" if kind == "electra" else "tanh", architecture=architecture
    )
    activations = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    return {
        "architectures": [architecture],
        "model_type": kind,
        **{theirs: getattr(model, ours) for theirs, ours in _SIZES.items()},
        **{theirs: getattr(model, ours) for theirs, (ours, _) in {**_COUNTS, **_RATES}.items()},
        "hidden_act": activations[model.activation],
        **({"embedding_size": model.table_size} if kind == "electra" else {}),
        "pad_token_id": model.pad_id,
        "tie_word_embeddings": True,
        **task_config(head, dropout=_DROPOUT),
    }


def _kind(model: BertConfig, head: Head | None, model_type: str | None) -> str:
    """Return the model_type to export: the imported model_type if it still fits the model."""
    if model.positions != "learned":
        raise InputError(
            "transformers has no BERT with relative positions (model.positions), so this model "
            "cannot be exported"
        )
    factored = model.table_size != model.d_model
    detects = head is not None and head.name == "rtd"
    if detects or factored or (model_type == "electra" and not model.position_offset):
        kind = "electra"
    elif model.position_offset:
        kind = model_type if model_type in _ROBERTA else "roberta"
    else:
        kind = "bert"
    offset = model.pad_id + 1 if kind in _ROBERTA else 0
    if model.position_offset != offset:
        raise InputError(
            f"positions begin at {model.position_offset} (model.position_offset), but "
            f"transformers' {_CLASSES[kind]} needs {offset}"
        )
    predicts = head is not None and head.name == "mlm"
    if predicts and kind != "bert" and model.activation != "gelu":
        raise InputError(
            f"transformers uses gelu in the masked language model head of {_CLASSES[kind]}, but "
            f"model.activation is {model.activation!r}"
        )
    return kind


def _fitted(
    model: BertConfig, arrays: dict[str, LazyArray]
) -> tuple[BertConfig, dict[str, LazyArray]]:
    """Add a token type embedding with one row of zeros if the model has none."""
    if model.token_types:
        return model, arrays
    shape, dtype = (1, model.table_size), arrays[f"{MODEL}embedding/token"].dtype
    zeros = LazyArray(shape, dtype, lambda: np.zeros(shape, dtype))
    return model.replace(token_types=1), {**arrays, f"{MODEL}embedding/token_type": zeros}


def _table(model: BertConfig, head: Head | None, model_type: str) -> list[Rule]:
    """Return the rules that map BERT's parameter paths to PyTorch's tensor names."""
    embeddings = "embeddings"
    rules = [
        Rule(f"{MODEL}embedding/token", f"{embeddings}.word_embeddings.weight"),
        Rule(f"{MODEL}embedding/position", f"{embeddings}.position_embeddings.weight"),
        *norm_rules(f"{MODEL}embedding/norm", f"{embeddings}.LayerNorm"),
    ]
    if model.token_types:
        name = f"{embeddings}.token_type_embeddings.weight"
        rules.append(Rule(f"{MODEL}embedding/token_type", name))
    if model.table_size != model.d_model:
        rules += dense_rules(f"{MODEL}projection", "embeddings_project")
    rules += layer_rules(f"{MODEL}layers", f"encoder.layer.{LAYER}")
    prefixed = with_prefix(rules, _PREFIXES[model_type], written=head is not None)
    return [*prefixed, *_head_rules(head, model_type)]


def layer_rules(ours: str, theirs: str) -> list[Rule]:
    """Return the rules that map the encoder layers to PyTorch's tensor names."""
    rules: list[Rule] = []
    for name in ("query", "key", "value"):
        rules += dense_rules(f"{ours}/attention/{name}", f"{theirs}.attention.self.{name}")
    rules += dense_rules(f"{ours}/attention/out", f"{theirs}.attention.output.dense")
    rules += norm_rules(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm")
    rules += dense_rules(f"{ours}/mlp/wi", f"{theirs}.intermediate.dense")
    rules += dense_rules(f"{ours}/mlp/wo", f"{theirs}.output.dense")
    return rules + norm_rules(f"{ours}/mlp_norm", f"{theirs}.output.LayerNorm")


def _head_rules(head: Head | None, model_type: str) -> list[Rule]:
    if head is None:
        return []
    if head.name in SUFFIXES:
        return _task_rules(head, model_type)
    ours = f"{HEADS}{head.name}"
    dense, norm, bias = f"{ours}/dense", f"{ours}/norm", f"{ours}/bias"
    if head.name == "rtd":
        theirs = "discriminator_predictions.dense"
        return dense_rules(dense, theirs) + dense_rules(f"{ours}/out", f"{theirs}_prediction")
    if model_type == "electra":
        theirs, out = "generator_predictions", "generator_lm_head"
        return [
            *dense_rules(dense, f"{theirs}.dense"),
            *norm_rules(norm, f"{theirs}.LayerNorm"),
            Rule(bias, f"{out}.bias"),
        ]
    if model_type == "bert":
        theirs = "cls.predictions"
        return [
            *dense_rules(dense, f"{theirs}.transform.dense"),
            *norm_rules(norm, f"{theirs}.transform.LayerNorm"),
            Rule(bias, f"{theirs}.bias", aliases=(f"{theirs}.decoder.bias",)),
        ]
    return [
        *dense_rules(dense, "lm_head.dense"),
        *norm_rules(norm, "lm_head.layer_norm"),
        Rule(bias, "lm_head.bias", aliases=("lm_head.decoder.bias",)),
    ]


def _task_rules(head: Head, model_type: str) -> list[Rule]:
    """Return the rules that map a task head's parameters to PyTorch's tensor names."""
    if model_type != "bert" and head.name == "classifier":
        return task_rules(head, "classifier.dense", "classifier.out_proj")
    if model_type == "electra":
        return task_rules(head, "sequence_summary.summary", "classifier")
    rules = task_rules(head, "pooler.dense", "classifier")
    pooler = [rule for rule in rules if rule.theirs.startswith("pooler.")]
    others = [rule for rule in rules if rule not in pooler]
    return [*with_prefix(pooler, _PREFIXES[model_type], written=True), *others]


def _head_of(where: Path, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Head | None:
    heads = {
        "cls.predictions.": Mlm(),
        "lm_head.": Mlm(),
        "generator_predictions.": Mlm(),
        "discriminator_predictions.": Rtd(kind="electra"),
    }
    found = {head for name in tensors for start, head in heads.items() if name.startswith(start)}
    if len(found) == 1:
        return found.pop()
    kinds = _KINDS[str(config["model_type"])]
    if found:
        return None
    head = task_head(where, config, tensors, kinds=kinds, dropout=_DROPOUT)
    if head is not None and head.name == "choice" and config["model_type"] == "electra":
        check_fixed(where, config, _SUMMARY)
    return head


def _has(head: Head) -> bool:
    return head.name in _SUFFIXES and head != Rtd(kind="deberta")


BERT = Family(
    model_types=tuple(_PREFIXES),
    config=BertConfig,
    heads=_has,
    to_model=_to_model,
    from_model=_from_model,
    table=_table,
    head_of=_head_of,
    ignored=(
        rf"({'|'.join(re.escape(prefix) for prefix in sorted(set(_PREFIXES.values())))})?"
        r"(pooler\.dense\.(weight|bias)|embeddings\.(position_ids|token_type_ids))",
        r"cls\.seq_relationship\.(weight|bias)",
    ),
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
    },
    fitted=_fitted,
)
"""The family of BERT, RoBERTa, XLM-R and ELECTRA."""
