"""`t5x-lite sweep`: the arms of a grid, what is trained again, and the ranking of the arms."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from t5x_lite import config
from t5x_lite.checkpoints import items
from t5x_lite.cli import main
from t5x_lite.commands import runs
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.errors import InputError, Interrupted
from t5x_lite.train import training
from t5x_lite.train.restoring import WorkDirectory
from t5x_lite.train.stopping import StopSignals
from t5x_lite.train.sweeps import RunsFailed, arms_of, parse_grid
from tests.config_files import saved
from tests.docs.commands import blocks, command_lines
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
RATE = "optimizer.schedule.value"


def test_the_values_of_a_grid():
    assert parse_grid(["b_c=1, 2", "--a='x, y',\"it's, f(1)\",''", "d=k=v"]) == {
        "a": ["'x, y'", '"it\'s, f(1)"', "''"],
        "b-c": ["1", "2"],
        "d": ["k=v"],
    }


def test_arms_are_named_by_their_settings(tiny_experiment):
    grid = [f"{RATE}=1e-3,3e-4", "model.dropout_rate=0,0.1"]
    base, arms = arms_of(tiny_experiment, grid, ["--steps", "4"])
    assert (base.steps, base.optimizer.schedule.value) == (4, 0.01)
    assert [arm.name for arm in arms] == [
        *("dropout-rate=0.0,value=0.001", "dropout-rate=0.0,value=0.0003"),
        *("dropout-rate=0.1,value=0.001", "dropout-rate=0.1,value=0.0003"),
    ]
    last = arms[-1]
    assert last.settings == {"model.dropout-rate": "0.1", RATE: "0.0003"}
    model, schedule = last.experiment.model, last.experiment.optimizer.schedule
    assert (model.dropout_rate, schedule.value, last.experiment.steps) == (0.1, 3e-4, 4)
    assert [arm.name for arm in arms_of(tiny_experiment, [], [])[1]] == ["config"]
    grid = ["checkpoints.period=1,2", "evaluation.period=3"]
    names = [arm.name for arm in arms_of(tiny_experiment, grid, [])[1]]
    assert names == [f"checkpoints.period={n},evaluation.period=3" for n in (1, 2)]


def test_values_with_spaces_commas_and_slashes(tiny_experiment):
    grid = ["adapters.add='a = lora(r=2, alpha=4)','a = lora(r=2)' 'b = lora(r=4)'"]
    arms = arms_of(tiny_experiment, grid, [])[1]
    assert [arm.experiment.adapters.add for arm in arms] == [
        ("a = lora(r=2, alpha=4)",),
        ("a = lora(r=2)", "b = lora(r=4)"),
    ]
    first, second = (arm.name for arm in arms)
    assert first.startswith("add=a_=_lora_r=2,_alpha=4_-")
    assert first != second
    arms = arms_of(tiny_experiment, ["init='',work/a"], [])[1]
    assert [arm.experiment.init.checkpoint for arm in arms] == ["", "work/a"]
    assert arms[1].name.startswith("init=work_a-")


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("train.dropout=0", "the config has no field train.dropout; did you mean model.dropout-ra"),
        ("optimizer.schedule.valu=1", "did you mean optimizer.schedule.value?"),
        ("lr=1", "has no field lr; t5x-lite train CONFIG --help lists the fields"),
        ("model.dropout-rate=0,abc", "dropout-rate=abc: --model.dropout-rate: must be a number, "),
        ("model.dropout-rate=0,2", "model.dropout_rate must be in [0, 1): got 2.0"),
        ("data.pack=True,maybe", "invalid choice 'maybe' for argument '--data.pack'"),
        (
            "log-period=5,05",
            "--grid has the combination of values log-period=5 twice; give each value once",
        ),
        ("steps=4", "--grid and --steps both set steps; remove one of them"),
        ("seed=1,2", "--grid cannot vary the field seed; set this field by --seeds"),
        ("workdir=a", "--grid cannot vary the field workdir; set this field by --workdir"),
        ("log-period", "--grid 'log-period' has an empty name or value; write NAME=VALUE,VALUE"),
        ("log-period=1,", "has an empty name or value"),
        ("tracking.name='a", "--grid tracking.name='a: No closing quotation"),
    ],
)
def test_wrong_grids(tiny_experiment, grid, message):
    with pytest.raises(InputError) as error:
        arms_of(tiny_experiment, [grid], ["--steps", "3"])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_field_twice():
    with pytest.raises(InputError, match="--grid a is given twice; list all its values in one"):
        parse_grid(["a=1", "a=2"])


@pytest.fixture
def sweep(tiny_experiment, tmp_path, monkeypatch, capsys):
    """A function: options of a sweep -> exit code, what it printed, and the runs that it trained.

    Instead of training, a run has the loss 10 * rate + seed at its last step, unless `errors` of
    the function has an exception for its directory.
    """
    trained, errors = [], {}

    def train(experiment):
        workdir = Path(experiment.workdir)
        trained.append(workdir.name)
        if workdir.name in errors:
            raise errors[workdir.name]
        loss = 10 * getattr(experiment.optimizer.schedule, "value", 0.1) + experiment.seed
        config.save(experiment, workdir / "config.json")
        records = [
            {"step": step, "validation/loss": loss + 2 - step, "validation/f1": loss}
            for step in (1, 2)
        ]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        files = workdir / "checkpoints" / "2" / "files"
        files.mkdir(parents=True)
        (files / "x").write_text("x")
        items.write(files.parent)
        return training.Trained(workdir, 2, {})

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    path = saved(tiny_experiment, tmp_path)

    def run(*options, workdir="sweep"):
        trained.clear()
        capsys.readouterr()
        code = main(["sweep", path, "--workdir", str(tmp_path / workdir), *options])
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else printed.err, sorted(trained)

    run.errors, run.directory = errors, tmp_path / "sweep"
    return run


def grid(*rates):
    return ("--grid", f"{RATE}={','.join(map(str, rates))}")


@pytest.mark.slow
def test_arms_are_ranked_and_finished_runs_are_skipped(sweep):
    code, printed, trained = sweep(*grid(0.3, 0.1), "--seeds", "2")
    assert code == 0
    assert trained == [f"value={rate},seed={seed}" for rate in (0.1, 0.3) for seed in (0, 1)]
    assert (printed["metric"], printed["mode"]) == ("validation/loss", "min")
    best, worst = printed["arms"]
    assert (best["arm"], best["n"], best["settings"]) == ("value=0.1", 2, {RATE: "0.1"})
    assert (best["mean"], best["sd"]) == (1.5, pytest.approx(0.5**0.5))
    assert (worst["arm"], worst["mean"]) == ("value=0.3", 3.5)
    run = {"seed": 1, "workdir": "value=0.1,seed=1", "state": "finished", "step": 2, "value": 2.0}
    assert best["runs"][1] == run
    written = json.loads((sweep.directory / "sweep.json").read_text())
    assert written.pop("config")["steps"] == 10
    assert written == printed
    page = (sweep.directory / "compare.html").read_text()
    assert page.index("optimizer.schedule.value 0.1") < page.index("optimizer.schedule.value 0.3")

    # Nothing is trained again, and another metric has its own direction.
    code, printed, trained = sweep(*grid(0.1, 0.3), "--seeds", "2", "--metric", "validation/f1")
    assert (code, trained, printed["mode"]) == (0, [], "max")
    assert [(arm["arm"], arm["mean"]) for arm in printed["arms"]] == [
        ("value=0.3", 3.5),
        ("value=0.1", 1.5),
    ]
    code, message, _ = sweep(*grid(0.1, 0.3), "--seeds", "2", "--metric", "validation/f")
    assert code == 2
    assert "error: --metric validation/f is not a metric of the run value=0." in message
    assert "did you mean validation/f1?" in message
    code, message, _ = sweep("--metric", "test/f1")
    assert (code, "selects a model by a test split" in message) == (2, True)


@pytest.mark.slow
def test_only_new_arms_and_seeds_may_join(sweep):
    assert sweep(*grid(0.1, 0.2), "--seeds", "1")[0] == 0
    code, printed, trained = sweep(*grid(0.2, 0.1, 0.3), "--seeds", "2")
    expected = ["value=0.1,seed=1", "value=0.2,seed=1", "value=0.3,seed=0", "value=0.3,seed=1"]
    assert (code, trained) == (0, expected)
    assert [(arm["arm"], arm["n"]) for arm in printed["arms"]] == [
        ("value=0.1", 2),
        ("value=0.2", 2),
        ("value=0.3", 2),
    ]
    for options, message in {
        (
            *grid(0.1, 0.2),
            "--seeds",
            "2",
        ): "with the run value=0.3,seed=0, but the values of --grid",
        (*grid(0.1, 0.2, 0.3),): "with the run value=0.1,seed=1, but the values of --grid and the ",
        ("--seeds", "2"): "do not include this run; use another --workdir, or",
        (*grid(0.1, 0.2, 0.3), "--seeds", "2", "--steps", "5"): (
            "holds a sweep with other settings: steps is 10 in the saved config and 5 now; "
        ),
        (
            *grid(0.1, 0.2, 0.3),
            "--seeds",
            "2",
            "--seed",
            "1",
        ): "seed is 0 in the saved config and 1 now",
    }.items():
        code, error, trained = sweep(*options)
        assert (code, trained) == (2, []), options
        assert message in error
    (sweep.directory / "sweep.json").write_text("{}")
    code, error, _ = sweep(*grid(0.1))
    assert (code, "is not a file of `t5x-lite sweep`; use another" in error) == (2, True)


@pytest.mark.slow
def test_a_failed_run_is_reported_and_tried_again(sweep):
    sweep.errors |= {
        "value=0.1,seed=0": RuntimeError("out of memory\nand more"),
        "value=0.2,seed=0": InputError("no such file"),
        "value=0.2,seed=1": InputError("no such file"),
    }
    code, printed, trained = sweep(*grid(0.2, 0.1), "--seeds", "2")
    assert (code, len(trained)) == (1, 4)
    ranked = [(arm["arm"], arm["n"]) for arm in printed["arms"]]
    assert ranked == [("value=0.1", 1), ("value=0.2", 0)]
    failed = printed["arms"][0]["runs"][0]
    assert (failed["state"], failed["error"]) == ("failed", "RuntimeError: out of memory")
    with pytest.raises(RunsFailed) as raised:
        runs.sweep(
            str(sweep.directory.parent / "experiment.json"),
            workdir=str(sweep.directory),
            grid=[f"{RATE}=0.1,0.2"],
            seeds=2,
        )
    assert str(raised.value) == (
        "3 of 4 runs failed, such as value=0.1,seed=0: RuntimeError: out of memory; run the "
        "same command again to repeat the failed runs"
    )
    assert raised.value.__cause__ is sweep.errors["value=0.1,seed=0"]
    sweep.errors.clear()
    code, printed, trained = sweep(*grid(0.1, 0.2), "--seeds", "2")
    assert (code, trained) == (0, ["value=0.1,seed=0", "value=0.2,seed=0", "value=0.2,seed=1"])
    assert "error" not in printed["arms"][0]["runs"][0]


@pytest.mark.parametrize(
    "error",
    [
        None,
        pytest.param(RuntimeError("threads ended"), marks=pytest.mark.slow),
        pytest.param(Interrupted(15, 1), marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_sweep(sweep, monkeypatch, error):
    """Also a signal during the last step, after which training returns as usual."""
    run = training.train

    def train(experiment):
        StopSignals.latest = signal.SIGTERM
        if error is not None:
            raise error
        return run(experiment)

    with monkeypatch.context() as patched:
        patched.setattr(training, "train", train)
        code, _, _ = sweep(*grid(0.1, 0.2))
    assert code == 128 + signal.SIGTERM
    found = [a["runs"][0] for a in json.loads((sweep.directory / "sweep.json").read_text())["arms"]]
    states = {run["workdir"]: run["state"] for run in found}
    first = "finished" if error is None else "unfinished"
    assert states == {"value=0.1,seed=0": first, "value=0.2,seed=0": "waiting"}
    code, _, trained = sweep(*grid(0.1, 0.2))
    assert (code, len(trained)) == (0, 1 if error is None else 2)


def test_other_directories(sweep):
    sweep.directory.mkdir()
    lock = WorkDirectory(sweep.directory, sweep.directory)
    lock.lock()
    code, error, _ = sweep()
    assert (code, "is in use by another training process" in error) == (2, True)
    os.close(lock.locks[0])
    (sweep.directory / "config.json").write_text("{}")
    code, error, trained = sweep()
    assert (code, trained) == (2, [])
    assert "holds other files and no sweep.json; use an empty directory" in error
    code, error, _ = sweep(workdir="sweep/config.json")
    assert (code, "config.json: File exists" in error) == (2, True)


@pytest.mark.slow
def test_the_command_of_the_guide(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = blocks(ROOT / "docs" / "guides" / "tracking.md")
    [args] = [args for one in page for args in command_lines(one) if args[0] == "sweep"]
    assert main(args) == 0
    runs = [path.name for path in (tmp_path / "work" / "sweep").glob("*seed=*")]
    assert len(runs) == 12
    assert "dropout-rate=0.1,warmup-steps=100,seed=0" in runs


def leaves(workdir, step):
    """The bytes of a step's parameters and optimizer."""
    handler = ocp.StandardCheckpointHandler()
    directory = epath.Path(workdir.resolve()) / "checkpoints" / str(step)
    trees = [handler.restore(directory / item) for item in ("params", "optimizer")]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(trees)]


