"""Two processes save to an object store, are killed, and resume: nothing is read after a save."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.e2e import processes
from tests.tiny_checkpoint import flip

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "e2e" / "store_checkpoint.py"
ARRAY_BYTES = 4 << 20


def run(job, store, *, code=0):
    """Runs the program in two processes of two devices; gives what each of them told."""
    port = str(processes.free_port())
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    commands = [
        [sys.executable, PROGRAM, job, "gs://bucket/run", port, "2", str(index)]
        for index in range(2)
    ]
    started = processes.start(commands, XLA_FLAGS=flags, FAKE_STORE=str(store), EPATH_USE_TF="0")
    told = processes.finish(started)
    assert [ended for ended, _, _ in told] == [code] * 2, told
    return [json.loads(output.splitlines()[-1]) for _, output, _ in told]  # after Gloo's own lines


def array_reads(told):
    """Bytes of arrays that were read as objects, by path."""
    parts = ("/params/d/", "/optimizer/d/", "/params/ocdbt.", "/optimizer/ocdbt.")
    return {name: n for name, n in told["counts"].items() if any(part in name for part in parts)}


@pytest.mark.slow
@pytest.mark.multiprocess
def test_no_array_byte_is_read_after_a_save(tmp_path):
    store = tmp_path / "store"
    (store / "bucket").mkdir(parents=True)
    first, second = run("save", store, code=137)
    for told in (first, second):
        assert array_reads(told) == {}
        # TensorStore reads its own indices, to join what two processes wrote.
        assert told["read"] < ARRAY_BYTES / 100
    # The first process lists the objects of a step once; the second asks for nothing.
    assert [asked["list"] for asked in first["manifests"]] == [1, 1]
    assert not any(name.startswith("read ") for asked in first["manifests"] for name in asked)
    assert second["manifests"] == [{}, {}]
    steps = store / "bucket" / "run" / "checkpoints"
    manifest = json.loads((steps / "6" / "manifest.json").read_text())
    assert manifest["processes"] == 1
    for name in ("files/data/process_1", "files/config.json"):
        assert set(manifest["files"][name]) == {"size", "crc32c"}
    assert sum(each["size"] for each in manifest["files"].values()) > ARRAY_BYTES / 2
    assert not (steps / "6" / "manifest.process_1.json").exists()
    assert (steps / "9.incomplete").exists()

    for told in run("resume", store):
        assert told["step"] == 6
        assert told["rejected"] == [[9, True]]
        # Each process has half of the array, and reads it once.
        assert told["read_before"] == 0
        assert 0 < told["read"] < ARRAY_BYTES
        assert array_reads(told) == {}
        assert told["files"] == {
            "config.json": "{}",
            "data/process_0": "here 0",
            "data/process_1": "here 1",
        }
        assert told["latest"] == 9
    assert not (steps / "9.incomplete").exists()

    damaged = max((steps / "9").rglob("*"), key=lambda path: path.stat().st_size)
    flip(damaged)
    for told in run("resume", store):
        assert told["step"] == 6
        assert told["rejected"] == [[9, False]]
    names = sorted(path.name for path in steps.iterdir() if any(path.rglob("manifest.json")))
    assert names == ["3", "6", "9", "9.damaged"]
