"""adapter_config.json of PEFT: what is read of it, and what is refused, by its name."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5x_lite import patterns
from t5x_lite.errors import InputError, shown
from t5x_lite.interop.hf_config import LARGEST, read_json

CONFIG = "adapter_config.json"

_COSTLY = 3
"""Maximum expressions of a table that `re` could not match quickly."""
_LATER = ("P_TUNING", "MULTITASK_PROMPT_TUNING")
_METHODS = ("LORA", "IA3")
_HARMLESS = (
    *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path"),
    *("revision", "inference_mode", "modules_to_save", "target_modules", "exclude_modules"),
    *("init_ia3_weights", "init_lora_weights", "feedforward_modules"),
    *("layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"),
    *("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora"),
    # Of an initialisation that `init_lora_weights` names, or of nothing that is in the file.
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core"),
    *("megatron_config", "qalora_group_size", "runtime_config"),
)
_OFF = {"bias": ("none",)}
"""Values besides null, false and empty ones that turn a field off."""
_LEAVES_THE_BASE = (None, True, False, "gaussian", "orthogonal", "eva")


def read_config(directory: Path) -> dict[str, Any]:
    """The content of a directory's adapter_config.json, if a module can be made of it.

    Raises:
      InputError: it is missing, damaged, or of what cannot interchange, naming the field.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory")
    where = directory / CONFIG
    if not where.is_file():
        raise InputError(
            f"{directory}: holds no {CONFIG}; give a directory that PEFT "
            "or the library adapters saved"
        )
    config = read_json(where)
    kind = config.get("peft_type")
    if kind in _LATER:
        raise InputError(
            f"{where}: peft_type {kind}: of PEFT's, LoRA, (IA)^3, prompt and prefix tuning are read"
        )
    if kind not in _METHODS:
        raise InputError(
            f"{where}: peft_type {kind!r} cannot interchange; {' and '.join(_METHODS)} can"
        )
    for name, value in config.items():
        if name not in _HARMLESS and value and value not in _OFF.get(name, ()):
            raise InputError(
                f"{where}: {name} {str(value)[:60]!r} is not supported: no module of ours does that"
            )
    initial = config.get("init_lora_weights", True)
    if not any(initial is each or initial == each for each in _LEAVES_THE_BASE):
        raise InputError(
            f"{where}: init_lora_weights {initial!r} moves the base, so these weights are not for "
            "the base as it is; PEFT converts them to ordinary LoRA when it saves "
            "(path_initial_model_for_weight_conversion)"
        )
    for name in ("use_rslora", "use_dora"):
        if not isinstance(config.get(name) or False, bool):
            raise InputError(f"{where}: {name} must be true or false, got {config[name]!r}")
    return config


def number_of(where: object, name: str, value: Any, *, least: int | float) -> Any:
    """A number of the config.

    Raises:
      InputError: it is none, or out of range.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < LARGEST:
        raise InputError(f"{where}: {name} must be a number from {least}, got {str(value)[:60]!r}")
    return value


def of_pattern(
    where: object, config: Mapping[str, Any], field: str, name: str, default: Any
) -> Any:
    """What a table of patterns says of a layer: the first that matches the end of its name.

    Args:
      where: the file, for messages.
      config: its content.
      field: rank_pattern or alpha_pattern.
      name: of the layer.
      default: where none matches.

    Raises:
      InputError: it is no table of regular expressions.
    """
    patterns = config.get(field) or {}
    if not isinstance(patterns, dict):
        raise InputError(f"{where}: {field} must be an object, got {str(patterns)[:60]!r}")
    costly = [each for each in patterns if not _is_simple(where, field, each)]
    if len(costly) > _COSTLY:
        raise InputError(
            f"{where}: {field} has {len(costly)} regular expressions that can match in "
            f"too many ways, such as {shown(costly[0])}; simplify them"
        )
    for pattern, value in patterns.items():
        if _matches(where, field, pattern, name, start=r"(?:.*\.)?"):
            return value
    return default


def is_target(where: object, config: Mapping[str, Any], field: str, name: str) -> bool:
    """Whether target_modules or exclude_modules names a layer.

    Raises:
      InputError: the field is neither names nor a regular expression.
    """
    targets = config.get(field)
    if isinstance(targets, str):
        return _matches(where, field, targets, name)
    if targets is None:
        return False
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise InputError(
            f"{where}: {field} must be names or a regular expression, got {str(targets)[:60]!r}"
        )
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _is_simple(where: object, field: str, pattern: str) -> bool:
    patterns.check(f"{where}: {field}", pattern)
    return patterns.is_simple(pattern)


def _matches(where: object, field: str, pattern: str, name: str, *, start: str = "") -> bool:
    patterns.check(f"{where}: {field}", pattern)
    try:
        return patterns.fullmatch(f"{start}(?:{pattern})", name)
    except InputError as error:
        raise InputError(f"{where}: {field}: {error}") from error


def targets_of(chosen: Iterable[str], known: Iterable[str]) -> list[str] | str:
    """target_modules that mean some layers and no others: short names, or else an expression.

    Args:
      chosen: the layers that it must name.
      known: the model's dense layers.
    """
    wanted, all_names = set(chosen), set(known)
    short = sorted({_short(name) for name in wanted})
    if {n for n in all_names if n.endswith(tuple(f".{end}" for end in short))} == wanted:
        return short
    return expression_of(wanted, all_names)


def expression_of(chosen: Iterable[str], known: Iterable[str]) -> str:
    """A regular expression that means some layers and no others; see `targets_of`."""
    wanted, all_names = set(chosen), set(known)
    layers: dict[tuple[str, str], set[int]] = {}
    everywhere: dict[tuple[str, str], set[int]] = {}
    for table, names in ((layers, wanted), (everywhere, all_names)):
        for name in names:
            before, layer, after = re.split(r"\.(\d+)\.", name, maxsplit=1)
            table.setdefault((before, after), set()).add(int(layer))
    alternatives = []
    for (before, after), numbers in sorted(layers.items()):
        which = r"\d+"
        if numbers != everywhere[before, after]:
            which = f"(?:{'|'.join(map(str, sorted(numbers)))})"
        body = before[max(before.find("encoder"), before.find("decoder")) :]
        alternatives.append(rf"{re.escape(body)}\.{which}\.{re.escape(after)}")
    return rf"(?:.*\.)?(?:{'|'.join(alternatives)})"


def _short(name: str) -> str:
    """The end of a layer's name that its kind has: its last part, or what "dense" is of."""
    parts = name.split(".")
    return parts[-1] if parts[-1] != "dense" else ".".join(parts[-2:])
