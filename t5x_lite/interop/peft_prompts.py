"""Prefix tuning and prompt tuning of PEFT, in and out.

Prefix tuning of PEFT on a T5, a BERT or a RoBERTa, in and out.

    adapter_config.json            {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 20, ...}
    adapter_model.safetensors      prompt_embeddings [P, 2 N J], or .bin; and a head that trained

A row is keys and values of the N layers one after the other, J = H K of each; a network that made
them is not in the file. They lie to the left of the tokens (`Prefix(place="left")`): T5's relative
bias reaches them, and a BERT's tokens have the positions behind them. In a T5 they are in the
decoder's self-attention alone. There PEFT repeats the table and takes every second pair, so layer l
has pair 2 l mod N: an even number of layers shares N / 2 of them, and the others are read by none.

Source: huggingface/peft 0.21, tuners/prefix_tuning, peft_model.py (PeftModel.get_prompt).

Prompt tuning of PEFT on a T5, in and out.

    adapter_config.json            {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20, ...}
    adapter_model.safetensors      prompt_embeddings [P, D], or [2 P, D]; or .bin

The rows stand before the encoder's tokens there and here. For a sequence-to-sequence model PEFT
makes a table of two prompts by default (`num_transformer_submodules` 2) and reads the first alone,
so that is what is read. On an encoder PEFT's rows go through positions and the first norm, which
ours do not: there the two cannot interchange.

Source: huggingface/peft 0.21, tuners/prompt_tuning, peft_model.py (PeftModelForSeq2SeqLM.forward).

The table of virtual tokens that PEFT's prompts and prefixes are.

    adapter_config.json            {"num_virtual_tokens": 20, ...}
    adapter_model.safetensors      prompt_embeddings [P, N], and a head's tensors; or .bin

Source: huggingface/peft 0.21, peft_model.py (PeftModel.get_prompt), utils/save_and_load.py.
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
    """What a directory holds.

    Attributes:
      where: the file of the tensors.
      config_file: adapter_config.json.
      config: the content of that.
      number: virtual tokens, P.
      rows: [P, N], or where there may be twice as many [2 P, N]; float32.
      others: the other tensors by name; float32.
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    number: int
    rows: np.ndarray
    others: Mapping[str, np.ndarray]


def read_table(directory: Path, *, may_be_double: bool = False) -> Table:
    """Reads a directory of PEFT."""
    where = directory / CONFIG
    config = read_json(where)
    number = number_of(where, "num_virtual_tokens", config.get("num_virtual_tokens"), least=1)
    path, tensors = arrays_of(directory)
    if ROWS not in tensors:
        raise InputError(f"{path}: holds no {ROWS}")
    found = {}
    for name, array in tensors.items():
        check_finite(path, name, array)
        found[name] = np.asarray(array, np.float32)
    rows = found.pop(ROWS)
    counts = (number, 2 * number) if may_be_double else (number,)
    if rows.ndim != 2 or len(rows) not in counts:
        raise InputError(
            f"{path}: {ROWS} has shape {rows.shape}, and {CONFIG} says {number} virtual tokens"
        )
    return Table(
        where=path, config_file=where, config=config, number=number, rows=rows, others=found
    )


