"""PyTorch's archives, written: `torch_files` reads them, and tests/oracle/test_sft.py torch."""

import ml_dtypes
import numpy as np
import pytest

from t5x_lite.interop.tensor_files import read_torch, write_torch


def test_what_is_written_is_read(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "a.weight": rng.standard_normal((3, 4)).astype(np.float32),
        "a.turned": rng.standard_normal((3, 4)).astype(np.float32).T,
        "b": np.float32([1.5]),
        "none": np.zeros((0, 2), np.float32),
    }
    write_torch(tmp_path / "f.bin", arrays)
    found = read_torch(tmp_path / "f.bin")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float32", "float64"])
def test_dtypes_are_kept_on_request(tmp_path, dtype):
    array = np.arange(6, dtype=np.float32).reshape(2, 3).astype(dtype)
    write_torch(tmp_path / "kept.pt", {"a": array}, keep_dtype=True)
    kept = read_torch(tmp_path / "kept.pt")["a"]
    assert kept.dtype == (np.float32 if dtype == "float64" else array.dtype)
    np.testing.assert_array_equal(kept.astype(np.float64), array.astype(np.float64))
    write_torch(tmp_path / "plain.pt", {"a": array})
    assert read_torch(tmp_path / "plain.pt")["a"].dtype == np.float32
