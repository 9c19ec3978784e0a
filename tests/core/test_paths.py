"""Paths of a bucket as pathlib's, and streams that read ahead."""

import io
from pathlib import Path

import pytest

from t5x_lite.core import object_store
from t5x_lite.core.object_store import BucketPath, data_path, files_among, open_stream
from tests.fake_store import counts, store  # noqa: F401 (a fixture)

CONTENT = bytes(range(256)) * 4096


def test_a_local_path_is_pathlibs():
    assert data_path("a/b") == Path("a/b")
    assert isinstance(data_path("gs://b/a/"), BucketPath)


def test_names(store):  # noqa: F811
    path = data_path("gs://bucket/prose/") / "a.tar.gz"
    assert str(path) == "gs://bucket/prose/a.tar.gz"
    assert (path.name, path.suffix, str(path.parent)) == ("a.tar.gz", ".gz", "gs://bucket/prose")
    assert path.with_name("b") == BucketPath("gs://bucket/prose/b")
    assert path.with_suffix(".zst").name == "a.tar.zst"
    assert not counts
    urls = ["gs://b/x", "gs://b/train-1", "gs://b/train/z"]
    order = [path.url for path in sorted(map(BucketPath, urls))]
    assert order == [f"gs://b/{p}" for p in sorted(map(Path, ["x", "train-1", "train/z"]))]


def test_what_is_there(store):  # noqa: F811
    (store / "d").mkdir()
    for name in ("b.txt", "a.txt", "c.json"):
        (store / "d" / name).write_text(name)
    place = data_path("gs://bucket/d")
    assert [path.name for path in place.glob("*.txt")] == ["a.txt", "b.txt"]
    assert (place.is_dir(), place.is_file(), place.exists()) == (True, False, True)
    assert (place / "a.txt").is_file()
    assert not (place / "e").exists()
    assert (place / "c.json").read_text() == "c.json"
    counts.clear()
    found = files_among("gs://bucket/d", ["x", "c.json", "a.txt"])
    assert [path.name for path in found] == ["c.json", "a.txt"]
    assert counts == {"list": 1}
    assert files_among(str(store / "d"), ["x", "a.txt"]) == [store / "d" / "a.txt"]


def test_a_stream_reads_ahead_more_and_more(store):  # noqa: F811
    (store / "a").write_bytes(CONTENT)
    with open_stream("gs://bucket/a", first=1000) as file:
        assert file.read(10) == CONTENT[:10]
        assert counts["read bucket/a"] == 1000
        assert file.name == "gs://bucket/a"
        assert file.read() == CONTENT[10:]
        assert counts["get"] - 1 == 11  # 1000 bytes, 2000, 4000, ...; 1 asks for the size
        assert file.read(1) == b""
        assert file.seek(-5, io.SEEK_END) == len(CONTENT) - 5
        assert file.read() == CONTENT[-5:]
        file.seek(700_000)
        assert (file.read(3), file.tell()) == (CONTENT[700_000:700_003], 700_003)
    assert counts["read bucket/a"] <= len(CONTENT) + 2000


def test_a_block_has_its_limit(store, monkeypatch):  # noqa: F811
    monkeypatch.setattr(object_store, "LARGEST_BLOCK", 4000)
    (store / "a").write_bytes(CONTENT[:100_000])
    with data_path("gs://bucket/a").open() as file:
        assert file.read() == CONTENT[:100_000]
    assert counts["get"] - 1 == 1 + -(-(100_000 - 65_536) // 4000)
    with pytest.raises(ValueError, match="only with the mode 'rb'"):
        BucketPath("gs://bucket/a").open("wb")
