"""Items of a step directory: files as they are, arrays where they are wanted."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from t5x_lite.checkpoints import items

TREE = {"a": jnp.arange(6.0).reshape(2, 3), "b": {"c": jnp.ones(3), "d": {}}}


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    directory = epath.Path(tmp_path_factory.mktemp("items")) / "1"
    writer = items.checkpointer()
    writer.save(
        directory,
        args=ocp.args.Composite(
            params=ocp.args.StandardSave(TREE),
            optimizer=ocp.args.StandardSave({"step": jnp.int32(3)}),
            files=items.FilesSave({"a/b.txt": b"b", "c": b""}, {"data/process_0": b"here"}),
        ),
    )
    writer.close()
    return directory


def test_files(step):
    assert items.read_files(step / "files") == {
        "a/b.txt": b"b",
        "c": b"",
        "data/process_0": b"here",
    }
    assert (step / "files" / "a" / "b.txt").read_bytes() == b"b"
    assert items.read_files(step / "none") == {}


def test_only_the_first_process_writes_what_all_have(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    save = items.FilesSave({"config.json": b"{}"}, {"data/process_1": b"there"})
    items.FilesHandler().save(epath.Path(tmp_path), save)
    assert items.read_files(tmp_path) == {"data/process_1": b"there"}


def test_what_is_saved(step):
    leaves = items.saved_leaves(step / "params")
    assert {path: tuple(leaf.shape) for path, leaf in leaves.items()} == {"a": (2, 3), "b/c": (3,)}


def test_a_whole_item_and_some_of_its_arrays(step, tmp_path):
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[-1])
    wanted = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), TREE)
    got = items.restore_item(step / "params", wanted)
    jax.tree.map(np.testing.assert_array_equal, got, TREE)
    assert got["a"].sharding == device
    some = items.restore_leaves(
        step / "params", {"b/c": jax.ShapeDtypeStruct((3,), jnp.bfloat16, sharding=None)}
    )
    assert some.keys() == {"b/c"}
    assert some["b/c"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(some["b/c"].astype(jnp.float32), TREE["b"]["c"])
    assert items.restore_leaves(step / "params", {}) == {}
    with pytest.raises(FileNotFoundError):
        items.saved_leaves(tmp_path / "none")


def test_what_an_earlier_version_saved_has_todays_paths(tmp_path):
    kernel, bias = jnp.ones((2, 3)), jnp.zeros(3)
    saved = {"layers": {"wi": {"kernel": kernel, "bias": bias}, "norm": bias}, "objective": {}}
    writer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    writer.save(epath.Path(tmp_path / "params"), args=ocp.args.StandardSave(saved))
    writer.close()
    wanted = {
        "layers": {"mlp": {"wi": {"kernel": kernel, "bias": bias}}, "norm": bias},
        "objective": {},
    }
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), wanted)
    found = items.restore_item(tmp_path / "params", abstract)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert sorted(items.saved_leaves(tmp_path / "params")) == [
        "layers/mlp/wi/bias",
        "layers/mlp/wi/kernel",
        "layers/norm",
    ]
    del abstract["layers"]["norm"]
    with pytest.raises(ValueError, match="unexpected: layers/norm"):
        items.restore_item(tmp_path / "params", abstract)
