"""predict, killed and started again, writes what it writes when it is left alone."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = 200


@pytest.mark.slow
def test_a_killed_predict_writes_what_it_would_have(tmp_path, tiny_run, compile_once):
    with (tmp_path / "in.jsonl").open("w") as file:
        file.writelines(json.dumps({"inputs": "a list " * (i % 9)}) + "\n" for i in range(LINES))

    def start(output):
        line = (
            f"predict --checkpoint {tiny_run} --input in.jsonl --output {output} --batch-size 1 "
            "--temperature 2 --max-decode-length 8"
        )
        return subprocess.Popen(
            [sys.executable, "-m", "t5x_lite", *line.split()],
            cwd=tmp_path,
            env={**os.environ, **compile_once, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(output):
        with start(output) as process:
            told = process.stderr.read()
        assert process.returncode == 0, told
        return told

    assert finish("alone.jsonl") == ""
    partial = tmp_path / "killed.jsonl.partial"
    for chunks in (1, 3):
        with start("killed.jsonl") as process:
            while not partial.exists() or partial.read_bytes().count(b"\n") < 32 * chunks:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.001)
            process.kill()
    assert not (tmp_path / "killed.jsonl").exists()
    written = partial.read_bytes().count(b"\n")
    assert 96 <= written < LINES
    assert (
        finish("killed.jsonl")
        == f"resuming an unfinished output after {written // 32 * 32} lines of {partial}\n"
    )
    assert (tmp_path / "killed.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "alone.jsonl",
        "in.jsonl",
        "killed.jsonl",
    ]
