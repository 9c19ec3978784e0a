"""Manifests: every damage of a file is found and named, and nothing else is."""

import errno
import hashlib
import json
import os
import shutil
from unittest import mock

import pytest

from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints.items import (
    find_damage,
    is_complete,
    is_hurried,
    saved_step,
    verify,
    write,
)
from t5x_lite.core.errors import InputError

FILES = {
    "_CHECKPOINT_METADATA": b"{}",
    "files/config.json": b'{"steps": 3}',
    "files/data/process_0": b"here",
    "params/d/abc": b"0123456789" * 300_000,
    "params/ocdbt.process_0/d/def": b"",
}


@pytest.fixture
def step(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / "20" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "20"


def test_the_manifest_of_a_step(step):
    assert not is_complete(step)
    write(step)
    manifest = json.loads((step / "manifest.json").read_text())
    assert len(manifest.pop("sha256")) == 64
    assert manifest == {
        "version": 1,
        "process": 0,
        "processes": 1,
        "files": {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in FILES.items()
        },
    }
    assert is_complete(step)
    assert find_damage(step) is None
    verify(step)
    (step / ".manifest.process_1.json.123").write_bytes(b"")  # another process is writing its own
    write(step)  # nor is the manifest in itself
    (step / ".manifest.process_1.json.123").unlink()
    assert find_damage(step) is None


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1] if path.stat().st_size else b"more")


def flip(path):
    content = bytearray(path.read_bytes()) or bytearray(b"x")
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, lambda path: path.unlink()])
@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_found(step, name, damage):
    write(step)
    damage(step / name)
    found = find_damage(step)
    assert found is not None
    assert found.startswith(name)
    part = name.split("/")[0]
    assert find_damage(step, parts={"params", "files"} - {part}) is None
    with pytest.raises(InputError) as raised:
        verify(step)
    assert str(raised.value) == f"checkpoint {step} is damaged ({found}); use another checkpoint"


def test_what_is_said(step):
    write(step)
    (step / "files" / "config.json").write_bytes(b"{}")
    assert find_damage(step) == "files/config.json has 2 bytes, but should have 12"
    (step / "files" / "config.json").write_bytes(b'{"steps": 4}')
    assert find_damage(step) == "files/config.json: its SHA-256 differs"
    (step / "files" / "config.json").unlink()
    assert find_damage(step) == "files/config.json is missing"
    (step / "files" / "config.json").mkdir()
    assert "files/config.json" in find_damage(step)


def test_what_may_not_be_read_is_not_damaged(step, monkeypatch):
    write(step)

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(checkpoint_manifest, "_describe", refuse)
    with pytest.raises(PermissionError):
        find_damage(step)


@pytest.mark.parametrize("name", ["files/more", "more"])
def test_a_file_that_is_not_in_the_manifest_is_not_looked_at(step, name):
    write(step)
    (step / name).write_bytes(b"?")
    assert find_damage(step) is None


def test_a_step_without_a_manifest_is_no_checkpoint(step):
    assert find_damage(step) == "manifest.json is missing"
    with pytest.raises(
        InputError, match=r"has no manifest\.json, because the save was interrupted or"
    ):
        verify(step)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"version": 2, "process": 0, "processes": 1, "files": {}}',
        '{"version": 1, "process": 1, "processes": 1, "files": {}}',
        '{"version": 1, "process": 0, "processes": 0, "files": {}}',
        '{"version": 1, "process": 0, "processes": 1}',
        '{"version": 1, "process": 0, "processes": 1, "files": {"a": {"size": 1}}}',
        '{"version": 1, "process": 0, "processes": 1, "files": {"a": 3}}',
        '{"files": ' + "[" * 100_000,
        "[" * 900 + "]" * 900,
    ],
)
def test_a_damaged_manifest(step, content):
    (step / "manifest.json").write_text(content)
    assert is_complete(step)
    assert find_damage(step).startswith("manifest.json: not a checkpoint manifest of version 1")


def test_a_flipped_byte_of_a_manifest_is_found(step):
    (step / "params/d/abc").write_bytes(b"short")
    write(step)
    whole = (step / "manifest.json").read_bytes()
    for position in range(0, len(whole), 7):
        torn = bytearray(whole)
        torn[position] ^= 1
        (step / "manifest.json").write_bytes(torn)
        assert find_damage(step).startswith(
            "manifest.json: not a checkpoint manifest of version 1 ("
        )


def test_a_step_in_a_work_directory_has_its_own_name(step, tmp_path, monkeypatch):
    write(step, step=20)
    assert json.loads((step / "manifest.json").read_text())["step"] == saved_step(step) == 20
    shutil.copytree(step, tmp_path / "run/checkpoints/20")
    copied = shutil.copytree(step, tmp_path / "run/checkpoints/30")
    said = "it holds step 20: it was copied or renamed"
    assert find_damage(copied) == find_damage(copied, parts=["params"]) == said
    with pytest.raises(InputError, match=r"run/checkpoints/30 is damaged \(it holds step 20: it"):
        verify(copied, "files")
    monkeypatch.chdir(tmp_path / "run/checkpoints")
    assert find_damage("30") == said
    assert find_damage("20") is None
    # Whoever moves a step out of there, or gives it a word for a name, may.
    for name in ("checkpoints/30.damaged", "checkpoints/mine", "30", "best"):
        moved = shutil.copytree(step, tmp_path / "run" / name)
        assert find_damage(moved) is None


