"""PEFT's prefix tuning and prompt tuning, in and out, and the writer of PEFT's directories.

Import and export of PEFT's prefix tuning and prompt tuning.

    adapter_config.json            {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 20, ...}
    adapter_model.safetensors      prompt_embeddings, and the tensors of a trained head; or .bin

`prompt_embeddings` has one row for each of the P virtual tokens.

Prefix tuning of a T5, a BERT or a RoBERTa has prompt_embeddings [P, 2 N J]. A row is the
concatenation of the keys and values of N layers, with J = H K numbers each. The network that
computed the rows in training is not in the file. The prefix is to the left of the tokens
(`Prefix(place="left")`): T5's relative bias covers the prefix, and the positions of a BERT's tokens
start after it. In a T5 only the decoder's self-attention has a prefix. There PEFT repeats the rows
and takes every second pair of keys and values, so layer l reads pair 2 l mod N. With an even number
of layers, N / 2 pairs are each read by two layers and the other pairs are unused.

Prompt tuning of a T5 has prompt_embeddings [P, D] or [2 P, D]. Both libraries prepend the rows to
the encoder's tokens. For sequence-to-sequence models PEFT stores two prompts by default
(`num_transformer_submodules` 2) and reads only the first, which is imported. On an encoder PEFT
adds positions to the rows and applies the first norm to them. t5x_lite prepends the rows after both
steps, so prompts of encoders cannot be converted.

Source: huggingface/peft 0.21, tuners/{prefix_tuning,prompt_tuning}, utils/save_and_load.py,
peft_model.py (PeftModel.get_prompt, PeftModelForSeq2SeqLM.forward).

Export of adapters to PEFT directories, the inverse of `interop.peft`.

    write_peft(directory, Lora(...), arrays, hosts, norms=norms, base="t5-v1_1-small", where=step)

`target_modules` contains short names, such as "q" and "v", if they match only the adapted layers,
and otherwise a regular expression.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.lora import EMBEDDING, Ia3, Lora
from t5x_lite.adapters.prefix import Prefix, Prompt, ejected
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import LazyArray
from t5x_lite.interop.encoder_checkpoints import Hosts, head_modules
from t5x_lite.interop.encoders import MODEL
from t5x_lite.interop.hf import read_json
from t5x_lite.interop.peft import (
    CONFIG,
    HIDDEN,
    PREFIX,
    SAFETENSORS,
    SCALE,
    TASKS,
    Module,
    Norms,
    Site,
    arrays_of,
    changed_base,
    expression_of,
    head_arrays,
    lora_leaves,
    number_of,
    targets_of,
)
from t5x_lite.interop.rules import check_finite
from t5x_lite.interop.tensor_files import write_safetensors

ROWS = "prompt_embeddings"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Contents of a PEFT directory with virtual tokens (of a prefix or prompt tuning).

    Attributes:
      where: file of the tensors.
      config_file: adapter_config.json.
      config: content of adapter_config.json.
      number: number of virtual tokens.
      rows: float32 vectors of the virtual tokens, one row per token.
      others: other float32 tensors by name.
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    number: int
    rows: np.ndarray
    others: Mapping[str, np.ndarray]


def read_table(directory: Path, *, may_be_double: bool = False) -> Table:
    """Read the virtual tokens of a prefix or prompt tuning from a PEFT directory."""
    where = directory / CONFIG
    config = read_json(where)
    number = number_of(where, "num_virtual_tokens", config.get("num_virtual_tokens"), least=1)
    path, tensors = arrays_of(directory)
    if ROWS not in tensors:
        raise InputError(f"{path}: contains no tensor {ROWS}")
    found = {}
    for name, array in tensors.items():
        check_finite(path, name, array)
        found[name] = np.asarray(array, np.float32)
    rows = found.pop(ROWS)
    counts = (number, 2 * number) if may_be_double else (number,)
    if rows.ndim != 2 or len(rows) not in counts:
        raise InputError(
            f"{path}: {ROWS} has shape {rows.shape}, but {CONFIG} has {number} virtual tokens"
        )
    return Table(
        where=path, config_file=where, config=config, number=number, rows=rows, others=found
    )


PREFIX_KIND = "PREFIX_TUNING"
HEAD = "base_model."
"""Prefix of the tensor names of a head that was trained with the prompts."""
_PREFIX = "attention/prefix"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixFile:
    """PEFT directory of a prefix tuning."""

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    rows: np.ndarray
    head: Mapping[str, np.ndarray]

    library: ClassVar[str] = "peft"

    def kept(self) -> dict[str, np.ndarray]:
        return dict(self.head)

    def head_config(self) -> Mapping[str, Any]:
        return {"task_type": self.config.get("task_type")}

    def module(self, hosts: Hosts, *, name: str, norms: Norms) -> Module:
        del norms
        stack, num_layers = _stack(hosts, where=self.where)
        config, where = self.config, self.config_file
        several = stack == "decoder"
        said = config.get("num_transformer_submodules")
        if said != (2 if several else 1):
            raise InputError(
                f"{where}: num_transformer_submodules {said} is not supported; it must be 2 for an "
                "encoder-decoder and 1 for an encoder"
            )
        width = hosts.kernels[stack, "attention/key"][2]
        for field, wanted in (
            ("num_layers", num_layers),
            ("num_attention_heads", hosts.num_heads),
            ("token_dim", width),
        ):
            if config.get(field) != wanted:
                raise InputError(
                    f"{where}: {field} is {config.get(field)}, but the base's {stack} has {wanted}"
                )
        length = len(self.rows)
        if self.rows.shape[1] != 2 * num_layers * width:
            raise InputError(
                f"{self.where}: {ROWS} has {self.rows.shape[1]} columns, but {2 * num_layers} keys "
                f"and values of size {width} need {2 * num_layers * width}"
            )
        sizes = (hosts.num_heads, width // hosts.num_heads)
        pairs = self.rows.reshape(length, num_layers, 2, *sizes).transpose(1, 2, 0, 3, 4)
        pairs = pairs[_pairs(num_layers, several=several)]
        adapter = Prefix(
            name=name, length=length, flat=True, encoder=not several, cross=False, place="left"
        )
        own = f"{ADAPTERS}{name}/{stack}/{_PREFIX}"
        arrays = {f"{own}/keys": pairs[:, 0], f"{own}/values": pairs[:, 1]}
        arrays = {path: np.ascontiguousarray(array) for path, array in arrays.items()}
        return Module(adapter=adapter, arrays=arrays | head_arrays(self.where, self.head, hosts))


def is_prefix(directory: Path) -> bool:
    """Return True if a PEFT directory contains a prefix tuning."""
    where = directory / CONFIG
    return where.is_file() and read_json(where).get("peft_type") == PREFIX_KIND


def read_prefix(directory: Path) -> PrefixFile:
    """Read a PEFT directory of a prefix tuning."""
    table = read_table(directory)
    for name in table.others:
        if not name.startswith(HEAD):
            raise InputError(
                f"{table.where}: the tensor {name} is neither {ROWS} nor a tensor of a "
                f"head, {HEAD}..."
            )
    return PrefixFile(
        where=table.where,
        config_file=table.config_file,
        config=table.config,
        rows=table.rows,
        head={name.removeprefix(HEAD): array for name, array in table.others.items()},
    )


def prefix_of(
    adapter: Prefix, arrays: Mapping[str, np.ndarray], hosts: Hosts, *, where: object
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return PEFT's config fields and tensor for a prefix tuning."""
    said = f"checkpoint {where}: adapter {adapter.name!r}"
    stack, num_layers = _stack(hosts, where=said)
    several = stack == "decoder"
    _, flat = ejected(adapter, arrays)
    own = f"{ADAPTERS}{adapter.name}/{stack}/{_PREFIX}"
    if set(flat) != {f"{own}/keys", f"{own}/values"}:
        raise InputError(
            f"{said}: PEFT supports prefixes of a T5 only in the decoder's self-attention and "
            "without a gate; only prefix(encoder=False, cross=False, place='left') can be "
            "exported"
        )
    if adapter.place != "left":
        raise InputError(
            f"{said}: PEFT's prefixes have positions to the left of the tokens, but this prefix "
            "has no positions; only prefix(place='left') can be exported"
        )
    pairs = np.stack([np.asarray(flat[f"{own}/{leaf}"]) for leaf in ("keys", "values")], axis=1)
    theirs = np.zeros_like(pairs)
    places = _pairs(num_layers, several=several)
    theirs[places] = pairs
    if not np.array_equal(theirs[places], pairs):
        raise InputError(
            f"{said}: PEFT stores equal prefixes for any two layers {num_layers // 2} apart, but "
            "the adapter's prefixes differ; use `--format adapters`, or merge the adapter"
        )
    width = hosts.kernels[stack, "attention/key"][2]
    length = pairs.shape[2]
    task = None if hosts.head is None else hosts.head.name
    tasks = {name: kind for kind, name in TASKS.items()}
    config = {
        "peft_type": PREFIX_KIND,
        "task_type": "SEQ_2_SEQ_LM" if several else tasks.get(str(task), "FEATURE_EXTRACTION"),
        "num_virtual_tokens": length,
        "token_dim": width,
        "num_transformer_submodules": 2 if several else 1,
        "num_attention_heads": hosts.num_heads,
        "num_layers": num_layers,
        "encoder_hidden_size": width,  # size of the network, which is not in the file
        "prefix_projection": False,
    }
    return config, {ROWS: theirs.transpose(2, 0, 1, 3, 4).reshape(length, -1)}


