"""Import and export of adapters of the library `adapters`.

    adapter_config.json      {"config": {...}, "name": "rte", "version": "adapters.1.3.0", ...}
    pytorch_adapter.bin      file that `load_adapter` of the library reads

| tensor, below the layer | parameter, below adapters/NAME/STACK/SITE |
|---|---|
| adapters.NAME.adapter_down.0.weight [r, d] | down/kernel [N, d, r]; after a norm, adapter_down.1 |
| adapters.NAME.adapter_up.weight [d, r] | up/kernel [N, r, d] |
| adapter_{down.0,up}.{W_left,W_right,b} | {down,up}/{left,right,bias} of a Compacter |
| shared_parameters.NAME.phm_rule | rule |
| loras.NAME.lora_A [r, in], lora_B [out, r] | as PEFT's (`interop.peft`) |
| loras.NAME.lora_B [out, 1] of composition_mode "scale" | scale [N, out]: (IA)^3, "before" |
| invertible_adapters.NAME.{F,G}.{0,2} | invertible/{f,g}/{down,up} |
| prefix_tuning, prompt_tuning | `interop.adapters_heads` |

The site after attention is "attention.output" in BERT and layer.0 in T5. The site after the
feed-forward block is "output" in BERT and the last layer.I in T5. The site after cross-attention is
layer.1 of a T5's decoder. The names of tensors determine which member of a union they belong to.

Supported for export are bottlenecks, Compacter, both with an invertible adapter, LoRA, (IA)^3
"before", prefixes, prompts and unions of these; other adapters raise an error. Exported names have
no prefix of a model class; the library adds it.

Source: adapter-hub/adapters 1.3, methods/bottleneck.py, lora.py, loading.py,
configuration/adapter_config.py.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.bottleneck import Bottleneck, Residual
from t5x_lite.adapters.bottleneck_variants import Compacter, Hyper, Invertible
from t5x_lite.adapters.delta_merging import Union
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.adapters.prefix import Prefix, Prompt
from t5x_lite.core.errors import InputError
from t5x_lite.interop import adapters_heads, peft
from t5x_lite.interop.adapters_heads import ADAPTER_TORCH as TORCH
from t5x_lite.interop.adapters_heads import (
    BOTTLENECK,
    LORA,
    ClassHeadFile,
    LibraryFile,
    LibraryHead,
    read_head,
    read_module,
)
from t5x_lite.interop.encoder_checkpoints import Hosts
from t5x_lite.interop.peft import CONFIG, head_arrays
from t5x_lite.interop.rules import check_finite
from t5x_lite.interop.tensor_files import write_torch
from t5x_lite.models.heads import Head
from t5x_lite.nn.dense import Activation

_SITES = {
    "attention.output": "after_attention",
    "output": "after_mlp",
    "encoder layer.0": "after_attention",
    "encoder layer.1": "after_mlp",
    "decoder layer.0": "after_attention",
    "decoder layer.1": "after_cross_attention",
    "decoder layer.2": "after_mlp",
}
"""Adapter sites (such as "after_mlp"), by module name in the library `adapters`."""
_LEAVES = {
    "adapter_down.weight": "down/kernel",
    "adapter_down.bias": "down/bias",
    "adapter_down.W_left": "down/left",
    "adapter_down.W_right": "down/right",
    "adapter_down.b": "down/bias",
    "adapter_up.weight": "up/kernel",
    "adapter_up.bias": "up/bias",
    "adapter_up.W_left": "up/left",
    "adapter_up.W_right": "up/right",
    "adapter_up.b": "up/bias",
    "adapter_norm_before.weight": "norm_before/scale",
    "adapter_norm_before.bias": "norm_before/bias",
    "adapter_norm_after.weight": "norm_after/scale",
    "adapter_norm_after.bias": "norm_after/bias",
    "scaling": "scale",
    "gate.weight": "gate/kernel",
    "gate.bias": "gate/bias",
}
_BLOCKS = {
    "mh_adapter": "after_attention",
    "output_adapter": "after_mlp",
    "cross_adapter": "after_cross_attention",
}
"""Adapter site (such as "after_attention") that a config field of the library enables."""
_RESIDUALS: dict[Any, Residual] = {True: "pre", False: "post_ln", "post_add": "post_add"}
"""Value of `Bottleneck.residual`, by the library's field residual_before_ln."""
_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "non_linearity": ("activation", str),
    "scaling": ("scale", lambda value: value),
    "dropout": ("dropout_rate", float),
    "ln_before": ("ln_before", bool),
    "original_ln_after": ("original_ln_after", bool),
}
"""Field of `Bottleneck` and its type, by config field of the library `adapters`."""
_GATE = {"gate.weight": "gate/kernel", "gate.bias": "gate/bias"}
"""Parameter names of a LoRA's gate, by tensor name in the library `adapters`."""
_INVERTIBLE = {"F": "f", "G": "g", "0": "down", "2": "up", "weight": "kernel", "bias": "bias"}

