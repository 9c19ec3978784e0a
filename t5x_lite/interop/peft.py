"""Import of PEFT's adapters: LoRA, with rsLoRA and DoRA, and (IA)^3.

    adapter_config.json            {"peft_type": "LORA", "r": 8, "lora_alpha": 16, ...}
    adapter_model.safetensors      base_model.model.HOST.lora_A.weight [r, in]; or .bin

HOST is Hugging Face's name of a dense layer (`interop.module_hosts`). N is the number of layers.

| PEFT tensor | parameter, below adapters/NAME/STACK/SITE |
|---|---|
| lora_A.weight [r, in], lora_B.weight [out, r] | a [N, in, r], b [N, r, out] |
| lora_magnitude_vector [out], of DoRA | magnitude [N, out], minus the column norms of the base |
| ia3_l [out, 1] | scale [N, out] of the layer's output |
| ia3_l [1, in], of feedforward_modules | scale [N, in] of the layer's input, at mlp/hidden |
| base_model.model.classifier.weight, of modules_to_save | heads/classifier/out/kernel |

An adapter of t5x_lite has one rank, one scale, and the same sites in each layer and stack. A file
may have other values in some layers (rank_pattern, alpha_pattern, layers_to_transform, a regular
expression). Then A and B are padded with zeros, which have zero gradients, and B is rescaled; the
outputs are equal.

Unsupported settings raise an error: a bias, an initialization that changes the base (pissa, olora,
corda, loftq), trained tokens, replicated layers. `interop.peft_prompts` converts prompts and
prefixes, and `interop.peft_writing` exports adapters. Source: huggingface/peft 0.21, config.py,
tuners/lora, tuners/ia3, utils/save_and_load.py.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.interop.module_hosts import Hosts
from t5x_lite.interop.peft_files import (
    CONFIG,
    head_arrays,
    is_target,
    number_of,
    of_pattern,
    read_config,
)
from t5x_lite.interop.rules import check_finite
from t5x_lite.interop.tensor_files import read_safetensors
from t5x_lite.interop.torch_files import read_torch
from t5x_lite.models.heads import Head

SAFETENSORS = "adapter_model.safetensors"
_TORCH = "adapter_model.bin"
PREFIX = "base_model.model."
MAGNITUDE, SCALE = "lora_magnitude_vector", "ia3_l"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a LoRA layer (A, B or magnitude), with its conversion to and from PEFT.

    The t5x_lite array is PEFT's tensor transposed, and maybe scaled or minus the column norms of
    the base model's kernel.

    Attributes:
      ours: name of the array in t5x_lite.
      theirs: suffix of the tensor name in PEFT.
      axes: names of the axes in PEFT; t5x_lite has them in reverse order.
      scaled: True to multiply by the ratio of the layer's alpha / r to the adapter's alpha / r.
      less_norms: True to store the difference from the column norms of the base's kernel.
    """

    ours: str
    theirs: str
    axes: tuple[str, ...]
    scaled: bool = False
    less_norms: bool = False

    def shape(self, **sizes: int) -> tuple[int, ...]:
        """Return the shape of the PEFT tensor for the given sizes of the axes."""
        return tuple(sizes[axis] for axis in self.axes)

    def to_ours(self, tensor: np.ndarray, *, factor: np.float32, norms: Any) -> np.ndarray:
        """Convert a layer's PEFT tensor; `norms` [out] are the column norms of the base kernel."""
        array = tensor.T * factor if self.scaled else tensor.T
        return array - norms if self.less_norms else array

    def to_theirs(self, array: np.ndarray, *, norms: Any) -> np.ndarray:
        return (array + norms if self.less_norms else array).T


_A, _B = Leaf("a", "lora_A.weight", ("r", "in")), Leaf("b", "lora_B.weight", ("out", "r"), True)
_DIRECTION = Leaf("magnitude", MAGNITUDE, ("out",), less_norms=True)


def lora_leaves(*, dora: bool) -> tuple[Leaf, ...]:
    """Return the arrays of a LoRA layer: A and B, and the magnitude for DoRA."""
    return (_A, _B, _DIRECTION) if dora else (_A, _B)


_LEAVES = {"LORA": tuple(leaf.theirs for leaf in lora_leaves(dora=True)), "IA3": (SCALE,)}
"""Suffixes of PEFT's tensor names, by peft_type."""
HIDDEN = {"mlp/out": "mlp/hidden", "attention/out": "attention/hidden"} | {
    "cross_attention/out": "cross_attention/hidden"
}
"""Adapter site of the input of a dense layer, by adapter site of the layer."""

