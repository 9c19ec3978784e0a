"""Rows of Parquet and Arrow files, and what is said of a bad one."""

import subprocess
import sys

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.benchmark_files import Row
from t5x_lite.data.formats.tables import check_row, ending_of, read_table, rows_of_batches, texts_of

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
    with pytest.raises(InputError, match=r"has no column 'txt'; did you mean text\?"):
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
    with pytest.raises(
        InputError, match=r"t: row 1: column 'day' is of type date32\[day\], but must be a"
    ):
        check_row(first, ["day"])
    with pytest.raises(InputError, match=r"t: row 2: column 'single' is empty \(null\)"):
        check_row(second, ["single"])


def test_text_that_is_not_utf8(tmp_path):
    offsets, data = np.array([0, 1, 2], np.int32), b"a\xff"
    bad = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(data))
    with pytest.raises(InputError, match=r"t: row 2: column 'text' is not UTF-8"):
        list(rows_of_batches([pa.record_batch({"text": bad})], name="t", columns=()))


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.parquet", b"PAR1 cut"), ("a.arrow", b"not Arrow"), ("a.arrow", b"ARROW1\0\0cut")],
)
def test_damaged_files_are_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        InputError, match=rf"{name}: damaged, or not in \w+ format despite its suffix"
    ):
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
    with pytest.raises(InputError, match=r"a\.xlsx is not a table: its name must end in \.jsonl"):
        list(read_table(tmp_path / "a.xlsx", columns=()))


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        InputError, match=r"a\.parquet requires the package pyarrow, which is missing: .*tables"
    ):
        list(read_table(tmp_path / "a.parquet", columns=()))


def test_endings():
    assert ending_of("a.b.csv.gz") == ".csv.gz"
    assert ending_of("a.jsonl") == ".jsonl"
    assert ending_of("a.txt") == ""


def test_check_row():
    with pytest.raises(InputError, match=r"f:3: column 'b' is missing; the columns are a"):
        check_row(Row("f:3", {"a": 1}), ["b"])


def offsets(*values, dtype=np.int32):
    return pa.py_buffer(np.array(values, dtype))


def strings(kind, *ends, data=b"abc", dtype=np.int32):
    return pa.Array.from_buffers(
        kind, len(ends) - 1, [None, offsets(*ends, dtype=dtype), pa.py_buffer(data)]
    )


FAR = 1 << 30
DAMAGED = {
    "string": lambda: strings(pa.string(), 0, FAR, 3),
    "string that falls": lambda: strings(pa.string(), 3, 0, 3),
    "large_string": lambda: strings(pa.large_string(), 0, FAR, 3, dtype=np.int64),
    "list": lambda: pa.Array.from_buffers(
        pa.list_(pa.string()), 2, [None, offsets(0, FAR, 1)], children=[pa.array(["a"])]
    ),
    "strings of a list": lambda: pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), strings(pa.string(), 0, FAR, 3)
    ),
    "dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, FAR], pa.int32()), pa.array(["a"]), safe=False
    ),
    "strings of a dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, 1], pa.int32()), strings(pa.string(), 0, FAR, 3)
    ),
    "object": lambda: pa.StructArray.from_arrays([strings(pa.string(), 0, FAR, 3)], ["a"]),
    "text of an object": lambda: pa.StructArray.from_arrays(
        [strings(pa.string(), 0, 1, 2, data=b"a\xff")], ["a"]
    ),
    "string_view": lambda: pa.Array.from_buffers(
        pa.string_view(),
        1,
        [None, pa.py_buffer(np.array([99, 0, 0, FAR], np.int32)), pa.py_buffer(b"abc")],
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_wrong_offsets_are_refused_before_a_value_is_read(name):
    batch = pa.record_batch([DAMAGED[name]()], names=["text"])
    with pytest.raises(InputError, match=r"t: column 'text' is damaged \(.+\); copy or download"):
        list(rows_of_batches([batch], name="t", columns=()))


@pytest.mark.parametrize("name", ["a_file.arrow", "a_stream.arrow"])
def test_a_changed_offset_in_a_file(tmp_path, name):
    file = write(tmp_path / name, [{"text": "ab"}, {"text": "cde"}])
    content = file.read_bytes()
    whole, wrong = (np.array([0, 2, end], np.int32).tobytes() for end in (5, FAR))
    assert content.count(whole) == 1
    file.write_bytes(content.replace(whole, wrong))
    with pytest.raises(InputError, match=r"column 'text' is damaged"):
        list(read_table(file, columns=("text",)))


def peak_of_reading(file, *columns):
    """MiB that reading all rows adds to a process of its own, and the rows."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from t5x_lite.data.formats.tables import read_table\n"
        "import pyarrow.parquet\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "before, count = peak(), 0\n"
        "try:\n"
        "    for row in read_table(Path(sys.argv[1]), columns=sys.argv[2:]): count += 1\n"
        "except ValueError as error: print(error, file=sys.stderr)\n"
        "print(peak() - before, count)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(file), *columns], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return *map(int, done.stdout.split()), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "list", "object"])
def test_rows_that_share_a_long_text_do_not_take_its_memory_each(tmp_path, kind):
    import pyarrow.parquet as parquet

    column = pa.DictionaryArray.from_arrays(np.zeros(2048, np.int32), ["x" * (1 << 20)])
    if kind == "list":
        column = pa.ListArray.from_arrays(np.arange(2049, dtype=np.int32), column)
    elif kind == "object":
        column = pa.StructArray.from_arrays([column], ["a"])
    table = pa.table({"text": column})
    parquet.write_table(table, tmp_path / "a.parquet", store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20
    mebibytes, count, _ = peak_of_reading(tmp_path / "a.parquet", "text")
    assert count == 2048
    assert mebibytes < 200


def test_a_row_of_too_many_bytes_is_refused(tmp_path, monkeypatch):
    from t5x_lite.data.formats import tables

    monkeypatch.setattr(tables, "LONGEST_LINE", 1000)
    listed = pa.array([["a"], ["x" * 400] * 3])
    for column in (listed, pa.array(["a", "x" * 1001]), pa.array(["x" * 1001]).dictionary_encode()):
        batch = pa.record_batch([column], names=["text"])
        with pytest.raises(InputError, match=r"more than 1000 bytes"):
            list(rows_of_batches([batch], name="t", columns=()))
