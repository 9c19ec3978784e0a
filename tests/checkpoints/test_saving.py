"""Saving and resuming: what stays, what an interruption leaves, and what is done about damage."""

import json
import os
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints.reading import Checkpoints, Rejected, find_step, restore_params
from t5x_lite.core import remote
from t5x_lite.core.errors import InputError
from tests.tiny_checkpoint import (
    FILES,
    abstract,
    assert_restores,
    files_of,
    flip,
    optimizer,
    params,
    save,
    steps,
    write,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A work directory with the steps 5 and 10; read only."""
    workdir = tmp_path_factory.mktemp("saved")
    with Checkpoints(workdir) as manager:
        assert manager.latest() is None
        assert manager.resume_point() == (None, [])
    assert not (workdir / "checkpoints").exists()
    write(workdir, 5, 10)
    return workdir


@pytest.fixture
def run(saved, tmp_path):
    """A copy of it."""
    return shutil.copytree(saved, tmp_path / "run")


def test_what_is_saved_comes_back(saved):
    with Checkpoints(saved) as manager:
        assert manager.latest() == 10
        assert manager.resume_point() == (10, [])
        assert_restores(manager, 5)


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


@pytest.mark.slow
def test_of_a_loss_the_lowest_stays(tmp_path):
    losses = {100: 1.0, 200: 9.0, 300: 2.0, 400: 2.5, 500: 3.0}
    with Checkpoints(tmp_path / "loss", keep=1, best="loss") as manager:
        for step, loss in losses.items():
            save(manager, step, loss=loss)
    assert steps(tmp_path / "loss") == [100, 500]
    with Checkpoints(tmp_path / "both", keep=1, best="v/*") as manager:
        for step, loss in losses.items():
            save(manager, step, **{"v/loss": loss, "v/accuracy": loss})
    assert steps(tmp_path / "both") == [100, 200, 500]  # each by its own name


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
        with pytest.raises(InputError, match=r"is 'acuracy', but .* has the metrics \['accuracy"):
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


def test_metrics_are_saved_with_their_step(tmp_path):
    with Checkpoints(tmp_path) as manager:
        save(manager, 1, accuracy=0.5, loss=2)
    path = tmp_path / "checkpoints" / "1" / "files" / "metrics.json"
    assert json.loads(path.read_bytes()) == {"accuracy": 0.5, "loss": 2.0}
    assert checkpoint_manifest.find_damage(tmp_path / "checkpoints" / "1") is None


def test_metrics_can_be_added_to_a_step(tmp_path):
    with Checkpoints(tmp_path, keep=1, best="loss", best_mode="min") as manager:
        save(manager, 1, loss=3.0)
        save(manager, 2)
        manager.wait()
        before = files_of(tmp_path / "checkpoints" / "2")
        manager.add_metrics(2, {"loss": 1.0})
        assert set(files_of(tmp_path / "checkpoints" / "2")) - set(before) == {"files/metrics.json"}
        assert steps(tmp_path) == [2]  # the best until now is not the best any more
        assert checkpoint_manifest.find_damage(tmp_path / "checkpoints" / "2") is None
        save(manager, 3, loss=2.0)
    assert steps(tmp_path) == [2, 3]
    flip(tmp_path / "checkpoints" / "2" / "files" / "metrics.json")
    assert checkpoint_manifest.find_damage(tmp_path / "checkpoints" / "2") is not None


def test_the_manifest_is_written_after_everything_else_and_save_does_not_wait(
    tmp_path, monkeypatch
):
    entered, go_on = threading.Event(), threading.Event()
    write_manifest = checkpoint_manifest.write

    def slow(directory, **kwargs):
        entered.set()
        go_on.wait(60)
        write_manifest(directory, **kwargs)

    monkeypatch.setattr(checkpoint_manifest, "write", slow)
    with Checkpoints(tmp_path, keep=1) as manager:
        save(manager, 1)  # returns, though no manifest can be written yet
        assert entered.wait(60)
        directory = tmp_path / "checkpoints"
        assert (directory / "1" / "params" / "_METADATA").exists()
        assert (directory / "1.incomplete").exists()
        assert manager.latest() is None
        go_on.set()
        manager.wait()
        assert manager.latest() == 1
        assert not (directory / "1.incomplete").exists()
        entered.clear()
        go_on.clear()
        save(manager, 2)
        assert entered.wait(60)
        assert steps(tmp_path) == [1]  # the one before stays until this one is whole
        go_on.set()
    assert steps(tmp_path) == [2]


def test_what_goes_wrong_in_the_background_is_told_at_the_next_save(tmp_path, monkeypatch):
    def full(directory, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_manifest, "write", full)
    manager = Checkpoints(tmp_path)
    save(manager, 1)
    with pytest.raises(RuntimeError) as raised:
        save(manager, 2)
    assert str(raised.value) == (
        f"the last checkpoint in {tmp_path}/checkpoints could not be saved ([Errno 28] No space "
        "left on device); earlier checkpoints are complete"
    )
    manager.close()
    assert steps(tmp_path) == []


def hashed(step_directory):
    """The files of a step that have a checksum."""
    files = json.loads((step_directory / "manifest.json").read_text())["files"]
    return {name for name, saved in files.items() if "sha256" in saved}


def test_a_save_after_a_signal_hashes_nothing(tmp_path, monkeypatch):
    """Nor does the one before it from then on."""
    directory = tmp_path / "checkpoints"
    describe = checkpoint_manifest._describe
    manager = Checkpoints(tmp_path)

    def slow(path, *hurried):
        assert manager._ending.wait(60)
        return describe(path, *hurried)

    with monkeypatch.context() as patch, manager:
        patch.setattr(checkpoint_manifest, "_describe", slow)
        save(manager, 1)
        manager.save(2, params=params(2), optimizer=optimizer(2), files=FILES, hurried=True)
    assert steps(tmp_path) == [1, 2]
    assert hashed(directory / "1") == hashed(directory / "2") == set()
    with Checkpoints(tmp_path) as manager:
        assert manager.resume_point() == (2, [])
        assert manager.is_hurried(2)
        assert_restores(manager, 2)
        save(manager, 3)
        manager.wait()
        assert not manager.is_hurried(3)
    assert hashed(directory / "3")
    flip(directory / "3" / "manifest.json")
    max((directory / "2").rglob("d/*"), key=lambda path: path.stat().st_size).unlink()
    with Checkpoints(tmp_path) as manager:
        step, rejected = manager.resume_point()
        assert step == 1
        assert rejected[1].reason.endswith("is missing")


def test_a_process_that_was_told_to_stop_hashes_nothing(tmp_path):
    received = []
    with Checkpoints(tmp_path, hurried=lambda: bool(received)) as manager:
        save(manager, 1)
        manager.wait()
        received.append(15)
        save(manager, 2)
    assert hashed(tmp_path / "checkpoints" / "1")
    assert not hashed(tmp_path / "checkpoints" / "2")


def test_a_process_that_does_not_finish_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_manifest, "is_written", lambda directory, process: process == 2)
    manager = Checkpoints(tmp_path, timeout=1)
    manager._saving = manager._thread.submit(
        manager._wait_for_others, manager.directory(5), list(range(1, 8))
    )
    with pytest.raises(RuntimeError) as raised:
        manager.wait()
    assert str(raised.value) == (
        f"the last checkpoint in {tmp_path}/checkpoints could not be saved (not all processes "
        "finished after 1 s: checkpoint of step 5 lacks the manifests of the processes 1, 3, 4, 5 "
        "and 2 more; check "
        "that all processes share the work directory, or set a longer --checkpoints.timeout for a "
        "slow store); earlier checkpoints are complete"
    )
    manager.close()


def test_what_was_just_saved_is_compared_as_well(tmp_path):
    """By all processes or by none: they tell each other what they find."""
    with Checkpoints(tmp_path) as manager:
        save(manager, 1)
        manager.wait()
        flip(tmp_path / "checkpoints" / "1" / "params" / "_METADATA")
        with pytest.raises(InputError, match="_METADATA: its SHA-256 differs"):
            manager.files(1)


def test_a_damaged_step_is_passed_over_and_kept(run):
    directory = run / "checkpoints"
    flip(directory / "10" / "params" / "_METADATA")
    with Checkpoints(run) as manager:
        reason = "params/_METADATA: its SHA-256 differs"
        rejected = [Rejected(10, reason, unfinished=False)]
        assert manager.resume_point() == (5, rejected)
        with pytest.raises(InputError) as raised:
            manager.files(10)
        assert str(raised.value) == (
            f"checkpoint {directory}/10 cannot be restored ({reason}); move it away to resume from "
            "an earlier checkpoint"
        )
        assert_restores(manager, 5)
        assert manager.set_aside(rejected) == [
            f"checkpoint {directory}/10 is damaged ({reason}) and is now 10.damaged"
        ]
        assert manager.resume_point() == (5, [])
        save(manager, 10)
        manager.wait()
        assert_restores(manager, 10)
    assert (directory / "10.damaged" / "params" / "_METADATA").exists()
    assert steps(run) == [5, 10]
    flip(directory / "10" / "params" / "_METADATA")
    with Checkpoints(run) as manager:
        [told] = manager.set_aside(manager.resume_point()[1])
    assert told.endswith("and is now 10.damaged-2")
    assert sorted(path.name for path in directory.iterdir()) == ["10.damaged", "10.damaged-2", "5"]


def without_step(directory):
    """Makes a step's manifest one of before, which does not say its step."""
    (directory / "manifest.json").unlink()
    checkpoint_manifest.write(directory)


@pytest.mark.parametrize("before", [False, True])
def test_a_step_under_another_name_is_damaged(run, before):
    directory = run / "checkpoints"
    shutil.copytree(directory / "10", directory / "15")
    if before:
        for step in (5, 10, 15):
            without_step(directory / str(step))
    with Checkpoints(run) as manager:
        reason = "it holds step 10: it was copied or renamed"
        assert manager.resume_point() == (10, [Rejected(15, reason, unfinished=False)])
        [told] = manager.set_aside(manager.resume_point()[1])
        assert told == f"checkpoint {directory}/15 is damaged ({reason}) and is now 15.damaged"
        assert_restores(manager, 10)
        save(manager, 15)
    assert steps(run) == [5, 10, 15]


def test_two_steps_that_changed_places_are_damaged(run):
    directory = run / "checkpoints"
    (directory / "5").rename(directory / "x")
    (directory / "10").rename(directory / "5")
    (directory / "x").rename(directory / "10")
    with Checkpoints(run) as manager, pytest.raises(InputError) as raised:
        manager.resume_point()
    assert "10 (it holds step 5: it was copied or renamed), 5 (it holds step 10: " in str(
        raised.value
    )


def test_another_runs_step_is_passed_over(run):
    def foreign(files):
        assert files == FILES
        return next(reasons)

    reasons = iter(["it is of another experiment", ""])
    with Checkpoints(run) as manager:
        assert manager.resume_point(foreign=foreign) == (
            5,
            [Rejected(10, "it is of another experiment", unfinished=False)],
        )


def test_what_a_link_leads_to_is_read_and_never_changed(run, tmp_path):
    kept = tmp_path / "elsewhere"
    kept.mkdir()
    for step in ("5", "10"):
        (run / "checkpoints" / step).rename(kept / step)
        (run / "checkpoints" / step).symlink_to(kept / step)
    flip(kept / "10" / "params" / "_METADATA")
    before = files_of(kept)
    with Checkpoints(run, keep=1) as manager:
        step, rejected = manager.resume_point()
        assert_restores(manager, step)
        manager.set_aside(rejected)
        save(manager, 15)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["10.damaged", "15"]
    assert files_of(kept) == before


def test_the_older_step_goes_when_the_newer_is_on_the_disk(tmp_path, monkeypatch):
    events, sync, remove = [], checkpoint_manifest.sync_to_disk, remote.remove_tree

    def record_sync(path):
        events.append(os.path.relpath(path, tmp_path / "checkpoints"))
        sync(path)

    def record_removal(path):
        events.append(f"{path.name} goes")
        remove(path)

    monkeypatch.setattr(checkpoint_manifest, "sync_to_disk", record_sync)
    monkeypatch.setattr(remote, "remove_tree", record_removal)
    with Checkpoints(tmp_path, keep=1) as manager:
        save(manager, 1)
        manager.wait()
        events.clear()
        save(manager, 2)
    assert events[-1] == "1 goes"
    written = {f"2/{name}" for name in files_of(tmp_path / "checkpoints" / "2")}
    assert written - {"2/manifest.json"} <= set(events[:-1])


def test_without_a_whole_one_nothing_is_done(run):
    for step in (5, 10):
        flip(run / "checkpoints" / str(step) / "files" / "config.json")
    with Checkpoints(run) as manager, pytest.raises(InputError) as raised:
        manager.resume_point()
    assert str(raised.value) == (
        f"no checkpoint in {run}/checkpoints is complete: 10 (files/config.json: its SHA-256 "
        "differs), 5 (files/config.json: its SHA-256 differs); restore a copy, or use another "
        "--workdir"
    )
    assert steps(run) == [5, 10]


def test_a_step_that_was_never_finished_is_deleted(run):
    directory = run / "checkpoints"
    (directory / "10" / "manifest.json").unlink()
    (directory / "10.incomplete").touch()
    with Checkpoints(run) as manager:
        step, rejected = manager.resume_point()
        assert (step, rejected) == (5, [Rejected(10, "manifest.json is missing", unfinished=True)])
        [told] = manager.set_aside(rejected)
        assert told.endswith("10 is unfinished (manifest.json is missing) and is deleted")
        save(manager, 10)
    assert sorted(path.name for path in directory.iterdir()) == ["10", "5"]


def test_a_run_whose_only_step_was_never_finished_begins_anew(run):
    shutil.rmtree(run / "checkpoints" / "5")
    (run / "checkpoints" / "10" / "manifest.json").unlink()
    with Checkpoints(run) as manager, pytest.raises(InputError, match=r"10 \(manifest\.json is m"):
        manager.resume_point()  # the manifest was there once: it is lost
    (run / "checkpoints" / "10.incomplete").touch()
    with Checkpoints(run) as manager:
        step, rejected = manager.resume_point()
        assert step is None
        assert [found.step for found in rejected] == [10]


def test_a_save_that_was_killed_before_anything_had_its_name_is_told_as_well(run):
    directory = run / "checkpoints"
    for name in ("10", "12"):
        (directory / f"{name}.incomplete").touch()
    (directory / "12.orbax-checkpoint-tmp").mkdir()
    with Checkpoints(run) as manager:
        step, rejected = manager.resume_point()
        assert (step, rejected) == (10, [Rejected(12, "manifest.json is missing", unfinished=True)])
        [told] = manager.set_aside(rejected)
        assert told.endswith("12 is unfinished (manifest.json is missing) and is deleted")
        save(manager, 12)
    assert sorted(path.name for path in directory.iterdir()) == ["10", "12", "5"]


def test_a_process_that_was_killed_while_it_deleted(run):
    """Any state between the mark and its removal: the next save cleans up."""
    directory = run / "checkpoints"
    (directory / "5" / "manifest.json").unlink()
    shutil.rmtree(directory / "5" / "optimizer")
    for name in ("5.incomplete", "10.incomplete", "3.incomplete"):
        (directory / name).touch()
    with Checkpoints(run) as manager:
        assert manager.resume_point() == (10, [])
        save(manager, 15)
    assert sorted(path.name for path in directory.iterdir()) == ["10", "15"]


def test_the_best_one_is_not_lost_to_damage_of_its_metrics(tmp_path):
    with Checkpoints(tmp_path, keep=1, best="loss", best_mode="min") as manager:
        save(manager, 1, loss=1.0)
        save(manager, 2, loss=2.0)
    (tmp_path / "checkpoints" / "1" / "files" / "metrics.json").write_bytes(b"{")
    with Checkpoints(tmp_path, keep=1, best="loss", best_mode="min") as manager:
        save(manager, 3, loss=3.0)
    assert steps(tmp_path) == [2, 3]
