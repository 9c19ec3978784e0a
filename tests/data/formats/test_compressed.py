import gzip
import lzma

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import lines
from t5x_lite.data.formats.lines import is_compressed, open_text, plain_name, read_whole

zstandard = pytest.importorskip("zstandard")

TEXT = b"".join(b"line %d of a text\n" % i for i in range(5000))


def zst(content):
    return zstandard.ZstdCompressor().compress(content)


def read(path):
    with open_text(path) as file:
        return file.read()


def test_names():
    assert plain_name("a/b.jsonl.gz") == "a/b.jsonl"
    assert plain_name("b.txt.zst") == "b.txt"
    assert plain_name("b.txt") == "b.txt"
    assert plain_name("en.txt.xz") == "en.txt"
    names = ("a.gz", "a.zst", "a.xz", "a.txt")
    assert [is_compressed(name) for name in names] == [True, True, True, False]


PACKS = [("a.gz", gzip.compress), ("a.zst", zst), ("a.xz", lzma.compress)]


@pytest.mark.parametrize(("name", "pack"), PACKS)
@pytest.mark.parametrize("parts", [[TEXT], [TEXT[:40], TEXT[40:]], [b"", TEXT, b""]])
def test_members_and_frames_are_read_one_after_another(tmp_path, name, pack, parts):
    path = tmp_path / name
    path.write_bytes(b"".join(pack(part) for part in parts))
    assert read(path) == b"".join(parts)


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_a_file_of_no_bytes_is_an_empty_text(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert read(tmp_path / name) == b""


@pytest.mark.parametrize(("name", "pack"), PACKS)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_named(tmp_path, name, pack, share):
    whole = pack(TEXT)
    path = tmp_path / name
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(InputError, match=rf"{name}: the file is truncated; copy or download it"):
        read(path)


@pytest.mark.parametrize("name", ["a.gz", "a.zst", "a.xz"])
def test_a_file_that_is_not_compressed_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(TEXT)
    with pytest.raises(
        InputError, match=rf"{name}: damaged, or not compressed in the format of its suffix"
    ):
        read(tmp_path / name)


def test_a_missing_file_stays_an_os_error(tmp_path):
    for name in ("a.gz", "a.zst", "a.xz", "a.txt"):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / name)


def test_the_package_of_zst_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.zst").write_bytes(zst(TEXT))
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(InputError, match=r"\[zst\]"):
        read(tmp_path / "a.zst")


@pytest.mark.parametrize(("name", "pack"), PACKS)
def test_a_file_that_is_read_at_once_has_a_limit(tmp_path, name, pack, monkeypatch):
    path = tmp_path / name
    path.write_bytes(pack(TEXT))
    assert read_whole(path, most=len(TEXT)) == TEXT
    with pytest.raises(InputError, match=r"has more than 1,000 bytes of text"):
        read_whole(path, most=1000)
    monkeypatch.setattr(lines, "LONGEST_LINE", 1000)
    path.write_bytes(pack(bytes(1 << 20)))
    with pytest.raises(InputError, match=r"divide the file, or decompress it first"):
        read_whole(path)


def test_a_dictionary_of_xz_has_a_limit(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"a", filters=filters))
    with pytest.raises(InputError, match=r"a\.xz: damaged, .*[Mm]emory usage limit"):
        read(tmp_path / "a.xz")


def test_padding_between_streams_of_xz(tmp_path):
    padding = bytes(9000)
    (tmp_path / "a.xz").write_bytes(lzma.compress(b"a") + padding + lzma.compress(b"b") + padding)
    assert read(tmp_path / "a.xz") == b"ab"
