"""Directories of the library `adapters`, written: the names and numbers that it saved itself."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite.adapters.bottleneck import par_bn, seq_bn
from t5x_lite.adapters.bottleneck_variants import hyper
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.adapters.prefix import Prefix, Prompt
from t5x_lite.adapters.sparse import Norms
from t5x_lite.core.errors import InputError
from t5x_lite.interop.adapters_library import read_library, to_module, write_library
from t5x_lite.interop.tensor_files import read_torch
from tests.interop.test_adapters_library import BN, CONFIGS, hosts, tensors_of, write

CASES = [
    *(("bert", method) for method in CONFIGS if method != "cross"),
    *(("t5_1_1", method) for method in ("seq_bn", "cross", "norms", "compacter", "lora", "ia3")),
    ("deberta", "lora"),
    ("deberta", "par_bn"),
    ("t5_1_0", "ia3"),
]


def written(tmp_path, module, layers):
    """What is written of a module."""
    tmp_path.mkdir(exist_ok=True)
    write_library(tmp_path, module.adapter, module.arrays, layers, base="some/base", where="step")
    return tmp_path


@pytest.mark.parametrize(("host", "method"), CASES)
def test_what_the_library_saved_is_written_as_it_was(host, method, tmp_path):
    theirs, config, _ = tensors_of(host, method)
    source = write(tmp_path / "theirs", method, CONFIGS[method], theirs)
    layers = hosts(config, tmp_path)
    module = to_module(read_library(source), layers, name=method)
    back = written(tmp_path / "back", module, layers)
    tensors = read_torch(back / "pytorch_adapter.bin")
    # A norm before the layer is the first of two modules there, and in a file under both names.
    twice = {name for name in tensors if method == "norms" and ".adapter_down.0." in name}
    assert tensors.keys() - twice == theirs.keys()
    assert len(twice) == (0 if method != "norms" else 4 if host == "bert" else 8)
    for name, array in theirs.items():
        np.testing.assert_array_equal(tensors[name], array, err_msg=name)
    configs = [json.loads(json.dumps(read_library(place).config)) for place in (back, source)]
    if configs[0].get("is_parallel"):  # which reads the input, whatever this says
        configs[0]["original_ln_before"] = True
    assert configs[0] == configs[1]
    again = to_module(read_library(back), layers, name=method)
    assert again.adapter == module.adapter
    said = json.loads((back / "adapter_config.json").read_text())
    assert (said["name"], said["model_name"]) == (method, "some/base")
    assert said["hidden_size"] == 8


def test_layers_of_other_widths_and_none(tmp_path):
    theirs, config, _ = tensors_of("bert", "seq_bn")
    layers = hosts(config, tmp_path)
    first = {name: x for name, x in theirs.items() if ".0.output" in name}
    source = write(tmp_path / "left", "seq_bn", {**BN, "leave_out": [1]}, first)
    module = to_module(read_library(source), layers, name="seq_bn")
    back = written(tmp_path / "back", module, layers)
    assert read_torch(back / "pytorch_adapter.bin").keys() == first.keys()
    half = {
        name: x[:, :1] if name.endswith("up.weight") else x[:1] if "down" in name else x
        for name, x in theirs.items()
        if ".1.output" in name
    }
    said = {**BN, "reduction_factor": {"default": 4, "1": 8}}
    source = write(tmp_path / "narrow", "seq_bn", said, {**first, **half})
    module = to_module(read_library(source), layers, name="seq_bn")
    found = read_torch(written(tmp_path / "narrow_back", module, layers) / "pytorch_adapter.bin")
    for name, array in {**first, **half}.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_an_invertible_adapter_comes_along(tmp_path):
    theirs, config, _ = tensors_of("bert", "seq_bn")
    rng = np.random.default_rng(0)
    shapes = {"0.weight": (2, 4), "0.bias": (2,), "2.weight": (4, 2), "2.bias": (4,)}
    inverse = {
        f"invertible_adapters.sw.{half}.{leaf}": rng.standard_normal(shape).astype(np.float32)
        for half in "FG"
        for leaf, shape in shapes.items()
    }
    own = {name.replace(".seq_bn.", ".sw."): x for name, x in theirs.items()}
    said = {**BN, "inv_adapter": "nice", "inv_adapter_reduction_factor": 2}
    source = write(tmp_path / "theirs", "sw", said, {**own, **inverse})
    layers = hosts(config, tmp_path)
    module = to_module(read_library(source), layers, name="sw")
    back = written(tmp_path / "back", module, layers)
    found = read_torch(back / "pytorch_adapter.bin")
    assert found.keys() == {**own, **inverse}.keys()
    for name, array in {**own, **inverse}.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (
            Prefix(name="lora", place="left"),
            "`adapters` does not support a prefix with place='left'",
        ),
        (
            Prefix(name="lora", gate="real_tokens"),
            "does not support a prefix with gate='real_tokens'",
        ),
        (
            Prompt(name="lora", init="vocab"),
            "the prompt is stored as differences from token embeddings",
        ),
        (Norms(name="lora"), "the library `adapters` does not support Norms"),
        (Lora(dora=True), "DoRA cannot be exported"),
        (Lora(gate="real_tokens"), "support a LoRA with gate='real_tokens'"),
        (seq_bn(name="lora", reads="normed"), "support a bottleneck with reads='normed'"),
        (seq_bn(name="lora", gate="real_tokens"), "support a bottleneck with gate='real_tokens'"),
        (par_bn(name="lora", ln_before=True), "with layer norms and reads='input'"),
        (Ia3(name="lora"), "before its activation"),
        (hyper(name="lora"), "the library `adapters` does not support Hyper"),
    ],
)
def test_what_the_library_does_not_have(adapter, message, tmp_path):
    theirs, config, _ = tensors_of("bert", "lora")
    layers = hosts(config, tmp_path)
    source = write(tmp_path / "theirs", "lora", CONFIGS["lora"], theirs)
    module = to_module(read_library(source), layers, name="lora")
    with pytest.raises(InputError, match=message):
        written(tmp_path / "out", dataclasses.replace(module, adapter=adapter), layers)


def test_lora_in_one_stack_alone_has_no_name_there(tmp_path):
    theirs, config, _ = tensors_of("t5_1_1", "lora")
    layers = hosts(config, tmp_path)
    source = write(tmp_path / "theirs", "lora", CONFIGS["lora"], theirs)
    module = to_module(read_library(source), layers, name="lora")
    some = {path: x for path, x in module.arrays.items() if "/encoder/" in path}
    with pytest.raises(InputError, match="supports LoRA only on query"):
        written(tmp_path / "out", dataclasses.replace(module, arrays=some), layers)
