"""Tests of info: what it says of each kind of directory."""

import json

import numpy as np
import pytest

from scripts import goldens
from t5x_lite.adapters.delta import Delta, Identity
from t5x_lite.adapters.delta_parts import Replace, Scale
from t5x_lite.commands.runs import info
from t5x_lite.commands.weights import import_hf
from t5x_lite.core.errors import InputError
from t5x_lite.inference.delta_files import save
from t5x_lite.report.info import as_text, described


def test_a_work_directory_and_its_step(tiny_run, capsys):
    run = info(str(tiny_run))
    text = capsys.readouterr().out
    assert text.startswith(f"{tiny_run}: work directory\n  family")
    assert (run["family"], run["config"]) == ("T5", "T5Config")
    assert run["parameters"] == run["stored"]["parameters"] > 1000
    assert run["step"] == run["steps"][-1]
    assert run["vocabulary"]["kind"] == "SentencePiece"
    assert run["objective"] == "Seq2Seq"
    assert "heads" not in run
    step = info(f"{tiny_run}/checkpoints/{run['step']}", json=True)
    assert json.loads(capsys.readouterr().out) == step
    assert step["kind"] == "step directory"
    same = ("family", "parameters", "vocabulary", "step", "task", "lengths")
    assert [step[name] for name in same] == [run[name] for name in same]


def test_an_imported_directory(tmp_path, tiny_vocabulary):
    release = tmp_path / "release"
    goldens.write_release(goldens.read("t5"), release, spiece=tiny_vocabulary)
    import_hf(release, tmp_path / "ours")
    found = described(str(tmp_path / "ours"))
    assert (found["family"], found["command"]) == ("T5", "t5x-lite import hf")
    assert "steps" not in found
    with pytest.raises(InputError, match=r"a Hugging Face model, .*; run `t5x-lite import hf"):
        described(str(release))


def test_a_delta(tmp_path):
    half = np.full(3, 0.5, np.float32)
    changes = {"model/a/kernel": Scale(half), "model/b/bias": Replace(half)}
    base = Identity(str(tmp_path / "t5"), {"model/a/kernel": "aa"})
    save(Delta(changes, {}, base), tmp_path / "delta")
    assert described(str(tmp_path / "delta")) == {
        "directory": str(tmp_path / "delta"),
        "kind": "delta",
        "changed_arrays": 2,
        "forms": ["replace", "scale"],
        "stored": {"parameters": 6, "dtypes": ["float32"]},
        "base": str(tmp_path / "t5"),
    }


def test_other_directories_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no checkpoint"):
        described(str(tmp_path))


def test_values_in_words():
    found = {
        "directory": "d",
        "kind": "cache",
        "baked": False,
        "splits": {"train": {"examples": 1234}},
        "steps": [1, 20],
        "metrics": {"validation/loss": 0.5},
    }
    assert as_text(found).splitlines() == [
        "d: cache",
        "  baked    no",
        "  splits   train examples 1,234",
        "  steps    1 20",
        "  metrics  validation/loss 0.5000",
    ]
