"""Which checkpoint `--step best` takes, by what training measured."""

import json
import shutil

import pytest

from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.core.errors import InputError
from t5x_lite.core.tracking import Record
from t5x_lite.inference.loading import find_step, told_at_end

LOSSES = {100: 1.0, 200: 9.0, 300: 2.0}


def write_step(workdir, step, metrics=None):
    files = workdir / "checkpoints" / str(step) / "files"
    files.mkdir(parents=True)
    (files.parent / "params").mkdir()
    (files / "config.json").write_text('{"steps": 300}')
    if metrics is not None:
        (files / "metrics.json").write_text(json.dumps(metrics))
    checkpoint_manifest.write(files.parent)


def write_run(workdir, evaluations, *, steps=None, **checkpoints):
    """A work directory: its record, its config, and the checkpoints of all steps or of some."""
    workdir.mkdir()
    with Record(workdir) as record:
        for step, metrics in evaluations.items():
            record.add(step, 0.0, {"loss": 1.0})
            record.add(step, 0.0, metrics)
            if steps is None or step in steps:
                write_step(workdir, step, metrics)
    (workdir / "config.json").write_text(json.dumps({"checkpoints": checkpoints}))
    return workdir


def of(name, values):
    return {step: {f"validation/{name}": value} for step, value in values.items()}


def best(checkpoint):
    return find_step(str(checkpoint), step="best").name


@pytest.fixture
def messages(caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    return lambda: [message.partition(": ")[2] or message for message in caplog.messages]


@pytest.mark.parametrize(
    ("evaluations", "checkpoints", "step", "told"),
    [
        (of("loss", LOSSES), {}, "100", "the lowest validation/loss (1.0000)"),
        (
            of("loss", LOSSES),
            {"best": "validation/loss", "best_mode": None},
            "100",
            "the lowest validation/loss (1.0000)",
        ),
        (
            of("distance", LOSSES),
            {"best": "validation/distance", "best_mode": "min"},
            "100",
            "the lowest validation/distance (1.0000)",
        ),
        (
            {s: {"validation/loss": v, "validation/score": v} for s, v in LOSSES.items()},
            {"best": None, "best_mode": "max"},
            "200",
            "the highest validation/score (9.0000)",
        ),
        (
            {
                100: {
                    "validation/a/score": 0.9,
                    "validation/b/score": 0.2,
                    "validation/score": 0.55,
                },
                200: {
                    "validation/a/score": 0.2,
                    "validation/b/score": 0.8,
                    "validation/score": 0.5,
                },
            },
            {"best": "validation/*/score"},
            "100",
            "the highest validation/score (0.5500)",
        ),
        (
            of("f1", {100: 0.5, 200: 0.5, 300: float("nan")}),
            {"best": "validation/f?"},
            "200",
            "the highest validation/f1 (0.5000)",
        ),
        (
            {100: {"test/f1": 0.9, "validation/loss": 2.0}, 200: {"test/f1": 0.1}},
            {"best": "test/f1"},
            "100",
            "the lowest validation/loss (2.0000)",
        ),
    ],
)
def test_the_best_step(tmp_path, messages, evaluations, checkpoints, step, told):
    run = write_run(tmp_path / "run", evaluations, **checkpoints)
    assert best(run) == step
    assert messages() == [f"step {step} has {told}"]
    assert told_at_end(run / "checkpoints") == f"step {step} has {told}; load it by --step best"
    assert best(run / "checkpoints") == step
    shutil.copytree(run / "checkpoints", tmp_path / "alone")  # without config and record
    if not checkpoints.get("best"):
        assert best(tmp_path / "alone") == step


def test_numbers_and_the_newest_are_as_before(tmp_path):
    run = write_run(tmp_path / "run", of("loss", LOSSES))
    assert find_step(str(run)).name == "300"
    assert find_step(str(run), step=200).name == "200"
    with pytest.raises(InputError, match=r"no such directory"):
        find_step(str(tmp_path / "none"), step="best")


def test_the_best_step_that_was_kept_and_is_gone(tmp_path):
    run = write_run(tmp_path / "run", of("loss", LOSSES), best="validation/loss")
    damaged = run / "checkpoints" / "100" / "manifest.json"
    damaged.unlink()
    with pytest.raises(InputError) as raised:
        best(run)
    assert str(raised.value) == (
        "--step best: step 100 has the lowest validation/loss (1.0000), but checkpoint "
        f"{damaged.parent} has no manifest.json; restore this checkpoint from a copy, or give "
        "another --step (the best saved step is 300)"
    )
    shutil.rmtree(damaged.parent)
    with pytest.raises(
        InputError, match=r"checkpoints/100 does not exist; restore this checkpoint from a copy"
    ):
        best(run)
    assert "was deleted" in told_at_end(run / "checkpoints")
    write_step(run, 100, {"validation/loss": 1.0})
    assert best(run) == "100"


def test_a_best_step_that_nothing_kept(tmp_path, messages):
    run = write_run(tmp_path / "run", of("loss", LOSSES), steps=(200, 300))
    assert best(run) == "300"
    less = "--checkpoints.best validation/loss keeps the best checkpoint"
    best_step = "step 100 has the lowest validation/loss (1.0000)"
    deleted = f"the checkpoint with the best metric was deleted: {best_step}"
    assert messages() == [
        f"{best_step}; {less}",
        "step 300 has the lowest validation/loss (2.0000)",
    ]
    assert told_at_end(run / "checkpoints") == (
        f"{deleted}; {less}; of the kept checkpoints, step 300 has the lowest validation/loss "
        "(2.0000)"
    )
    # A run that was killed before it saved step 400 measures that again.
    with Record(run) as record:
        record.add(400, 0.0, {"validation/loss": 0.5})
    assert best(run) == "300"


def test_a_run_without_a_best_step(tmp_path):
    run = tmp_path / "run"
    write_step(run, 100)
    write_step(run, 200, {"validation/ndcg@10": 0.5})
    assert told_at_end(run / "checkpoints") is None
    with pytest.raises(InputError, match=r"the best step is unknown.* steps \[100, 200\]$"):
        best(run)
    (run / "config.json").write_text('{"checkpoints": {"best": "validation/ndcg@10"}}')
    assert best(run) == "200"
    (run / "config.json").write_text("[}")  # then that of the step counts
    assert told_at_end(run / "checkpoints") is None
    assert told_at_end(tmp_path / "none" / "checkpoints") is None


def test_a_step_directory_has_no_best_step(tmp_path):
    run = write_run(tmp_path / "run", of("loss", LOSSES))
    for step in (run / "checkpoints" / "100", run / "checkpoints" / "300"):
        with pytest.raises(
            InputError, match=r"is a single checkpoint directory, .*; pass the work directory"
        ):
            best(step)


def test_the_highest_loss_is_taken_by_its_number_alone(tmp_path):
    run = write_run(tmp_path / "run", of("loss", LOSSES), best="validation/loss", best_mode="max")
    with pytest.raises(
        InputError, match="give --step 100 for the lowest value or --step 200 for the highest"
    ):
        best(run)


def test_metrics_that_cannot_be_read_are_those_of_the_record(tmp_path):
    run = write_run(tmp_path / "run", of("loss", LOSSES))
    (run / "checkpoints" / "100" / "files" / "metrics.json").write_text("[1")
    assert best(run) == "100"
    (run / "metrics.jsonl").unlink()
    assert best(run) == "300"
