"""ONNX by way of `export hf` and torch, as docs/guides/export.md shows it."""

import numpy as np
import pytest

import t5x_lite
from t5x_lite.commands.weights import export_hf
from tests.docs.commands import ROOT, blocks
from tests.encoder_checkpoint import write_checkpoint

pytestmark = [pytest.mark.oracle, pytest.mark.slow]


def test_the_hidden_states_of_onnx_runtime(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    source = write_checkpoint(tmp_path, "bert")
    export_hf(source, "exported_hf")
    guide = blocks(ROOT / "docs" / "guides" / "export.md")
    [code] = (one.text for one in guide if "onnxruntime.Inf" in one.text)
    names: dict = {}
    exec(code.replace('"a text", "another"', '"a b c", "d"'), names)
    model = t5x_lite.load(source)
    for texts in (["a b c", "d"], ["a b", "c d e", "f"]):
        batch = names["tokenizer"](texts, padding=True, return_tensors="np")
        (hidden,) = names["session"].run(["hidden"], dict(batch))
        for found, expected in zip(hidden, model.encode(texts, per_token=True), strict=True):
            np.testing.assert_allclose(found[: len(expected)], expected, atol=5e-6)
