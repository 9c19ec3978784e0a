"""Hugging Face's encoders, in and out: common code, task heads, BERT, RoBERTa, XLM-R, ELECTRA.

Import and export of Hugging Face encoders: common code of all families, and task heads.

    checkpoint = read_encoder(BERT, Path("bert-base-uncased"), config, where=path)
    checkpoint.model                                  BertConfig(d_model=768, ...)
    checkpoint.head                                   Mlm()
    checkpoint.array("heads/mlm/dense/kernel")        reads the array in t5x_lite's layout

A `Family` converts config.json and tensor names in both directions. Parameter paths of the encoder
begin with "model/", and paths of its head with "heads/". Tensor names may have the prefix of the
model class or not (`AutoModel` saves them without). Old files call the scale and bias of a norm
gamma and beta.

Task heads:

| head | class | bert | roberta, xlm-roberta | electra | deberta-v2 |
|---|---|---|---|---|---|
| classifier | *ForSequenceClassification | pooler, classifier | classifier.dense, .out_proj | as roberta | pooler, classifier |
| choice | *ForMultipleChoice | pooler, classifier | pooler, classifier | sequence_summary.summary, classifier | pooler, classifier |
| token | *ForTokenClassification | classifier | classifier | classifier | classifier |
| span | *ForQuestionAnswering | qa_outputs | qa_outputs | qa_outputs | qa_outputs |

The first layer of classifier and choice has the activation tanh, but gelu in ELECTRA and DeBERTa.
The field "architectures" of config.json determines the head of a directory, or else its tensor
names. Source: transformers/models/{bert,roberta,xlm_roberta,electra,deberta_v2}/modeling_*.py,
5.23.

Import and export of Hugging Face's BERT, RoBERTa, XLM-R and ELECTRA.

| model_type | encoder | masked language model | detection |
|---|---|---|---|
| bert | bert. | cls.predictions. | |
| roberta, xlm-roberta | roberta. | lm_head. | |
| electra | electra. | generator_predictions., generator_lm_head. | discriminator_predictions. |

`interop.encoders` has the task heads. Two heads are skipped, because no objective of t5x_lite
trains them: a pooler without a classifier, and BERT's head for next sentence prediction. Source:
transformers/models/{bert,roberta,xlm_roberta,electra}/{configuration,modeling}_*.py, 5.23.
"""  # noqa: E501

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.interop.hf import CONFIG, LARGEST, NOT_KEPT
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
from t5x_lite.interop.tensor_files import Tensors, read_tensors, read_torch
from t5x_lite.models.encoder import BertConfig, EncoderConfig
from t5x_lite.models.heads import (
    HEADS,
    Choice,
    Classifier,
    ClassifierKind,
    Head,
    Mlm,
    Problem,
    Rtd,
    Span,
    Token,
)
from t5x_lite.nn.dense import Activation
from t5x_lite.nn.slots import shapes

_logger = logging.getLogger(__name__)


