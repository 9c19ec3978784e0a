"""Checkpoints: what is saved comes back bit for bit, which steps stay, and what errors say."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import checkpoints
from t5x_lite.checkpoints import Checkpoints, find_step, restore_params, saved_steps, step_files
from t5x_lite.errors import InputError

FILES = {
    "config.json": b'{"steps": 3}',
    "vocabulary/sentencepiece.model": b"\x00pieces\xff",
    "data/process_0": b"position",
}


def params(value=0.0):
    return {
        "model": {"kernel": jnp.arange(6, dtype=jnp.float32).reshape(2, 3) + value},
        "objective": {},
    }


def optimizer(step):
    return {"step": jnp.int32(step), "state": {"mean": jnp.full((2, 3), 0.1, jnp.float32)}}


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def save(manager, step, **metrics):
    manager.save(
        step,
        params=params(step),
        optimizer=optimizer(step),
        files=FILES,
        metrics=metrics or None,
    )


def steps(workdir):
    return saved_steps(workdir / "checkpoints")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A work directory with the steps 5 and 10; read only."""
    workdir = tmp_path_factory.mktemp("saved")
    with Checkpoints(workdir) as manager:
        assert manager.latest() is None
        save(manager, 5)
        save(manager, 10)
    return workdir


def test_what_is_saved_comes_back(saved):
    with Checkpoints(saved) as manager:
        assert manager.latest() == 10
        got, state = manager.restore(5, params=abstract(params()), optimizer=abstract(optimizer(0)))
        assert manager.files(5) == FILES
    np.testing.assert_array_equal(got["model"]["kernel"], params(5)["model"]["kernel"])
    assert int(state["step"]) == 5
    np.testing.assert_array_equal(state["state"]["mean"], optimizer(5)["state"]["mean"])


def test_a_step_directory_is_self_contained_and_readable(saved, tmp_path):
    parts = {path.name for path in (saved / "checkpoints" / "5").iterdir()}
    assert {"files", "optimizer", "params"} <= parts
    assert (saved / "checkpoints/5/files/config.json").read_bytes() == FILES["config.json"]
    moved = tmp_path / "elsewhere"
    shutil.copytree(saved / "checkpoints" / "5", moved)
    assert find_step(moved) == moved
    assert step_files(moved) == FILES
    got = restore_params(moved, jax.eval_shape(lambda: params()))
    np.testing.assert_array_equal(got["model"]["kernel"], params(5)["model"]["kernel"])


def test_arrays_are_copied_before_save_returns(tmp_path):
    """The next step donates them while they are written in the background."""
    change = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    tree = {"w": jnp.arange(1 << 20, dtype=jnp.float32)}
    with Checkpoints(tmp_path) as manager:
        manager.save(1, params=tree, optimizer=optimizer(1), files={})
        for _ in range(20):
            tree = change(tree)
        manager.wait()
        got, _ = manager.restore(1, params=abstract(tree), optimizer=abstract(optimizer(0)))
    np.testing.assert_array_equal(got["w"], np.arange(1 << 20, dtype=np.float32))


def test_the_newest_stay(tmp_path):
    with Checkpoints(tmp_path, keep=2) as manager:
        for step in (1, 2, 3, 4):
            save(manager, step)
    assert steps(tmp_path) == [3, 4]


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 1)])
def test_the_best_one_stays_too_even_over_a_restart(tmp_path, caplog, mode, best):
    accuracy = {1: 0.25, 2: 0.75, 3: None, 4: float("nan"), 5: None, 6: 0.5}
    for part in ((1, 2, 3), (4, 5, 6)):
        with Checkpoints(tmp_path, keep=1, best="accuracy", best_mode=mode) as manager:
            for step in part:
                metrics = {} if accuracy[step] is None else {"accuracy": accuracy[step], "b": 0.0}
                save(manager, step, **metrics)
    assert steps(tmp_path) == [best, 6]
    assert [record for record in caplog.records if record.levelname != "INFO"] == []
    got = restore_params(find_step(tmp_path, step=best), jax.eval_shape(lambda: params()))
    np.testing.assert_array_equal(got["model"]["kernel"], params(best)["model"]["kernel"])