@pytest.mark.slow
def test_a_killed_sweep_resumes_exactly(tmp_path, tiny_experiment, compile_once, capsys):
    """Two rates and two seeds: each run is, bit for bit, that of `t5x-lite train`."""
    steps = 60
    experiment = dataclasses.replace(
        tiny_experiment,
        steps=steps,
        checkpoints=Checkpoints(period=10),
        evaluation=Evaluation(period=30, max_batches=1, task_metrics=False),
    )
    path = saved(experiment, tmp_path)
    killed = tmp_path / "killed"
    command = ["sweep", path, *grid(0.01, 0.001), "--seeds", "2", "--workdir", str(killed)]
    third = killed / "value=0.01,seed=1"
    with subprocess.Popen(
        [sys.executable, "-m", "t5x_lite", *command],
        env={**os.environ, **compile_once, "PYTHONPATH": str(ROOT)},
    ) as process:
        wait_until((third / "checkpoints" / "10" / "manifest.json").exists, seconds=600)
        process.kill()
    arms = json.loads((killed / "sweep.json").read_text())["arms"]
    states = {run["workdir"]: run["state"] for arm in arms for run in arm["runs"]}
    assert states == {
        "value=0.01,seed=0": "finished",
        "value=0.001,seed=0": "finished",
        "value=0.01,seed=1": "unfinished",
        "value=0.001,seed=1": "waiting",
    }
    before = (killed / "value=0.01,seed=0" / "run.json").read_bytes()
    assert main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [arm["n"] for arm in printed["arms"]] == [2, 2]
    assert printed["arms"][0]["mean"] < printed["arms"][1]["mean"]
    assert (killed / "value=0.01,seed=0" / "run.json").read_bytes() == before
    assert len(json.loads((third / "run.json").read_text())["starts"]) == 2
    alone = dataclasses.replace(experiment, seed=1, workdir=str(tmp_path / "alone"))
    training.train(alone)
    assert leaves(third, steps) == leaves(tmp_path / "alone", steps)
    assert "Mean over seeds" in (killed / "compare.html").read_text()
