"""Rows of Parquet and Arrow files, and what is said of a bad one."""

import sys

import numpy as np
import pytest

from t5x_lite.errors import InputError
from t5x_lite.records.benchmark_files import Row
from t5x_lite.records.tables import check_row, ending_of, read_table, rows_of_batches, texts_of

pa = pytest.importorskip("pyarrow")

ROWS = [{"text": "Fine.", "stars": 5, "x": 0.5, "ok": True}, {"text": "Nö", "stars": 1, "x": None}]


def write(path, rows=ROWS, schema=None, batches=1):
    table = pa.Table.from_pylist(rows, schema=schema)
    if path.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, path, row_group_size=1)
        return path
    new = pa.ipc.new_file if path.stem.endswith("file") else pa.ipc.new_stream
    with path.open("wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(1, len(table) // batches))
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a_file.arrow", "a_stream.arrow", "a_file.feather"])
def test_rows_have_their_values_and_places(tmp_path, name):
    file = write(tmp_path / name, batches=2)
    rows = list(read_table(file, columns=("text", "stars")))
    assert [row.where for row in rows] == [f"{file}: row 1", f"{file}: row 2"]
    assert [texts_of(row) for row in rows] == [
        {"text": "Fine.", "stars": "5", "x": "0.5", "ok": "true"},
        {"text": "Nö", "stars": "1"},
    ]


def test_an_empty_table_has_no_rows_but_columns(tmp_path):
    schema = pa.schema({"text": pa.string()})
    file = write(tmp_path / "a.parquet", [], schema)
    assert list(read_table(file, columns=("text",))) == []
    with pytest.raises(InputError, match=r"there is no column 'txt'; did you mean text\?"):
        list(read_table(file, columns=("txt",)))


def test_types(tmp_path):
    columns = {
        "single": pa.array([0.1, float("nan")], pa.float32()),
        "category": pa.array(["a", "b"]).dictionary_encode(),
        "large": pa.array(["x", None], pa.large_string()),
        "list": pa.array([["a", "b"], []]),
        "bytes": pa.array([b"\xff", b""]),
        "day": pa.array([0, 1], pa.date32()),
    }
    first, second = rows_of_batches([pa.record_batch(columns)], name="t", columns=())
    assert texts_of(first) == {"single": "0.1", "category": "a", "large": "x", "list": '["a", "b"]'}
    assert texts_of(second) == {"category": "b", "list": "[]"}
    check_row(first, ["single", "list"])
    with pytest.raises(InputError, match=r"t: row 1: 'day' is of type date32\[day\]: it must be a"):
        check_row(first, ["day"])
    with pytest.raises(InputError, match=r"t: row 2: 'single' is empty \(null\)"):
        check_row(second, ["single"])


def test_text_that_is_not_utf8(tmp_path):
    offsets, data = np.array([0, 1, 2], np.int32), b"a\xff"
    bad = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(data))
    with pytest.raises(InputError, match=r"t: row 2: 'text' is not UTF-8"):
        list(rows_of_batches([pa.record_batch({"text": bad})], name="t", columns=()))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.parquet", b"PAR1 cut"), ("a.arrow", b"not Arrow"), ("a.arrow", b"ARROW1\0\0cut")],
)
def test_damaged_files_are_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: damaged, or not \w+ as its name says"):
        list(read_table(tmp_path / name, columns=()))


@pytest.mark.parametrize("name", ["a.parquet", "a_file.arrow", "a_stream.arrow"])
def test_a_file_that_was_cut_off(tmp_path, name):
    file = write(tmp_path / name, ROWS * 50, batches=10)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged, or not"):
        list(read_table(file, columns=("text",)))


def test_files_that_are_not_there_or_no_tables(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*a\.parquet: No such file"):
        list(read_table(tmp_path / "a.parquet", columns=()))
    with pytest.raises(InputError, match=r"a\.xlsx is no table: its name must end in \.jsonl"):
        list(read_table(tmp_path / "a.xlsx", columns=()))


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"a\.parquet needs pyarrow, which is missing: .*tables"):
        list(read_table(tmp_path / "a.parquet", columns=()))


def test_endings():
    assert ending_of("a.b.csv.gz") == ".csv.gz"
    assert ending_of("a.jsonl") == ".jsonl"
    assert ending_of("a.txt") == ""


def test_check_row():
    with pytest.raises(InputError, match=r"f:3: must have 'b'; it has a"):
        check_row(Row("f:3", {"a": 1}), ["b"])
