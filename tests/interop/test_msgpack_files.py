"""Flax's msgpack files against flax's own writer, which the package does not need to read them."""

import flax.serialization
import ml_dtypes
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop import tensor_files
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.tensor_files import read_msgpack

TREE = {
    "shared": {"embedding": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "encoder": {
        "block": {
            "0": {
                "q": {"kernel": np.ones((2, 2), ml_dtypes.bfloat16)},
                "k": {"kernel": np.full((300, 2), 0.5, np.float16)},
            }
        },
    },
}


def written(path, tree):
    path.write_bytes(flax.serialization.msgpack_serialize(tree))
    return path


def test_arrays_by_path(tmp_path):
    found = read_msgpack(written(tmp_path / "f.msgpack", TREE))
    assert set(found) == {
        "shared.embedding",
        "encoder.block.0.q.kernel",
        "encoder.block.0.k.kernel",
    }
    np.testing.assert_array_equal(found["shared.embedding"], TREE["shared"]["embedding"])
    assert found["encoder.block.0.q.kernel"].dtype == ml_dtypes.bfloat16
    assert found["encoder.block.0.k.kernel"].shape == (300, 2)
    assert all(isinstance(array, np.memmap) for array in found.values())


def test_large_arrays_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 40)
    array = np.arange(35, dtype=np.float32).reshape(5, 7)
    found = read_msgpack(written(tmp_path / "f.msgpack", {"a": array}))["a"]
    assert isinstance(found, LazyArray)
    assert (found.shape, found.dtype) == ((5, 7), np.float32)
    np.testing.assert_array_equal(found.read(), array)


def test_a_truncated_file(tmp_path):
    path = written(tmp_path / "f.msgpack", TREE)
    content = path.read_bytes()
    for size in (0, 1, 20, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(
            InputError, match=r"f\.msgpack: the file is truncated, or not a tree of arrays"
        ):
            read_msgpack(path)


def test_an_array_whose_bytes_are_text(tmp_path):
    path = tmp_path / "f.msgpack"
    array = b"\x93\x91\x01\xa5uint8\xa1x"  # [[1], "uint8", "x"]
    path.write_bytes(b"\x81\xa1a\xc7" + bytes([len(array), 1]) + array)
    with pytest.raises(InputError, match="an array has no shape or no data"):
        read_msgpack(path)


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ({"a": "text"}, "a must be an array, got a str"),
        ({"a": 3}, "a must be an array, got a int"),
        ({"a": 1 + 2j}, "extension of type 2"),
        ({"a": np.array(["x"])}, "dtype 'str"),
        ([1, 2], "found a list"),
    ],
)
def test_files_of_other_things(tmp_path, tree, reason):
    with pytest.raises(InputError, match=reason):
        read_msgpack(written(tmp_path / "f.msgpack", tree))


def array_of(shape, name, content):
    """{"a": an array}, its shape and name in msgpack as they are given."""
    array = b"\x93" + shape + name + b"\xc4" + bytes([len(content)]) + content
    return b"\x81\xa1a\xc7" + bytes([len(array), 1]) + array


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (array_of(b"\x91\xff", b"\xa5uint8", b"1"), "no shape"),  # [-1]
        (array_of(b"\x92\x00\xcf" + b"\xff" * 8, b"\xa5uint8", b""), "no shape"),
        (array_of(b"\x91\xc3", b"\xa5uint8", b"1"), "no shape"),  # [True]
        (array_of(b"\x91\x01", b"\xcf" + b"\x00\x00\x01" + bytes(5), b"1"), "dtype 1099511627776"),
        (b"\x81\xa1a" * 5000, "recursion"),
    ],
)
def test_sizes_that_are_said_and_not_so(tmp_path, content, reason):
    path = tmp_path / "f.msgpack"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_msgpack(path)


def test_more_values_than_a_model_has(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "_MOST_VALUES", 1000)
    path = tmp_path / "f.msgpack"
    path.write_bytes(b"\x81\xa1a\xdd\xff\xff\xff\xff" + bytes(1 << 21))
    with pytest.raises(InputError, match="more than 1000 values"):
        read_msgpack(path)


@pytest.mark.parametrize("shape", [[-5, -7], [35, True], ["35"]])
def test_large_arrays_of_no_shape(tmp_path, shape):
    chunks = {"0": np.zeros(35, np.float32)}
    sizes = {str(i): size for i, size in enumerate(shape)}
    tree = {"a": {"__msgpack_chunked_array__": True, "shape": sizes, "chunks": chunks}}
    with pytest.raises(InputError, match="do not add up to"):
        read_msgpack(written(tmp_path / "f.msgpack", tree))
