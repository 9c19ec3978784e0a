"""Directories of the library `adapters`, written: the inverse of `interop.adapters_library`.

    adapter_config.json      {"config": {...}, "name": "rte", "version": "adapters.1.3.0", ...}
    pytorch_adapter.bin      the file that its `load_adapter` reads

Bottlenecks, Compacter, both with an invertible adapter, LoRA, (IA)^3 "before", prefixes, prompts
and unions of these have a form there. Names are without the prefix of a model's class, which the
library adds. What it has no form for is refused by name.

Source: adapter-hub/adapters 1.3, loading.py, configuration/adapter_config.py.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.bottleneck import Bottleneck
from t5x_lite.adapters.bottleneck_variants import Compacter, Invertible
from t5x_lite.adapters.hyper import Hyper
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.adapters.merging import Union
from t5x_lite.adapters.prefix import Prefix, Prompt
from t5x_lite.core.errors import InputError
from t5x_lite.interop import adapters_library as library
from t5x_lite.interop.adapters_files import BOTTLENECK, LORA, TORCH
from t5x_lite.interop.adapters_heads import prefix_files, prompt_files, write_head
from t5x_lite.interop.module_hosts import Hosts
from t5x_lite.interop.peft_files import CONFIG
from t5x_lite.interop.rules import check_finite
from t5x_lite.interop.torch_files import write_torch
from t5x_lite.models.heads import Head

_VERSION = "adapters.1.3.0"
_CLASSES = {
    "bert": "BertAdapterModel",
    "roberta": "RobertaAdapterModel",
    "xlm-roberta": "XLMRobertaAdapterModel",
    "electra": "ElectraAdapterModel",
    "deberta-v2": "DebertaV2AdapterModel",
    "t5": "T5AdapterModel",
    "mt5": "MT5AdapterModel",
}
"""model_type -> the library's class of the model."""
_IN_UNIONS = (Lora, Ia3, Bottleneck, Prefix)
_MATRICES = {"query": "q", "key": "k", "value": "v"}
_BLOCKS = {"mlp/in": "intermediate_lora", "mlp/out": "output_lora"}

Tensors = dict[str, np.ndarray]


