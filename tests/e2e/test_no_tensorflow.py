"""What must work where neither TensorFlow nor seqio nor a tasks module can be imported."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, sys
blocked = ("apache_beam", "seqio", "tasks", "tensorflow", "tensorflow_datasets", "tensorflow_text")
sys.modules.update(dict.fromkeys(blocked))
from t5x_lite.cli import main
codes = []
for line in json.loads(sys.argv[1]):
    try:
        codes.append(main(line.split()))
    except SystemExit as stop:
        codes.append(stop.code or 0)
print(codes, file=sys.stderr)
"""

COMMANDS = [
    "--help",
    "predict --checkpoint moved --input in.jsonl --output predictions.jsonl --max-decode-length 4",
    "predict --checkpoint moved moved --input in.jsonl --output beams.jsonl --max-decode-length 4 "
    "--num-beams 2 --num-return 2 --prompt a",
    "score --checkpoint moved --input in.jsonl --output scores.jsonl",
    "score --checkpoint moved --input in.jsonl --output ranks.jsonl --candidates candidates.txt",
    "embed --checkpoint moved --input candidates.txt --output vectors.npy",
    "export hf moved exported",
    "import hf exported imported",
    "predict --checkpoint imported --input in.jsonl --output again.jsonl --max-decode-length 4",
    "compose t zero --delta t=moved --base moved",
    "merge zero merged",
    "vocab --input prose.txt --output vocabulary --size 300",
    "report run",
    "train tiny.json --workdir w",
]


@pytest.mark.slow
def test_commands_without_tensorflow(tmp_path, tiny_run, tiny_text, tiny_experiment, compile_once):
    """From a step directory that was moved elsewhere; training says what it needs."""
    from t5x_lite import config

    shutil.copytree(tiny_run / "checkpoints" / "10", tmp_path / "moved")
    (tmp_path / "run").mkdir()
    shutil.copy(tiny_run / "metrics.jsonl", tmp_path / "run")
    shutil.copy(tiny_text / "prose.txt", tmp_path)
    config.save(tiny_experiment, tmp_path / "tiny.json")
    (tmp_path / "in.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    (tmp_path / "candidates.txt").write_text("b\nc\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(COMMANDS)],
        cwd=tmp_path,
        env={**os.environ, **compile_once, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    progress = re.compile(r": (?:running for )?[\d,:]+ (so far|(of [\d,]+ )?\w+(, .*/s.*)?)$")
    *told, codes = (line for line in done.stderr.splitlines() if not progress.search(line))
    assert codes == "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]", done.stderr
    embedded, exported, imported, composed, merged, message = told
    assert (
        embedded
        == "vectors.npy: wrote 2 vectors of 16 dimensions (pooling mean, scaled to length 1)"
    )
    assert exported == "exported: exported checkpoint moved, with a model card in README.md"
    assert imported.startswith("imported: imported T5 with ")
    assert composed == "wrote the delta zero (contents: 0 changed arrays; size: 0 bytes)"
    assert merged.startswith("wrote merged: ")
    assert merged.endswith("moved merged with 0 changed arrays")
    assert message.startswith(
        "error: reading text needs TensorFlow and seqio, but importing them failed ("
    )
    assert re.search(r"; pip install .*\[data\]", message)
    assert "score" in done.stdout
    [prediction] = (tmp_path / "predictions.jsonl").read_text().splitlines()
    assert list(json.loads(prediction)) == ["inputs", "targets", "prediction"]
    [beams] = (tmp_path / "beams.jsonl").read_text().splitlines()
    assert len(json.loads(beams)["predictions"]) == 2
    [rank] = (tmp_path / "ranks.jsonl").read_text().splitlines()
    assert json.loads(rank)["prediction"] in ("b", "c")
    assert np.load(tmp_path / "vectors.npy").shape == (2, 16)
    assert (tmp_path / "exported" / "model.safetensors").is_file()
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "predictions.jsonl").read_text()
    [score] = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert json.loads(score)["log_likelihood"] < 0
    assert (tmp_path / "merged" / "manifest.json").is_file()
    assert (tmp_path / "vocabulary" / "sentencepiece.model").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
    assert not (tmp_path / "w").exists()
