"""What directories of the library `adapters` hold; test_adapters_library.py makes modules."""

import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.adapters_heads import is_library, read_module, tensors_of
from tests.interop.test_adapters_library import BN, write, write_tensors

ONE = {"bert.encoder.layer.0.output.adapters.m.adapter_up.bias": np.ones(2, np.float32)}


def test_a_union_has_complete_members(tmp_path):
    members = [{"architecture": "prefix_tuning", "prefix_length": 3}, BN]
    config = {"architecture": "union", "configs": members}
    found = read_module(write(tmp_path / "m", "m", config, ONE))
    assert found.config["architecture"] == "union"
    prefix, block = found.config["configs"]
    assert (prefix["prefix_length"], prefix["bottleneck_size"], prefix["flat"]) == (3, 512, False)
    assert block["scaling"] == 1.0
    assert (found.name, list(found.tensors)) == ("m", list(ONE))
    wrong = {**config, "configs": [{"architecture": "reft"}]}
    with pytest.raises(InputError, match="architecture 'reft' is not supported"):
        read_module(write(tmp_path / "wrong", "m", wrong, ONE))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"architecture": "prompt_tuning"}, "lacks the required field prompt_length"),
        ({"architecture": "prefix_tuning", "other": 1}, "other '1' is not supported"),
        ({**BN, "mh_adapter": None}, "lacks the required field mh_adapter"),
    ],
)
def test_what_is_missing_or_unknown(tmp_path, config, match):
    with pytest.raises(InputError, match=match):
        read_module(write(tmp_path / "m", "m", config, ONE))


def test_files_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(InputError, match=r"contains no adapter_config.json"):
        read_module(tmp_path)
    with pytest.raises(InputError, match=r"contains neither a.safetensors nor a.bin"):
        tensors_of(tmp_path, "a.safetensors", "a.bin")
    write_tensors(tmp_path / "a.safetensors", {"x": np.array([np.nan], np.float32)})
    with pytest.raises(InputError, match="x"):
        tensors_of(tmp_path, "a.safetensors", "a.bin")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert not is_library(tmp_path)