PREFIX_KIND = "PREFIX_TUNING"
HEAD = "base_model."
"""Beginning of the names of a head's tensors."""
_PREFIX = "attention/prefix"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixFile:
    """A directory of PEFT that holds prefixes.

    Attributes:
      where: the file of the tensors.
      config_file: adapter_config.json.
      config: the content of that.
      rows: [P, 2 N J]; float32.
      head: the tensors of a head that trained, by name; float32.
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    rows: np.ndarray
    head: Mapping[str, np.ndarray]

    library: ClassVar[str] = "peft"

    def kept(self) -> dict[str, np.ndarray]:
        """The tensors of a head."""
        return dict(self.head)

    def head_config(self) -> Mapping[str, Any]:
        """Return what the directory says of a head."""
        return {"task_type": self.config.get("task_type")}

    def module(self, hosts: Hosts, *, name: str, norms: Norms) -> Module:
        """A module of ours."""
        del norms
        stack, num_layers = _stack(hosts, where=self.where)
        config, where = self.config, self.config_file
        several = stack == "decoder"
        said = config.get("num_transformer_submodules")
        if said != (2 if several else 1):
            raise InputError(
                f"{where}: num_transformer_submodules {said}: of an encoder-decoder 2 are read, "
                "and of an encoder 1"
            )
        width = hosts.kernels[stack, "attention/key"][2]
        for field, wanted in (
            ("num_layers", num_layers),
            ("num_attention_heads", hosts.num_heads),
            ("token_dim", width),
        ):
            if config.get(field) != wanted:
                raise InputError(
                    f"{where}: {field} {config.get(field)}, and the base's {stack} has {wanted}"
                )
        length = len(self.rows)
        if self.rows.shape[1] != 2 * num_layers * width:
            raise InputError(
                f"{self.where}: {ROWS} has {self.rows.shape[1]} columns, and {2 * num_layers} keys "
                f"and values of {width} numbers would be {2 * num_layers * width}"
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
    """Whether a directory of PEFT says that it holds prefixes."""
    where = directory / CONFIG
    return where.is_file() and read_json(where).get("peft_type") == PREFIX_KIND


def read_prefix(directory: Path) -> PrefixFile:
    """What a directory holds."""
    table = read_table(directory)
    for name in table.others:
        if not name.startswith(HEAD):
            raise InputError(f"{table.where}: {name} is neither {ROWS} nor of a head, {HEAD}...")
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
    """The fields of adapter_config.json, and the table; a network is left out."""
    said = f"checkpoint {where}: module {adapter.name!r}"
    stack, num_layers = _stack(hosts, where=said)
    several = stack == "decoder"
    _, flat = ejected(adapter, arrays)
    own = f"{ADAPTERS}{adapter.name}/{stack}/{_PREFIX}"
    if set(flat) != {f"{own}/keys", f"{own}/values"}:
        raise InputError(
            f"{said}: PEFT's prefixes of a T5 are in the decoder's self-attention alone, and have "
            "no gate: prefix(encoder=False, cross=False, place='left') is written"
        )
    if adapter.place != "left":
        raise InputError(
            f"{said}: PEFT's prefixes lie to the left of the tokens, and this one lies nowhere: "
            "prefix(place='left') is written"
        )
    pairs = np.stack([np.asarray(flat[f"{own}/{leaf}"]) for leaf in ("keys", "values")], axis=1)
    theirs = np.zeros_like(pairs)
    places = _pairs(num_layers, several=several)
    theirs[places] = pairs
    if not np.array_equal(theirs[places], pairs):
        raise InputError(
            f"{said}: PEFT reads one pair for layer l and for layer l + {num_layers // 2} of an "
            "even number of layers, and these differ here: use `--format adapters`, or merge"
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
        "encoder_hidden_size": width,  # of a network, which the file does not have
        "prefix_projection": False,
    }
    return config, {ROWS: theirs.transpose(2, 0, 1, 3, 4).reshape(length, -1)}


def _pairs(num_layers: int, *, several: bool) -> list[int]:
    """The pair of keys and values that each layer reads."""
    return [2 * layer % num_layers if several else layer for layer in range(num_layers)]


def _stack(hosts: Hosts, *, where: object) -> tuple[str, int]:
    """The stack that has the prefixes, and its layers."""
    if hosts.model_type.startswith("deberta"):
        raise InputError(f"{where}: PEFT has no prefixes for {hosts.model_type}")
    stack = "decoder" if ("decoder", "attention/key") in hosts.kernels else "encoder"
    return stack, hosts.kernels[stack, "attention/key"][0]


PROMPT_KIND = "PROMPT_TUNING"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptFile:
    """A directory of PEFT that holds a prompt.

    Attributes:
      where: the file of the tensor.
      config_file: adapter_config.json.
      config: the content of that.
      rows: the first prompt [P, D]; float32.
    """

    where: Path
    config_file: Path
    config: Mapping[str, Any]
    rows: np.ndarray

    library: ClassVar[str] = "peft"

    def kept(self) -> dict[str, np.ndarray]:
        """No tensor is of a head."""
        return {}

    def head_config(self) -> Mapping[str, Any]:
        """Return what the directory says of a head."""
        return {"task_type": self.config.get("task_type")}

    def module(self, hosts: Hosts, *, name: str, norms: Norms) -> Module:
        """A module of ours."""
        del norms
        check_t5(self.where, hosts)
        d_model = hosts.kernels["encoder", "attention/query"][1]
        if self.rows.shape[1] != d_model:
            raise InputError(
                f"{self.where}: {ROWS} has {self.rows.shape[1]} columns, and the base's d_model is "
                f"{d_model}"
            )
        path = f"{ADAPTERS}{name}/encoder/prompt/rows"
        return Module(adapter=Prompt(name=name, length=len(self.rows)), arrays={path: self.rows})


def is_prompt(directory: Path) -> bool:
    """Whether a directory of PEFT says that it holds a prompt."""
    where = directory / CONFIG
    return where.is_file() and read_json(where).get("peft_type") == PROMPT_KIND


def read_prompt(directory: Path) -> PromptFile:
    """What a directory holds."""
    table = read_table(directory, may_be_double=True)
    if table.others:
        raise InputError(f"{table.where}: holds {sorted(table.others)[0]}, and not {ROWS} alone")
    return PromptFile(
        where=table.where,
        config_file=table.config_file,
        config=table.config,
        rows=table.rows[: table.number],
    )


def prompt_of(
    adapter: Prompt, arrays: Mapping[str, np.ndarray], hosts: Hosts, *, where: object
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The fields of adapter_config.json, and the tensor."""
    check_t5(where, hosts)
    if adapter.init == "vocab":
        raise InputError(
            f"checkpoint {where}: module {adapter.name!r} holds differences from rows of the table "
            "of tokens (init='vocab'), and PEFT's prompt the rows themselves"
        )
    rows = arrays[f"{ADAPTERS}{adapter.name}/encoder/prompt/rows"]
    layers, d_model, inner = hosts.kernels["encoder", "attention/query"]
    said = {
        "peft_type": PROMPT_KIND,
        "task_type": "SEQ_2_SEQ_LM",
        "num_virtual_tokens": len(rows),
        "token_dim": d_model,
        "num_transformer_submodules": 1,
        "num_attention_heads": inner,  # which no prompt reads
        "num_layers": layers,
        "prompt_tuning_init": "RANDOM",
    }
    return said, {ROWS: rows}


def check_t5(where: object, hosts: Hosts) -> None:
    """Refuses a base that is no T5, by an InputError."""
    if ("decoder", "cross_attention/query") not in hosts.kernels:
        raise InputError(
            f"{where}: a prompt of PEFT on an encoder goes through its positions and first norm, "
            "and one of ours stands behind them: prompts interchange for T5 alone"
        )
