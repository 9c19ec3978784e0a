"""Ranges, sizes and listings of a store that counts what it is asked for."""

import pytest

from t5x_lite.core import object_store
from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import Range, can_read, files_in, read_ranges, size_of
from tests.fake_store import counts, store, trouble  # noqa: F401 (a fixture)

CONTENT = bytes(range(256)) * 1024


@pytest.fixture
def url(store):  # noqa: F811
    (store / "a").write_bytes(CONTENT)
    return "gs://bucket/a"


def test_ranges_near_each_other_are_one_request(url):
    ranges = [Range(url, 300, 310), Range(url, 5, 9), Range(url, 200_000, 200_001)]
    assert read_ranges(ranges) == [CONTENT[300:310], CONTENT[5:9], CONTENT[200_000:200_001]]
    assert (counts["get"], counts["range"], counts["read bucket/a"]) == (2, 2, 305 + 1)
    assert read_ranges([Range(url, 0, 5), Range(url, 2, 3), Range(url, 0, 0)]) == [
        CONTENT[:5], CONTENT[2:3], b"",
    ]  # fmt: skip
    assert counts["get"] == 3
    assert read_ranges([]) == []


def test_a_request_is_not_larger_than_is_said(url, monkeypatch):
    monkeypatch.setattr(object_store, "MERGED_BYTES", 100)
    ranges = [Range(url, 10 * i, 10 * i + 10) for i in range(20)]
    assert b"".join(read_ranges(ranges)) == CONTENT[:200]
    assert counts["get"] == 2


def test_one_that_is_cut_off_is_read_again(url, monkeypatch):
    real, lengths = object_store.store_of(url).cat_file, [3, 4]
    fake = lambda path, start, end: real(path, start, end)[: lengths.pop(0)]  # noqa: E731
    monkeypatch.setattr(object_store.store_of(url), "cat_file", fake)
    monkeypatch.setattr(object_store, "PATIENCE", object_store.Patience(first=0.001))
    assert read_ranges([Range(url, 0, 4)]) == [CONTENT[:4]]
    assert lengths == []


def test_a_listing_has_the_files_right_in_a_directory(store):  # noqa: F811
    for name in ("d/b.txt", "d/a.txt", "d/e/c.txt", "da/x"):
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(name.encode())
    assert files_in("gs://bucket/d") == {"a.txt": 7, "b.txt": 7}
    assert counts == {"list": 1}
    assert size_of("gs://bucket/d/a.txt") == 7  # as it was listed
    assert counts == {"list": 1}
    assert files_in("gs://bucket/d/a.txt") == files_in("gs://bucket/none") == {}
    with pytest.raises(FileNotFoundError):
        size_of("gs://bucket/d/c")
    with pytest.raises(IsADirectoryError):
        size_of("gs://bucket/d/e")
    (store / "d/a.txt").unlink()
    assert files_in("gs://bucket/d") == {"b.txt": 7}
    with pytest.raises(FileNotFoundError):
        size_of("gs://bucket/d/a.txt")


def test_files_go_there_and_are_removed(store, tmp_path):  # noqa: F811
    (tmp_path / "x").write_bytes(b"123")
    object_store.upload(tmp_path / "x", "gs://bucket/new/x")
    assert (store / "new/x").read_bytes() == b"123"
    object_store.remove("gs://bucket/new/x")
    assert not (store / "new/x").exists()


def test_any_url_of_fsspec_is_read():
    import fsspec

    with fsspec.open("memory://of/a", "wb") as file:
        file.write(b"01234")  # pyright: ignore[reportAttributeAccessIssue]
    assert read_ranges([Range("memory://of/a", 1, 3)]) == [b"12"]
    assert files_in("memory://of") == {"a": 5}


def test_what_is_not_installed_or_unknown():
    object_store._store.cache_clear()
    assert not can_read("gs://bucket")
    with pytest.raises(
        InputError, match=r"gs://bucket/a needs the package gcsfs, which is not installed"
    ):
        size_of("gs://bucket/a")
    with pytest.raises(InputError, match=r"nothing://a: fsspec does not support nothing://"):
        size_of("nothing://a")


def test_a_local_file_has_its_size(tmp_path):
    (tmp_path / "x").write_bytes(b"123")
    assert size_of(tmp_path / "x") == 3
    assert not trouble.errors
