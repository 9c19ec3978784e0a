"""Reading and checking of adapter directories of `adapters` and adapter-transformers.

    adapter_config.json      {"config": {"mh_adapter": false, "reduction_factor": 16, ...}, ...}
    pytorch_adapter.bin      or adapter.safetensors
    head_config.json         head saved with the adapter, see `interop.adapters_heads`

`interop.adapters_library` converts the contents into adapters of t5x_lite. Source:
adapter-hub/adapters 1.3, configuration/adapter_config.py, loading.py.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.interop.hf import read_json
from t5x_lite.interop.peft_files import CONFIG
from t5x_lite.interop.rules import check_finite
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.interop.torch_files import read_torch

_SAFETENSORS, TORCH = "adapter.safetensors", "pytorch_adapter.bin"

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
      config: field "config" of that file, with defaults for missing fields; a union of adapters has
        "configs".
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
    """Return True if the library `adapters` wrote an adapter directory, and not PEFT."""
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
        raise InputError(f"{where}: must have the adapter's name, and its config as an object")
    config = _complete(where, config, is_old=_is_old(found))
    path, tensors = tensors_of(directory, _SAFETENSORS, TORCH)
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
            f"{where}: architecture {kind!r} is not supported, only bottlenecks, Compacter, LoRA, "
            "(IA)^3, prefixes, prompts, unions of these and invertible adapters"
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
