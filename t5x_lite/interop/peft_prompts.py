"""Prompt tuning of PEFT on a T5, in and out.

    adapter_config.json            {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 20, ...}
    adapter_model.safetensors      prompt_embeddings [P, D], or [2 P, D]; or .bin

The rows stand before the encoder's tokens there and here. For a sequence-to-sequence model PEFT
makes a table of two prompts by default (`num_transformer_submodules` 2) and reads the first alone,
so that is what is read. On an encoder PEFT's rows go through positions and the first norm, which
ours do not: there the two cannot interchange.

Source: huggingface/peft 0.21, tuners/prompt_tuning, peft_model.py (PeftModelForSeq2SeqLM.forward).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.prompt import Prompt
from t5x_lite.errors import InputError
from t5x_lite.interop.hf_config import read_json
from t5x_lite.interop.module_hosts import Hosts
from t5x_lite.interop.peft import Module, Norms
from t5x_lite.interop.peft_config import CONFIG
from t5x_lite.interop.peft_tables import ROWS, read_table

KIND = "PROMPT_TUNING"


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
        """A module of ours.

        Raises:
          InputError: the base is no T5, or of another size.
        """
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
    return where.is_file() and read_json(where).get("peft_type") == KIND


def read_prompt(directory: Path) -> PromptFile:
    """What a directory holds.

    Raises:
      InputError: it is incomplete or damaged.
    """
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
    """The fields of adapter_config.json, and the tensor.

    Args:
      adapter: config of the module.
      arrays: its array by path.
      hosts: the layers of the base.
      where: the checkpoint, for messages.

    Raises:
      InputError: PEFT has no such prompt.
    """
    check_t5(where, hosts)
    if adapter.init == "vocab":
        raise InputError(
            f"checkpoint {where}: module {adapter.name!r} holds differences from rows of the table "
            "of tokens (init='vocab'), and PEFT's prompt the rows themselves"
        )
    rows = arrays[f"{ADAPTERS}{adapter.name}/encoder/prompt/rows"]
    layers, d_model, inner = hosts.kernels["encoder", "attention/query"]
    said = {
        "peft_type": KIND,
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
