"""Directories of the library `adapters`, and its heads, prefixes and prompts on an encoder.

Reading and checking of adapter directories of `adapters` and adapter-transformers.

    adapter_config.json      {"config": {"mh_adapter": false, "reduction_factor": 16, ...}, ...}
    pytorch_adapter.bin      or adapter.safetensors
    head_config.json         head saved with the adapter, see `interop.adapters_heads`

`interop.adapters_library` converts the contents into adapters of t5x_lite. Source:
adapter-hub/adapters 1.3, configuration/adapter_config.py, loading.py.

Import and export of heads, prefixes and prompts of the library `adapters` on an encoder.

    head_config.json              {"config": {"head_type": "classification", "layers": 2, ...}, ...}
    pytorch_model_head.bin        or model_head.safetensors: heads.NAME.I.{weight,bias}

| head_type | layers | head of t5x_lite |
|---|---|---|
| classification | 2: dense, tanh or gelu, out | "classifier"; one label is a regression score |
| multilabel_classification | 2 | "classifier", with classes that are not mutually exclusive |
| multiple_choice | 2 | "choice" |
| tagging | 1: out | "token" |
| question_answering | 1, two labels | "span" |

A transformers class with a head and an adapter (BertForSequenceClassification) saves the head under
transformers' names. Then head_config.json has "name": null and "config": null, and `ClassHeadFile`
holds the tensors:

    head_config.json              {"name": null, "config": null, "model_class": "BertFor...", ...}
    pytorch_model_head.bin        classifier.weight [C, d], classifier.bias [C]

The library's heads have dropout before each layer. The t5x_lite head of kind "bert" has no dropout
before its first layer, which matters only in training. All other heads, such as heads on the
pooler, are skipped with a warning. Source: adapter-hub/adapters 1.3, models/heads.py.

Prefixes and prompts:

| tensor, below prefix_tuning.prefix_tunings.NAME.self_prefix | parameter, below adapters/NAME |
|---|---|
| wte.weight [P, D] | network/encoder/attention/prefix/embedding |
| control_trans.0.{weight [M, D], bias} | network/encoder/attention/prefix/{kernel, bias} |
| control_trans.2.{weight [2 N J, M], bias} | encoder/attention/prefix/{kernel, bias} |
| control_trans [2 P N J] of a flat one | encoder/attention/prefix/{keys, values} [N, P, H, K] |
| ATTENTION.prefix_tuning.prefix_gates.NAME.{weight, bias} | .../gate/{kernel, bias} |
| prompt_tuning.prompt_tunings.NAME.prompt_embedding.weight | encoder/prompt/rows [P, D] |

A file repeats a prefix in each layer. Prefixes and prompts of a T5 cannot be converted: the library
counts relative positions from the first prefix key, which shifts all positions by P, and it also
prepends a prompt to the decoder's tokens. Source: adapter-hub/adapters 1.3,
methods/prefix_tuning.py, prompt_tuning.py.
"""

import dataclasses
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.prefix import Prefix, Prompt
from t5x_lite.core.errors import InputError
from t5x_lite.interop.encoder_checkpoints import Hosts
from t5x_lite.interop.hf import read_json
from t5x_lite.interop.peft import CONFIG, Module
from t5x_lite.interop.rules import check_finite
from t5x_lite.interop.tensor_files import read_safetensors, read_torch, write_torch
from t5x_lite.models.heads import (
    HEADS,
    Choice,
    ClassHead,
    Classifier,
    ClassifierKind,
    Head,
    Span,
    Token,
)

_logger = logging.getLogger(__name__)


_ADAPTER_SAFETENSORS, ADAPTER_TORCH = "adapter.safetensors", "pytorch_adapter.bin"

