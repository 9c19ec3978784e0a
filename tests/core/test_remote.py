"""Paths of a bucket: what is read there, and what the refusals say."""

import shutil
from pathlib import Path

import pytest
from etils import epath
from etils.epath import backend, gpath

from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints.reading import Checkpoints, find_step, saved_steps, step_files
from t5x_lite.core import object_store, remote
from t5x_lite.core.errors import InputError
from tests import fake_store
from tests.fake_bucket import bucket  # noqa: F401 (a fixture)
from tests.fake_store import store  # noqa: F401 (a fixture)


def test_local_paths_are_pathlibs():
    assert remote.open_path("a/b") == Path("a/b")
    assert isinstance(remote.open_path("a/b"), Path)
    assert not remote.is_remote("a/b")
    assert not remote.is_remote(Path("C:/b"))
    assert remote.is_remote("gs://a/b")
    assert remote.is_remote(epath.Path("gs://a/b"))


def test_a_bucket_is_read_and_written(bucket):  # noqa: F811
    path = remote.open_path("gs://bucket/run")
    assert str(path / "config.json") == "gs://bucket/run/config.json"
    remote.write_whole(path / "a" / "config.json", b"{}")
    remote.write_whole(path / "b.txt", b"123")
    assert (bucket / "run" / "a" / "config.json").read_bytes() == b"{}"
    assert list(remote.files_below(path)) == ["a/config.json", "b.txt"]
    assert remote.size_of(path / "b.txt") == 3
    remote.remove_tree(path)
    remote.remove_tree(path)
    assert not (bucket / "run").exists()


def test_files_below_a_local_directory(tmp_path):
    for name in ("b/c/d", "b/a", "z", "a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        remote.write_whole(tmp_path / name, name.encode())
    assert list(remote.files_below(tmp_path)) == ["a", "b/a", "b/c/d", "z"]
    assert remote.size_of(tmp_path / "b/c/d") == 5
    with pytest.raises(FileNotFoundError):
        remote.size_of(tmp_path / "none")


def test_what_cannot_take_a_bucket_says_what_to_mount():
    assert remote.local_path("a/b", what="data.directory") == Path("a/b")
    with pytest.raises(InputError) as raised:
        remote.local_path("gs://corpus/prose", what="data.directory")
    assert str(raised.value) == (
        "data.directory gs://corpus/prose must be a local path; mount the bucket (gcsfuse "
        "corpus DIR) and give the path inside the mounted directory DIR"
    )


def test_buckets_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)

    def fails(error):
        def exists(self, path):
            raise error

        monkeypatch.setattr(backend._FileSystemSpecBackend, "exists", exists)
        with pytest.raises(InputError) as raised:
            remote.open_path("gs://bucket/run")
        return str(raised.value)

    assert fails(ImportError("no gcsfs")) == (
        "URL gs://bucket/run needs the package gcsfs, which is not installed; install it, or "
        "mount the bucket and give the mounted path"
    )
    assert fails(OSError("no credentials\nat all")) == (
        "URL gs://bucket/run cannot be reached (OSError: no credentials)"
    )
    with pytest.raises(
        InputError, match=r"^URL ftp://a/b has an unknown scheme; use gs:// or s3://$"
    ):
        remote.open_path("ftp://a/b")


def test_checkpoints_in_a_bucket_are_found_and_verified(bucket, tmp_path):  # noqa: F811
    step = tmp_path / "20"
    for name in ("params/a", "files/config.json", "files/data/process_0"):
        (step / name).parent.mkdir(parents=True, exist_ok=True)
        (step / name).write_bytes(name.encode())
    checkpoint_manifest.write(step)
    shutil.copytree(step, bucket / "run" / "checkpoints" / "20")
    (bucket / "run" / "checkpoints" / "30" / "params").mkdir(parents=True)
    found = find_step("gs://bucket/run")
    assert str(found) == "gs://bucket/run/checkpoints/20"
    assert saved_steps(found.parent) == [20]
    assert step_files(found)["config.json"] == b"files/config.json"
    (bucket / "run/checkpoints/20/files/config.json").write_bytes(b"files/config.jsoN")
    with pytest.raises(InputError) as raised:
        step_files(found)
    assert str(raised.value) == (
        "checkpoint gs://bucket/run/checkpoints/20 is damaged (files/config.json: its SHA-256 "
        "differs); use another checkpoint"
    )
    assert checkpoint_manifest.find_damage(found, parts=["params"]) is None
    with pytest.raises(InputError, match="gs://bucket/none: no such directory"):
        find_step("gs://bucket/none")


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_the_objects_of_a_directory_as_they_are_now(store):  # noqa: F811
    run = remote.open_path("gs://bucket/run")
    assert remote.objects_below(run) == {}
    for name in ("a/b", "a-b", "a/c/d"):
        put(store / "run" / name, name.encode())
    put(store / "running/e", b"elsewhere")
    fake_store.counts.clear()
    found = remote.objects_below(run)
    assert list(found) == list(remote.files_below(run)) == ["a/b", "a/c/d", "a-b"]
    assert found["a/c/d"].size == 5
    assert len(found["a/c/d"].crc32c) == 8
    assert fake_store.counts == {"list": 2}  # no object was read
    put(store / "run/a/b", b"another host")
    assert remote.objects_below(run)["a/b"] != found["a/b"]


def test_what_another_host_writes_is_listed(store):  # noqa: F811
    put(store / "run/1/a", b"")
    plain = fake_store.Store()  # which remembers
    assert len(plain.ls("bucket/run")) == 1
    run = remote.open_path("gs://bucket/run")
    assert [path.name for path in run.iterdir()] == ["1"]
    put(store / "run/2/a", b"")
    assert len(plain.ls("bucket/run")) == 1
    assert [path.name for path in run.iterdir()] == ["1", "2"]
    assert (run / "2" / "a").exists()


