"""Checkpoints as they are found and read: which step is meant, and what errors say."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints.init import InitRules
from t5x_lite.checkpoints.reading import find_step, restore_params, saved_steps, step_files
from t5x_lite.core.errors import InputError
from tests.tiny_checkpoint import FILES, params, write


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A work directory with the steps 5 and 10; read only."""
    workdir = tmp_path_factory.mktemp("saved")
    write(workdir, 5, 10)
    return workdir


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
    assert message("google/flan-t5-small") == (
        "checkpoint google/flan-t5-small: no such directory; for a model of the Hugging Face "
        "Hub, run `t5x-lite import hf google/flan-t5-small work/flan-t5-small` and pass "
        "work/flan-t5-small instead"
    )
    assert "import hf bert-base-uncased" in message("bert-base-uncased")
    assert message("tests/none").endswith("no such directory")
    assert "holds no checkpoint; give a work directory" in message(tmp_path)
    (tmp_path / "checkpoint_7").mkdir()
    for directory in (tmp_path, tmp_path / "checkpoint_7"):
        assert message(directory) == (
            f"checkpoint {directory}: a T5X checkpoint, not a checkpoint of t5x_lite; run "
            f"`t5x-lite import t5x {directory} DST --vocabulary FILE` and pass DST instead"
        )
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    assert message(tmp_path) == (
        f"checkpoint {tmp_path}: a Hugging Face model, not a checkpoint of t5x_lite; run "
        f"`t5x-lite import hf {tmp_path} DST` and pass DST instead"
    )
    assert message(saved, step=7).endswith("has no step 7; its steps are [5, 10]")
    assert message(saved / "checkpoints" / "5", step=10).endswith(
        "is a single checkpoint directory, but not of step 10"
    )


def test_a_file_among_the_steps_is_none(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "99").write_text("a file")
    assert find_step(tmp_path / "run").name == find_step(saved).name


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
        (
            {"model": {"kernel": (2, 4)}},
            "model/kernel has shape (2, 3) in the checkpoint, but (2, 4) in the model",
        ),
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


def test_reading_parameters_warns_of_nothing(saved, caplog):
    restore_params(find_step(saved), jax.eval_shape(lambda: params()))
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.parametrize("lost", ["_METADATA", "manifest.ocdbt", "d"])
def test_damaged_parameters_are_refused(saved, tmp_path, lost):
    step = tmp_path / "10"
    shutil.copytree(saved / "checkpoints" / "10", step)
    path = step / "params" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    wanted = jax.eval_shape(lambda: params())
    with pytest.raises(InputError) as raised:
        restore_params(step, wanted)
    assert str(raised.value).startswith(f"checkpoint {step} is damaged (params/{lost}")
    assert step_files(step) == FILES
    # Not reached but by a manifest of what is left: Orbax's own words, in one line.
    checkpoint_manifest.write(step)
    with pytest.raises(InputError) as raised:
        restore_params(step, wanted)
    assert str(raised.value).startswith(f"checkpoint {step}: unreadable (")
    assert len(str(raised.value)) < len(str(step)) + 250


def test_a_damaged_optimizer_does_not_keep_from_reading_parameters(saved, tmp_path):
    step = tmp_path / "10"
    shutil.copytree(saved / "checkpoints" / "10", step)
    shutil.rmtree(step / "optimizer")
    got = restore_params(step, jax.eval_shape(lambda: params()))
    np.testing.assert_array_equal(got["model"]["kernel"], params(10)["model"]["kernel"])


def test_damaged_files_are_refused(saved, tmp_path):
    step = tmp_path / "10"
    shutil.copytree(saved / "checkpoints" / "10", step)
    (step / "files" / "vocabulary" / "sentencepiece.model").write_bytes(b"other")
    with pytest.raises(
        InputError, match=r"is damaged \(files/vocabulary/sentencepiece\.model has 5"
    ):
        step_files(step)


def test_a_step_without_its_config_is_refused(tmp_path):
    (tmp_path / "files").mkdir()
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        step_files(tmp_path)
    checkpoint_manifest.write(tmp_path)
    with pytest.raises(InputError, match=r"files/config\.json is missing"):
        step_files(tmp_path)


def test_steps_without_a_manifest_are_no_checkpoints(saved, tmp_path, caplog):
    assert saved_steps(tmp_path / "none") == []
    run = shutil.copytree(saved, tmp_path / "run")
    (run / "checkpoints" / "12.orbax-checkpoint-tmp").mkdir()
    (run / "checkpoints" / "10" / "manifest.json").unlink()
    assert saved_steps(run / "checkpoints") == [5]
    assert find_step(run).name == "5"
    assert [record.getMessage() for record in caplog.records if record.name[:8] == "t5x_lite"] == [
        f"checkpoint {run}/checkpoints/10 has no manifest; using step 5 instead"
    ]
    with pytest.raises(InputError, match=r"has no step 10; its steps are \[5\]"):
        find_step(run, step=10)
    shutil.rmtree(run / "checkpoints" / "5")
    with pytest.raises(
        InputError, match=r"checkpoints/10 has no manifest\.json, because the save was"
    ):
        find_step(run)


def test_other_weights_are_renamed_left_out_and_left_fresh(saved):
    wanted = {
        "model": {
            "dense": jax.ShapeDtypeStruct((2, 3), jnp.bfloat16),
            "bias": jax.ShapeDtypeStruct((3,), jnp.float32),
        },
        "objective": {},
    }
    rules = InitRules.of(rename=[r"(.*)/kernel -> \1/dense"], fresh=["model/bias"])
    got = restore_params(find_step(saved), wanted, rules=rules)
    assert got.keys() == {"model", "objective"}
    assert got["model"].keys() == {"dense"}
    assert got["model"]["dense"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(
        got["model"]["dense"].astype(jnp.float32), params(10)["model"]["kernel"]
    )
    with pytest.raises(InputError) as raised:
        restore_params(find_step(saved), wanted, rules=InitRules.of(fresh=["model/bias"]))
    assert str(raised.value).endswith(
        "does not fit the model: missing: model/dense; unexpected: model/kernel"
    )
    nothing = InitRules.of(rename=["model/kernel ->"], fresh=["model/.*"])
    assert restore_params(find_step(saved), wanted, rules=nothing) == {"model": {}, "objective": {}}