def _pairs(num_layers: int, *, several: bool) -> list[int]:
    return [2 * layer % num_layers if several else layer for layer in range(num_layers)]


def _stack(hosts: Hosts, *, where: object) -> tuple[str, int]:
    if hosts.model_type.startswith("deberta"):
        raise InputError(f"{where}: PEFT does not support prefixes for {hosts.model_type}")
    stack = "decoder" if ("decoder", "attention/key") in hosts.kernels else "encoder"
    return stack, hosts.kernels[stack, "attention/key"][0]


PROMPT_KIND = "PROMPT_TUNING"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptFile:
    """PEFT directory of a prompt tuning."""

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    rows: np.ndarray

    library: ClassVar[str] = "peft"

    def kept(self) -> dict[str, np.ndarray]:
        return {}

    def head_config(self) -> Mapping[str, Any]:
        return {"task_type": self.config.get("task_type")}

    def module(self, hosts: Hosts, *, name: str, norms: Norms) -> Module:
        del norms
        check_t5(self.where, hosts)
        d_model = hosts.kernels["encoder", "attention/query"][1]
        if self.rows.shape[1] != d_model:
            raise InputError(
                f"{self.where}: {ROWS} has {self.rows.shape[1]} columns, but the base's d_model is "
                f"{d_model}"
            )
        path = f"{ADAPTERS}{name}/encoder/prompt/rows"
        return Module(adapter=Prompt(name=name, length=len(self.rows)), arrays={path: self.rows})