BOTTLENECK = {
    "mh_adapter": None,
    "output_adapter": None,
    "reduction_factor": None,
    "non_linearity": None,
    "original_ln_before": False,
    "original_ln_after": True,
    "ln_before": False,
    "ln_after": False,
    "is_parallel": False,
    "scaling": 1.0,
    "use_gating": False,
    "residual_before_ln": True,
    "adapter_residual_before_ln": False,
    "inv_adapter": None,
    "inv_adapter_reduction_factor": None,
    "cross_adapter": False,
    "leave_out": (),
    "dropout": 0.0,
    "phm_layer": False,
    "phm_dim": 4,
    "phm_rank": 1,
    "factorized_phm_W": True,
    "shared_phm_rule": True,
    "shared_W_phm": False,
    "factorized_phm_rule": False,
    "phm_bias": True,
}
"""Config fields of a bottleneck, with the default of a missing field; None if it is required."""
LORA = {
    "selfattn_lora": True,
    "intermediate_lora": False,
    "output_lora": False,
    "attn_matrices": None,
    "r": 8,
    "alpha": 8,
    "composition_mode": "add",
    "use_gating": False,
    "leave_out": (),
    "dropout": 0.0,
}
_OF_TRAINING = (
    *("architecture", "init_weights", "init_weights_seed", "learn_phm", "phm_c_init", "dtype"),
    *("phm_init_range", "hypercomplex_nonlinearity", "prompt_init", "prompt_init_text"),
)
"""Config fields of the library `adapters` that affect only training, and are ignored."""
PREFIX = {
    "encoder_prefix": True,
    "cross_prefix": True,
    "leave_out": (),
    "flat": False,
    "prefix_length": 30,
    "bottleneck_size": 512,
    "non_linearity": "tanh",
    "dropout": 0.0,
    "use_gating": False,
    "shared_gating": True,
}
PROMPT = {"prompt_length": None, "combine": "prefix"}
_FIELDS: dict[str | None, dict[str, Any]] = {
    None: BOTTLENECK,
    "lora": LORA,
    "prefix_tuning": PREFIX,
    "prompt_tuning": PROMPT,
}
"""Config fields of the library `adapters` with their defaults, by adapter architecture."""
_NONE = ("inv_adapter", "inv_adapter_reduction_factor")
"""Config fields of the library `adapters` that may be null."""
_FORMS = {
    **dict.fromkeys(("phm_dim", "phm_rank", "r", "num_labels"), "a whole number"),
    **dict.fromkeys(("prefix_length", "bottleneck_size", "prompt_length"), "a whole number"),
    **dict.fromkeys(("alpha", "dropout", "inv_adapter_reduction_factor"), "a number"),
    **dict.fromkeys(("non_linearity", "composition_mode", "combine", "inv_adapter"), "a string"),
    "scaling": "a number or a string",
    "reduction_factor": "a number above 0, or one for each layer and a default",
    "residual_before_ln": "true, false or 'post_add'",
    "leave_out": "a list of layers",
    "attn_matrices": "a list of strings",
    "label2id": "an object of whole numbers",
}
"""Required type of each config field that is not a boolean."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraryFile:
    """Contents of an adapter directory of the library `adapters`.

    Attributes:
      where: file of the tensors.
      config_file: adapter_config.json.
      config: settings of the adapter in adapter_config.json, with defaults for missing fields.
      name: name of the adapter in the file.
      tensors: float32 arrays by name.
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    name: str
    tensors: Mapping[str, np.ndarray]

    library: ClassVar[str] = "adapters"
    """Folder of an imported checkpoint that keeps adapter_config.json."""


def is_library(directory: Path) -> bool:
    """Return True if an adapter directory was saved by the library `adapters`, not by PEFT."""
    where = directory / CONFIG
    return where.is_file() and "peft_type" not in (found := read_json(where)) and "config" in found


def read_module(directory: Path) -> LibraryFile:
    """Read an adapter directory of the library `adapters`."""
    where = directory / CONFIG
    if not where.is_file():
        raise InputError(f"{directory}: contains no {CONFIG}")
    found = read_json(where)
    name, config = found.get("name"), found.get("config")
    if not isinstance(name, str) or not isinstance(config, dict):
        raise InputError(
            f"{where}: the file must contain an adapter's name (a string) and config (an object)"
        )
    config = _complete(where, config, is_old=_is_old(found))
    path, tensors = tensors_of(directory, _ADAPTER_SAFETENSORS, ADAPTER_TORCH)
    return LibraryFile(where=path, config_file=where, config=config, name=name, tensors=tensors)


