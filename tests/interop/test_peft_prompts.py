"""Prompt tuning of PEFT: what is read, written and refused; tests/oracle/test_peft.py runs it."""

import json

import numpy as np
import pytest

from t5x_lite.adapters.prefix import Prompt
from t5x_lite.core.errors import InputError
from t5x_lite.interop.peft_prompts import is_prompt, read_prompt, write_peft
from t5x_lite.interop.tensor_files import read_safetensors, write_safetensors
from tests.interop.peft_files import hosts, lazy

CONFIG = {
    "peft_type": "PROMPT_TUNING", "task_type": "SEQ_2_SEQ_LM", "num_virtual_tokens": 2,
    "token_dim": 8, "num_transformer_submodules": 2, "prompt_tuning_init": "RANDOM",
}  # fmt: skip
ROWS = np.arange(32, dtype=np.float32).reshape(4, 8)


def no_norms(site):
    raise AssertionError(f"a prompt has no norms: {site}")


def write(directory, rows=ROWS, **fields):
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({**CONFIG, **fields}))
    tensors = {"prompt_embeddings": lazy(rows)}
    write_safetensors(directory / "adapter_model.safetensors", tensors)
    return directory


def written(directory, adapter, rows, model="t5"):
    directory.mkdir()
    arrays = {f"adapters/{adapter.name}/encoder/prompt/rows": rows}
    options = {"norms": no_norms, "base": "some/base", "where": "step"}
    write_peft(directory, adapter, arrays, hosts(model), **options)
    config = json.loads((directory / "adapter_config.json").read_text())
    return config, read_safetensors(directory / "adapter_model.safetensors")


def test_the_first_of_two_prompts_is_read(tmp_path):
    directory = write(tmp_path / "in")
    assert is_prompt(directory)
    file = read_prompt(directory)
    assert file.kept() == {}
    made = file.module(hosts("t5"), name="rte", norms=no_norms)
    assert made.adapter == Prompt(name="rte", length=2)
    [(path, rows)] = made.arrays.items()
    assert path == "adapters/rte/encoder/prompt/rows"
    np.testing.assert_array_equal(rows, ROWS[:2])
    config, tensors = written(tmp_path / "out", made.adapter, rows)
    np.testing.assert_array_equal(tensors["prompt_embeddings"], ROWS[:2])
    expected = {"num_virtual_tokens": 2, "token_dim": 8, "num_transformer_submodules": 1}
    assert expected.items() <= config.items()
    assert (config["peft_type"], config["task_type"]) == ("PROMPT_TUNING", "SEQ_2_SEQ_LM")


def test_what_is_refused(tmp_path):
    file = read_prompt(write(tmp_path / "in"))
    with pytest.raises(InputError, match="prompts of PEFT can be converted only for T5"):
        file.module(hosts("bert"), name="rte", norms=no_norms)
    with pytest.raises(InputError, match="prompts of PEFT can be converted only for T5"):
        written(tmp_path / "bert", Prompt(length=2), ROWS[:2], model="bert")
    with pytest.raises(InputError, match="stores differences from token embeddings"):
        written(tmp_path / "vocab", Prompt(length=2, init="vocab"), ROWS[:2])
    with pytest.raises(InputError, match=r"has shape \(4, 8\), but .* has 3 virtual tokens"):
        read_prompt(write(tmp_path / "other", num_virtual_tokens=3))
    wide = read_prompt(write(tmp_path / "wide", rows=ROWS.reshape(2, 16)))
    with pytest.raises(InputError, match="has 16 columns, but the base's d_model is 8"):
        wide.module(hosts("t5"), name="rte", norms=no_norms)
