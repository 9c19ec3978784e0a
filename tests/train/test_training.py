"""What `train` hands to `fit`: the state, the position in the data, and the work directory."""

import dataclasses
import json
import shutil
import zlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from t5x_lite import config
from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints.init import Init
from t5x_lite.checkpoints.reading import saved_steps, step_files
from t5x_lite.config import Checkpoints
from t5x_lite.config.batches import with_choices
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.data import sources
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.loading import Loaded, learner_of
from t5x_lite.train import training
from t5x_lite.train.restoring import WorkDirectory
from t5x_lite.train.track import FIELDS


@pytest.fixture
def told(monkeypatch):
    """What fit is told, in place of training: nothing where it is not called."""
    told = SimpleNamespace()

    def fit(state, batches, step_function, **rest):
        vars(told).update(state=state, batches=batches, **rest)
        return state

    monkeypatch.setattr(training, "fit", fit)
    return told


@pytest.fixture
def train(tiny_experiment, tmp_path, compile_once):
    def run(**changes):
        changes = {"workdir": str(tmp_path / "run")} | changes
        experiment = dataclasses.replace(tiny_experiment, **changes)
        training.train(experiment)
        return experiment

    return run


@pytest.fixture
def finished(tiny_run, tmp_path):
    """A copy of the work directory of ten steps."""
    return shutil.copytree(tiny_run, tmp_path / "finished")