def tensors_of(directory: Path, safetensors: str, torch: str) -> tuple[Path, dict[str, np.ndarray]]:
    """Return the tensor file of an adapter directory, and its float32 tensors by name."""
    path = directory / safetensors
    if path.is_file():
        arrays: Mapping[str, Any] = read_safetensors(path)
    elif (directory / torch).is_file():
        path = directory / torch
        arrays = read_torch(path)
    else:
        raise InputError(f"{directory}: contains neither {safetensors} nor {torch}")
    found = {}
    for name, array in arrays.items():
        check_finite(path, name, array)
        found[name] = np.asarray(array, np.float32)
    return path, found


def check_form(where: Path, field: str, value: Any) -> None:
    """Raise InputError if the value of a config field does not have the required type."""
    form = _FORMS.get(field, "true or false")
    if not _has_form(value, form):
        raise InputError(f"{where}: {field} must be {form}, got {str(value)[:60]!r}")


def is_whole(value: Any) -> bool:
    """Return True if a JSON value is an integer and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def _has_form(value: Any, form: str) -> bool:
    is_number = is_whole(value) or isinstance(value, float)
    match form:
        case "true or false":
            return isinstance(value, bool)
        case "a whole number":
            return is_whole(value)
        case "a number":
            return is_number
        case "a string":
            return isinstance(value, str)
        case "a number or a string":
            return is_number or isinstance(value, str)
        case "a list of strings":
            return isinstance(value, list) and all(isinstance(each, str) for each in value)
        case "a list of layers":
            return isinstance(value, list | tuple) and all(map(is_whole, value))
        case "an object of whole numbers":
            return isinstance(value, dict) and all(map(is_whole, value.values()))
        case "true, false or 'post_add'":
            return isinstance(value, bool) or value == "post_add"
    if isinstance(value, dict):
        each = all(_has_form(one, form) and not isinstance(one, dict) for one in value.values())
        return bool(value) and each and all(k == "default" or k.isdecimal() for k in value)
    return is_number and value > 0


def _is_old(found: Mapping[str, Any]) -> bool:
    match = re.fullmatch(r"adapters\.(\d+)\.(\d+).*", str(found.get("version", "")))
    return match is None or (int(match[1]), int(match[2])) < (1, 1)


def _complete(where: Path, config: Mapping[str, Any], *, is_old: bool) -> dict[str, Any]:
    kind = config.get("architecture")
    if kind == "union" and isinstance(config.get("configs"), list):
        members = [each if isinstance(each, dict) else {} for each in config["configs"]]
        complete = [_complete(where, each, is_old=is_old) for each in members]
        return {"architecture": kind, "configs": complete}
    if kind not in _FIELDS:
        raise InputError(
            f"{where}: adapter architecture {kind!r} is not supported, only bottlenecks, "
            "Compacter, LoRA, (IA)^3, prefixes, prompts, ConfigUnion of these and invertible "
            "adapters"
        )
    fields = _FIELDS[kind]
    for field, value in config.items():
        if field not in fields and field not in _OF_TRAINING and value:
            raise InputError(f"{where}: {field} {str(value)[:60]!r} is not supported")
    made = {**fields, **{name: value for name, value in config.items() if name in fields}}
    for field, value in made.items():
        if value is None and fields[field] is None and field not in _NONE:
            raise InputError(f"{where}: lacks the required field {field}")
        if value is not None:
            check_form(where, field, value)
    if kind == "lora" and is_old and made["r"] != made["alpha"]:
        made["alpha"] = made["r"]  # as the library reads files from before 1.1
    return {**made, "architecture": kind}


HEAD_CONFIG = "head_config.json"
_HEAD_SAFETENSORS, HEAD_TORCH = "model_head.safetensors", "pytorch_model_head.bin"
_KINDS: dict[str, ClassifierKind] = {"tanh": "roberta", "gelu": "electra"}
"""Kind of the t5x_lite classification head, by the activation between its two layers."""
_MULTILABEL = "multilabel_classification"
_LAYERS = {
    "classification": 2,
    _MULTILABEL: 2,
    "multiple_choice": 2,
    "tagging": 1,
    "question_answering": 1,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraryHead:
    """Task head in a directory of the library `adapters`.

    Attributes:
      where: file of the tensors.
      config: config of the head in head_config.json.
      name: name of the head in the file.
      tensors: float32 tensors by name.
    """

    where: Path
    config: Mapping[str, Any]
    name: str
    tensors: Mapping[str, np.ndarray]

    def beside(self, module: Module) -> Module:
        """Add this task head to an imported adapter, or log a warning if it is not supported."""
        head = self._head()
        if head is None:
            said = {name: self.config.get(name) for name in ("head_type", "layers", "use_pooler")}
            _logger.warning(
                "%s: skipping the head, which t5x_lite does not support: %s", self.where, said
            )
            return module
        own = f"{HEADS}{head.name}/"
        places = {"out": 1} if self.config["layers"] == 1 else {"dense": 1, "out": 4}
        names = {f"heads.{self.name}.{at}.{leaf}" for at in places.values() for leaf in _LEAVES}
        if set(self.tensors) != names:
            raise InputError(
                f"{self.where}: a {type(head).__name__} head must have exactly the tensors "
                f"{', '.join(sorted(names))}"
            )
        arrays = {
            f"{own}{layer}/{ours}": np.ascontiguousarray(
                self.tensors[f"heads.{self.name}.{at}.{theirs}"].T
            )
            for layer, at in places.items()
            for theirs, ours in _LEAVES.items()
        }
        size = _outputs(head)
        if arrays[f"{own}out/kernel"].shape[-1] != size:
            raise InputError(
                f"{self.where}: the head heads.{self.name} has "
                f"{arrays[f'{own}out/kernel'].shape[-1]} outputs, but its config has {size}"
            )
        return dataclasses.replace(module, arrays={**module.arrays, **arrays}, head=head)

    def _head(self) -> Head | None:
        said = self.config
        kind, layers = said.get("head_type"), said.get("layers")
        if _LAYERS.get(str(kind)) != layers or said.get("use_pooler"):
            return None
        if not said.get("bias", True):
            return None
        activation = _KINDS.get(str(said.get("activation_function")))
        if kind == "question_answering":
            return Span() if said.get("num_labels") == 2 else None
        if kind == "tagging":
            return Token(num_classes=self._num_labels(), labels=self._labels())
        if activation is None:
            return None
        if kind == "multiple_choice":
            return Choice(kind=activation)
        return Classifier(
            num_classes=self._num_labels(),
            kind=activation,
            labels=self._labels(),
            problem_type="multi_label_classification" if kind == _MULTILABEL else "auto",
        )

    def _num_labels(self) -> int:
        found = self.config.get("num_labels")
        if found is None:
            raise InputError(f"{self.where.parent / HEAD_CONFIG}: the field num_labels is missing")
        return int(found)

    def _labels(self) -> tuple[str, ...]:
        names = self.config.get("label2id") or {}
        found = tuple(sorted(names, key=lambda name: names[name]))
        default = all(name == f"LABEL_{number}" for number, name in enumerate(found))
        return () if default or len(found) != self._num_labels() else found


_LEAVES = {"weight": "kernel", "bias": "bias"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassHeadFile:
    """Task head of a transformers model class, as saved by the library `adapters`.

    Attributes:
      where: file of the tensors.
      config_file: head_config.json.
      model_class: name of the Python class, such as "BertForSequenceClassification".
      labels: names of the labels in order; () if unknown.
      num_labels: number of labels; None if unknown.
      tensors: float32 tensors, by their names in transformers.
    """

    where: Path
    config_file: Path
    model_class: str
    labels: tuple[str, ...]
    num_labels: int | None
    tensors: Mapping[str, np.ndarray]

    def said(self) -> dict[str, Any]:
        """Return the fields of transformers' config.json that describe the head."""
        labels = {"id2label": {str(i): label for i, label in enumerate(self.labels)}}
        return {"architectures": [self.model_class], **(labels if self.labels else {})}


