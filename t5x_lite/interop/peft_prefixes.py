"""Prefix tuning of PEFT on a T5, a BERT or a RoBERTa, in and out.

    adapter_config.json            {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 20, ...}
    adapter_model.safetensors      prompt_embeddings [P, 2 N J], or .bin; and a head that trained

A row is keys and values of the N layers one after the other, J = H K of each; a network that made
them is not in the file. They lie to the left of the tokens (`Prefix(place="left")`): T5's relative
bias reaches them, and a BERT's tokens have the positions behind them. In a T5 they are in the
decoder's self-attention alone. There PEFT repeats the table and takes every second pair, so layer l
has pair 2 l mod N: an even number of layers shares N / 2 of them, and the others are read by none.

Source: huggingface/peft 0.21, tuners/prefix_tuning, peft_model.py (PeftModel.get_prompt).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.prefix import Prefix, ejected
from t5x_lite.errors import InputError
from t5x_lite.interop.hf_config import read_json
from t5x_lite.interop.module_hosts import Hosts
from t5x_lite.interop.peft import Module, Norms
from t5x_lite.interop.peft_config import CONFIG
from t5x_lite.interop.peft_heads import TASKS, head_arrays
from t5x_lite.interop.peft_tables import ROWS, read_table

KIND = "PREFIX_TUNING"
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
        """A module of ours.

        Raises:
          InputError: the base has no such prefixes, or is of another size.
        """
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
    return where.is_file() and read_json(where).get("peft_type") == KIND


def read_prefix(directory: Path) -> PrefixFile:
    """What a directory holds.

    Raises:
      InputError: it is incomplete or damaged.
    """
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
    """The fields of adapter_config.json, and the table; a network is left out.

    Args:
      adapter: config of the module.
      arrays: its arrays by path.
      hosts: the layers of the base.
      where: the checkpoint, for messages.

    Raises:
      InputError: PEFT has no such prefixes.
    """
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
        "peft_type": KIND,
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
    """The stack that has the prefixes, and its layers.

    Raises:
      InputError: PEFT has none for the base.
    """
    if hosts.model_type.startswith("deberta"):
        raise InputError(f"{where}: PEFT has no prefixes for {hosts.model_type}")
    stack = "decoder" if ("decoder", "attention/key") in hosts.kernels else "encoder"
    return stack, hosts.kernels[stack, "attention/key"][0]
