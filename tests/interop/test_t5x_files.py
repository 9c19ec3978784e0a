"""What t5x writes, read back: each layout, each way to name a folder, and what may be wrong."""

import gzip
import json
import re
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

from t5x_lite.core.errors import InputError
from t5x_lite.interop import t5x
from t5x_lite.interop.t5x import find_checkpoint, read_target
from tests.interop.t5x_writer import (
    write_index,
    write_legacy,
    write_old_orbax,
    write_orbax,
    write_zarr,
)

KERNEL = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SCALE = np.array([1, 2, 3], np.float32)
TARGET = {"encoder": {"layers_0": {"wo": {"kernel": KERNEL}, "norm": {"scale": SCALE}}}}
KERNEL_PATH, SCALE_PATH = "encoder/layers_0/wo/kernel", "encoder/layers_0/norm/scale"
KERNEL_FOLDER = "target.encoder.layers_0.wo.kernel"


def read(directory):
    """All arrays of a checkpoint by path, after checking what was said of them before."""
    arrays = {}
    for path, tensor in read_target(str(directory)).items():
        arrays[path] = tensor.read(None)
        assert (arrays[path].shape, arrays[path].dtype) == (tensor.shape, tensor.dtype)
    return arrays


def assert_same(arrays, kernel=KERNEL):
    assert set(arrays) == {KERNEL_PATH, SCALE_PATH}
    np.testing.assert_array_equal(arrays[KERNEL_PATH], kernel)
    np.testing.assert_array_equal(arrays[SCALE_PATH], SCALE)
    assert arrays[KERNEL_PATH].dtype == kernel.dtype


@pytest.mark.parametrize(
    "inline", [("scale",), (), ("scale", "kernel")], ids=["scales", "nothing", "all"]
)
def test_arrays_of_the_index_and_of_folders(tmp_path, inline):
    assert_same(read(write_legacy(tmp_path / "checkpoint_7", TARGET, inline=inline)))


def test_an_array_in_chunks(tmp_path):
    directory = write_legacy(tmp_path, TARGET, chunks=(1, 3, 2), inline=("scale",))
    assert len(list((directory / KERNEL_FOLDER).glob("*.*.*"))) == 4
    assert_same(read(directory))


def test_bfloat16_stays(tmp_path):
    kernel = (KERNEL / 7).astype(jnp.bfloat16)
    target = {"encoder": {"layers_0": {"wo": {"kernel": kernel}, "norm": {"scale": SCALE}}}}
    assert_same(read(write_legacy(tmp_path, target)), kernel)


def test_version_2_wrote_the_bits_of_bfloat16(tmp_path):
    kernel = (KERNEL / 7).astype(jnp.bfloat16)
    bits = {"encoder": {"layers_0": {"wo": {"kernel": kernel.view(np.uint16)}}}}
    arrays = read(write_legacy(tmp_path, bits, version=2))
    assert arrays[KERNEL_PATH].dtype == jnp.bfloat16
    np.testing.assert_array_equal(arrays[KERNEL_PATH], kernel)


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_the_axis_that_is_outermost_in_memory(tmp_path, axis):
    kernel = read_target(str(write_legacy(tmp_path, TARGET)))[KERNEL_PATH].read(axis)
    np.testing.assert_array_equal(kernel, KERNEL)
    assert np.moveaxis(kernel, axis or 0, 0).flags.c_contiguous


