"""Arrays by name: those of a checkpoint, and whether they are equal to the bit."""

from pathlib import Path

import numpy as np

from t5x_lite.checkpoints.items import lazy_params


def saved_arrays(step):
    """The parameters of a checkpoint directory."""
    return {path: array.read() for path, array in lazy_params(Path(step) / "params").items()}


def assert_equal_arrays(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype, name
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
