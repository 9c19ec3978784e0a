import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.vectors import VectorShards, vector_writer

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
