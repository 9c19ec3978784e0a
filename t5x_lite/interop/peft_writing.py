"""Export of adapters to PEFT directories, the inverse of `interop.peft`.

    write_peft(directory, Lora(...), arrays, hosts, norms=norms, base="t5-v1_1-small", where=step)

`target_modules` contains short names, such as "q" and "v", if they match only the adapted layers,
and otherwise a regular expression.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.lora import EMBEDDING, Ia3, Lora
from t5x_lite.adapters.prefix import Prefix, Prompt
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import LazyArray
from t5x_lite.interop.encoders import MODEL
from t5x_lite.interop.module_hosts import Hosts, head_modules
from t5x_lite.interop.peft import HIDDEN, PREFIX, SAFETENSORS, SCALE, Norms, Site, lora_leaves
from t5x_lite.interop.peft_files import CONFIG, TASKS, changed_base, expression_of, targets_of
from t5x_lite.interop.peft_prompts import HEAD, prefix_of, prompt_of
from t5x_lite.interop.rules import check_finite
from t5x_lite.interop.tensor_files import write_safetensors


def write_peft(
    directory: Path,
    adapter: Adapter,
    arrays: Mapping[str, np.ndarray],
    hosts: Hosts,
    *,
    norms: Norms,
    base: str,
    where: object,
    scaled: bool = False,
) -> None:
    """Write an adapter as adapter_config.json and adapter_model.safetensors of PEFT."""
    if isinstance(adapter, Prompt):
        if any(path.startswith(MODEL) for path in arrays):
            raise InputError(
                f"checkpoint {where}: an array of the base was trained together with the "
                "prompt, but PEFT's prompt directories cannot store it; export the model with "
                "`t5x-lite export hf`"
            )
        said, tensors = prompt_of(adapter, arrays, hosts, where=where)
        common = {"base_model_name_or_path": base or None, "inference_mode": True}
        return _write(directory, {**common, **said}, tensors, where=where)
    kept = [piece for piece in hosts.pieces if piece.path in arrays]
    theirs = {piece.name: piece.to_theirs(piece.of(arrays[piece.path])) for piece in kept}
    changed, modules = changed_base(arrays, hosts, scaled=scaled, where=where)
    theirs |= changed
    trained = [*head_modules(kept), *modules] or None
    if isinstance(adapter, Prefix):
        own = {path: x for path, x in arrays.items() if path.startswith(ADAPTERS)}
        said, tensors = prefix_of(adapter, own, hosts, where=where)
        common = {"base_model_name_or_path": base or None, "inference_mode": True}
        tensors |= {HEAD + name: array for name, array in theirs.items()}
        said = {**common, "modules_to_save": trained, **said}
        return _write(directory, said, tensors, where=where)
    if not isinstance(adapter, Lora | Ia3):
        raise InputError(
            f"checkpoint {where}: PEFT has no {type(adapter).__name__} (adapter "
            f"{adapter.name!r}); only lora, ia3, prompt and prefix can be exported"
        )
    own = f"{ADAPTERS}{adapter.name}/"
    leaves: dict[Site, dict[str, np.ndarray]] = {}
    for path, array in arrays.items():
        if path.startswith(own):
            stack, *site, leaf = path.removeprefix(own).split("/")
            leaves.setdefault((stack, "/".join(site)), {})[leaf] = array
    if EMBEDDING in adapter.sites:
        raise InputError(
            f"checkpoint {where}: adapter {adapter.name!r} adapts the embeddings, but PEFT does "
            "not apply this change to the tied output layer; merge the adapter, or train "
            "without this site"
        )
    if isinstance(adapter, Lora) and adapter.gate != "none":
        raise InputError(
            f"checkpoint {where}: adapter {adapter.name!r} has a gate, but a LoRA of PEFT "
            "cannot have one"
        )
    if isinstance(adapter, Lora):
        said, tensors = _lora(adapter, leaves, hosts, norms=norms)
    else:
        said, tensors = _ia3(leaves, hosts)
    _check_written(tensors, leaves, hosts, module=f"checkpoint {where}: adapter {adapter.name}")
    tensors |= theirs
    config = {
        "base_model_name_or_path": base or None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": trained,
        "task_type": _task(hosts),
        **said,
    }
    named = {PREFIX + name: array for name, array in tensors.items()}
    return _write(directory, config, named, where=where)


def _write(
    directory: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    *,
    where: object,
) -> None:
    for name, array in tensors.items():
        check_finite(f"checkpoint {where}", name, array)
    (directory / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    lazy = {name: _lazy(array) for name, array in tensors.items()}
    write_safetensors(directory / SAFETENSORS, lazy)


def _check_written(
    tensors: Mapping[str, np.ndarray],
    leaves: Mapping[Site, Mapping[str, np.ndarray]],
    hosts: Hosts,
    *,
    module: str,
) -> None:
    """Raise InputError if PEFT does not support an adapter or one of its sites (adapted layers)."""
    if not tensors:
        raise InputError(
            f"{module} changes no layer, because all its weights are 0 or it has no layers"
        )
    known = {(place.stack, place.site) for place in hosts.places.values()}
    known |= {(stack, HIDDEN[site]) for stack, site in known if site in HIDDEN}
    if homeless := sorted(leaves.keys() - known):
        raise InputError(f"{module}: PEFT has no dense layer for the site {'/'.join(homeless[0])}")


def _task(hosts: Hosts) -> str | None:
    """Return PEFT's task_type, which selects PEFT's model class, or None without a task."""
    if hosts.head is None:
        return "SEQ_2_SEQ_LM" if any(stack == "decoder" for stack, _ in hosts.kernels) else None
    return next((task for task, name in TASKS.items() if name == hosts.head.name), None)


def _lora(
    adapter: Lora,
    leaves: Mapping[Site, Mapping[str, np.ndarray]],
    hosts: Hosts,
    *,
    norms: Norms,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the PEFT config fields and tensors of a LoRA, without layers with only zeros."""
    tensors: dict[str, np.ndarray] = {}
    chosen, table = [], lora_leaves(dora=adapter.dora)
    for written, place in hosts.places.items():
        site = (place.stack, place.site)
        if site not in leaves:
            continue
        arrays = {leaf: leaves[site][leaf.ours][place.layer] for leaf in table}
        if not adapter.dora and not any(array.any() for array in arrays.values()):
            continue
        chosen.append(written)
        norm = norms(site)[place.layer] if adapter.dora else None
        for leaf, array in arrays.items():
            tensors[f"{written}.{leaf.theirs}"] = leaf.to_theirs(array, norms=norm)
    whole = float(adapter.alpha).is_integer()
    said = {
        "peft_type": "LORA",
        "bias": "none",
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if whole else adapter.alpha,
        "lora_dropout": 0.0,
        "target_modules": targets_of(chosen, hosts.places),
        "use_rslora": adapter.rank_stabilised,
        "use_dora": adapter.dora,
        "rank_pattern": {},
        "alpha_pattern": {},
        "init_lora_weights": True,
    }
    return said, tensors


