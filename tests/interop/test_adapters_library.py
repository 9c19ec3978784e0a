"""Directories of the library `adapters`: its parameters of tests/golden/adapters as its files."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite.adapters.bottleneck import par_bn, seq_bn
from t5x_lite.adapters.bottleneck_variants import Invertible
from t5x_lite.adapters.delta_merging import Union
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.interop.adapters_heads import is_library
from t5x_lite.interop.adapters_library import read_library, to_module
from t5x_lite.interop.encoder_checkpoints import family_of, hosts_of
from t5x_lite.interop.encoders import read_encoder
from t5x_lite.interop.hf import to_model
from t5x_lite.interop.tensor_files import write_safetensors
from tests.adapters.test_goldens import GOLDEN, METHODS, adapted

BN = {
    "mh_adapter": False,
    "output_adapter": True,
    "reduction_factor": 4,
    "non_linearity": "relu",
    "original_ln_before": True,
    "original_ln_after": True,
    "residual_before_ln": True,
    "adapter_residual_before_ln": False,
    "ln_before": False,
    "ln_after": False,
    "leave_out": [],
    "cross_adapter": False,
    "inv_adapter": None,
    "inv_adapter_reduction_factor": None,
}
"""As files of adapter-transformers have it; later ones say more."""
DOUBLE = {**BN, "mh_adapter": True, "non_linearity": "swish", "original_ln_before": False}
PARALLEL = {**BN, "reduction_factor": 2, "is_parallel": True, "scaling": 4.0}
PHM = {"phm_layer": True, "phm_dim": 2, "phm_rank": 1, "reduction_factor": 2}
LORA = {"architecture": "lora", "attn_matrices": ["q", "v"], "r": 2, "alpha": 4}
IA3 = {**LORA, "attn_matrices": ["k", "v"], "r": 1, "alpha": 1, "composition_mode": "scale"}
CONFIGS = {
    "seq_bn": BN,
    "double_seq_bn": DOUBLE,
    "par_bn": PARALLEL,
    "norms": {**BN, "ln_before": True, "ln_after": True, "scaling": "learned"},
    "post_ln": {**BN, "residual_before_ln": False, "scaling": "channel"},
    "compacter": {**DOUBLE, **PHM, "non_linearity": "gelu"},
    "lora": LORA,
    "ia3": {**IA3, "intermediate_lora": True},
    "cross": {**DOUBLE, "cross_adapter": True},
    "gate": {**BN, "use_gating": True},
    "gated_lora": {**LORA, "alpha": 2, "use_gating": True},
}


def tensors_of(host, method):
    """The library's parameters of a method, and the host's config.json."""
    with np.load(GOLDEN / f"{host}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    begin = f"{method}/theta/"
    theirs = {k.removeprefix(begin): x for k, x in arrays.items() if k.startswith(begin)}
    base = {k.removeprefix("base/"): x for k, x in arrays.items() if k.startswith("base/")}
    config = {"base": base, **json.loads(str(arrays["config"]))}
    return theirs, config, adapted(arrays, method, "theta")


def write(directory, name, config, tensors, **said):
    """A directory of the library."""
    directory.mkdir(exist_ok=True)
    said = {"config": config, "name": name, "version": "adapters.1.3.0", **said}
    (directory / "adapter_config.json").write_text(json.dumps(said))
    write_tensors(directory / "adapter.safetensors", tensors)
    return directory


def write_tensors(path, tensors):
    """A file of arrays."""
    lazy = {
        key: trees.LazyArray(x.shape, x.dtype, lambda x=x: np.ascontiguousarray(x))
        for key, x in tensors.items()
    }
    write_safetensors(path, lazy)


def hosts(config, directory):
    """The layers of a host."""
    config = dict(config)
    write_tensors(directory / "model.safetensors", config.pop("base"))
    (directory / "config.json").write_text(json.dumps(config))
    if config["model_type"] == "t5":
        return hosts_of(to_model(directory, config), None, where="base")
    where = directory / "config.json"
    source = read_encoder(family_of(config), directory, config, where=where)
    return hosts_of(source.model, None, where="base")


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize(
    ("host", "method"),
    [
        *(("bert", method) for method in CONFIGS if method != "cross"),
        *(("t5_1_1", method) for method in ("seq_bn", "cross", "lora", "ia3")),
        ("deberta", "lora"),
        ("deberta", "par_bn"),
        ("t5_1_0", "ia3"),
    ],
)
def test_a_module_is_that_of_the_library(host, method, prefix, tmp_path):
    theirs, config, expected = tensors_of(host, method)
    tensors = {prefix + name: array for name, array in theirs.items()}
    source = write(tmp_path / "theirs", method, CONFIGS[method], tensors)
    assert is_library(source)
    found = to_module(read_library(source), hosts(config, tmp_path), name="m")
    wanted = METHODS[method]
    if isinstance(found.adapter, type(wanted)) and hasattr(wanted, "init"):
        wanted = dataclasses.replace(wanted, init=found.adapter.init)  # of training alone
    assert found.adapter == wanted
    arrays = {f"adapters/{path}": x for path, x in trees.flatten(expected).items()}
    assert found.arrays.keys() == arrays.keys()
    for path, array in found.arrays.items():
        np.testing.assert_array_equal(array, arrays[path], err_msg=path)


def test_layers_of_other_widths_and_none(tmp_path):
    theirs, config, _ = tensors_of("bert", "seq_bn")
    wider = {
        name: (np.tile(x, (1, 2)) if name.endswith("up.weight") else np.tile(x, 2).reshape(-1, 8))
        if ".1." in name and name.endswith("weight")
        else np.tile(x, 2)
        if ".1." in name and "down" in name
        else x
        for name, x in theirs.items()
    }
    said = {**BN, "reduction_factor": {"default": 4, "1": 2}}
    source = write(tmp_path / "wide", "seq_bn", said, wider)
    found = to_module(read_library(source), hosts(config, tmp_path), name="m")
    assert found.adapter == seq_bn(name="m", reduction=4.0, reductions=((1, 2.0),))
    up = found.arrays["adapters/m/encoder/after_mlp/up/kernel"]
    assert up.shape == (2, 4, 8)
    np.testing.assert_array_equal(up[0, 2:], np.zeros((2, 8)))
    first = {name: x for name, x in theirs.items() if ".0.output" in name}
    source = write(tmp_path / "left", "seq_bn", {**BN, "leave_out": [1]}, first)
    found = to_module(read_library(source), hosts(config, tmp_path), name="m")
    assert found.adapter == seq_bn(name="m", reduction=4.0, leave_out=(1,))
    source = write(tmp_path / "short", "seq_bn", BN, first)
    with pytest.raises(InputError, match=r"encoder/after_mlp/\S+ has no tensor for layer 1"):
        to_module(read_library(source), hosts(config, tmp_path), name="m")


def test_a_language_has_an_invertible_adapter(tmp_path):
    theirs, config, _ = tensors_of("bert", "seq_bn")
    rng = np.random.default_rng(0)
    shapes = {"0.weight": (2, 4), "0.bias": (2,), "2.weight": (4, 2), "2.bias": (4,)}
    inverse = {
        f"invertible_adapters.seq_bn.{half}.{leaf}": rng.standard_normal(shape).astype(np.float32)
        for half in "FG"
        for leaf, shape in shapes.items()
    }
    said = {**BN, "inv_adapter": "nice", "inv_adapter_reduction_factor": 2}
    source = write(tmp_path / "theirs", "seq_bn", said, {**theirs, **inverse})
    found = to_module(read_library(source), hosts(config, tmp_path), name="sw")
    members = (seq_bn(name="sw", reduction=4.0), Invertible(name="sw"))
    assert found.adapter == Union(name="sw", members=members)
    kernel = found.arrays["adapters/sw/invertible/encoder/invertible/g/up/kernel"]
    np.testing.assert_array_equal(kernel, inverse["invertible_adapters.seq_bn.G.2.weight"].T)
    assert "adapters/sw/bottleneck/encoder/after_mlp/down/kernel" in found.arrays
    for change, message in (
        ({"inv_adapter": "glow"}, "inv_adapter 'glow' with non_linearity relu is not supported"),
        (
            {"non_linearity": "swish"},
            "inv_adapter 'nice' with non_linearity swish is not supported",
        ),
    ):
        source = write(tmp_path / "other", "seq_bn", {**said, **change}, {**theirs, **inverse})
        with pytest.raises(InputError, match=message):
            to_module(read_library(source), hosts(config, tmp_path), name="sw")
    inverse.popitem()
    source = write(tmp_path / "less", "seq_bn", said, {**theirs, **inverse})
    with pytest.raises(InputError, match="needs 8 tensors, got 7"):
        to_module(read_library(source), hosts(config, tmp_path), name="sw")


def test_lora_of_before_1_1_has_no_scale(tmp_path):
    theirs, config, _ = tensors_of("bert", "lora")
    for version, alpha in (("adapters.1.0.1", 2.0), ("3.2.1", 2.0), ("adapters.1.1.0", 4.0)):
        source = write(tmp_path / "theirs", "lora", LORA, theirs, version=version)
        found = to_module(read_library(source), hosts(config, tmp_path), name="m")
        assert found.adapter == Lora(name="m", rank=2, alpha=alpha)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("seq_bn", {"architecture": "reft"}, "architecture 'reft' is not supported"),
        ("seq_bn", {"wings": 2}, "wings '2' is not supported"),
        ("seq_bn", {"mh_adapter": None}, "lacks the required field mh_adapter"),
        (
            "seq_bn",
            {"output_adapter": False},
            "adapter tensors at the layer position after_mlp, but .* disables adapters",
        ),
        ("seq_bn", {"non_linearity": "mish"}, "non_linearity 'mish' is not supported, only"),
        (
            "par_bn",
            {"ln_after": True},
            "ln_before and ln_after are not supported in a parallel bottleneck",
        ),
        ("compacter", {"shared_W_phm": True}, "shared_W_phm True is not supported"),
        (
            "lora",
            {"use_gating": True},
            "lacks a tensor of the gate encoder/attention/query/gate/kernel",
        ),
        ("ia3", {"use_gating": True}, "with use_gating is not supported"),
        ("lora", {"composition_mode": "other"}, "composition_mode 'other' is not supported"),
        ("lora", {"r": 3, "alpha": 3}, r"lora_A.* has shape \(2, 8\), but its config"),
        (
            "seq_bn",
            {"leave_out": [0]},
            "has a tensor for layer 0, but leave_out in .* excludes this layer",
        ),
        ("seq_bn", {"reduction_factor": "x"}, "adapter_config.json: reduction_factor must be a nu"),
        ("seq_bn", {"reduction_factor": {"x": 2}}, "reduction_factor must be a number above 0"),
        ("seq_bn", {"residual_before_ln": "what"}, "residual_before_ln must be true, false or"),
        ("seq_bn", {"dropout": "x"}, "dropout must be a number, got 'x'"),
        ("seq_bn", {"leave_out": ["a"]}, "leave_out must be a list of layers"),
        ("lora", {"attn_matrices": "q"}, "attn_matrices must be a list of strings"),
        ("lora", {"r": 2.5}, "r must be a whole number, got '2.5'"),
    ],
)
def test_what_cannot_be_read(method, changes, message, tmp_path):
    theirs, config, _ = tensors_of("bert", method)
    source = write(tmp_path / "theirs", method, {**CONFIGS[method], **changes}, theirs)
    with pytest.raises(InputError, match=message):
        to_module(read_library(source), hosts(config, tmp_path), name="m")


def test_a_compacter_of_a_t5_lacks_its_rule(tmp_path):
    theirs, config, _ = tensors_of("t5_1_1", "compacter")
    short = {name: x for name, x in theirs.items() if "phm_rule" not in name}
    file = read_library(write(tmp_path / "in", "compacter", CONFIGS["compacter"], short))
    with pytest.raises(
        InputError, match=r"lacks shared_parameters\.compacter\.phm_rule, which all"
    ):
        to_module(file, hosts(config, tmp_path), name="m")


def test_what_is_damaged(tmp_path):
    theirs, config, _ = tensors_of("bert", "seq_bn")
    source = write(tmp_path / "theirs", "other", BN, theirs)
    with pytest.raises(InputError, match="belongs to no supported adapter"):
        to_module(read_library(source), hosts(config, tmp_path), name="m")
    (source / "adapter.safetensors").unlink()
    with pytest.raises(InputError, match="contains neither adapter"):
        read_library(source)
    (source / "adapter_config.json").write_text(json.dumps({"config": "pfeiffer", "name": "m"}))
    with pytest.raises(InputError, match=r"must contain an adapter's name \(a string\) and config"):
        read_library(source)
    (source / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "config": {}}))
    assert not is_library(source)
    assert par_bn(name="m", reduction=2.0) == METHODS["par_bn"]
    assert Ia3(name="m", place="before") == METHODS["ia3"]