Site = tuple[str, str]
"""Stack ("encoder" or "decoder") and adapter site (such as "mlp/out") of a dense layer."""
Norms = Callable[[Site], np.ndarray]
"""Function (adapter site) -> column norms [N, out] of its base kernel, for DoRA."""

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeftFile:
    """PEFT directory with a LoRA or (IA)^3 adapter.

    Attributes:
      where: file of the tensors.
      config_file: adapter_config.json.
      config: content of adapter_config.json.
      tensors: float32 tensors by name without "base_model.model.".
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    library: ClassVar[str] = "peft"
    """Folder of an imported checkpoint that keeps adapter_config.json."""

    @property
    def leaves(self) -> tuple[str, ...]:
        return _LEAVES[self.config["peft_type"]]

    def kept(self) -> dict[str, np.ndarray]:
        """Return the tensors of PEFT's modules_to_save, such as heads and replaced base arrays."""
        ends = tuple(f".{leaf}" for leaf in self.leaves)
        return {name: array for name, array in self.tensors.items() if not name.endswith(ends)}

    def head_config(self) -> Mapping[str, Any]:
        """Return the fields of adapter_config.json that describe a task head."""
        return {"task_type": self.config.get("task_type")}

    def module(self, hosts: Hosts, *, name: str, norms: Norms) -> "Module":
        return to_module(self, hosts, name=name, norms=norms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
    """One or more imported adapters in t5x_lite's layout, with their head and composition.

    Attributes:
      adapter: config of the adapter.
      arrays: float32 arrays of the adapters, and of a head in the directory, by path.
      others: configs of further adapters.
      use: composition of the adapters, as in the config field `adapters.use`.
      head: config of a head in the directory that has no class in transformers for the base, or
        None.
    """

    adapter: Adapter
    arrays: Mapping[str, np.ndarray]
    others: Sequence[Adapter] = ()
    use: str = ""
    head: Head | None = None


def read_peft(directory: Path) -> PeftFile:
    """Read a PEFT directory with a LoRA or (IA)^3 adapter."""
    config = read_config(directory)
    path, arrays = arrays_of(directory)
    tensors: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not name.startswith(PREFIX):
            raise InputError(f"{path}: the tensor name {name} must begin with {PREFIX}")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise InputError(
                f"{path}: {name} has dtype {array.dtype}, but weights must be floating-point"
            )
        check_finite(path, name, array)
        # Files from before 0.12 store DoRA's magnitudes as parameters of a module.
        short = name.removeprefix(PREFIX).replace(f"{MAGNITUDE}.weight", MAGNITUDE)
        tensors[short] = np.asarray(array, np.float32)
    return PeftFile(where=path, config_file=directory / CONFIG, config=config, tensors=tensors)


def arrays_of(directory: Path) -> tuple[Path, Mapping[str, Any]]:
    """Return the tensor file of a PEFT directory, and its tensors by name."""
    path, torch = directory / SAFETENSORS, directory / _TORCH
    if path.is_file():
        return path, read_safetensors(path)
    if torch.is_file():
        return torch, read_torch(torch)
    raise InputError(f"{directory}: contains neither {SAFETENSORS} nor {_TORCH}")


def to_module(file: PeftFile, hosts: Hosts, *, name: str, norms: Norms) -> Module:
    """Convert a LoRA or (IA)^3 of PEFT into a t5x_lite adapter."""
    by_layer, names = _by_place(file, hosts)
    if file.config["peft_type"] == "IA3":
        adapter, arrays = _to_ia3(file, hosts, by_layer, name=name)
    else:
        adapter, arrays = _to_lora(file, hosts, by_layer, name=name, names=names, norms=norms)
    module = {
        f"{ADAPTERS}{name}/{stack}/{site}/{leaf}": array
        for (stack, site, leaf), array in arrays.items()
    }
    return Module(adapter=adapter, arrays={**module, **head_arrays(file.where, file.kept(), hosts)})


def _by_place(
    file: PeftFile, hosts: Hosts
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, str]]:
    by_layer: dict[str, dict[str, np.ndarray]] = {}
    names: dict[str, str] = {}
    prefix = ""
    for name, array in file.tensors.items():
        leaf = next((leaf for leaf in file.leaves if name.endswith(f".{leaf}")), None)
        if leaf is None:
            if "lora_" in name or "ia3_" in name:
                raise InputError(f"{file.where}: the tensor {name} belongs to no supported adapter")
            continue
        layer = name.removesuffix(f".{leaf}")
        hit = hosts.find(layer)
        if hit is None:
            raise InputError(
                f"{file.where}: {name} belongs to the layer {layer}, but the base has no such "
                "dense layer that supports adapters"
            )
        written, prefix = hit
        names[written] = layer
        if leaf in by_layer.setdefault(written, {}):
            raise InputError(
                f"{file.where}: {name} belongs to a layer that the file also has under another name"
            )
        by_layer[written][leaf] = array
    if not by_layer:
        raise InputError(
            f"{file.where}: contains no adapter tensor, such as {' or '.join(file.leaves)}"
        )
    _check_targets(file, hosts, by_layer, prefix=prefix)
    wanted = {SCALE} if file.config["peft_type"] == "IA3" else {_A.theirs, _B.theirs}
    if file.config.get("use_dora"):
        wanted.add(MAGNITUDE)
    for written, leaves in by_layer.items():
        if difference := trees.difference(wanted, leaves):
            raise InputError(
                f"{file.where}: the tensors of the layer {written} are incomplete or unknown: "
                f"{difference}"
            )
    return by_layer, names