def _ia3(
    leaves: Mapping[Site, Mapping[str, np.ndarray]], hosts: Hosts
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the PEFT config fields and tensors of an (IA)^3."""
    tensors: dict[str, np.ndarray] = {}
    outputs, inputs = [], []
    for written, place in hosts.places.items():
        hidden = (place.stack, HIDDEN.get(place.site, ""))
        own = (place.stack, place.site)
        if own in leaves and hidden in leaves:
            raise InputError(
                f"(IA)^3 of PEFT scales either the input or the output of {written}, but this "
                "adapter scales both"
            )
        if own in leaves:
            outputs.append(written)
            tensors[f"{written}.{SCALE}"] = leaves[own]["scale"][place.layer][:, None]
        elif hidden in leaves:
            inputs.append(written)
            tensors[f"{written}.{SCALE}"] = leaves[hidden]["scale"][place.layer][None, :]
    both, reads = targets_of([*outputs, *inputs], hosts.places), []
    if inputs:
        reads = targets_of(inputs, hosts.places)
    if isinstance(both, str) or isinstance(reads, str):  # PEFT compares two lists
        both = expression_of([*outputs, *inputs], hosts.places)
        reads = expression_of(inputs, hosts.places) if inputs else []
    said = {"peft_type": "IA3", "target_modules": both, "feedforward_modules": reads}
    return said | {"init_ia3_weights": True}, tensors


def _lazy(array: np.ndarray) -> LazyArray:
    return LazyArray(array.shape, np.dtype(np.float32), lambda: array)