def test_steps_from_before_a_best_metric_was_asked_for_do_not_pile_up(tmp_path):
    with Checkpoints(tmp_path, keep=3) as manager:
        for step in (1, 2, 3):
            save(manager, step, accuracy=0.5)
    with Checkpoints(tmp_path, keep=1, best="accuracy") as manager:
        for step, accuracy in ((4, 0.5), (5, 0.25), (6, 0.25)):
            save(manager, step, accuracy=accuracy)
    assert steps(tmp_path) == [4, 6]


def test_a_best_metric_that_is_not_measured_is_refused(tmp_path):
    with Checkpoints(tmp_path, best="acuracy") as manager:
        save(manager, 1)  # not evaluated
        with pytest.raises(InputError, match=r"'acuracy' is not a metric .* it gives \['accuracy"):
            save(manager, 2, accuracy=1.0)


def test_a_step_whose_saving_was_killed_is_not_there(saved, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(saved, workdir)
    torn = workdir / "checkpoints" / "15.orbax-checkpoint-tmp"
    shutil.copytree(workdir / "checkpoints" / "10", torn)
    assert find_step(workdir).name == "10"
    with Checkpoints(workdir) as manager:
        assert manager.latest() == 10
        save(manager, 15)
    assert steps(workdir) == [5, 10, 15]
    assert not torn.exists()


def test_find_step(saved):
    steps = saved / "checkpoints"
    assert find_step(saved) == find_step(str(steps)) == find_step(steps / "10") == steps / "10"
    assert find_step(saved, step=5) == find_step(steps / "5", step=5) == steps / "5"


def test_find_step_says_what_is_wrong(saved, tmp_path):
    def message(*args, **kwargs):
        with pytest.raises(InputError) as raised:
            find_step(*args, **kwargs)
        return str(raised.value)

    assert message(tmp_path / "none").endswith("none: no such directory")
    assert "holds no checkpoint; give a work directory" in message(tmp_path)
    assert message(saved, step=7).endswith("has no step 7: it has [5, 10]")
    assert message(saved / "checkpoints" / "5", step=10).endswith(
        "is one step directory, and not step 10"
    )


def test_parameters_take_the_wanted_dtype_and_sharding(saved):
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    wanted = {
        "model": {"kernel": jax.ShapeDtypeStruct((2, 3), jnp.bfloat16, sharding=device)},
        "objective": {},
    }
    got = restore_params(find_step(saved), wanted)["model"]["kernel"]
    assert (got.dtype, got.sharding) == (jnp.bfloat16, device)
    np.testing.assert_array_equal(got.astype(jnp.float32), params(10)["model"]["kernel"])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"model": {"kernel": (2, 4)}}, "model/kernel has shape (2, 3) there and (2, 4) here"),
        ({"model": {"bias": (2, 3)}}, "missing: model/bias; unexpected: model/kernel"),
    ],
)
def test_parameters_that_do_not_fit_are_listed(saved, wanted, message):
    shapes = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        wanted,
        is_leaf=lambda node: isinstance(node, tuple),
    )
    with pytest.raises(InputError) as raised:
        restore_params(find_step(saved), shapes)
    assert str(raised.value).endswith(f"checkpoints/10 does not fit the model: {message}")


@pytest.mark.parametrize("lost", ["_METADATA", "manifest.ocdbt", "d"])
def test_a_damaged_checkpoint_is_unreadable(saved, tmp_path, lost):
    step = tmp_path / "10"
    shutil.copytree(saved / "checkpoints" / "10", step)
    path = step / "params" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError) as raised:
        restore_params(step, jax.eval_shape(lambda: params()))
    assert str(raised.value).startswith(f"checkpoint {step}: unreadable (")
    assert len(str(raised.value)) < len(str(step)) + 250


def test_reading_parameters_warns_of_nothing(saved, caplog):
    restore_params(find_step(saved), jax.eval_shape(lambda: params()))
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


def test_a_step_without_its_config_is_refused(tmp_path):
    (tmp_path / "files").mkdir()
    with pytest.raises(InputError, match=r"files/config\.json is missing"):
        step_files(tmp_path)


def test_saved_steps_of_no_directory(tmp_path):
    assert saved_steps(tmp_path / "none") == []
    assert checkpoints.DIRECTORY == "checkpoints"
    Path(tmp_path, "12").mkdir()
    Path(tmp_path, "3").mkdir()
    Path(tmp_path, "7.tmp").mkdir()
    assert saved_steps(tmp_path) == [3, 12]
