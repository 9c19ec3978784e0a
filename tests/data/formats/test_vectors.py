import contextlib
import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.vectors import (
    VectorShards,
    dequantized,
    quantized,
    ranges_of,
    vector_writer,
)

VECTORS = np.arange(14, dtype=np.float32).reshape(7, 2)


@pytest.fixture
def npy(tmp_path):
    paths = []
    for i, part in enumerate((VECTORS[:3], VECTORS[3:4], VECTORS[4:])):
        paths.append(str(tmp_path / f"{i}.npy"))
        np.save(paths[-1], part)
    return paths


def passages(tmp_path, names, file="corpus.jsonl"):
    path = tmp_path / file
    path.write_text("".join(json.dumps({"_id": name, "text": "x"}) + "\n" for name in names))
    return str(path)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_blocks_go_over_the_ends_of_files(npy, rows):
    shards = VectorShards.open(npy)
    assert (len(shards), shards.size, shards.ids) == (7, 2, None)
    blocks = list(shards.blocks(rows=rows))
    assert [block.first for block in blocks] == list(range(0, 7, rows))
    np.testing.assert_array_equal(np.concatenate([b.vectors for b in blocks]), VECTORS)
    last = list(shards.blocks(rows=rows, first=2, end=6))
    np.testing.assert_array_equal(np.concatenate([b.vectors for b in last]), VECTORS[2:6])
    assert shards.name(6) == "6"


def test_ids_of_texts(tmp_path, npy):
    files = [passages(tmp_path, "abcd"), passages(tmp_path, "efg", "more.jsonl")]
    shards = VectorShards.open(npy, ids=files)
    assert [shards.name(i) for i in range(7)] == list("abcdefg")
    assert shards.names(5, 99) == ["f", "g"]


def test_parquet_has_its_ids(tmp_path):
    pytest.importorskip("pyarrow")
    path = str(tmp_path / "a.parquet")
    with vector_writer(path) as file:
        file.write(list("abc"), VECTORS[:3])
        file.write(list("defg"), VECTORS[3:])
    shards = VectorShards.open([path])
    assert (len(shards), shards.size) == (7, 2)
    for rows in (1, 2, 5, 7):
        found = np.concatenate([block.vectors for block in shards.blocks(rows=rows)])
        np.testing.assert_array_equal(found, VECTORS)
    assert shards.names(0, 7) == list("abcdefg")
    np.save(tmp_path / "b.npy", VECTORS)
    with pytest.raises(InputError, match="some files of vectors have ids"):
        VectorShards.open([path, str(tmp_path / "b.npy")])


def test_float16_is_read_as_float32(tmp_path):
    np.save(tmp_path / "a.npy", VECTORS.astype(np.float16))
    block = VectorShards.open([str(tmp_path / "a.npy")]).rows(0, 9)
    assert block.dtype == np.float32
    np.testing.assert_array_equal(block, VECTORS)


def test_signs_are_an_eighth_of_a_byte(tmp_path):
    vectors = np.array([[0.5, -1, 0, 2, -3, 4, 5, -6], [-1] * 8], np.float32)
    path = str(tmp_path / "a.npy")
    with vector_writer(path, precision="binary") as file:
        file.write(["0", "1"], vectors)
    assert np.load(path).tolist() == [[0b10010110], [0]]
    shards = VectorShards.open([path])
    assert (len(shards), shards.size) == (2, 8)
    signs = [[1, -1, -1, 1, -1, 1, 1, -1], [-1] * 8]
    assert shards.rows(0, 2).tolist() == signs
    assert shards.take(np.array([1, 0, 1])).tolist() == [signs[1], signs[0], signs[1]]
    with (
        pytest.raises(InputError, match="a multiple of 8 dimensions, got 7"),
        vector_writer(path, precision="binary") as file,
    ):
        file.write(["0"], vectors[:1, :7])
    with (
        pytest.raises(InputError, match=r"must end in \.npy to store vectors as float16"),
        vector_writer(str(tmp_path / "a.parquet"), precision="float16"),
    ):
        pass


RANGES = np.array([[-1, 0, 5], [1.55, 510, 5]], np.float32)
"""Steps of 0.01, 2 and, where all numbers are equal, 1."""