def test_a_manifest_without_a_step_is_compared_with_no_name(step, tmp_path):
    write(step)
    assert saved_step(step) is None
    assert find_damage(shutil.copytree(step, tmp_path / "checkpoints" / "30")) is None


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="names of open files: Linux")
def test_everything_is_on_the_disk_before_the_manifest_is_there(step, monkeypatch):
    synced, fsync = [], os.fsync

    def record(descriptor):
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), is_complete(step)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write(step, step=20)
    before = [path for path, complete in synced if not complete]
    assert set(before) >= {str(step / name) for name in FILES}
    directories = ("params/ocdbt.process_0/d", "params/ocdbt.process_0", "params", ".", "..")
    assert set(before) >= {os.path.normpath(step / name) for name in directories}
    assert before.index(str(step / "params/d/abc")) < before.index(str(step / "params/d"))
    assert (str(step), True) in synced


def test_a_file_that_cannot_be_put_on_the_disk_leaves_no_manifest(step, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write(step)
    assert not is_complete(step)


def test_of_several_processes_each_writes_its_own(step):
    for name in ("params/ocdbt.process_1/d/x", "files/data/process_1", "params/m/process_7"):
        (step / name).parent.mkdir(parents=True, exist_ok=True)
        (step / name).write_bytes(name.encode())
    write(step, process=0, processes=2)
    assert not is_complete(step)
    assert find_damage(step) == "manifest.process_1.json is missing"
    write(step, process=1, processes=2)
    assert is_complete(step)
    second = json.loads((step / "manifest.process_1.json").read_text())
    assert list(second["files"]) == ["files/data/process_1", "params/ocdbt.process_1/d/x"]
    assert find_damage(step) is None
    flip(step / "files/data/process_1")
    assert find_damage(step) == "files/data/process_1: its SHA-256 differs"
    (step / "manifest.process_1.json").unlink()
    assert not is_complete(step)


def test_several_processes_divide_the_work(step):
    write(step)
    read = []
    describe = checkpoint_manifest._describe
    with mock.patch.object(
        checkpoint_manifest, "_describe", lambda path: (read.append(path), describe(path))[1]
    ):
        for process in range(3):
            assert find_damage(step, process=process, processes=3) is None
    assert sorted(path.relative_to(step).as_posix() for path in read) == sorted(FILES)
    flip(step / "params/d/abc")
    found = [find_damage(step, process=process, processes=3) for process in range(3)]
    assert sorted(map(str, found)) == ["None", "None", "params/d/abc: its SHA-256 differs"]


def test_where_there_is_no_time_sizes_alone_are_compared(step):
    asked = []

    def hurried():
        """From the first block of the large file on."""
        asked.append(None)
        return len(asked) > 7

    write(step, step=20, hurried=hurried)
    manifest = json.loads((step / "manifest.json").read_text())
    assert manifest["hurried"] is True
    hashed = {name for name, saved in manifest["files"].items() if "sha256" in saved}
    assert hashed == {"_CHECKPOINT_METADATA", "files/config.json", "files/data/process_0"}
    assert {name: saved["size"] for name, saved in manifest["files"].items()} == {
        name: len(content) for name, content in FILES.items()
    }
    assert is_complete(step)
    assert is_hurried(step)
    assert saved_step(step) == 20
    assert find_damage(step) is None
    flip(step / "params/d/abc")  # which nothing finds
    assert find_damage(step) is None
    truncate(step / "params/d/abc")
    assert find_damage(step) == "params/d/abc has 2999999 bytes, but should have 3000000"
    (step / "params/d/abc").unlink()
    assert find_damage(step) == "params/d/abc is missing"
    checkpoint_manifest.add(step, "files/config.json")
    assert is_hurried(step)


def test_a_step_that_was_hashed_says_nothing_of_haste(step):
    write(step)
    assert "hurried" not in json.loads((step / "manifest.json").read_text())
    assert not is_hurried(step)
    (step / "manifest.json").write_text("{")
    assert not is_hurried(step)


def test_nothing_is_hashed_where_there_is_no_time_at_all(step, monkeypatch):
    monkeypatch.setattr(checkpoint_manifest.hashlib, "sha256", lambda *args: _Counted(args))
    _Counted.bytes = 0
    write(step, hurried=lambda: True)
    assert _Counted.bytes < 2000  # the manifest itself
    manifest = json.loads((step / "manifest.json").read_text())
    assert not any("sha256" in saved for saved in manifest["files"].values())


class _Counted:
    """SHA-256 that counts what it is given."""

    bytes = 0
    _sha256 = hashlib.sha256

    def __init__(self, content):
        self._digest = _Counted._sha256(*content)
        _Counted.bytes += sum(map(len, content))

    def update(self, block):
        _Counted.bytes += len(block)
        self._digest.update(block)

    def hexdigest(self):
        return self._digest.hexdigest()