def is_prompt(directory: Path) -> bool:
    """Return True if a PEFT directory contains a prompt tuning."""
    where = directory / CONFIG
    return where.is_file() and read_json(where).get("peft_type") == PROMPT_KIND


def read_prompt(directory: Path) -> PromptFile:
    """Read a PEFT directory of a prompt tuning."""
    table = read_table(directory, may_be_double=True)
    if table.others:
        raise InputError(
            f"{table.where}: expected only the tensor {ROWS}, but found {sorted(table.others)[0]}"
        )
    return PromptFile(
        where=table.where,
        config_file=table.config_file,
        config=table.config,
        rows=table.rows[: table.number],
    )


def prompt_of(
    adapter: Prompt, arrays: Mapping[str, np.ndarray], hosts: Hosts, *, where: object
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return PEFT's config fields and tensor for a prompt tuning."""
    check_t5(where, hosts)
    if adapter.init == "vocab":
        raise InputError(
            f"checkpoint {where}: adapter {adapter.name!r} stores differences from token "
            "embeddings (init='vocab'), but PEFT stores embeddings, so it cannot be exported"
        )
    rows = arrays[f"{ADAPTERS}{adapter.name}/encoder/prompt/rows"]
    layers, d_model, inner = hosts.kernels["encoder", "attention/query"]
    said = {
        "peft_type": PROMPT_KIND,
        "task_type": "SEQ_2_SEQ_LM",
        "num_virtual_tokens": len(rows),
        "token_dim": d_model,
        "num_transformer_submodules": 1,
        "num_attention_heads": inner,  # not used for prompts
        "num_layers": layers,
        "prompt_tuning_init": "RANDOM",
    }
    return said, {ROWS: rows}


def check_t5(where: object, hosts: Hosts) -> None:
    """Raise InputError unless the base model is a T5."""
    if ("decoder", "cross_attention/query") not in hosts.kernels:
        raise InputError(
            f"{where}: prompts of PEFT can be converted only for T5, because on an encoder PEFT "
            "adds positions and a norm to the prompt"
        )


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
    if isinstance(adapter, Lora):
        adapter, arrays = adapter.plain(arrays)
    own = f"{ADAPTERS}{adapter.name}/"
    leaves: dict[Site, dict[str, np.ndarray]] = {}
    for path, array in arrays.items():
        if path.startswith(own):
            stack, *site, leaf = path.removeprefix(own).split("/")
            leaves.setdefault((stack, "/".join(site)), {})[leaf] = array
    if EMBEDDING in adapter.sites:
        raise InputError(
            f"checkpoint {where}: adapter {adapter.name!r} adapts the token embedding, but PEFT "
            "does not apply this change to the tied output layer; merge the adapter, or train it "
            f"without the site {EMBEDDING!r}"
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
    """Raise InputError if PEFT does not support the adapter."""
    if not tensors:
        raise InputError(
            f"{module} changes no layer, because all its weights are 0 or it has no layers"
        )
    known = {(place.stack, place.site) for place in hosts.places.values()}
    known |= {(stack, HIDDEN[site]) for stack, site in known if site in HIDDEN}
    if homeless := sorted(leaves.keys() - known):
        raise InputError(
            f"{module}: PEFT has no dense layer for the adapter at {'/'.join(homeless[0])}"
        )


def _task(hosts: Hosts) -> str | None:
    """Return PEFT's task_type, such as "SEQ_CLS", or None."""
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
    """Return the PEFT config fields and tensors of a LoRA."""
    tensors: dict[str, np.ndarray] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    table = lora_leaves(dora=adapter.dora)
    for written, place in hosts.places.items():
        site = (place.stack, place.site)
        if site not in leaves:
            continue
        path = f"{place.stack}/{place.layer}/{place.site}"
        rank = adapter.rank_at(path)
        arrays = {
            leaf: leaves[site][leaf.ours][leaf.of_layer(place.layer, rank=rank)] for leaf in table
        }
        if not adapter.dora and not any(array.any() for array in arrays.values()):
            continue
        ranks[written], alphas[written] = rank, adapter.alpha_at(path)
        norm = norms(site)[place.layer] if adapter.dora else None
        for leaf, array in arrays.items():
            tensors[f"{written}.{leaf.theirs}"] = leaf.to_theirs(array, norms=norm)
    said = {
        "peft_type": "LORA",
        "bias": "none",
        "r": adapter.rank,
        "lora_alpha": _number(adapter.alpha),
        "lora_dropout": adapter.dropout,
        "target_modules": targets_of(ranks, hosts.places),
        "use_rslora": adapter.rank_stabilised,
        "use_dora": adapter.dora,
        "rank_pattern": _pattern_of(ranks, adapter.rank, hosts),
        "alpha_pattern": _pattern_of(alphas, adapter.alpha, hosts),
        "init_lora_weights": True,
    }
    return said, tensors


def _number(value: float | int) -> float | int:
    return int(value) if float(value).is_integer() else value


def _pattern_of(values: Mapping[str, Any], default: float | int, hosts: Hosts) -> dict[str, Any]:
    """Return PEFT's rank_pattern or alpha_pattern, for layers with non-default values."""
    layers: dict[float | int, list[str]] = {}
    for written, value in values.items():
        if value != default:
            layers.setdefault(value, []).append(written)
    return {expression_of(names, hosts.places): _number(value) for value, names in layers.items()}


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