MODEL = "model/"
POOLER = "pooler.dense"
"""transformers' name of the dense layer before BERT's classifier."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Conversion of one family of encoders, such as BERT, from and to Hugging Face's format.

    Attributes:
      model_types: values of `model_type` in config.json.
      config: class of the encoder's config.
      heads: function (head) -> True if the family supports the head.
      to_model: function (path of config.json, its content) -> model config; the path is for errors.
      from_model: function (model config, head, imported model_type or None) -> content of
        config.json.
      table: function (model config, head, model_type) -> rules that map parameter paths, which
        begin with "model/" or "heads/", to tensor names.
      head_of: function (path of config.json, its content, tensors by name) -> head or None.
      ignored: regular expressions of tensor names to skip.
      copies: tensors that must equal another tensor, by name: {copy: original}.
      completed: function (weights file, model config, content of config.json, tensor names) ->
        model config, for settings that follow from the tensors; None keeps the config.
      fitted: function (model config, parameters) -> both in a form that transformers supports, for
        exports; None keeps them.
    """

    model_types: tuple[str, ...]
    config: type[EncoderConfig]
    heads: Callable[[Head], bool]
    to_model: Callable[[Path, Mapping[str, Any]], EncoderConfig]
    from_model: Callable[[Any, Head | None, str | None], dict[str, Any]]
    table: Callable[[Any, Head | None, str], list[Rule]]
    head_of: Callable[[Path, Mapping[str, Any], Mapping[str, Any]], Head | None]
    ignored: tuple[str, ...]
    copies: Mapping[str, str]
    completed: Callable[[Path, Any, Mapping[str, Any], Iterable[str]], EncoderConfig] | None = None
    fitted: Callable[[Any, dict[str, LazyArray]], tuple[Any, dict[str, LazyArray]]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderCheckpoint(Source):
    """Hugging Face encoder directory with tensor names that match its config.

    Attributes:
      model: config of the encoder.
      head: head on the encoder, or None.
      hf_config: content of config.json.
      pooler: weight and bias of BERT's pooler if the head does not use it, else {}.
    """

    model: EncoderConfig
    head: Head | None
    hf_config: Mapping[str, Any]
    pooler: Mapping[str, np.ndarray | LazyArray] = dataclasses.field(default_factory=dict)

    def read(self, piece: Piece) -> np.ndarray:
        tensor = value_of(self.tensors[piece.name])
        check_finite(self.where, piece.name, tensor)
        return piece.to_ours(tensor)


def learner_shapes(model: EncoderConfig, head: Head | None) -> dict[str, tuple[int, ...]]:
    """Return the parameter shapes of an encoder and its head by path."""
    parts = {MODEL: lambda rngs: model.build(rngs=rngs)}
    if head is not None:
        parts[f"{HEADS}{head.name}/"] = lambda rngs: head.build(model, rngs=rngs)
    return {
        prefix + path: tuple(leaf.shape)
        for prefix, build in parts.items()
        for path, leaf in trees.flatten(shapes(build)[1]).items()
    }


def read_encoder(
    family: Family,
    directory: Path,
    hf_config: Mapping[str, Any],
    *,
    where: Path,
    weights: Path | None = None,
) -> EncoderCheckpoint:
    """Read the config and the tensor names of an encoder; load large arrays only when needed."""
    model = family.to_model(where, hf_config)
    tensors = read_tensors(directory) if weights is None else Tensors(weights, read_torch(weights))
    check_layers(where, {"num_hidden_layers": model.num_layers}, tensors.arrays)
    if family.completed is not None:
        model = family.completed(tensors.where, model, hf_config, tensors.arrays)
    head = family.head_of(where, hf_config, tensors.arrays)
    ours = learner_shapes(model, head)
    wanted = pieces(family.table(model, head, str(hf_config["model_type"])), ours)
    ignored = (*family.ignored, *(re.escape(name) for name in family.copies))
    names = check_names(tensors.where, wanted, tensors.arrays, ignored=ignored)
    known = {name for piece in wanted for name in (piece.name, *piece.aliases)}
    for piece in wanted:
        array = tensors.arrays[names[piece.name]]
        check_shape(tensors.where, piece, array.shape)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise InputError(
                f"{tensors.where}: {piece.name} has dtype {array.dtype}, but weights must be "
                "floating-point"
            )
    for copy, original in family.copies.items():
        both = copy in tensors.arrays and original in names
        if both and not is_same(tensors.arrays[names[original]], tensors.arrays[copy]):
            raise InputError(
                f"{tensors.where}: the tensor {copy} differs from {original}, but only tied output "
                "layers are supported"
            )
    if left := sorted(set(tensors.arrays) - known - set(family.copies)):
        _logger.info(
            "%s: skipping tensors that the model does not use: %s", tensors.where, ", ".join(left)
        )
    spare = {
        leaf: tensors.arrays[name]
        for leaf in ("weight", "bias")
        for name in sorted(left)
        if re.fullmatch(rf"(\w+\.)?{POOLER}\.{leaf}", name)
    }
    return EncoderCheckpoint(
        where=tensors.where,
        model=model,
        pooler=spare if len(spare) == 2 else {},
        head=head,
        hf_config=hf_config,
        shapes=ours,
        pieces=wanted,
        tensors={piece.name: tensors.arrays[names[piece.name]] for piece in wanted},
    )


def encoder_tensors(
    family: Family,
    model: EncoderConfig,
    head: Head | None,
    arrays: Mapping[str, LazyArray],
    *,
    model_type: str,
    where: object,
) -> dict[str, LazyArray]:
    """Return the Hugging Face tensors to export, by name, as lazy arrays."""
    ours = learner_shapes(model, head)
    if difference := trees.difference(ours, arrays):
        raise InputError(f"{where}: the parameters do not match the model: {difference}")
    wanted = pieces(family.table(model, head, model_type), ours)
    return lazy_tensors(wanted, arrays, where=where)


_OF_CLASSES = ("id2label", "label2id", "num_labels", "problem_type")
"""Fields of config.json that describe the classes of a head."""


def with_kept(
    family: Family,
    config: Mapping[str, Any],
    kept: Mapping[str, Any],
    *,
    model: EncoderConfig,
    head: Head | None,
) -> dict[str, Any]:
    """Add fields of the imported config.json to an exported config.json."""
    if kept.get("model_type") != config["model_type"]:
        return dict(config)
    rest = {name: value for name, value in kept.items() if name not in NOT_KEPT}
    same_class = kept.get("architectures") == config["architectures"]
    described = {name: rest.pop(name) for name in _OF_CLASSES if name in rest}
    try:
        unchanged = family.to_model(Path(CONFIG), kept) == model
    except InputError:
        unchanged = False
    made = {**config, **rest} if unchanged else {**rest, **config}
    made |= {name: config[name] for name in config if name in _OF_HEAD and head is not None}
    if not same_class:
        return made
    labels = getattr(head, "labels", None)
    if labels is None or (not labels and _has_names(described, head)):  # names such as LABEL_0
        made |= {name: described[name] for name in _OF_CLASSES[:3] if name in described}
    if getattr(head, "problem_type", None) == "auto":
        made.pop("problem_type", None)
        made |= {name: described[name] for name in ("problem_type",) if name in described}
    return made


_OF_HEAD = ("classifier_dropout", "cls_dropout")


def _has_names(described: Mapping[str, Any], head: Head | None) -> bool:
    names = described.get("id2label")
    return isinstance(names, dict) and len(names) == getattr(head, "num_classes", None)


def dense_rules(ours: str, theirs: str) -> list[Rule]:
    """Return the rules that map a dense layer's kernel and bias to PyTorch's names."""
    return [
        Rule(f"{ours}/kernel", f"{theirs}.weight", transpose=True),
        Rule(f"{ours}/bias", f"{theirs}.bias"),
    ]


def norm_rules(ours: str, theirs: str) -> list[Rule]:
    """Return the rules that map a layer norm's scale and bias to PyTorch's names."""
    return [
        Rule(f"{ours}/scale", f"{theirs}.weight", aliases=(f"{theirs}.gamma",)),
        Rule(f"{ours}/bias", f"{theirs}.bias", aliases=(f"{theirs}.beta",)),
    ]


def with_prefix(rules: Iterable[Rule], prefix: str, *, written: bool) -> list[Rule]:
    """Add a prefix to the tensor names of conversion rules."""
    changed = []
    for rule in rules:
        names = (rule.theirs, *rule.aliases)
        longer = tuple(prefix + name for name in names)
        first, *others = (*longer, *names) if written else (*names, *longer)
        changed.append(dataclasses.replace(rule, theirs=first, aliases=tuple(others)))
    return changed


def check_fixed(where: Path, config: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raise InputError if config.json has an unsupported value."""
    for name, value in fixed.items():
        if config.get(name, value) not in (value, None):
            raise InputError(
                f"{where}: {name} {repr(config[name])[:60]} is not supported, only {value!r}"
            )


def number(
    where: Path, config: Mapping[str, Any], name: str, *, default: int | float | None = None
) -> Any:
    """Return a number from config.json, or the default if the field is missing."""
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


SUFFIXES = {
    "classifier": "ForSequenceClassification",
    "choice": "ForMultipleChoice",
    "token": "ForTokenClassification",
    "span": "ForQuestionAnswering",
}
"""Suffixes of transformers' class names, by name of the t5x_lite head."""

_NO_NAME = re.compile(r"LABEL_\d+")
_OUT = ("classifier.out_proj.weight", "classifier.weight")


def task_head(
    where: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    kinds: Mapping[str, ClassifierKind],
    dropout: str,
) -> Head | None:
    """Return the config of a Hugging Face directory's task head, or None without a task head."""
    name = _name(config, tensors)
    if name is None:
        return None
    if name == "span":
        return Span()
    rate = config.get(dropout)
    is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate < 1
    if rate is not None and not is_rate:
        raise InputError(
            f"{where}: {dropout} must be a dropout rate below 1, or null, got {rate!r}"
        )
    options: dict[str, Any] = {"dropout_rate": None if rate is None else float(rate)}
    if name == "choice":
        return Choice(kind=kinds["choice"], **options)
    number = next((int(tensors[key].shape[0]) for key in _OUT if key in tensors), None)
    if number is None:
        raise InputError(
            f"{where}: a {SUFFIXES[name]} model needs the tensor classifier.weight, which is "
            "missing"
        )
    labels = labels_of(where, config, number)
    try:
        if name == "token":
            return Token(num_classes=number, labels=labels, **options)
        problem = problem_of(where, config, number)
        if problem == "multi_label_classification":
            _logger.warning(
                "%s: the classes are not mutually exclusive (problem_type), but `evaluate` "
                "predicts only the likeliest class",
                where,
            )
        options |= {"kind": kinds["classifier"], "problem_type": problem}
        return Classifier(num_classes=number, labels=labels, **options)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _name(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> str | None:
    """Return the name of a directory's task head, such as "classifier" or "span"."""
    classes = config.get("architectures")
    for architecture in classes if isinstance(classes, list) else ():
        for name, suffix in SUFFIXES.items():
            if isinstance(architecture, str) and architecture.endswith(suffix):
                return name
    starts = {tensor.partition(".")[0] for tensor in tensors}
    if "qa_outputs" in starts:
        return "span"
    if "sequence_summary" in starts:
        return "choice"
    if "classifier" not in starts:
        return None
    pooled = any("pooler.dense." in tensor for tensor in tensors)
    return "classifier" if pooled or "classifier.out_proj.weight" in tensors else "token"


def problem_of(where: Path, config: Mapping[str, Any], number: int) -> Problem:
    """Return the problem_type of a classifier, such as "regression"."""
    found = config.get("problem_type")
    if found is None:
        return "auto"
    known = get_args(Problem)[1:]
    if found not in known:
        raise InputError(
            f"{where}: problem_type {str(found)[:60]!r} is not supported; it must be one of "
            f"{', '.join(known)}, or null"
        )
    return "auto" if found == Classifier(num_classes=number).problem else found


def labels_of(where: Path, config: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """Return the class names of a classifier, or () for default names such as LABEL_0."""
    table = config.get("id2label")
    if table is None:
        stated = config.get("num_labels")
        if stated is not None and stated != number:
            raise InputError(
                f"{where}: num_labels is {repr(stated)[:60]}, but the weights have {number} classes"
            )
        return ()
    if not isinstance(table, dict) or not all(isinstance(each, str) for each in table.values()):
        raise InputError(
            f"{where}: id2label must map class indices to names, got {str(table)[:60]!r}"
        )
    wanted = {str(i) for i in range(number)}
    if {str(key) for key in table} != wanted:
        raise InputError(
            f"{where}: id2label has the classes {', '.join(list(table)[:8])}, but must have "
            f"{number} classes, numbered from 0"
        )
    labels = tuple(table[key] for key in sorted(table, key=int))
    if len(set(labels)) < len(labels):
        _logger.warning("%s: ignoring id2label, in which two classes have the same name", where)
        return ()
    return () if all(map(_NO_NAME.fullmatch, labels)) else labels


def task_config(head: Head | None, *, dropout: str) -> dict[str, Any]:
    """Return the config.json fields that describe a task head."""
    said: dict[str, Any] = {}
    if isinstance(head, Classifier | Token):
        labels = head.labels or tuple(f"LABEL_{i}" for i in range(head.num_classes))
        said["id2label"] = {str(i): label for i, label in enumerate(labels)}
        said["label2id"] = {label: i for i, label in enumerate(labels)}
    if isinstance(head, Classifier):
        said["problem_type"] = head.problem
    if isinstance(head, Classifier | Token | Choice) and head.dropout_rate is not None:
        said[dropout] = head.dropout_rate
    return said


def check_activation(head: Head | None, *, wanted: str, architecture: str) -> None:
    """Raise InputError if transformers does not support the activation of a task head."""
    if isinstance(head, Classifier | Choice) and head.activation != wanted:
        raise InputError(
            f"the head of transformers' {architecture} has the activation {wanted}, but the head "
            f"of this checkpoint has {head.activation} (kind {head.kind!r})"
        )


def task_rules(head: Head | None, first: str, out: str) -> list[Rule]:
    """Return the rules that map a task head's layers to PyTorch's tensor names."""
    if head is None or head.name not in SUFFIXES:
        return []
    ours = f"{HEADS}{head.name}"
    layers = {f"{ours}/out": "qa_outputs" if head.name == "span" else out}
    if head.name in ("classifier", "choice"):
        layers[f"{ours}/dense"] = first
    return [
        rule
        for path, name in layers.items()
        for rule in (
            Rule(f"{path}/kernel", f"{name}.weight", transpose=True),
            Rule(f"{path}/bias", f"{name}.bias"),
        )
    ]


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
    """Return the model_type to write to config.json, such as "roberta"."""
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
            f"position ids begin at {model.position_offset} (model.position_offset), but must "
            f"begin at {offset} in transformers' {_CLASSES[kind]}"
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
