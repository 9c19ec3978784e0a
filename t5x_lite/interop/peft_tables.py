"""The table of virtual tokens that PEFT's prompts and prefixes are.

    adapter_config.json            {"num_virtual_tokens": 20, ...}
    adapter_model.safetensors      prompt_embeddings [P, N], and a head's tensors; or .bin

Source: huggingface/peft 0.21, peft_model.py (PeftModel.get_prompt), utils/save_and_load.py.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.interop.hf_config import read_json
from t5x_lite.interop.peft import arrays_of
from t5x_lite.interop.peft_config import CONFIG, number_of
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
    """Reads a directory of PEFT.

    Args:
      directory: with both files.
      may_be_double: whether there may be twice as many rows as num_virtual_tokens.

    Raises:
      InputError: it is incomplete or damaged, or the rows are not as many.
    """
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