def _outputs(head: Head) -> int:
    if isinstance(head, ClassHead):
        return head.num_classes
    return 2 if isinstance(head, Span) else 1


def read_head(directory: Path) -> LibraryHead | ClassHeadFile | None:
    """Read the head of an adapter directory, or return None without a head."""
    where = directory / HEAD_CONFIG
    if not where.is_file():
        return None
    found = read_json(where)
    name, config = found.get("name"), found.get("config")
    if name is None and config is None and isinstance(found.get("model_class"), str):
        return _class_head(directory, found)
    if not isinstance(name, str) or not isinstance(config, dict):
        raise InputError(
            f"{where}: the file must contain a head's name (a string) and config (an object), or a "
            "model_class without name and config"
        )
    for field in ("num_labels", "label2id"):
        if config.get(field) is not None:
            check_form(where, field, config[field])
    path, tensors = tensors_of(directory, _HEAD_SAFETENSORS, HEAD_TORCH)
    return LibraryHead(where=path, config=config, name=name, tensors=tensors)


def _class_head(directory: Path, found: Mapping[str, Any]) -> ClassHeadFile:
    where = directory / HEAD_CONFIG
    for field in ("num_labels", "label2id"):
        if found.get(field) is not None:
            check_form(where, field, found[field])
    path, tensors = tensors_of(directory, _HEAD_SAFETENSORS, HEAD_TORCH)
    numbers, num_labels = found.get("label2id") or {}, found.get("num_labels")
    labels = tuple(sorted(numbers, key=lambda name: numbers[name]))
    whole = sorted(numbers.values()) == list(range(len(numbers)))
    return ClassHeadFile(
        where=path,
        config_file=where,
        model_class=found["model_class"],
        labels=labels if whole and len(labels) == num_labels else (),
        num_labels=num_labels,
        tensors=tensors,
    )