def test_int8_is_the_step_in_a_dimensions_range():
    vectors = np.array([[-1, 3.9, 5], [0.285, 600, 5], [9, -7, 7.5]], np.float32)
    codes = quantized(vectors, RANGES)
    assert codes.dtype == np.int8
    assert codes.tolist() == [[-128, -127, -128], [0, 127, -128], [127, -128, -126]]
    read = dequantized(codes, RANGES)
    assert read.dtype == np.float32
    np.testing.assert_allclose(read, [[-1, 2, 5], [0.28, 510, 5], [1.55, 0, 7]], rtol=1e-5)


def write_int8(path, vectors, **options):
    with vector_writer(str(path), precision="int8", **options) as file:
        for first in range(file.done, len(vectors), 2):
            some = vectors[first : first + 2]
            file.write([str(i) for i in range(len(some))], some)


@pytest.mark.parametrize("identity", [None, {"seed": 0}])
def test_ranges_of_an_int8_file(tmp_path, identity, caplog):
    vectors = np.array([[-1, 100], [1.55, 355], [0.285, 227.5]], np.float32)
    write_int8(tmp_path / "a.npy", vectors, identity=identity)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "a.npy.ranges"]
    assert "computed from only 3 vectors" in caplog.text
    assert np.load(tmp_path / "a.npy").tolist() == [[-128, -128], [127, 127], [0, -1]]
    ranges = np.load(tmp_path / "a.npy.ranges")
    np.testing.assert_array_equal(ranges, np.array([[-1, 100], [1.55, 355]], np.float32))
    np.testing.assert_array_equal(ranges_of(str(tmp_path / "a.npy")), ranges)
    np.save(tmp_path / "full.npy", vectors)
    np.testing.assert_array_equal(ranges_of(str(tmp_path / "full.npy")), ranges)
    write_int8(tmp_path / "b.npy", vectors[2:] * 3, identity=identity, ranges=ranges)
    shards = VectorShards.open([str(tmp_path / "a.npy"), str(tmp_path / "b.npy")])
    read = np.array([[-1, 100], [1.55, 355], [0.28, 227], [0.85, 355]])
    np.testing.assert_allclose(shards.rows(0, 4), read, rtol=1e-6)
    np.testing.assert_allclose(shards.take(np.array([3, 0])), read[[3, 0]], rtol=1e-6)
    np.testing.assert_array_equal(shards.ranges, ranges)
    write_int8(tmp_path / "c.npy", vectors * 2, identity=identity)
    for names in ("ac", "cb"):
        with pytest.raises(InputError, match="must have the same int8 ranges as"):
            VectorShards.open([str(tmp_path / f"{name}.npy") for name in names])
    with pytest.raises(InputError, match="or no ranges"):
        VectorShards.open([str(tmp_path / "full.npy"), str(tmp_path / "a.npy")])


@pytest.mark.parametrize("ranges", [None, np.array([[0, 0], [255, 255]], np.float32)])
def test_a_killed_int8_file_resumes(tmp_path, ranges):
    vectors = np.array([[0, 3], [255, 5], [7, 255], [9, 0], [1, 2]], np.float32)
    how = {"identity": {"seed": 0}, "chunk": 2, "precision": "int8", "ranges": ranges}
    with contextlib.suppress(KeyboardInterrupt), vector_writer(f"{tmp_path}/a.npy", **how) as file:
        file.write(["0", "1"], vectors[:2])
        raise KeyboardInterrupt
    assert not (tmp_path / "a.npy").exists()
    with vector_writer(str(tmp_path / "a.npy"), **how) as file:
        assert file.done == 2
        file.write(["2", "3"], vectors[2:4])
        file.write(["4"], vectors[4:])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), vectors - 128)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "a.npy.ranges"]