def write_library(
    directory: Path,
    adapter: Adapter,
    arrays: Mapping[str, np.ndarray],
    hosts: Hosts,
    *,
    base: str,
    head: Head | None = None,
    where: object,
) -> bool:
    """Writes adapter_config.json and pytorch_adapter.bin, and the files of a head."""
    said = f"checkpoint {where}: module {adapter.name!r}"
    start = f"{ADAPTERS}{adapter.name}/"
    own = {path.removeprefix(start): x for path, x in arrays.items() if path.startswith(start)}
    config, tensors = _files(adapter, own, hosts, said=said)
    for name, array in tensors.items():
        check_finite(said, name, array)
    about_it = about(hosts, base=base)
    content = {**about_it, "config": config, "name": adapter.name}
    (directory / CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    write_torch(directory / TORCH, tensors)
    if head is None:
        return False
    return write_head(directory, head, arrays, name=adapter.name, said=about_it, where=where)


def about(hosts: Hosts, *, base: str) -> dict[str, Any]:
    """What each config of the library says of the model and of itself."""
    _, d_model, _ = next(iter(hosts.kernels.values()))
    return {
        "hidden_size": d_model,
        "model_class": _CLASSES.get(hosts.model_type),  # which its heads are read for
        "model_name": base,
        "model_type": hosts.model_type,
        "version": _VERSION,
    }


def _files(
    adapter: Adapter, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    """The config, and the tensors by name."""
    if isinstance(adapter, Lora):
        return _lora(adapter, own, hosts, said=said)
    if isinstance(adapter, Ia3):
        return _ia3(adapter, own, hosts, said=said)
    if isinstance(adapter, Bottleneck) and not isinstance(adapter, Hyper):
        return _bottleneck(adapter, own, hosts, said=said)
    if isinstance(adapter, Prefix):
        return prefix_files(adapter, own, hosts, said=said)
    if isinstance(adapter, Prompt):
        return prompt_files(adapter, own, hosts, said=said)
    if isinstance(adapter, Union) and len(adapter.members) == 2:
        block, nice = adapter.members
        is_plain = not isinstance(block, Hyper)
        if is_plain and isinstance(block, Bottleneck) and isinstance(nice, Invertible):
            return _with_inverse(block, nice, own, hosts, said=said)
    if isinstance(adapter, Union):
        return _union(adapter, own, hosts, said=said)
    raise InputError(
        f"{said}: `adapters` has no {type(adapter).__name__} like it; of ours it has bottlenecks, "
        "compacter, both with inv, lora, ia3, prefix, prompt and unions of these"
    )


def _union(
    adapter: Union, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    """The configs of its members, and the tensors of all."""
    configs, tensors = [], {}
    for member in adapter.members:
        start = f"{type(member).__name__.lower()}/"
        arrays = {k.removeprefix(start): x for k, x in own.items() if k.startswith(start)}
        if not isinstance(member, _IN_UNIONS):
            raise InputError(f"{said}: `adapters` has no {type(member).__name__} in a union")
        config, theirs = _files(member, arrays, hosts, said=said)
        configs.append(config)
        if both := tensors.keys() & theirs.keys():
            raise InputError(f"{said}: two of its members have {min(both)} in `adapters`")
        tensors |= theirs
    return {"architecture": "union", "configs": configs}, tensors


def _bottleneck(
    adapter: Bottleneck, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    refused = {
        "reads='normed'": adapter.reads == "normed",
        "gate='real_tokens'": adapter.gate == "real_tokens",
        "a parallel one with norms": adapter.reads == "input"
        and (adapter.ln_before or adapter.ln_after != "none"),
    }
    if bad := next((what for what, is_so in refused.items() if is_so), None):
        raise InputError(f"{said}: `adapters` has no bottleneck with {bad}")
    reduction: Any = adapter.reduction
    if adapter.reductions:
        reduction = {"default": reduction, **{str(k): value for k, value in adapter.reductions}}
    sites = {path.split("/")[1] for path in own if path != "rule"}
    residuals = {ours: theirs for theirs, ours in library.RESIDUALS.items()}
    config = {
        **BOTTLENECK,
        **{field: site in sites for field, site in library.BLOCKS.items()},
        **{field: getattr(adapter, ours) for field, (ours, _) in library.FIELDS.items()},
        "architecture": None,
        "reduction_factor": reduction,
        "original_ln_before": adapter.reads == "sum",
        "ln_after": adapter.ln_after != "none",
        "is_parallel": adapter.reads == "input",
        "use_gating": adapter.gate != "none",
        "residual_before_ln": residuals[adapter.residual],
        "adapter_residual_before_ln": adapter.ln_after == "sum",
        "leave_out": list(adapter.leave_out),
    }
    if isinstance(adapter, Compacter):
        config |= {"phm_layer": True, "phm_dim": adapter.phm_dim, "phm_rank": adapter.phm_rank}
    return config, _block_tensors(adapter, own, hosts)


def _block_tensors(adapter: Bottleneck, own: Mapping[str, np.ndarray], hosts: Hosts) -> Tensors:
    """The tensors of blocks; of a layer as many numbers as it has."""
    num = {stack: shape[0] for (stack, _), shape in hosts.kernels.items()}
    first = {"encoder": 0, "decoder": num.get("encoder", 0)}
    names = {leaf: name for name, leaf in library.LEAVES.items()}
    if not isinstance(adapter, Compacter):  # whose biases have other names
        names |= {"down/bias": "adapter_down.bias", "up/bias": "adapter_up.bias"}
    places = library.holders(hosts)
    down = "adapter_down.1." if adapter.ln_before else "adapter_down.0."
    tensors: Tensors = {}
    for path, array in own.items():
        if path == "rule":
            tensors[f"shared_parameters.{adapter.name}.phm_rule"] = array
            continue
        stack, site, leaf = path.split("/", 2)
        for layer in range(num[stack]):
            _, d_model, _ = hosts.kernels[stack, "attention/query"]
            width = adapter.width(d_model, first[stack] + layer)
            if not width:
                continue
            value = array[layer]
            if not isinstance(adapter, Compacter):
                value = value[:, :width] if leaf == "down/kernel" else value
                value = value[:width] if leaf in ("up/kernel", "down/bias") else value
            value = value.T if leaf.endswith("kernel") else value
            above = f"{places[stack, site].format(layer)}.adapters.{adapter.name}."
            tensors[above + names[leaf].replace("adapter_down.", down)] = value
            if adapter.ln_before and leaf.startswith("norm_before/"):
                again = names[leaf].replace("adapter_norm_before.", "adapter_down.0.")
                tensors[above + again] = value
    return tensors


def _with_inverse(
    block: Bottleneck,
    nice: Invertible,
    own: Mapping[str, np.ndarray],
    hosts: Hosts,
    *,
    said: str,
) -> tuple[dict[str, Any], Tensors]:
    """A bottleneck with an invertible adapter, whose activation is the bottleneck's there."""
    if block.activation != "relu":
        raise InputError(
            f"{said}: the invertible adapter of `adapters` has the bottleneck's activation, "
            f"{block.activation}, and ours relu"
        )
    start = f"{type(block).__name__.lower()}/"
    mine = {path.removeprefix(start): x for path, x in own.items() if path.startswith(start)}
    config, tensors = _bottleneck(block, mine, hosts, said=said)
    config |= {"inv_adapter": "nice", "inv_adapter_reduction_factor": nice.reduction}
    above = "encoder." if ("decoder", "attention/query") in hosts.kernels else ""
    parts = {ours: theirs for theirs, ours in library.INVERTIBLE.items()}
    for path, array in own.items():
        if path.startswith("invertible/"):
            names = [parts[part] for part in path.split("/")[-3:]]
            tensors[f"{above}invertible_adapters.{block.name}.{'.'.join(names)}"] = array.T
    return config, tensors


def _lora(
    adapter: Lora, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    if adapter.dora:
        raise InputError(f"{said}: DoRA's vectors are not written for `adapters`")
    if adapter.gate == "real_tokens":
        raise InputError(f"{said}: `adapters` has no LoRA with gate='real_tokens'")
    is_gated = adapter.gate != "none"  # the library's scale has no effect then
    tensors: Tensors = {}
    sites = {path.removesuffix("/a") for path in own if path.endswith("/a")}
    for body, written in hosts.bodies.items():
        place = hosts.places[written]
        site = f"{place.stack}/{place.site}"
        if site in sites:
            above = f"{body}.loras.{adapter.name}"
            up = own[f"{site}/b"][place.layer].T
            tensors[f"{above}.lora_A"] = own[f"{site}/a"][place.layer].T
            tensors[f"{above}.lora_B"] = np.float32(adapter.scale) * up if is_gated else up
            for theirs, ours in library.GATE.items() if is_gated else ():
                tensors[f"{above}.{theirs}"] = own[f"{site}/{ours}"][place.layer].T
    alpha = adapter.rank if is_gated else adapter.scale * adapter.rank
    whole = int(alpha) if float(alpha).is_integer() else alpha
    places = _lora_places(sites, hosts, said=said)
    said_of = {"r": adapter.rank, "alpha": whole, "use_gating": is_gated}
    return {**LORA, "architecture": "lora", **said_of, **places}, tensors


def _ia3(
    adapter: Ia3, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    if adapter.attention_out or (adapter.feed_forward and adapter.place == "after"):
        raise InputError(
            f"{said}: `adapters` scales a feed-forward block before its activation, and nothing "
            "that an attention's output layer reads: place='before', attention_out=False"
        )
    sites = {path.rpartition("/")[0] for path in own}
    tensors = {}
    for body, written in hosts.bodies.items():
        place = hosts.places[written]
        site = f"{place.stack}/{place.site}"
        if site in sites:
            vector = own[f"{site}/scale"][place.layer]
            tensors[f"{body}.loras.{adapter.name}.lora_B"] = vector[:, None]
    config = {**LORA, "architecture": "lora", "composition_mode": "scale", "r": 1, "alpha": 1}
    return config | _lora_places(sites, hosts, said=said), tensors


def _lora_places(sites: set[str], hosts: Hosts, *, said: str) -> dict[str, Any]:
    """The fields that name layers; they name the same in every stack, and in every attention."""
    names = {site.partition("/")[2].removeprefix("cross_") for site in sites}
    wanted = {
        f"{stack}/{site}" for stack, site in hosts.kernels if site.removeprefix("cross_") in names
    }
    matrices = [short for name, short in _MATRICES.items() if f"attention/{name}" in names]
    known = {f"attention/{name}" for name in _MATRICES} | set(_BLOCKS)
    if (odd := sorted(names - known)) or wanted != sites:
        raise InputError(
            f"{said}: `adapters` names layers of all stacks by query, key, value, intermediate and "
            f"output, and this module's are others: {', '.join(odd or sorted(wanted - sites))}"
        )
    blocks = {field: site in names for site, field in _BLOCKS.items()}
    return {"selfattn_lora": bool(matrices), "attn_matrices": matrices, **blocks}