def files_below(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_work_directory(tiny_run, tiny_experiment):
    assert {path.name for path in tiny_run.iterdir()} >= {
        "checkpoints",
        "config.json",
        "metrics.jsonl",
        "vocabulary",
    }
    saved = config.load(tiny_run / "config.json")
    chosen, _ = with_choices(tiny_experiment, "cpu")
    assert saved == dataclasses.replace(chosen, workdir=str(tiny_run))
    assert saved_steps(tiny_run / "checkpoints") == [5, 10]
    files = step_files(tiny_run / "checkpoints" / "10")
    assert sorted(files) == [
        "config.json",
        "data/position",
        "metrics.json",
        "vocabulary/sentencepiece.model",
    ]
    assert files["config.json"] == (tiny_run / "config.json").read_bytes()
    model = (tiny_run / "vocabulary" / "sentencepiece.model").read_bytes()
    assert files["vocabulary/sentencepiece.model"] == model


def test_what_auto_is_stands_in_the_work_directory(train, told, tiny_experiment, tmp_path):
    """The first run chooses, and a resume keeps it; a device without it is refused."""
    model = tiny_experiment.model.replace(attention="auto", unroll="auto")
    train(model=model)
    saved = tmp_path / "run" / "config.json"
    found = json.loads(saved.read_text())
    assert (found["model"]["attention"], found["model"]["unroll"]) == ("heads", True)
    train(model=model)
    assert json.loads(saved.read_text()) == found
    found["model"]["attention"] = "cudnn"
    saved.write_text(json.dumps(found))
    with pytest.raises(InputError, match=r"'cudnn' needs NVIDIA GPUs.*set --model.attention plain"):
        train(model=model)


def test_the_metrics(tiny_run):
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    training = [line for line in lines if "loss" in line]
    assert [line["step"] for line in training] == list(range(1, 11))
    assert [line["step"] for line in lines if "validation/loss" in line] == [10]
    assert training[0]["num_parameters"] > 10_000
    assert "num_parameters" not in training[1]
    assert 0 < training[1]["epoch"] < 0.01
    lost = {name for name in training[1] if name.startswith("lost_to_")}
    assert {"lost_to_start", "lost_to_compile"} <= lost <= set(FIELDS)
    assert set(training[1]) - lost == {
        "goodput",
        "run_seconds",
        "token_accuracy",
        "cross_entropy",
        "data_wait",
        "epoch",
        "gradient_norm",
        "learning_rate",
        "loss",
        "step",
        "steps_per_second",
        "time",
        "tokens_per_second",
        "z_loss",
    }


@pytest.mark.slow
def test_a_new_run_starts_from_its_seed(train, told):
    experiment = train(seed=3)
    assert int(told.state.step) == 0
    key = jax.random.fold_in(jax.random.key(3), 0)
    expected = jax.jit(learner_of(experiment).init)(key)
    jax.tree.map(np.testing.assert_array_equal, told.state.params, expected)
    periods = told.periods
    assert (periods.total, periods.log, periods.evaluation, periods.checkpoint) == (10, 1, 10, 5)


@pytest.mark.slow
def test_init_takes_the_weights_and_nothing_else(train, told, tiny_run):
    train(init=Init(checkpoint=str(tiny_run)), seed=3)
    jax.tree.map(
        np.testing.assert_array_equal,
        told.state.params,
        Loaded.from_checkpoint(str(tiny_run), step=None).params,
    )
    assert int(told.state.step) == int(told.state.optimizer["count"]) == 0
    statistics = jax.tree.leaves(told.state.optimizer["statistics"])
    assert not any(np.any(leaf) for leaf in statistics)


@pytest.mark.slow
def test_init_takes_the_step_that_is_asked_for(train, told, finished, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    for step, loss in ((5, 1.0), (10, 2.0)):
        directory = finished / "checkpoints" / str(step)
        (directory / "files" / "metrics.json").write_text(json.dumps({"validation/loss": loss}))
        checkpoint_manifest.write(directory)
    train(init=Init(checkpoint=str(finished), step="best"))
    jax.tree.map(
        np.testing.assert_array_equal,
        told.state.params,
        Loaded.from_checkpoint(str(finished), step=5).params,
    )
    why = f"using the best checkpoint of {finished}: step 5 has the lowest validation/loss (1.0000)"
    assert [message for message in caplog.messages if "step 5 has" in message] == [why]
    with pytest.raises(
        InputError, match=r"init\.step 5 needs a checkpoint, but init\.checkpoint is not set"
    ):
        train(init=Init(step=5))


@pytest.mark.exhaustive
def test_a_mode_against_the_name_is_warned_of(train, told, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    train(checkpoints=Checkpoints(best="validation/loss", best_mode="max"))
    warning = (
        "warning: checkpoints.best_mode 'max' selects the highest validation/loss, but the usual "
        "best is the lowest validation/loss"
    )
    assert any(message.startswith(warning) for message in caplog.messages)


@pytest.mark.exhaustive
def test_a_run_whose_config_has_the_mode_of_before_goes_on(train, told, finished):
    path = finished / "config.json"
    saved = json.loads(path.read_text())
    saved["checkpoints"] |= {"best": "validation/loss", "best_mode": "max"}
    saved["stop_early"] |= {"metric": "validation/token_accuracy", "mode": "min"}
    path.write_text(json.dumps(saved))
    assert config.load(path).checkpoints.best_mode == "max"
    train(workdir=str(finished), steps=20, checkpoints=Checkpoints(best="validation/loss"))
    assert int(told.state.step) == 10
    assert json.loads(path.read_text())["checkpoints"]["best_mode"] is None
    for section, field in (("checkpoints", "best_mode"), ("stop_early", "mode")):
        del saved[section][field]
    path.write_text(json.dumps(saved))
    assert config.load(path).stop_early.mode is None
    train(workdir=str(finished), steps=20)
    assert int(told.state.step) == 10


@pytest.mark.exhaustive
def test_a_run_goes_on_even_where_its_initial_weights_are_gone(train, told, finished):
    from t5x_lite.data import batches as data_batches

    experiment = train(workdir=str(finished), steps=20, init=Init(checkpoint="gone"))
    assert int(told.state.step) == int(told.state.optimizer["count"]) == 10
    chosen, _ = with_choices(experiment, "cpu")
    assert config.load(finished / "config.json") == chosen
    vocabulary = load_vocabulary(experiment.data.vocabulary)
    batches = data_batches.train_batches(experiment.data, vocabulary, seed=0)
    for _ in range(10):
        next(batches)
    eleventh = next(told.batches)
    for name, value in next(batches).items():
        np.testing.assert_array_equal(eleventh[name], value)


def test_a_vocabulary_that_is_gone_is_that_of_the_work_directory(tiny_run, tiny_experiment):
    data = dataclasses.replace(tiny_experiment.data, vocabulary="gone.model")
    gone = dataclasses.replace(tiny_experiment, data=data)
    with WorkDirectory.open(str(tiny_run)) as workdir:
        assert (
            training.vocabulary_of(gone, workdir).digest
            == training.vocabulary_of(tiny_experiment).digest
        )
    with pytest.raises(InputError, match=r"gone\.model"):
        training.vocabulary_of(gone)


@pytest.mark.gate("optimizer")
@pytest.mark.parametrize("lost", ["params/manifest.ocdbt", "optimizer", "files/data"])
@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_loudly(train, told, finished, lost, caplog):
    directory = finished / "checkpoints" / "10"
    path = directory / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    train(workdir=str(finished), steps=20)
    assert int(told.state.step) == 5
    [warning] = [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING" and record.name.startswith("t5x_lite")
    ]
    assert warning.startswith(f"checkpoint {directory} is damaged ({lost}")
    assert warning.endswith(" is missing) and is now 10.damaged; training resumes from step 5")
    assert (finished / "checkpoints" / "10.damaged" / "manifest.json").is_file()
    assert not directory.exists()


@pytest.mark.slow
def test_where_all_checkpoints_are_damaged_nothing_changes(train, told, finished):
    for step in (5, 10):
        (finished / "checkpoints" / str(step) / "files" / "config.json").write_text("{}")
    before = files_below(finished)
    with pytest.raises(InputError) as raised:
        train(workdir=str(finished), steps=20)
    assert vars(told) == {}
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(
        f"no checkpoint in {finished}/checkpoints is complete: 10 (files/config.json has 2 bytes"
    )
    assert files_below(finished) == before


def test_positions_of_each_process_of_an_earlier_version(train, told, finished, caplog):
    directory = finished / "checkpoints" / "10"
    (directory / "files/data/position").unlink()
    header = json.dumps({"identity": {}, "epoch": 0, "files": {}}).encode() + b"\n"
    for name in ("process_0", "process_1"):
        content = sources.seal(sources.FORMER[-1], zlib.compress(header))
        (directory / "files/data" / name).write_bytes(content)
    (directory / "manifest.json").unlink()
    checkpoint_manifest.write(directory)
    train(workdir=str(finished), steps=20)
    assert int(told.state.step) == 10
    assert "ordered the data differently; the data start from the beginning" in caplog.text


@pytest.mark.slow
def test_init_by_rules(train, told, tiny_run):
    rename = ("model/decoder/(.*) ->", "model/encoder/final_norm/scale ->")
    fresh = ("model/decoder/.*", "model/encoder/final_norm/.*")
    experiment = train(init=Init(checkpoint=str(tiny_run), rename=rename, fresh=fresh), seed=3)
    theirs = trees.flatten(Loaded.from_checkpoint(str(tiny_run), step=None).params)
    key = jax.random.fold_in(jax.random.key(3), 0)
    begun = trees.flatten(jax.jit(learner_of(experiment).init)(key))
    got = trees.flatten(told.state.params)
    assert got.keys() == begun.keys()
    for path, leaf in got.items():
        left_fresh = path.startswith(("model/decoder/", "model/encoder/final_norm/"))
        np.testing.assert_array_equal(leaf, (begun if left_fresh else theirs)[path], err_msg=path)
    with pytest.raises(InputError, match=r"does not fit the model: missing: model/decoder/"):
        train(init=Init(checkpoint=str(tiny_run), rename=rename), workdir=experiment.workdir + "2")


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is(train, told, finished):
    before = files_below(finished / "checkpoints")
    train(workdir=str(finished))
    assert vars(told) == {}
    assert files_below(finished / "checkpoints") == before


def test_a_work_directory_is_needed(train, told):
    with pytest.raises(InputError, match="pass --workdir DIR"):
        train(workdir="")


def test_another_vocabulary_in_the_same_place_is_refused(train, told, finished, tmp_path):
    saved = finished / "vocabulary" / "sentencepiece.model"
    saved.write_bytes(saved.read_bytes()[:-1])
    before = files_below(finished)
    with pytest.raises(
        InputError, match=r"was created with a vocabulary that differs from .*; restore the old"
    ):
        train(workdir=str(finished), steps=20)
    assert files_below(finished) == before
    assert vars(told) == {}


@pytest.mark.slow
def test_the_beginning_of_a_killed_run_is_no_foreign_file(train, told, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.123").write_text("{")
    train()
    assert int(told.state.step) == 0


@pytest.mark.slow
def test_a_best_metric_that_does_not_exist_is_refused_before_training(train, told, tmp_path):
    with pytest.raises(InputError) as raised:
        train(checkpoints=Checkpoints(best="validation/acuracy"))
    assert str(raised.value) == (
        "checkpoints.best is 'validation/acuracy', but the evaluation has the metrics "
        "validation/loss, validation/cross_entropy, validation/token_accuracy, validation/z_loss"
    )
    assert not (tmp_path / "run").exists()
    train(checkpoints=Checkpoints(best="validation/token_accuracy"))
    assert int(told.state.step) == 0


def test_an_unknown_option_of_xla_is_refused_at_the_start(train, told, tmp_path):
    with pytest.raises(
        InputError, match=r"--xla: the compiler for cpu rejects an option \(No such compile"
    ):
        train(xla=("xla_nonsense=1",))
    assert vars(told) == {}
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_step_gets_the_options_and_its_precision(train, told, monkeypatch):
    seen = []
    make = training.make_train_step

    def keep(*args, **rest):
        seen.append((rest["options"], jax.config.jax_default_matmul_precision))
        return make(*args, **rest)

    monkeypatch.setattr(training, "make_train_step", keep)
    train(xla=("xla_cpu_enable_fast_math=false",), matmul_precision="high")
    assert seen == [({"xla_cpu_enable_fast_math": False}, "high")]