def _check_targets(
    file: PeftFile, hosts: Hosts, by_layer: Mapping[str, Any], *, prefix: str
) -> None:
    """Raise InputError if a file's layers do not match target_modules in its config."""
    config, where = file.config, file.config_file
    if config.get("target_modules") is None:
        return
    bodies = {written: prefix + body for body, written in hosts.bodies.items()}
    named = [
        written
        for written, body in bodies.items()
        if is_target(where, config, "target_modules", body)
        and not is_target(where, config, "exclude_modules", body)
    ]
    if config.get("layers_to_transform") is not None:  # only some of the named layers
        named = [written for written in named if written in by_layer]
    if difference := trees.difference(named, by_layer):
        raise InputError(f"{file.where}: the layers do not match target_modules: {difference}")


def _to_lora(
    file: PeftFile,
    hosts: Hosts,
    by_layer: Mapping[str, Mapping[str, np.ndarray]],
    *,
    name: str,
    names: Mapping[str, str],
    norms: Norms,
) -> tuple[Lora, dict[tuple[str, str, str], np.ndarray]]:
    config, where = file.config, file.config_file
    stabilised, dora = bool(config.get("use_rslora")), bool(config.get("use_dora"))
    if config.get("lora_dropout"):
        _logger.warning("%s: ignoring lora_dropout, which only affects training", where)
    rank = number_of(where, "r", config.get("r", 8), least=1)
    alpha = number_of(where, "lora_alpha", config.get("lora_alpha", 8), least=1e-6)
    ranks, alphas = {}, {}
    for written in by_layer:
        ranks[written] = of_pattern(where, config, "rank_pattern", names[written], rank)
        ranks[written] = number_of(where, "rank_pattern", ranks[written], least=1)
        alphas[written] = of_pattern(where, config, "alpha_pattern", names[written], alpha)
        alphas[written] = number_of(where, "alpha_pattern", alphas[written], least=0)
    whole = max(ranks.values())
    _check_lora(file, hosts, by_layer, ranks)
    common = (alphas[min(by_layer)] if len({*alphas.values()}) == 1 else alpha) or alpha
    made = Lora(
        name=name,
        rank=int(whole),
        alpha=float(common),
        rank_stabilised=stabilised,
        dora=dora,
        **_sites(hosts, by_layer, default=Lora().sites),
    )
    arrays: dict[tuple[str, str, str], np.ndarray] = {}
    for site in _all_sites(hosts, by_layer):
        layers, features_in, features_out = hosts.kernels[site]
        for leaf in lora_leaves(dora=dora):
            shape = leaf.shape(r=made.rank, **{"in": features_in, "out": features_out})[::-1]
            arrays[*site, leaf.ours] = np.zeros((layers, *shape), np.float32)
    for written, tensors in by_layer.items():
        place, r = hosts.places[written], int(ranks[written])
        site = (place.stack, place.site)
        factor = np.float32(alphas[written] / (math.sqrt(r) if stabilised else r) / made.scale)
        norm = norms(site)[place.layer] if dora else None
        for leaf in lora_leaves(dora=dora):
            array = leaf.to_ours(tensors[leaf.theirs], factor=factor, norms=norm)
            arrays[*site, leaf.ours][(place.layer, *map(slice, array.shape))] = array
    return made, arrays