_MARKERS = {
    None: (".adapters.", "shared_parameters.", "invertible_adapters."),
    "lora": (".loras.",),
    "prefix_tuning": ("prefix_tunings.", "prefix_gates."),
}
"""Parts of tensor names by adapter kind, to assign tensors to the adapters of a union."""


def site_of(stack: str, above: str) -> str | None:
    """Return the site of an adapter, such as "after_mlp"; None for unknown module names."""
    return _SITES.get(above) or _SITES.get(f"{stack} {above}")


def holders(hosts: Hosts) -> dict[tuple[str, str], str]:
    """Map (stack, site) to a module name of the library `adapters`, with "{}" for the layer."""
    is_t5 = any(stack == "decoder" for stack, _ in hosts.kernels)
    body = "block" if is_t5 else "layer"
    found = {}
    for said, site in _SITES.items():
        stack, _, above = said.rpartition(" ")
        if is_t5 == bool(stack):
            stack = stack or "encoder"
            found[stack, site] = f"{stack}.{body}.{{}}.{above}"
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraryDirectory(LibraryFile):
    """Contents of an adapter directory of the library `adapters`, with an optional task head.

    Attributes:
      head: task head in the directory, or None.
    """

    head: LibraryHead | ClassHeadFile | None = None

    def kept(self) -> dict[str, np.ndarray]:
        return dict(self.head.tensors) if isinstance(self.head, ClassHeadFile) else {}

    def head_config(self) -> Mapping[str, Any]:
        return self.head.said() if isinstance(self.head, ClassHeadFile) else {}

    def without_kept(self) -> "LibraryDirectory":
        return dataclasses.replace(self, head=None)

    def module(self, hosts: Hosts, *, name: str, norms: peft.Norms) -> peft.Module:
        del norms
        return with_head(to_module(self, hosts, name=name), self.head, hosts)


def read_library(directory: Path) -> LibraryDirectory:
    """Read an adapter and its head from a directory of the library `adapters`."""
    return LibraryDirectory(**vars(read_module(directory)), head=read_head(directory))


def with_head(
    module: peft.Module, head: LibraryHead | ClassHeadFile | None, hosts: Hosts
) -> peft.Module:
    """Add a task head to an imported adapter."""
    if isinstance(head, LibraryHead):
        return head.beside(module)
    if head is None:
        return module
    arrays = head_arrays(head.where, head.tensors, hosts)
    return dataclasses.replace(module, arrays={**module.arrays, **arrays})


def to_module(file: LibraryFile, hosts: Hosts, *, name: str) -> peft.Module:
    """Convert an adapter of the library `adapters` into a t5x_lite adapter."""
    kind = file.config["architecture"]
    if kind == "union":
        return _union(file, hosts, name=name)
    if kind == "prefix_tuning":
        return adapters_heads.prefix(file, hosts, name=name)
    if kind == "prompt_tuning":
        return adapters_heads.prompt(file, hosts, name=name)
    if kind == "lora":
        return _lora(file, hosts, name=name)
    arrays = _bottleneck_arrays(file, hosts)
    inverse = _invertible_arrays(file)
    sites = {path.split("/")[1] for path in arrays if path != "rule"}
    if not arrays:
        raise InputError(f"{file.where}: contains no tensor of the adapter {file.name!r}")
    adapter: Adapter = _bottleneck(file, sites, name=name)
    if not inverse:
        return _module(adapter, arrays)
    rest = file.config["inv_adapter_reduction_factor"]
    nice = Invertible(name=name, reduction=int(rest or 2))
    union = Union(name=name, members=(adapter, nice))
    method = type(adapter).__name__.lower()
    own = {f"{method}/{path}": array for path, array in arrays.items()}
    return _module(union, {**own, **{f"invertible/{path}": x for path, x in inverse.items()}})


