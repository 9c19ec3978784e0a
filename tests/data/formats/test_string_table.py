import errno
import os

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.vectors import StringTable, create_array, open_array, save_array

STRINGS = ["d7", "", "é 日", "NA"]


def test_there_and_back(tmp_path):
    table = StringTable.of(iter(STRINGS))
    assert list(table) == STRINGS
    table.save(tmp_path / "ids")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.bytes.npy", "ids.ends.npy"]
    opened = StringTable.open(tmp_path / "ids")
    assert [opened[i] for i in range(len(opened))] == STRINGS
    assert opened.part(1, 3) == ["", "é 日"]
    assert opened.part(3, 9) == ["NA"]


@pytest.mark.parametrize("strings", [[], [""]])
def test_nothing_there_and_back(tmp_path, strings):
    StringTable.of(strings).save(tmp_path / "ids")
    assert list(StringTable.open(tmp_path / "ids")) == strings


def test_what_is_no_array_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        open_array(tmp_path / "a.npy")
    for content in (b"", b"text that is no array"):
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(InputError, match="not an array of NumPy"):
            open_array(tmp_path / "a.npy")
    save_array(tmp_path / "a.npy", np.arange(1000))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-8])
    with pytest.raises(InputError, match="cut off"):
        open_array(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(whole + b"0")  # as after two writers
    with pytest.raises(
        InputError, match=r"or damaged \(int64 \[1000\] in 8129 bytes, more than it"
    ):
        open_array(tmp_path / "a.npy")


def header(text):
    body = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1024), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4, True), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 99999999999999999999999), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '<f3', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': [('a', '<f4', (99999999999,))], 'fortran_order': False, 'shape': (4,), }",
    "{'descr': 4, 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': 4, }",
    "[" * 5000,
    "{'descr': '<f4'",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }",
]


@pytest.mark.parametrize("text", HEADERS)
def test_a_header_is_checked_before_memory_is_asked_for(tmp_path, text):
    (tmp_path / "a.npy").write_bytes(header(text) + bytes(64))
    with pytest.raises(InputError, match=r"a\.npy: not an array of NumPy"):
        open_array(tmp_path / "a.npy")


def test_types_and_axes_are_checked(tmp_path):
    save_array(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    assert open_array(tmp_path / "a.npy", dtypes=(np.float32,), dims=2).shape == (2, 3)
    for options in ({"dtypes": (np.int32,)}, {"dims": 1}):
        with pytest.raises(InputError, match=r"must be an array of .*got float32 \[2, 3\]"):
            open_array(tmp_path / "a.npy", **options)


@pytest.mark.parametrize(
    ("ends", "content"),
    [([1, 0, 3], b"abc"), ([-1, 3], b"abc"), ([1, 4], b"abc"), ([1], b"abc"), ([1 << 62], b"abc")],
)
def test_ends_that_do_not_fit_are_refused(tmp_path, ends, content):
    save_array(tmp_path / "ids.bytes.npy", np.frombuffer(content, np.uint8))
    save_array(tmp_path / "ids.ends.npy", np.array(ends, np.int64))
    with pytest.raises(InputError, match=r"ids\.ends\.npy: damaged"):
        StringTable.open(tmp_path / "ids")


def test_strings_that_are_not_utf8(tmp_path):
    StringTable.of(["a", "b"]).save(tmp_path / "ids")
    save_array(tmp_path / "ids.bytes.npy", np.frombuffer(b"a\xff", np.uint8))
    table = StringTable.open(tmp_path / "ids")
    with pytest.raises(InputError, match=r"ids: damaged \(string 1 is not UTF-8\)"):
        table[1]


def test_a_map_on_a_full_disk_is_an_error_before_it_is_filled(tmp_path, monkeypatch):
    def full(descriptor, start, size):
        assert (start, size) == (0, 128 + 8000)
        raise OSError(errno.ENOSPC, "No space left on device")

    array = create_array(tmp_path / "a.npy", np.float32, (1000, 2))
    array[:] = 1
    array.flush()
    assert open_array(tmp_path / "a.npy").sum() == 2000
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*b\.npy'"):
        create_array(tmp_path / "b.npy", np.float32, (1000, 2))