def write_head(
    directory: Path,
    head: Head,
    arrays: Mapping[str, np.ndarray],
    *,
    name: str,
    said: Mapping[str, Any],
    where: object,
) -> bool:
    """Write a task head for the library `adapters`; return False if unsupported."""
    config = _config_of(head)
    if config is None:
        return False
    own = f"{HEADS}{head.name}/"
    places = {"out": 1} if config["layers"] == 1 else {"dense": 1, "out": 4}
    tensors = {
        f"heads.{name}.{at}.{theirs}": arrays[f"{own}{layer}/{ours}"].T
        for layer, at in places.items()
        for theirs, ours in _LEAVES.items()
    }
    for tensor, array in tensors.items():
        check_finite(f"checkpoint {where}", tensor, array)
    content = {**said, "config": config, "name": name}
    (directory / HEAD_CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    write_torch(directory / HEAD_TORCH, tensors)
    return True


def _config_of(head: Head) -> dict[str, Any] | None:
    """Return the config of a task head for the library `adapters`, or None if unsupported."""
    common = {"dropout_prob": None, "bias": True}
    if isinstance(head, Classifier):
        kind = {"head_type": "classification", "num_labels": head.num_classes, "layers": 2}
        kind |= {"activation_function": head.activation, "use_pooler": False}
        if head.problem == "multi_label_classification":
            kind["head_type"] = _MULTILABEL
        return {**common, **kind, "label2id": _numbers(head)}
    if isinstance(head, Choice):
        kind = {"head_type": "multiple_choice", "num_choices": 2, "layers": 2}
        kind |= {"activation_function": head.activation, "use_pooler": False}
        return {"dropout_prob": None, **kind, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
    if isinstance(head, Token):
        kind = {"head_type": "tagging", "num_labels": head.num_classes, "layers": 1}
        return {
            "dropout_prob": None, **kind, "activation_function": "tanh", "label2id": _numbers(head)
        }  # fmt: skip
    if isinstance(head, Span):
        kind = {"head_type": "question_answering", "num_labels": 2, "layers": 1}
        labels = {"LABEL_0": 0, "LABEL_1": 1}
        return {"dropout_prob": None, **kind, "activation_function": "tanh", "label2id": labels}
    return None


def _numbers(head: ClassHead) -> dict[str, int]:
    names = head.labels or tuple(f"LABEL_{number}" for number in range(head.num_classes))
    return {name: number for number, name in enumerate(names)}


_SITE = "encoder/attention/prefix"
_NETWORK = {
    "wte.weight": f"network/{_SITE}/embedding",
    "control_trans.0.weight": f"network/{_SITE}/kernel",
    "control_trans.0.bias": f"network/{_SITE}/bias",
    "control_trans.2.weight": f"{_SITE}/kernel",
    "control_trans.2.bias": f"{_SITE}/bias",
}
_FLAT = "control_trans"
_ROWS = "encoder/prompt/rows"

Tensors = dict[str, np.ndarray]


def prefix(file: LibraryFile, hosts: Hosts, *, name: str) -> Module:
    """Convert a prefix tuning of the library `adapters` into a t5x_lite adapter."""
    config, where = file.config, file.config_file
    _check_encoder(where, hosts)
    for field, wanted in (("leave_out", 0), ("dropout", 0), ("non_linearity", "tanh")):
        value = config[field]
        if (len(value) if field == "leave_out" else value) != wanted:
            raise InputError(f"{where}: {field} {value!r} is not supported for prefixes")
    flat, gated = bool(config["flat"]), bool(config["use_gating"])
    found, gates = _tensors(file)
    wanted = {_FLAT} if flat else set(_NETWORK)
    if set(found) != wanted:
        raise InputError(
            f"{file.where}: a prefix tuning must have the tensors {', '.join(sorted(wanted))}, got "
            f"{sorted(found)}"
        )
    length, num_gates = config["prefix_length"], 1 if config["shared_gating"] else 2
    adapter = Prefix(
        name=name,
        length=length,
        hidden=config["bottleneck_size"],
        flat=flat,
        gate="all_tokens" if gated else "none",
        shared_gate=num_gates == 1,
    )
    num, d_model, width = hosts.kernels["encoder", "attention/key"]
    sizes = (hosts.num_heads, width // hosts.num_heads)
    arrays: Tensors = {}
    try:
        if flat:
            pairs = found[_FLAT].reshape(length, num, 2, *sizes).transpose(1, 2, 0, 3, 4)
            arrays = {f"{_SITE}/keys": pairs[:, 0], f"{_SITE}/values": pairs[:, 1]}
        else:
            hidden = config["bottleneck_size"]
            arrays = {
                _NETWORK["wte.weight"]: found["wte.weight"].reshape(length, d_model),
                _NETWORK["control_trans.0.weight"]: found["control_trans.0.weight"]
                .reshape(hidden, d_model)
                .T,
                _NETWORK["control_trans.0.bias"]: found["control_trans.0.bias"].reshape(hidden),
                _NETWORK["control_trans.2.weight"]: np.moveaxis(
                    found["control_trans.2.weight"].reshape(num, 2, *sizes, hidden), -1, 1
                ),
                _NETWORK["control_trans.2.bias"]: found["control_trans.2.bias"].reshape(
                    num, 2, *sizes
                ),
            }
        if gated:
            arrays[f"{_SITE}/gate/kernel"] = np.stack(
                [gates[layer, "weight"].reshape(num_gates, d_model).T for layer in range(num)]
            )
            arrays[f"{_SITE}/gate/bias"] = np.stack(
                [gates[layer, "bias"].reshape(num_gates) for layer in range(num)]
            )
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{file.where}: the tensors of the prefix have wrong shapes; the config and the base "
            f"require {length} rows for {num} layers with {sizes[0]} heads of size {sizes[1]} "
            f"({error})"
        ) from error
    own = f"{ADAPTERS}{name}/"
    return Module(
        adapter=adapter, arrays={own + k: np.ascontiguousarray(x) for k, x in arrays.items()}
    )


def _tensors(file: LibraryFile) -> tuple[Tensors, dict[tuple[int, str], np.ndarray]]:
    found: Tensors = {}
    gates: dict[tuple[int, str], np.ndarray] = {}
    name = re.escape(file.name)
    for tensor, array in file.tensors.items():
        own = re.fullmatch(rf"(?:.*\.)?prefix_tunings\.{name}\.self_prefix\.(.*)", tensor)
        gate = re.fullmatch(
            rf"(?:.*\.)?layer\.(\d+)\..*prefix_gates\.{name}\.(weight|bias)", tensor
        )
        if gate is not None:
            gates[int(gate[1]), gate[2]] = array
        elif own is None:
            raise InputError(f"{file.where}: the tensor {tensor} belongs to no supported adapter")
        elif not np.array_equal(found.setdefault(own[1], array), array):
            raise InputError(
                f"{file.where}: the tensor {tensor} must be equal in all layers, but two layers "
                "differ"
            )
    return found, gates


def prompt(file: LibraryFile, hosts: Hosts, *, name: str) -> Module:
    """Convert a prompt tuning of the library `adapters` into a t5x_lite adapter."""
    config, where = file.config, file.config_file
    _check_encoder(where, hosts)
    if config["combine"] != "prefix":
        raise InputError(f"{where}: combine {config['combine']!r} is not supported, only 'prefix'")
    wanted = f"prompt_tuning.prompt_tunings.{file.name}.prompt_embedding.weight"
    rows = next((x for tensor, x in file.tensors.items() if f".{tensor}".endswith(wanted)), None)
    d_model = hosts.kernels["encoder", "attention/key"][1]
    if rows is None or len(file.tensors) > 1 or rows.shape != (config["prompt_length"], d_model):
        said = None if rows is None else rows.shape
        raise InputError(
            f"{file.where}: expected only the tensor {wanted} of shape "
            f"({config['prompt_length']}, {d_model}), got shape {said}"
        )
    adapter = Prompt(name=name, length=config["prompt_length"])
    return Module(adapter=adapter, arrays={f"{ADAPTERS}{name}/{_ROWS}": rows})


def prefix_files(
    adapter: Prefix, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    """Return the config and the tensors of a prefix tuning for the library `adapters`."""
    _check_encoder(said, hosts)
    if adapter.place != "none" or adapter.gate == "real_tokens":
        what = "place='left'" if adapter.place != "none" else "gate='real_tokens'"
        raise InputError(f"{said}: the library `adapters` does not support a prefix with {what}")
    start = f"prefix_tuning.prefix_tunings.{adapter.name}.self_prefix."
    tensors: Tensors = {}
    if adapter.flat:
        pairs = np.stack([own[f"{_SITE}/{leaf}"] for leaf in ("keys", "values")], axis=1)
        tensors[start + _FLAT] = pairs.transpose(2, 0, 1, 3, 4).reshape(-1)
    else:
        for theirs, path in _NETWORK.items():
            array = own[path]
            if theirs == "control_trans.2.weight":
                array = np.moveaxis(array, 1, -1).reshape(-1, array.shape[1])
            elif theirs == "control_trans.2.bias":
                array = array.reshape(-1)
            elif theirs == "control_trans.0.weight":
                array = array.T
            tensors[start + theirs] = array
    if adapter.gate != "none":
        for layer in range(hosts.kernels["encoder", "attention/key"][0]):
            gate = f"encoder.layer.{layer}.attention.self.prefix_tuning.prefix_gates."
            kernel = own[f"{_SITE}/gate/kernel"][layer]
            tensors[f"{gate}{adapter.name}.weight"] = kernel.T
            tensors[f"{gate}{adapter.name}.bias"] = own[f"{_SITE}/gate/bias"][layer]
    config = {
        **PREFIX,
        "architecture": "prefix_tuning",
        "leave_out": [],
        "flat": adapter.flat,
        "prefix_length": adapter.length,
        "bottleneck_size": adapter.hidden,
        "use_gating": adapter.gate != "none",
        "shared_gating": adapter.shared_gate,
    }
    return config, tensors


def prompt_files(
    adapter: Prompt, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    """Return the config and the tensors of a prompt tuning for the library `adapters`."""
    _check_encoder(said, hosts)
    if adapter.init == "vocab":
        raise InputError(
            f"{said}: the prompt is stored as differences from token embeddings (init='vocab'), "
            "but the library `adapters` stores embeddings"
        )
    config = {
        **PROMPT,
        "architecture": "prompt_tuning",
        "prompt_length": adapter.length,
        "prompt_init": "random_uniform",
    }
    name = f"prompt_tuning.prompt_tunings.{adapter.name}.prompt_embedding.weight"
    return config, {name: own[_ROWS]}


def _check_encoder(where: object, hosts: Hosts) -> None:
    """Raise InputError if the base model is a T5."""
    if any(stack == "decoder" for stack, _ in hosts.kernels):
        raise InputError(
            f"{where}: prefixes and prompts of the library `adapters` shift positions in a T5, so "
            "they can be converted only for encoders"
        )