def _union(file: LibraryFile, hosts: Hosts, *, name: str) -> peft.Module:
    left, made = dict(file.tensors), []
    for config in file.config["configs"]:
        markers = _MARKERS.get(config["architecture"])
        if markers is None:
            raise InputError(
                f"{file.config_file}: a ConfigUnion with an adapter of architecture "
                f"{config['architecture']!r} is not supported"
            )
        own = {k: x for k, x in left.items() if any(marker in f".{k}" for marker in markers)}
        left = {k: x for k, x in left.items() if k not in own}
        member = dataclasses.replace(file, config=config, tensors=own)
        made.append(to_module(member, hosts, name=name))
    if left:
        raise InputError(f"{file.where}: the tensor {min(left)} belongs to no supported adapter")
    try:
        union = Union(name=name, members=tuple(each.adapter for each in made))
    except InputError as error:
        raise InputError(f"{file.config_file}: {error}") from error
    arrays = {}
    for each in made:
        method = type(each.adapter).__name__.lower()
        start = f"{ADAPTERS}{name}/"
        arrays |= {f"{method}/{k.removeprefix(start)}": x for k, x in each.arrays.items()}
    return _module(union, arrays)


def _module(adapter: Adapter, arrays: Mapping[str, np.ndarray]) -> peft.Module:
    below = f"{ADAPTERS}{adapter.name}/"
    return peft.Module(adapter=adapter, arrays={below + path: x for path, x in arrays.items()})


