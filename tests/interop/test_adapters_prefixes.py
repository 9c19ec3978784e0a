"""Prefixes and prompts of the library `adapters`; test_adapters_setups.py runs what it saved."""

import numpy as np
import pytest

from t5x_lite.adapters.prefix import Prefix
from t5x_lite.core.errors import InputError
from t5x_lite.interop.adapters_heads import prefix_files
from t5x_lite.interop.adapters_library import read_library, to_module
from tests.interop.peft_files import hosts
from tests.interop.test_adapters_library import write

FLAT = {"architecture": "prefix_tuning", "prefix_length": 2, "flat": True}
GATED = {**FLAT, "use_gating": True, "shared_gating": False}
NAME = "prefix_tuning.prefix_tunings.m.self_prefix.control_trans"
# Two rows, two layers, keys and values of two heads of four numbers.
ROWS = np.arange(64, dtype=np.float32)
PROMPT = {"architecture": "prompt_tuning", "prompt_length": 3}


def gates():
    return {
        f"bert.encoder.layer.{layer}.attention.self.prefix_tuning.prefix_gates.m.{leaf}": np.full(
            shape, layer + 1, np.float32
        )
        for layer in range(2)
        for leaf, shape in (("weight", (2, 8)), ("bias", (2,)))
    }


def test_a_flat_prefix_with_two_gates(tmp_path):
    tensors = {f"bert.{NAME}": ROWS, f"bert.encoder.layer.0.attention.self.pool.{NAME}": ROWS}
    del tensors[f"bert.encoder.layer.0.attention.self.pool.{NAME}"]
    source = write(tmp_path / "in", "m", GATED, {**tensors, **gates()})
    made = to_module(read_library(source), hosts("bert"), name="m")
    assert made.adapter == Prefix(
        name="m", length=2, flat=True, gate="all_tokens", shared_gate=False
    )
    own = "adapters/m/encoder/attention/prefix"
    # A row is the keys and the values of a layer, one layer after the other.
    np.testing.assert_array_equal(made.arrays[f"{own}/values"][1, 0].ravel(), ROWS[24:32])
    np.testing.assert_array_equal(made.arrays[f"{own}/gate/kernel"][1], np.full((8, 2), 2.0))
    below = {path.removeprefix("adapters/m/"): x for path, x in made.arrays.items()}
    config, again = prefix_files(made.adapter, below, hosts("bert"), said="m")
    assert (config["use_gating"], config["shared_gating"]) == (True, False)
    assert {f"bert.{name}" for name in again} == {*tensors, *gates()}
    np.testing.assert_array_equal(again[NAME], ROWS)


@pytest.mark.parametrize(
    ("config", "tensors", "match"),
    [
        (
            {**FLAT, "leave_out": [0]},
            {NAME: ROWS},
            r"leave_out \[0\] is not supported for prefixes",
        ),
        (
            {**FLAT, "non_linearity": "relu"},
            {NAME: ROWS},
            "non_linearity 'relu' is not supported for prefixes",
        ),
        (FLAT, {NAME: ROWS[:60]}, "the base require 2 rows for 2 layers with 2 heads of size 4"),
        (
            {**FLAT, "flat": False},
            {NAME: ROWS},
            "a prefix tuning must have the tensors control_trans.0.bias",
        ),
        (GATED, {NAME: ROWS}, "2 rows for 2 layers"),
        (FLAT, {"other": ROWS}, "other belongs to no supported adapter"),
        (
            FLAT,
            {NAME: ROWS, f"a.{NAME}": ROWS + 1},
            "must be equal in all layers, but two layers differ",
        ),
        (
            PROMPT,
            {"other": ROWS},
            r"only the tensor .*prompt_embedding.weight of shape \(3, 8\), got shape None",
        ),
        ({**PROMPT, "combine": "prefix_after_bos"}, {"x": ROWS}, "combine 'prefix_after_bos'"),
        ({**FLAT, "leave_out": 0}, {NAME: ROWS}, "leave_out must be a list of layers, got '0'"),
        ({**FLAT, "prefix_length": "x"}, {NAME: ROWS}, "prefix_length must be a whole number"),
    ],
)
def test_what_is_refused(tmp_path, config, tensors, match):
    source = write(tmp_path / "in", "m", config, tensors)
    with pytest.raises(InputError, match=match):
        to_module(read_library(source), hosts("bert"), name="m")


def test_on_a_t5_the_two_differ(tmp_path):
    for name, config in (("prefix", FLAT), ("prompt", PROMPT)):
        file = read_library(write(tmp_path / name, "m", config, {NAME: ROWS}))
        with pytest.raises(InputError, match="can be converted only for encoders"):
            to_module(file, hosts("t5"), name="m")