SPECS = {
    "absolute": {"kvstore": {"driver": "file", "path": f"/far/away/{KERNEL_FOLDER}/"}},
    "gfile": {"kvstore": {"driver": "gfile", "path": KERNEL_FOLDER}},
    "gcs": {"kvstore": {"driver": "gcs", "bucket": "t5x-dummy-bucket", "path": KERNEL_FOLDER}},
    "old": {"kvstore": {"driver": "file"}, "path": KERNEL_FOLDER},
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_folder_lies_beside_the_index_whatever_the_spec_says(tmp_path, spec):
    written = write_zarr(tmp_path, KERNEL_FOLDER, KERNEL)
    leaf = {**written, **spec}
    target = {"encoder": {"layers_0": {"wo": {"kernel": leaf}, "norm": {"scale": SCALE}}}}
    write_index(tmp_path, {"version": 3, "optimizer": {"target": target}})
    assert_same(read(tmp_path))


def test_a_train_state_that_was_saved_as_it_is(tmp_path):
    write_index(tmp_path, {"_optimizer": {"target": {"a": {"scale": SCALE}}}, "params_axes": None})
    np.testing.assert_array_equal(read(tmp_path)["a/scale"], SCALE)


def test_a_number_is_an_array_and_nothing_is_none(tmp_path):
    write_index(tmp_path, {"target": {"a": np.float32(2), "b": 3.0, "c": None, "d": {}}})
    arrays = read(tmp_path)
    assert {path: float(array) for path, array in arrays.items()} == {"a": 2.0, "b": 3.0}


def test_orbax_with_its_old_index(tmp_path):
    assert_same(read(write_old_orbax(tmp_path / "checkpoint_7", TARGET)))


@pytest.mark.parametrize("use_ocdbt", [False, True], ids=["folders", "one database"])
def test_orbax(tmp_path, use_ocdbt):
    kernel = (KERNEL / 7).astype(jnp.bfloat16)
    target = {"encoder": {"layers_0": {"wo": {"kernel": kernel}, "norm": {"scale": SCALE}}}}
    assert_same(read(write_orbax(tmp_path / "checkpoint_7", target, use_ocdbt=use_ocdbt)), kernel)


# Which directory


def test_the_newest_step_or_the_one_asked_for(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint_{step}").mkdir()
    (tmp_path / "checkpoint_11.tmp-123").mkdir()
    assert find_checkpoint(tmp_path) == str(tmp_path / "checkpoint_10")
    assert find_checkpoint(str(tmp_path), step=9) == str(tmp_path / "checkpoint_9")
    assert find_checkpoint(tmp_path / "checkpoint_9") == str(tmp_path / "checkpoint_9")
    assert find_checkpoint(tmp_path / "checkpoint_9", step=9) == str(tmp_path / "checkpoint_9")
    with pytest.raises(InputError, match=r"has no step 3; its steps are \[9, 10\]"):
        find_checkpoint(tmp_path, step=3)


def test_the_index_itself_may_be_given(tmp_path):
    write_index(tmp_path, {})
    assert find_checkpoint(tmp_path / "checkpoint") == str(tmp_path)


def test_no_such_directory(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        find_checkpoint(tmp_path / "none")


def test_a_bucket_is_read_by_tensorstore():
    assert find_checkpoint("gs://t5-data/small/checkpoint_7/") == "gs://t5-data/small/checkpoint_7"
    assert find_checkpoint("gs://t5-data/small", step=7) == "gs://t5-data/small/checkpoint_7"
    assert t5x._kvstore("gs://t5-data/small/checkpoint_7") == {
        "driver": "gcs",
        "bucket": "t5-data",
        "path": "small/checkpoint_7/",
    }


# What may be wrong


def message(directory):
    with pytest.raises(InputError) as error:
        read(directory)
    text = str(error.value)
    assert "\n" not in text
    assert str(directory) in text
    return text


def test_a_directory_without_an_index(tmp_path):
    write_zarr(tmp_path, KERNEL_FOLDER, KERNEL)
    assert "contains none of the files 'checkpoint'" in message(tmp_path)


def test_a_damaged_index(tmp_path):
    directory = write_legacy(tmp_path, TARGET)
    content = (directory / "checkpoint").read_bytes()
    (directory / "checkpoint").write_bytes(content[: len(content) // 2])
    assert "checkpoint: unreadable (" in message(directory)


@pytest.mark.parametrize("content", [b"", serialization.msgpack_serialize([1, 2])])
def test_an_index_of_something_else(tmp_path, content):
    (tmp_path / "checkpoint").write_bytes(content)
    message(tmp_path)


def test_an_index_without_parameters(tmp_path):
    write_index(tmp_path, {"version": 3, "optimizer": {"state": {"step": np.int32(7)}}})
    assert "contains no parameters" in message(tmp_path)


def test_a_tensorflow_checkpoint(tmp_path):
    (tmp_path / "checkpoint").write_bytes(b'model_checkpoint_path: "model.ckpt-1"\n')
    assert "this is a checkpoint of Mesh TensorFlow" in message(tmp_path)


def test_version_1(tmp_path):
    write_index(tmp_path, {"version": 1, "optimizer": {"target": {"a": SCALE}}})
    assert "format version 1 is not supported" in message(tmp_path)


@pytest.mark.parametrize("leaf", ["kernel", {"driver": "n5", "kvstore": {"path": "a"}}, b"a", ".."])
def test_a_leaf_that_is_no_array(tmp_path, leaf):
    leaf = "PLACEHOLDER://.." if leaf == ".." else leaf
    write_index(tmp_path, {"version": 3, "optimizer": {"target": {"a": {"kernel": leaf}}}})
    assert re.search("a/kernel (is neither|must be in a zarr folder)", message(tmp_path))


def test_a_missing_folder(tmp_path):
    directory = write_legacy(tmp_path, TARGET)
    shutil.rmtree(directory / KERNEL_FOLDER)
    assert f"{KERNEL_PATH}: unreadable (NOT_FOUND" in message(directory)


def test_a_missing_chunk_is_not_zeros(tmp_path):
    directory = write_legacy(tmp_path, TARGET, chunks=(1, 3, 4))
    (directory / KERNEL_FOLDER / "1.0.0").unlink()
    assert f"{KERNEL_PATH}: unreadable (NOT_FOUND" in message(directory)


def test_zeros_are_written(tmp_path):
    target = {"a": {"kernel": np.zeros((2, 2), np.float32)}}
    np.testing.assert_array_equal(read(write_legacy(tmp_path, target))["a/kernel"], 0)


@pytest.mark.parametrize("damage", [lambda b: b[:20], lambda b: b"", lambda b: gzip.compress(b"a")])
def test_a_truncated_chunk(tmp_path, damage):
    directory = write_legacy(tmp_path, TARGET)
    chunk = directory / KERNEL_FOLDER / "0.0.0"
    chunk.write_bytes(damage(chunk.read_bytes()))
    assert f"{KERNEL_PATH}: unreadable (" in message(directory)


def test_a_damaged_orbax_checkpoint(tmp_path):
    directory = write_orbax(tmp_path / "checkpoint_7", TARGET)
    (directory / "state" / KERNEL_FOLDER / "0.0.0").unlink()
    assert f"target/{KERNEL_PATH}: unreadable (" in message(directory)
    (directory / "state" / "_METADATA").write_text("{")
    assert "state: unreadable (" in message(directory)


def test_nothing_is_read_before_it_is_asked_for(tmp_path):
    directory = write_legacy(tmp_path, TARGET)
    (directory / KERNEL_FOLDER / "0.0.0").unlink()
    assert read_target(str(directory))[KERNEL_PATH].shape == (2, 3, 4)


# Sizes that are said and not so


def rewritten(directory, **changes):
    """A checkpoint with other metadata of its kernel."""
    path = write_legacy(directory, TARGET) / KERNEL_FOLDER / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [1 << 45, 3, 4]},
        {"shape": [1 << 45, 3, 4], "chunks": [1 << 45, 3, 4]},
        {"chunks": [1 << 24, 3, 4]},
        {"shape": [1 << 20, 3, 4], "compressor": None},
        {"shape": [1 << 30, 3, 4], "compressor": {"id": "blosc"}},
    ],
)
def test_a_shape_that_is_more_than_its_files_hold(tmp_path, changes):
    text = message(rewritten(tmp_path, **changes))
    assert re.search(
        rf"{KERNEL_PATH}: unreadable \(an array of this shape requires \d+ bytes, but its", text
    )


def test_a_shape_that_is_more_than_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(t5x, "_MOST_COMPRESSED", {"gzip": 1 << 60})
    text = message(rewritten(tmp_path, shape=[1 << 45, 3, 4]))
    assert f"requires {12 * 4 << 45} bytes, but this machine has only" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shape": [1 << 45, 3, 4]}, "an array of this shape requires"),
        ({"chunks": [1 << 45, 3, 4]}, "but its stored chunks have the larger shape"),
    ],
)
def test_orbax_sizes_that_are_more_than_its_files_hold(tmp_path, changes, told):
    directory = write_orbax(tmp_path / "checkpoint_7", TARGET)
    path = directory / "state" / KERNEL_FOLDER / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert told in message(directory)


@pytest.mark.parametrize("leaf", [{"driver": "zarr", "kvstore": "a"}, "PLACEHOLDER://a\0b"])
def test_a_leaf_that_names_no_folder(tmp_path, leaf):
    write_index(tmp_path, {"target": {"a": {"kernel": leaf}}})
    assert "a/kernel" in message(tmp_path)