def _bottleneck(file: LibraryFile, sites: set[str], *, name: str) -> Bottleneck:
    """Return the t5x_lite config of a bottleneck or Compacter adapter."""
    config, where = file.config, file.config_file
    wanted = {site: config[field] for field, site in _BLOCKS.items()}
    for site in sites:
        if not wanted[site]:
            raise InputError(
                f"{file.where}: the file has adapter tensors at the layer position {site}, but the "
                f"config {where} disables adapters at this position"
            )
    reduction, reductions = config["reduction_factor"], ()
    if isinstance(reduction, dict):
        found = {key: float(value) for key, value in reduction.items()}
        reduction = found.pop("default", next(iter(found.values()), 16.0))
        reductions = tuple((int(key), value) for key, value in sorted(found.items()))
    reads = "sum" if config["original_ln_before"] else "output"
    after = "sum" if config["adapter_residual_before_ln"] else "branch"
    options: dict[str, Any] = {
        "name": name,
        "sites": tuple(site for site in wanted if site in sites),
        "reduction": float(reduction),
        "reads": "input" if config["is_parallel"] else reads,
        "residual": _RESIDUALS[config["residual_before_ln"]],
        "ln_after": after if config["ln_after"] else "none",
        "gate": "all_tokens" if config["use_gating"] else "none",
        **{ours: kind(config[field]) for field, (ours, kind) in _FIELDS.items()},
    }
    if config["is_parallel"] and (config["ln_before"] or config["ln_after"]):
        raise InputError(
            f"{where}: ln_before and ln_after are not supported in a parallel bottleneck "
            "(is_parallel)"
        )
    if config["non_linearity"] not in get_args(Activation):
        raise InputError(
            f"{where}: non_linearity {config['non_linearity']!r} is not supported, only "
            f"{', '.join(get_args(Activation))}"
        )
    try:
        if not config["phm_layer"]:
            left = tuple(map(int, config["leave_out"]))
            return Bottleneck(**options, reductions=reductions, leave_out=left)
        plain = {"factorized_phm_W": True, "shared_phm_rule": True, "phm_bias": True}
        plain |= {"shared_W_phm": False, "factorized_phm_rule": False}
        for field, value in plain.items():
            if config[field] != value:
                raise InputError(f"{where}: {field} {config[field]} is not supported")
        return Compacter(**options, phm_dim=config["phm_dim"], phm_rank=config["phm_rank"])
    except (InputError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def _bottleneck_arrays(file: LibraryFile, hosts: Hosts) -> dict[str, np.ndarray]:
    """Return a bottleneck's arrays by path, with zeros for layers without an adapter."""
    found: dict[str, dict[int, np.ndarray]] = {}
    rule = {}
    pattern = re.compile(
        r"(?:.*\.)?(encoder|decoder)\.(?:layer|block)\.(\d+)\.(.*)\.adapters\."
        rf"{re.escape(file.name)}\.(.*)"
    )
    for name, array in file.tensors.items():
        if name.endswith(f"shared_parameters.{file.name}.phm_rule"):
            rule["rule"] = array
            continue
        match = pattern.fullmatch(name)
        if match is None:
            if "invertible_adapters" not in name:
                raise InputError(f"{file.where}: the tensor {name} belongs to no supported adapter")
            continue
        stack, layer, above, part = match.groups()
        part = re.sub(r"adapter_down\.[01]\.", "adapter_down.", part)
        if file.config["ln_before"] and ".adapter_down.0." in name:
            continue  # the norm, which the file also has under its own name
        site = site_of(stack, above)
        if site is None or part not in _LEAVES:
            raise InputError(
                f"{file.where}: the tensor {name} is at a position in the layer where t5x_lite "
                "has no adapters"
            )
        leaf = _LEAVES[part]
        array = array.T if leaf.endswith("kernel") else array
        found.setdefault(f"{stack}/{site}/{leaf}", {})[int(layer)] = array
    if file.config["phm_layer"] and found and not rule:
        raise InputError(
            f"{file.where}: lacks shared_parameters.{file.name}.phm_rule, which all layers of a "
            "Compacter share (the library does not save it for a T5); add this parameter of "
            "the model to the file"
        )
    numbers = {stack: shape[0] for (stack, _), shape in hosts.kernels.items()}
    made = {}
    for path, by_layer in found.items():
        stack = path.partition("/")[0]
        num = numbers.get(stack, 0)
        first = numbers.get("encoder", 0) if stack == "decoder" else 0
        left = {int(layer) - first for layer in file.config["leave_out"]}
        if max(by_layer) >= num:
            raise InputError(
                f"{file.where}: the adapter array {path} has a tensor for layer {max(by_layer)}, "
                f"but the base has only {num} layers"
            )
        missing = set(range(num)) - set(by_layer) - left
        if missing:
            raise InputError(
                f"{file.where}: the adapter array {path} has no tensor for layer {min(missing)}"
            )
        if odd := left & set(by_layer):
            raise InputError(
                f"{file.where}: the adapter array {path} has a tensor for layer {min(odd)}, but "
                f"leave_out in {file.config_file} excludes this layer"
            )
        shape = np.max([array.shape for array in by_layer.values()], axis=0)
        whole = np.zeros((num, *shape), np.float32)
        for layer, array in by_layer.items():
            whole[(layer, *map(slice, array.shape))] = array
        made[path] = whole
    return {**made, **rule}


def _invertible_arrays(file: LibraryFile) -> dict[str, np.ndarray]:
    """Return the arrays of an invertible adapter by path; {} if the file has none."""
    kind = file.config["inv_adapter"]
    if not kind:
        return {}
    activation = file.config["non_linearity"]
    if kind != "nice" or str(activation) != "relu":
        raise InputError(
            f"{file.config_file}: inv_adapter {kind!r} with non_linearity {activation} is not "
            "supported, only 'nice' with relu"
        )
    pattern = (
        rf"(?:.*\.)?invertible_adapters\.{re.escape(file.name)}\.([FG])\.([02])\.(weight|bias)"
    )
    found = {}
    for name, array in file.tensors.items():
        if match := re.fullmatch(pattern, name):
            path = "/".join(_INVERTIBLE[part] for part in match.groups())
            found[f"encoder/invertible/{path}"] = array.T
    if len(found) != 8:
        raise InputError(f"{file.where}: an invertible adapter needs 8 tensors, got {len(found)}")
    return found


def _lora(file: LibraryFile, hosts: Hosts, *, name: str) -> peft.Module:
    """Convert a LoRA or (IA)^3 of the library `adapters`."""
    config = file.config
    mode, is_gated = config["composition_mode"], bool(config["use_gating"])
    if mode not in ("add", "scale") or (is_gated and mode == "scale"):
        what = "(IA)^3 with use_gating" if is_gated else f"composition_mode {mode!r}"
        raise InputError(f"{file.config_file}: adapter config {what} is not supported")
    marker = f".loras.{file.name}."
    tensors: dict[str, np.ndarray] = {}
    gates: dict[tuple[str, str], np.ndarray] = {}
    for tensor, array in file.tensors.items():
        layer, found, leaf = tensor.partition(marker)
        if found and is_gated and leaf in _GATE:
            gates[layer, _GATE[leaf]] = array
            continue
        if not found or leaf not in ("lora_A", "lora_B"):
            raise InputError(f"{file.where}: the tensor {tensor} belongs to no supported adapter")
        tensors[f"{layer}.{leaf}.weight"] = array
    if mode == "scale":
        return _ia3(file, tensors, hosts, name=name)
    # The library ignores the scale of a gated LoRA.
    alpha = config["r"] if is_gated else config["alpha"]
    said = {"peft_type": "LORA", "r": config["r"], "lora_alpha": alpha}
    said["lora_dropout"] = config["dropout"]
    as_peft = peft.PeftFile(
        where=file.where, config_file=file.config_file, config=said, tensors=tensors
    )
    made = peft.to_module(as_peft, hosts, name=name, norms=_no_norms)
    return _gated(file, made, gates, hosts) if is_gated else made


def _gated(
    file: LibraryFile,
    module: peft.Module,
    gates: Mapping[tuple[str, str], np.ndarray],
    hosts: Hosts,
) -> peft.Module:
    if any(stack == "decoder" for stack, _ in hosts.kernels):
        raise InputError(
            f"{file.config_file}: use_gating is not supported in a decoder, because the "
            "library's gate reads tokens that the decoder has not produced yet"
        )
    start = f"{ADAPTERS}{module.adapter.name}/"
    arrays = {
        f"{path.removesuffix('/a')}/gate/{leaf}": np.full((len(x), *shape), np.nan, np.float32)
        for path, x in module.arrays.items()
        if path.endswith("/a")
        for leaf, shape in (("kernel", (x.shape[1], 1)), ("bias", (1,)))
    }
    for (layer, leaf), array in gates.items():
        if (hit := hosts.find(layer)) is not None:
            place = hosts.places[hit[0]]
            path = f"{start}{place.stack}/{place.site}/{leaf}"
            if path in arrays and arrays[path].shape[1:] == array.T.shape:
                arrays[path][place.layer] = array.T
    for path, array in arrays.items():
        if np.isnan(array).any():
            raise InputError(f"{file.where}: lacks a tensor of the gate {path.removeprefix(start)}")
    adapter = dataclasses.replace(module.adapter, gate="all_tokens")
    return peft.Module(adapter=adapter, arrays={**module.arrays, **arrays})


def _no_norms(site: peft.Site) -> np.ndarray:
    raise ValueError(f"column norms of the layer {site} are not available")


def _ia3(
    file: LibraryFile, tensors: Mapping[str, np.ndarray], hosts: Hosts, *, name: str
) -> peft.Module:
    """Convert an (IA)^3 of the library `adapters`."""
    arrays: dict[str, np.ndarray] = {}
    there: dict[str, set[int]] = {}
    for tensor, array in tensors.items():
        layer, _, leaf = tensor.removesuffix(".weight").rpartition(".")
        hit = hosts.find(layer)
        if hit is None:
            raise InputError(
                f"{file.where}: the (IA)^3 has a tensor for {layer}, which is not a dense layer of "
                "the base"
            )
        if leaf == "lora_A":
            continue
        place = hosts.places[hit[0]]
        layers, _, out = hosts.kernels[place.stack, place.site]
        if array.size != out:
            raise InputError(
                f"{file.where}: the tensor {tensor} has {array.size} values, but the layer has "
                f"{out} outputs"
            )
        path = f"{place.stack}/{place.site}/scale"
        arrays.setdefault(path, np.ones((layers, out), np.float32))[place.layer] = array.reshape(-1)
        there.setdefault(path, set()).add(place.layer)
    short = next((path for path, found in there.items() if len(found) < len(arrays[path])), None)
    if short is not None or not arrays:
        raise InputError(
            f"{file.where}: (IA)^3 must have tensors for all layers; incomplete: {short}"
        )
    sites = dict.fromkeys(path.partition("/")[2].removesuffix("/scale") for path in arrays)
    outputs = tuple(site for site in sites if not site.startswith("mlp/"))
    usual = {site for _, site in hosts.kernels if re.fullmatch(Ia3().sites[0], site)}
    said: dict[str, Any] = {} if set(outputs) == usual else {"sites": outputs}
    made = Ia3(name=name, place="before", feed_forward="mlp/in" in sites, **said)
    return _module(made, arrays)


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
"""Model class in the library `adapters`, by model_type."""
_IN_UNIONS = (Lora, Ia3, Bottleneck, Prefix)
_MATRICES = {"query": "q", "key": "k", "value": "v"}
_LORA_BLOCKS = {"mlp/in": "intermediate_lora", "mlp/out": "output_lora"}

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
    """Write an adapter for the library `adapters`; return True if a task head was also written."""
    said = f"checkpoint {where}: adapter {adapter.name!r}"
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
    return adapters_heads.write_head(
        directory, head, arrays, name=adapter.name, said=about_it, where=where
    )


def about(hosts: Hosts, *, base: str) -> dict[str, Any]:
    """Return the fields of an exported adapter_config.json that describe the base model."""
    _, d_model, _ = next(iter(hosts.kernels.values()))
    return {
        "hidden_size": d_model,
        "model_class": _CLASSES.get(hosts.model_type),  # the class that its heads are loaded into
        "model_name": base,
        "model_type": hosts.model_type,
        "version": _VERSION,
    }


def _files(
    adapter: Adapter, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    if isinstance(adapter, Lora):
        return _lora_files(adapter, own, hosts, said=said)
    if isinstance(adapter, Ia3):
        return _ia3_files(adapter, own, hosts, said=said)
    if isinstance(adapter, Bottleneck) and not isinstance(adapter, Hyper):
        return _bottleneck_files(adapter, own, hosts, said=said)
    if isinstance(adapter, Prefix):
        return adapters_heads.prefix_files(adapter, own, hosts, said=said)
    if isinstance(adapter, Prompt):
        return adapters_heads.prompt_files(adapter, own, hosts, said=said)
    if isinstance(adapter, Union) and len(adapter.members) == 2:
        block, nice = adapter.members
        is_plain = not isinstance(block, Hyper)
        if is_plain and isinstance(block, Bottleneck) and isinstance(nice, Invertible):
            return _with_inverse(block, nice, own, hosts, said=said)
    if isinstance(adapter, Union):
        return _union_files(adapter, own, hosts, said=said)
    raise InputError(
        f"{said}: the library `adapters` does not support {type(adapter).__name__}; only "
        "bottlenecks, Compacter, LoRA, (IA)^3, prefixes, prompts, and unions of these can be "
        "exported"
    )


def _union_files(
    adapter: Union, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    configs, tensors = [], {}
    for member in adapter.members:
        start = f"{type(member).__name__.lower()}/"
        arrays = {k.removeprefix(start): x for k, x in own.items() if k.startswith(start)}
        if not isinstance(member, _IN_UNIONS):
            raise InputError(
                f"{said}: the library `adapters` does not support a {type(member).__name__} in a "
                "ConfigUnion"
            )
        config, theirs = _files(member, arrays, hosts, said=said)
        configs.append(config)
        if both := tensors.keys() & theirs.keys():
            raise InputError(
                f"{said}: two adapters of the ConfigUnion would have the same tensor {min(both)} "
                "in the library `adapters`"
            )
        tensors |= theirs
    return {"architecture": "union", "configs": configs}, tensors


def _bottleneck_files(
    adapter: Bottleneck, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    refused = {
        "reads='normed'": adapter.reads == "normed",
        "gate='real_tokens'": adapter.gate == "real_tokens",
        "layer norms and reads='input'": adapter.reads == "input"
        and (adapter.ln_before or adapter.ln_after != "none"),
    }
    if bad := next((what for what, is_so in refused.items() if is_so), None):
        raise InputError(f"{said}: the library `adapters` does not support a bottleneck with {bad}")
    reduction: Any = adapter.reduction
    if adapter.reductions:
        reduction = {"default": reduction, **{str(k): value for k, value in adapter.reductions}}
    sites = {path.split("/")[1] for path in own if path != "rule"}
    residuals = {ours: theirs for theirs, ours in _RESIDUALS.items()}
    config = {
        **BOTTLENECK,
        **{field: site in sites for field, site in _BLOCKS.items()},
        **{field: getattr(adapter, ours) for field, (ours, _) in _FIELDS.items()},
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
    num = {stack: shape[0] for (stack, _), shape in hosts.kernels.items()}
    first = {"encoder": 0, "decoder": num.get("encoder", 0)}
    names = {leaf: name for name, leaf in _LEAVES.items()}
    if not isinstance(adapter, Compacter):  # a Compacter's biases have other names
        names |= {"down/bias": "adapter_down.bias", "up/bias": "adapter_up.bias"}
    places = holders(hosts)
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
    if block.activation != "relu":
        raise InputError(
            f"{said}: the invertible adapter has the activation relu, but in the library "
            f"`adapters` it would get the bottleneck's activation {block.activation}"
        )
    start = f"{type(block).__name__.lower()}/"
    mine = {path.removeprefix(start): x for path, x in own.items() if path.startswith(start)}
    config, tensors = _bottleneck_files(block, mine, hosts, said=said)
    config |= {"inv_adapter": "nice", "inv_adapter_reduction_factor": nice.reduction}
    above = "encoder." if ("decoder", "attention/query") in hosts.kernels else ""
    parts = {ours: theirs for theirs, ours in _INVERTIBLE.items()}
    for path, array in own.items():
        if path.startswith("invertible/"):
            names = [parts[part] for part in path.split("/")[-3:]]
            tensors[f"{above}invertible_adapters.{block.name}.{'.'.join(names)}"] = array.T
    return config, tensors


def _lora_files(
    adapter: Lora, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    if adapter.dora:
        raise InputError(f"{said}: DoRA cannot be exported to the library `adapters`")
    if adapter.gate == "real_tokens":
        raise InputError(
            f"{said}: the library `adapters` does not support a LoRA with gate='real_tokens'"
        )
    if adapter.rank_pattern or adapter.alpha_pattern:
        raise InputError(
            f"{said}: a LoRA of the library `adapters` has one rank and one alpha, so "
            "rank_pattern and alpha_pattern cannot be exported"
        )
    adapter, own = adapter.plain(own)
    is_gated = adapter.gate != "none"  # the library then ignores the scale
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
            for theirs, ours in _GATE.items() if is_gated else ():
                tensors[f"{above}.{theirs}"] = own[f"{site}/{ours}"][place.layer].T
    alpha = adapter.rank if is_gated else adapter.scale * adapter.rank
    whole = int(alpha) if float(alpha).is_integer() else alpha
    places = _lora_places(sites, hosts, said=said)
    said_of = {"r": adapter.rank, "alpha": whole, "use_gating": is_gated}
    said_of["dropout"] = adapter.dropout
    return {**LORA, "architecture": "lora", **said_of, **places}, tensors


def _ia3_files(
    adapter: Ia3, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    if adapter.attention_out or (adapter.feed_forward and adapter.place == "after"):
        raise InputError(
            f"{said}: (IA)^3 of the library `adapters` scales no attention outputs, and the "
            "feed-forward block only before its activation; only ia3(place='before', "
            "attention_out=False) can be exported"
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
    names = {site.partition("/")[2].removeprefix("cross_") for site in sites}
    wanted = {
        f"{stack}/{site}" for stack, site in hosts.kernels if site.removeprefix("cross_") in names
    }
    matrices = [short for name, short in _MATRICES.items() if f"attention/{name}" in names]
    known = {f"attention/{name}" for name in _MATRICES} | set(_LORA_BLOCKS)
    if (odd := sorted(names - known)) or wanted != sites:
        raise InputError(
            f"{said}: the library `adapters` supports LoRA only on query, key, value, "
            "intermediate and output of all stacks, so this adapter cannot be exported: "
            f"{', '.join(odd or sorted(wanted - sites))}"
        )
    blocks = {field: site in names for site, field in _LORA_BLOCKS.items()}
    return {"selfattn_lora": bool(matrices), "attn_matrices": matrices, **blocks}
