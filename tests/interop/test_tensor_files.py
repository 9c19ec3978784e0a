"""Files of tensors: safetensors spelt out, shards, and what is wrong with them."""

import json

import flax.serialization
import ml_dtypes
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.rules import LazyArray
from t5x_lite.interop.tensor_files import (
    read_safetensors,
    read_tensors,
    write_safetensors,
    write_tensors,
)


def lazy(array):
    return LazyArray(array.shape, array.dtype, lambda: array)


ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1.5, -2], ml_dtypes.bfloat16),
    "c": np.array(3, np.float16),
}
LAZY = {name: lazy(array) for name, array in ARRAYS.items()}


def spelt_out(header, data):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def test_a_file_spelt_out(tmp_path):
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [4, 8]},
        "v": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    }
    data = np.float32(7).tobytes() + np.array([1, 2], ml_dtypes.bfloat16).tobytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(spelt_out(header, data))
    found = read_safetensors(path)
    assert found["w"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found["w"].astype(int), [[1, 2]])
    assert found["v"] == 7


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, LAZY)
    found = read_safetensors(path)
    assert list(found) == ["a", "b", "c"]
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    header = path.read_bytes()
    assert int.from_bytes(header[:8], "little") % 8 == 0


def test_a_file_of_views_of_the_file_that_it_replaces(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, LAZY)
    views = read_safetensors(path)
    write_safetensors(path, {name: lazy(view) for name, view in views.items()})
    found = read_safetensors(path)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_tensors_that_are_not_contiguous(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    write_safetensors(tmp_path / "f", {"a": lazy(array)})
    np.testing.assert_array_equal(read_safetensors(tmp_path / "f")["a"], array)


def entry(**changes):
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (b"\x10\0\0\0\0\0\0\0{}", "truncated"),
        (
            spelt_out(entry(), b"1234567"),
            r"the file is truncated; w ends at byte \d+, but the file has \d+ bytes",
        ),
        (spelt_out(b"not json", b""), "not a safetensors file"),
        (spelt_out(b"[" * 100_000, b""), "not a safetensors file"),
        (spelt_out([], b""), "not a safetensors file"),
        (spelt_out({"w": 3}, b""), "not a safetensors file"),
        (spelt_out(entry(dtype="F8_E4M3"), b"12345678"), "dtype F8_E4M3 is not supported"),
        (spelt_out(entry(shape=[3]), b"12345678"), "does not match the data offsets 0 to 8"),
        (spelt_out(entry(data_offsets=[-8, 0]), b"12345678"), "does not match the data offsets"),
        (spelt_out(entry(shape=[0, 1 << 63], data_offsets=[0, 0]), b""), "not a safetensors file"),
        (spelt_out(entry(shape=[1] * 100, data_offsets=[0, 4]), b"1234"), "not a safetensors file"),
        (
            spelt_out(entry(shape=[True], data_offsets=[0, 4]), b"1234"),
            "does not match the data offsets",
        ),
        (
            (1 << 27).to_bytes(8, "little") + bytes(1 << 27),
            "the size of its header would be 134217728 bytes",
        ),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "truncated"),
    ],
)
def test_damaged_files(tmp_path, content, reason):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as error:
        read_safetensors(path)
    assert "model.safetensors: " in str(error.value)
    assert "\n" not in str(error.value)


def test_shards(tmp_path):
    write_tensors(tmp_path, LAZY, shard_bytes=25)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 30}
    assert index["weight_map"]["b"] == "model-00002-of-00002.safetensors"
    tensors = read_tensors(tmp_path)
    assert tensors.where.name == "model.safetensors.index.json"
    assert set(tensors.arrays) == set(ARRAYS)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"the shard model-00002-of-00002\.safetensors is missing"):
        read_tensors(tmp_path)


def test_a_tensor_in_two_shards(tmp_path):
    write_tensors(tmp_path, LAZY, shard_bytes=25)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(InputError, match=r"is in model-00002-of-00002\.safetensors and in"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("[]", "not an index"),
        ("{", "not an index"),
        ("[" * 100_000, "not an index"),
        ('{"weight_map": 3}', "not an index"),
        ('{"weight_map": {"a": "../secret"}}', "not the name of a file in its directory"),
        ('{"weight_map": {"a": 3}}', "not the name of a file in its directory"),
        (f'{{"weight_map": {{"a": "{"x" * 1000}"}}}}', "is missing"),
        ('{"weight_map": {"a": "x\\u0000"}}', "is missing"),
    ],
)
def test_wrong_indices(tmp_path, index, reason):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=reason):
        read_tensors(tmp_path)


def test_flax_is_given_as_pytorch_would_have_it(tmp_path, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 20)
    tree = {
        "shared": {"embedding": np.arange(4, dtype=np.float32).reshape(2, 2)},
        "head": {"kernel": np.arange(3, dtype=np.float32).reshape(3, 1)},
        "large": {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4)},
        "norm": {"weight": np.ones(3, np.float32)},
    }
    content = flax.serialization.msgpack_serialize(tree)
    (tmp_path / "flax_model.msgpack").write_bytes(content)
    arrays = read_tensors(tmp_path).arrays
    assert {name: array.shape for name, array in arrays.items()} == {
        "shared.weight": (2, 2),
        "head.weight": (1, 3),
        "large.weight": (4, 3),
        "norm.weight": (3,),
    }
    large = arrays["large.weight"]
    assert isinstance(large, LazyArray)
    np.testing.assert_array_equal(large.read(), np.arange(12).reshape(3, 4).T)


def test_an_old_pytorch_file_is_passed_over_where_there_is_another(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    with pytest.raises(
        InputError, match=r"pytorch_model\.bin: not a zip archive, because PyTorch before"
    ):
        read_tensors(tmp_path)
    content = flax.serialization.msgpack_serialize({"norm": {"weight": np.ones(3, np.float32)}})
    (tmp_path / "flax_model.msgpack").write_bytes(content)
    found = read_tensors(tmp_path)
    assert (found.where.name, list(found.arrays)) == ("flax_model.msgpack", ["norm.weight"])


def test_a_directory_without_weights(tmp_path):
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(
        InputError,
        match=r"no weights in a supported format; the supported files are model\.safeten",
    ):
        read_tensors(tmp_path)
