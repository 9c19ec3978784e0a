"""PyTorch's archives, written: `torch_files` reads them, and tests/oracle/test_sft.py torch."""

import numpy as np

from t5x_lite.interop.torch_files import read_torch
from t5x_lite.interop.torch_writing import write_torch


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