def _check_lora(
    file: PeftFile,
    hosts: Hosts,
    by_layer: Mapping[str, Mapping[str, np.ndarray]],
    ranks: Mapping[str, int | float],
) -> None:
    """Raise InputError if LoRA tensors have wrong shapes, or DoRA is missing in some layers."""
    dora = bool(file.config.get("use_dora"))
    if dora:
        _check_everywhere(file, hosts, by_layer)
    for written, tensors in by_layer.items():
        place = hosts.places[written]
        _, features_in, features_out = hosts.kernels[place.stack, place.site]
        sizes = {"r": int(ranks[written]), "in": features_in, "out": features_out}
        for leaf in lora_leaves(dora=dora):
            name = f"{written}.{leaf.theirs}"
            _check_shape(file, name, tensors[leaf.theirs], leaf.shape(**sizes))


def _to_ia3(
    file: PeftFile, hosts: Hosts, by_layer: Mapping[str, Mapping[str, np.ndarray]], *, name: str
) -> tuple[Ia3, dict[tuple[str, str, str], np.ndarray]]:
    _check_everywhere(file, hosts, by_layer)
    arrays: dict[tuple[str, str, str], np.ndarray] = {}
    outputs: dict[str, None] = {}
    for written, leaves in by_layer.items():
        place, tensor = hosts.places[written], leaves[SCALE]
        layers, features_in, features_out = hosts.kernels[place.stack, place.site]
        reads = tensor.shape == (1, features_in) and tensor.shape != (features_out, 1)
        if reads and place.site not in HIDDEN:
            raise InputError(
                f"{file.where}: {written} is in feedforward_modules, but only the inputs of "
                f"{' and '.join(HIDDEN)} can be scaled"
            )
        if not reads:
            _check_shape(file, f"{written}.{SCALE}", tensor, (features_out, 1))
            outputs[place.site] = None
        site = HIDDEN[place.site] if reads else place.site
        key = (place.stack, site, "scale")
        if key not in arrays:
            arrays[key] = np.ones((layers, tensor.size), np.float32)
        arrays[key][place.layer] = tensor.reshape(-1)
    hidden = {site for _, site, _ in arrays if site.endswith("hidden")}
    attention = hidden - {"mlp/hidden"}
    if not outputs:
        raise InputError(
            f"{file.where}: the adapter scales no layer outputs; (IA)^3 adapters without output "
            "scales are not supported"
        )
    made = Ia3(
        name=name,
        feed_forward="mlp/hidden" in hidden,
        attention_out=bool(attention),
        **_named_sites(hosts, set(outputs), default=Ia3().sites),
    )
    crosses = any(site == "cross_attention/out" for _, site in hosts.kernels)
    if attention and crosses and len(attention) == 1:
        raise InputError(
            f"{file.where}: (IA)^3 must scale the input of the output layer in both attention "
            "and cross-attention, or in none, but scales only one"
        )
    return made, arrays


def _all_sites(hosts: Hosts, by_layer: Iterable[str]) -> list[Site]:
    sites = {hosts.places[written].site for written in by_layer}
    return [(stack, site) for stack, site in hosts.kernels if site in sites]


def _sites(hosts: Hosts, by_layer: Iterable[str], *, default: tuple[str, ...]) -> dict[str, Any]:
    sites = {hosts.places[written].site for written in by_layer}
    return _named_sites(hosts, sites, default=default)


def _named_sites(hosts: Hosts, sites: set[str], *, default: tuple[str, ...]) -> dict[str, Any]:
    all_sites = dict.fromkeys(site for _, site in hosts.kernels)
    usual = {site for site in all_sites if any(trees.covers(each, site) for each in default)}
    return {} if sites == usual else {"sites": tuple(site for site in all_sites if site in sites)}


def _check_everywhere(file: PeftFile, hosts: Hosts, by_layer: Mapping[str, Any]) -> None:
    """Raise InputError if an adapter that is required in all layers is missing in some."""
    sites = {hosts.places[written].site for written in by_layer}
    wanted = [written for written, place in hosts.places.items() if place.site in sites]
    if difference := trees.difference(wanted, by_layer):
        what = "use_dora" if file.config["peft_type"] == "LORA" else "(IA)^3"
        raise InputError(
            f"{file.where}: {what} must be in all layers and stacks, but is only in some: "
            f"{difference}"
        )


def _check_shape(file: PeftFile, name: str, tensor: np.ndarray, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise InputError(
            f"{file.where}: {name} has shape {tensor.shape}, but its config and the base need "
            f"{shape}"
        )
