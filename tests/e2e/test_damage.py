"""Every file of the newest checkpoint cut, changed or lost: never a silent wrong resume."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_lite import config
from t5x_lite.checkpoints.reading import Checkpoints, find_step, step_files
from t5x_lite.core.errors import InputError
from tests.tiny_checkpoint import (
    DAMAGES,
    assert_restores,
    delete,
    files_of,
    flip,
    save,
    steps,
    write,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A work directory with the steps 5 and 10; read only."""
    workdir = tmp_path_factory.mktemp("saved")
    write(workdir, 5, 10)
    return workdir


@pytest.mark.gate("flip")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
def test_whatever_file_is_damaged_the_last_good_step_is_used(saved, tmp_path, damage):
    names = files_of(saved / "checkpoints" / "10")
    assert len(names) > 20
    assert {"manifest.json", "files/config.json", "files/data/process_0"} < set(names)
    for name in names:
        run = tmp_path / "run"
        shutil.copytree(saved, run)
        damage(run / "checkpoints" / "10" / name)
        with Checkpoints(run) as manager:
            step, [rejected] = manager.resume_point()
            assert step == 5, name
            assert rejected.step == 10
            assert not rejected.unfinished
            assert name in rejected.reason, (name, rejected)
            if name == names[0]:
                assert_restores(manager, 5)
            [told] = manager.set_aside([rejected])
            assert told.endswith("is now 10.damaged")
        # Readers that use the file refuse it; the others get what they need, unchanged.
        if name == "manifest.json" and damage is delete:
            assert find_step(run).name == "5"
        elif name.split("/")[0] in ("files", "manifest.json"):
            with pytest.raises(InputError, match=r"is damaged|has no manifest"):
                step_files(run / "checkpoints" / "10.damaged")
        shutil.rmtree(run)


def test_the_damaged_step_can_be_saved_again(saved, tmp_path):
    run = shutil.copytree(saved, tmp_path / "run")
    flip(run / "checkpoints" / "10" / "manifest.json")
    with Checkpoints(run) as manager:
        manager.set_aside(manager.resume_point()[1])
        save(manager, 10)
    assert steps(run) == [5, 10]
    with Checkpoints(run) as manager:
        assert manager.resume_point() == (10, [])
        assert_restores(manager, 10)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_by_the_command_line(tiny_run, tiny_experiment, tmp_path, compile_once):
    """Training goes back to the good step and says so; predict and evaluate refuse in one line."""
    run = shutil.copytree(tiny_run, tmp_path / "run")
    config.save(dataclasses.replace(tiny_experiment, steps=10), tmp_path / "tiny.json")
    (tmp_path / "in").write_text('{"inputs": "a"}\n')
    flip(next((run / "checkpoints/10/params/ocdbt.process_0/d").iterdir()))

    def t5x_lite(line):
        return subprocess.run(
            [sys.executable, "-m", "t5x_lite", *line.split()],
            cwd=tmp_path,
            env={**os.environ, **compile_once, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )

    for line in (
        "predict --checkpoint run --input in --output out",
        "evaluate tiny.json --checkpoint run",
    ):
        done = t5x_lite(line)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("error: checkpoint run/checkpoints/10 is damaged (params/oc")
        assert done.stderr.count("\n") == 1
    done = t5x_lite("train tiny.json --workdir run")
    assert done.returncode == 0, done.stderr
    [warning] = [line for line in done.stderr.splitlines() if "is damaged" in line]
    assert warning.endswith("and is now 10.damaged; training resumes from step 5")
    assert steps(run) == [5, 10]
    assert losses(run) == pytest.approx(losses(tiny_run), rel=1e-6)


def losses(run):
    """The losses of a run by step; of a step that was taken twice, the later one."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if "loss" in record}
