"""Parameters in Orbax's format, one array at a time, as `checkpoints` reads and writes them."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints.items import lazy_params, write_params
from t5x_lite.checkpoints.reading import Checkpoints, restore_params
from t5x_lite.core.errors import InputError
from t5x_lite.interop.rules import LazyArray


def lazy(array, log):
    def read():
        log.append(array.shape)
        return array

    return LazyArray(array.shape, array.dtype, read)


ARRAYS = {
    "model/a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "model/b/scale": np.array([1.5, -2], ml_dtypes.bfloat16),
}


def test_what_is_written_is_restored_in_float32(tmp_path):
    log = []
    write_params(tmp_path / "params", {name: lazy(a, log) for name, a in ARRAYS.items()})
    assert log == [(2, 3), (2,)]
    checkpoint_manifest.write(tmp_path)
    shapes = {
        "model": {
            "a": {"kernel": jax.ShapeDtypeStruct((2, 3), jnp.float32)},
            "b": {"scale": jax.ShapeDtypeStruct((2,), jnp.float32)},
        }
    }
    restored = restore_params(tmp_path, shapes)
    np.testing.assert_array_equal(restored["model"]["a"]["kernel"], ARRAYS["model/a/kernel"])
    assert restored["model"]["b"]["scale"].dtype == jnp.float32
    np.testing.assert_array_equal(restored["model"]["b"]["scale"], [1.5, -2])


def test_arrays_are_read_when_they_are_asked_for(tmp_path):
    write_params(tmp_path / "params", {name: lazy(a, []) for name, a in ARRAYS.items()})
    found = lazy_params(tmp_path / "params")
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        "model/a/kernel": ((2, 3), np.float32),
        "model/b/scale": ((2,), ml_dtypes.bfloat16),
    }
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name].read(), array)


def test_what_training_saved_is_read(tmp_path):
    params = {"model": {"a": jnp.arange(3.0)}}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, params=params, optimizer={"step": jnp.zeros(())}, files={})
    found = lazy_params(tmp_path / "checkpoints" / "3" / "params")
    np.testing.assert_array_equal(found["model/a"].read(), [0, 1, 2])


def test_parameters_that_cannot_be_read(tmp_path):
    write_params(tmp_path / "params", {name: lazy(a, []) for name, a in ARRAYS.items()})
    found = lazy_params(tmp_path / "params")
    for path in (tmp_path / "params").rglob("d/*"):
        path.unlink()
    with pytest.raises(InputError, match="params: unreadable"):
        found["model/a/kernel"].read()
    with pytest.raises(InputError, match="gone: unreadable"):
        lazy_params(tmp_path / "gone")


def test_what_an_earlier_version_wrote_has_todays_paths(tmp_path):
    kernel = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    write_params(tmp_path / "params", {"model/layers/wi/kernel": lazy(kernel, [])})
    found = lazy_params(tmp_path / "params")
    assert found.keys() == {"model/layers/mlp/wi/kernel"}
    np.testing.assert_array_equal(found["model/layers/mlp/wi/kernel"].read(), kernel)