def test_int8_that_cannot_be(tmp_path):
    path, two = tmp_path / "a.npy", np.array([[1, 2], [3, 4]], np.float32)
    with pytest.raises(InputError, match=r"a\.npy: ranges for int8 need at least 2 vectors, got 1"):
        write_int8(path, two[:1])
    with pytest.raises(InputError, match="--ranges has 3 dimensions, but vectors have 2"):
        write_int8(path, two, ranges=RANGES)
    with pytest.raises(InputError, match=r"must end in \.npy to store vectors as int8"):
        write_int8(tmp_path / "a.parquet", two)
    assert not list(tmp_path.iterdir())
    (tmp_path / "b.npy").mkdir()
    np.save(path, np.zeros((2, 3), np.int8))
    with pytest.raises(InputError, match=r"need the file .*a\.npy\.ranges, which is missing"):
        VectorShards.open([str(path)])
    for wrong, message in (
        (RANGES[:, :2], r"must be an array \[2, 3\], got \[2, 2\]"),
        (RANGES[::-1], "its minimum is above its maximum"),
        (RANGES.astype(np.float64), "must be an array of float32 with 2 axes"),
    ):
        with open(f"{path}.ranges", "wb") as file:
            np.save(file, wrong)
        with pytest.raises(InputError, match=message):
            VectorShards.open([str(path)])
    np.save(path, np.zeros((2, 3), np.uint8))
    with pytest.raises(InputError, match="binary vectors have no ranges"):
        ranges_of(str(path))
    with pytest.raises(InputError, match="not a regular file"):
        write_int8(tmp_path / "b.npy", two)


def test_rows_are_taken_from_several_files(npy):
    found = VectorShards.open(npy).take(np.array([6, 0, 3, 4, 0]))
    np.testing.assert_array_equal(found, VECTORS[[6, 0, 3, 4, 0]])


@pytest.mark.parametrize(
    ("names", "message"),
    [("abc", "3 ids, but .* have 7 vectors"), ("abcdefa", "the id 'a' comes twice")],
)
def test_ids_that_do_not_fit(tmp_path, npy, names, message):
    with pytest.raises(InputError, match=message):
        VectorShards.open(npy, ids=[passages(tmp_path, names)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((3, 4), np.float32), "vectors have 4 dimensions"),
        (np.zeros(3, np.float32), "must be an array"),
        (np.zeros((3, 2), np.int32), "must be an array"),
    ],
)
def test_what_is_no_vector_of_the_corpus(tmp_path, npy, content, message):
    np.save(tmp_path / "bad.npy", content)
    with pytest.raises(InputError, match=message):
        VectorShards.open([npy[0], str(tmp_path / "bad.npy")])


def test_other_files_are_refused(tmp_path):
    for name in ("a.txt", "a.npy"):
        with pytest.raises(InputError, match=name):
            VectorShards.open([str(tmp_path / name)])
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"text")
    with pytest.raises(InputError, match="not a Parquet file"):
        VectorShards.open([str(tmp_path / "a.parquet")])
    with pytest.raises(InputError, match="No such file"):
        VectorShards.open([str(tmp_path / "b.parquet")])
    with pytest.raises(InputError, match="no file of vectors"):
        VectorShards.open([])


def parquet_of(tmp_path, ids, vectors):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": ids, "vector": vectors}), tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def test_columns_of_parquet_are_checked(tmp_path):
    pa = pytest.importorskip("pyarrow")
    listed = pa.list_(pa.float32())
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    two = pa.array([[1.0, 2.0]], listed)
    cases = [
        (bad, two, "UTF8"),
        (pa.array([None], pa.string()), two, "0 of 1|1 of 1 entries in column id"),
        (pa.array([b"x"]), two, "ids that are strings or whole numbers"),
        (pa.array(["a"]), pa.array([["1"]]), "lists of floats"),
        (pa.array(["a"]), pa.array([None], listed), "entries in column vector"),
        (pa.array(["a", "b"]), pa.array([[1.0], [1.0, 2.0, 3.0]], listed), "have different sizes"),
    ]
    for ids, vectors, message in cases:
        path = parquet_of(tmp_path, ids, vectors)
        with pytest.raises(InputError, match=rf"a\.parquet: .*({message})"):
            VectorShards.open([path])


def test_a_flipped_bit_in_parquet_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    with vector_writer(str(path)) as writer:
        writer.write(list("abcdefg"), VECTORS)
    content, number = bytearray(path.read_bytes()), np.float32(13).tobytes()
    place = content.find(number)
    assert place > 0
    content[place + 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.parquet: not a Parquet file, or cut off"):
        VectorShards.open([str(path)]).rows(0, 7)
