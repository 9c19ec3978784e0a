"""Files of vectors: what is read again, and that nothing half-written has their name."""

import sys

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.vectors import check_vector_file, vector_writer
from tests.full_disk import MESSAGE, full_disk

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)


def write(path, *, sizes=(3, 1)):
    with vector_writer(str(path)) as file:
        first = 0
        for size in sizes:
            some = VECTORS[first : first + size]
            file.write([f"d{first + i}" for i in range(size)], some)
            first += size


def test_an_array_that_is_written_in_parts(tmp_path):
    write(tmp_path / "v.npy")
    read = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert (read.dtype, read.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_array_equal(read, VECTORS)
    np.save(tmp_path / "theirs.npy", VECTORS)
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


def test_a_table(tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    write(tmp_path / "v.parquet")
    table = parquet.read_table(tmp_path / "v.parquet")
    assert str(table.schema.field("vector").type) == "fixed_size_list<element: float>[3]"
    assert table.to_pydict() == {"id": ["d0", "d1", "d2", "d3"], "vector": VECTORS.tolist()}


@pytest.mark.parametrize("name", ["v.npy", "v.parquet"])
def test_an_error_leaves_what_was_there(tmp_path, name):
    if name == "v.parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text("old")

    def fail():
        with vector_writer(str(tmp_path / name)) as file:
            file.write(["a"], VECTORS[:1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "old"
    write(tmp_path / name)
    assert (tmp_path / name).read_bytes()[:3] != b"old"


@pytest.mark.parametrize("name", ["v", "v.npz", "-", "v.npy.txt"])
def test_other_suffixes_are_refused(name):
    with pytest.raises(InputError, match=rf"--output {name}: must end in \.npy or \.parquet"):
        check_vector_file(name)


def test_a_directory_that_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"v\.npy: cannot be written \(No such file"):
        write(tmp_path / "none" / "v.npy")


def test_a_table_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    check_vector_file("v.npy")
    with pytest.raises(InputError, match="needs the package pyarrow: pip install pyarrow, or"):
        check_vector_file("v.parquet")


@pytest.mark.parametrize("name", ["v.npy", "v.parquet"])
@pytest.mark.parametrize("size", [0, 150, 500])
def test_a_full_disk_is_named_with_the_output(tmp_path, name, size):
    if name == "v.parquet":
        pytest.importorskip("pyarrow")

    def fill():
        with full_disk(size), vector_writer(str(tmp_path / name)) as file:
            for _ in range(100):
                file.write(["a"], VECTORS[:1])

    with pytest.raises(InputError) as raised:
        fill()
    assert str(raised.value) == f"{tmp_path / name}: cannot be written ({MESSAGE})"
    assert list(tmp_path.iterdir()) == []
