"""Import and export of PEFT's prefix tuning and prompt tuning.

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
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.prefix import Prefix, Prompt, ejected
from t5x_lite.core.errors import InputError
from t5x_lite.interop.hf import read_json
from t5x_lite.interop.module_hosts import Hosts
from t5x_lite.interop.peft import Module, Norms, arrays_of
from t5x_lite.interop.peft_files import CONFIG, TASKS, head_arrays, number_of
from t5x_lite.interop.rules import check_finite

ROWS = "prompt_embeddings"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Contents of a PEFT directory with virtual tokens (of a prefix or prompt tuning).

    Attributes:
      where: file of the tensors.
      config_file: adapter_config.json.
      config: content of adapter_config.json.
      number: number of virtual tokens, P.
      rows: float32 rows of the virtual tokens, [P, N], or [2 P, N] for two prompts.
      others: other float32 tensors by name.
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    number: int
    rows: np.ndarray
    others: Mapping[str, np.ndarray]


def read_table(directory: Path, *, may_be_double: bool = False) -> Table:
    """Read a PEFT directory with virtual tokens; `may_be_double` allows two prompts."""
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
    """PEFT directory of a prefix tuning: `rows` [P, 2 N J], and tensors of a trained head."""

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
        """Convert the prefixes into a t5x_lite adapter; `norms` is ignored."""
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
    """Convert a prefix tuning to PEFT; return the fields of adapter_config.json, and the tensor."""
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
            f"{said}: PEFT needs equal prefixes in layer l and layer l + {num_layers // 2} for "
            "an even number of layers, but they differ; use `--format adapters`, or merge the "
            "adapter"
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
    """Return for each layer the index of its keys and values in PEFT's prefix tensor."""
    return [2 * layer % num_layers if several else layer for layer in range(num_layers)]


def _stack(hosts: Hosts, *, where: object) -> tuple[str, int]:
    """Return the stack ("encoder" or "decoder") with the prefixes, and its number of layers."""
    if hosts.model_type.startswith("deberta"):
        raise InputError(f"{where}: PEFT does not support prefixes for {hosts.model_type}")
    stack = "decoder" if ("decoder", "attention/key") in hosts.kernels else "encoder"
    return stack, hosts.kernels[stack, "attention/key"][0]


PROMPT_KIND = "PROMPT_TUNING"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptFile:
    """PEFT directory of a prompt tuning; `rows` is the first prompt, float32 [P, D]."""

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    rows: np.ndarray

    library: ClassVar[str] = "peft"

    def kept(self) -> dict[str, np.ndarray]:
        """Return {}, because a prompt directory contains no head."""
        return {}

    def head_config(self) -> Mapping[str, Any]:
        return {"task_type": self.config.get("task_type")}

    def module(self, hosts: Hosts, *, name: str, norms: Norms) -> Module:
        """Convert the prompt into a t5x_lite adapter; `norms` is ignored."""
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
    """Convert a prompt tuning to PEFT; return the fields of adapter_config.json, and the tensor."""
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