def test_a_url_is_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(remote.absolute("gs://bucket/run")) == "gs://bucket/run"
    assert str(remote.absolute("run")) == f"{tmp_path}/run"
    assert str(remote.absolute(tmp_path / "run")) == f"{tmp_path}/run"


def test_a_step_in_a_store_is_compared_by_what_the_store_says(store, tmp_path):  # noqa: F811
    step = remote.open_path("gs://bucket/run/checkpoints/20")
    here = store / "run/checkpoints/20"
    for name in ("params/a", "params/d/b", "files/config.json"):
        put(here / name, name.encode() * 9)
    fake_store.counts.clear()
    checkpoint_manifest.write(step, step=20, process=1, processes=2)
    assert not fake_store.counts  # all of it is the first process's to do
    checkpoint_manifest.write(step, step=20, process=0, processes=2, hurried=lambda: True)
    assert fake_store.counts == {"list": 1, "put": 1}
    assert checkpoint_manifest.is_complete(step)
    assert not checkpoint_manifest.is_hurried(step)  # nothing was left out
    fake_store.counts.clear()
    assert checkpoint_manifest.find_damage(step) is None
    assert checkpoint_manifest.find_damage(step, parts=["params"]) is None
    read = {name.split("/")[-1] for name in fake_store.counts if name.startswith("read ")}
    assert read == {"manifest.json"}
    shutil.copytree(here, tmp_path / "20")
    assert checkpoint_manifest.find_damage(tmp_path / "20") is None  # by sizes
    put(here / "params/d/b", b"params/d/B" * 9)
    damage = "params/d/b: its CRC32C differs"
    assert checkpoint_manifest.find_damage(step) == damage
    assert checkpoint_manifest.find_damage(step, process=1, processes=2) is None
    assert checkpoint_manifest.find_damage(step, parts=["files"]) is None
    put(here / "params/d/b", b"")
    assert checkpoint_manifest.find_damage(step) == "params/d/b has 0 bytes, but should have 90"
    (here / "params/d/b").unlink()
    assert checkpoint_manifest.find_damage(step) == "params/d/b is missing"
    put(here / "files/metrics.json", b"{}")
    checkpoint_manifest.add(step, "files/metrics.json")
    put(here / "files/metrics.json", b"[]")
    assert (
        checkpoint_manifest.find_damage(step, parts=["files"])
        == "files/metrics.json: its CRC32C differs"
    )


def test_a_step_that_was_copied_into_a_store_is_compared_by_its_bytes(store, tmp_path):  # noqa: F811
    for name in ("params/a", "files/config.json"):
        put(tmp_path / "20" / name, name.encode())
    checkpoint_manifest.write(tmp_path / "20")
    shutil.copytree(tmp_path / "20", store / "run/20")
    step = remote.open_path("gs://bucket/run/20")
    assert checkpoint_manifest.find_damage(step) is None
    put(store / "run/20/params/a", b"params/b")
    assert checkpoint_manifest.find_damage(step) == "params/a: its SHA-256 differs"


def test_a_bucket_that_stays_away_is_no_damage(store, tmp_path, monkeypatch):  # noqa: F811
    """Else `train` would go on from an older step, and set the newest aside."""
    short = object_store.Patience(answer=5.0, first=0.01, longest=0.02, total=0.1, silence=0.0)
    monkeypatch.setattr(object_store, "PATIENCE", short)
    for name in ("params/a", "files/config.json"):
        put(tmp_path / "20" / name, name.encode())
    checkpoint_manifest.write(tmp_path / "20")
    shutil.copytree(tmp_path / "20", store / "run/checkpoints/20")
    step = remote.open_path("gs://bucket/run/checkpoints/20")
    fake_store.trouble.errors = [OSError("502")]
    assert checkpoint_manifest.find_damage(step) is None
    fake_store.trouble.always = OSError("503")
    with pytest.raises(object_store.BucketError, match="cannot be read"):
        checkpoint_manifest.find_damage(step)
    fake_store.trouble.always = None
    read = type(step).read_bytes
    calls = []

    def failing(path):
        calls.append(path)
        if path.name == "manifest.json":
            raise OSError("503")
        return read(path)

    monkeypatch.setattr(type(step), "read_bytes", failing)
    for function in (checkpoint_manifest.saved_step, checkpoint_manifest.is_hurried):
        with pytest.raises(object_store.BucketError, match=r"manifest\.json cannot be read"):
            function(step)
    with pytest.raises(object_store.BucketError):
        checkpoint_manifest.digest(step)


def test_best_metrics_are_not_forgotten_while_a_bucket_stays_away(store, monkeypatch):  # noqa: F811
    short = object_store.Patience(answer=5.0, first=0.01, longest=0.02, total=0.1, silence=0.0)
    monkeypatch.setattr(object_store, "PATIENCE", short)
    put(store / "run/checkpoints/20/files/metrics.json", b'{"loss": 1.0}')

    def failing(path):
        raise OSError("503")

    with Checkpoints("gs://bucket/run", keep=1, best="loss") as checkpoints:
        path = remote.open_path("gs://bucket/run/checkpoints/20/files/metrics.json")
        with monkeypatch.context() as patch:
            patch.setattr(type(path), "read_bytes", failing)
            with pytest.raises(object_store.BucketError):
                checkpoints._measured(20)
        assert checkpoints._measured(20) == {"loss": 1.0}
