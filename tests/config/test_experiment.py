"""Experiment: validation, overrides of leaves, saving, and who may resume a work directory."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from configs.pretrain import electra_tiny
from t5x_lite import layouts
from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints.init import Init
from t5x_lite.config import (
    MATCHING_FIELDS,
    Checkpoints,
    Evaluation,
    Experiment,
    Hosts,
    check_same_experiment,
    differences,
    load,
    save,
)
from t5x_lite.config.experiment import with_length, with_options
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.data.config import Bucketed, Data, Refresh
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.retromae import RetroMAE
from t5x_lite.optim.config import (
    Adafactor,
    AdamW,
    Constant,
    InverseSquareRoot,
    Linear,
    LinearDecayTail,
    Warmup,
)

ROOT = Path(__file__).parents[1]

CONFIG = """
from t5x_lite.config import Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.config import Constant

experiment = Experiment(
    model=T5Config(
        vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_heads=2,
        num_encoder_layers=1, num_decoder_layers=1,
    ),
    objective=Seq2Seq(),
    data=Data(task="tasks.prose:spans", vocabulary="vocabulary"),
    optimizer=Adafactor(schedule=Constant(value=0.5)),
    steps=10,
)
"""

EXPERIMENT = Experiment(
    model=T5Config(
        vocab_size=384,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
    ),
    objective=Seq2Seq(),
    data=Data(task="tasks.prose:spans", vocabulary="vocabulary"),
    optimizer=Adafactor(schedule=Constant(value=0.5)),
    steps=10,
)


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    Path("tiny.py").write_text(CONFIG)


def error(*overrides: str) -> str:
    with pytest.raises(InputError) as raised:
        load("tiny.py", overrides)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_load_without_overrides():
    assert load("tiny.py") == EXPERIMENT


def test_overrides_change_leaves_of_the_parts_own_types():
    args = "--workdir w --steps 200 --seed 1 --init i --checkpoints.period 50 --evaluation.period 9"
    assert load("tiny.py", args.split()) == dataclasses.replace(
        EXPERIMENT,
        workdir="w",
        steps=200,
        seed=1,
        init=Init(checkpoint="i"),
        checkpoints=Checkpoints(period=50),
        evaluation=Evaluation(period=9),
    )
    args = (
        "--objective.z-loss 0 --mesh.tensor 2 --model.d_model 32 --optimizer.schedule.value 2 "
        "--optimizer.clip-norm 1 --data.pack False --evaluation.max-batches None"
    )
    assert load("tiny.py", args.split()) == dataclasses.replace(
        EXPERIMENT,
        objective=Seq2Seq(z_loss=0.0),
        mesh=MeshConfig(tensor=2),
        model=EXPERIMENT.model.replace(d_model=32),
        optimizer=Adafactor(schedule=Constant(value=2.0), clip_norm=1.0),
        data=dataclasses.replace(EXPERIMENT.data, pack=False),
        evaluation=Evaluation(max_batches=None),
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("--modle.d-model 3", "unknown option --modle.d-model; did you mean --model.d-model?"),
        ("--d-model 3", "unknown option --d-model; did you mean --model.d-model?"),
        ("--optimizer.schedule.valeu 3", "did you mean --optimizer.schedule.value?"),
        ("--steps many", "--steps: must be a whole number, got 'many'"),
        ("--steps 0", "steps must be at least 1: got 0"),
        ("--data.inputs-length 0", "data.inputs_length must be at least 1: got 0"),
        ("--compute-dtype float16", "invalid choice 'float16' for argument '--compute-dtype'"),
        ("again.py", "unexpected argument 'again.py'"),
    ],
)
def test_a_wrong_option_is_one_line(overrides, message):
    assert message in error(*overrides.split())


def test_options_of_the_command_are_suggested_too():
    with pytest.raises(InputError, match=r"did you mean --checkpoint\?$"):
        load("tiny.py", ["--chekpoint", "d"], other_options=["--checkpoint"])


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda: Experiment(**_parts(steps=0)), "steps must be"),
        (lambda: Experiment(**_parts(seed=-1)), "seed must be"),
        (lambda: Experiment(**_parts(log_period=0)), "log_period must be"),
        (lambda: Experiment(**_parts(microbatches=0)), "microbatches must be"),
        (lambda: Hosts(heartbeat=0), "hosts.heartbeat must be"),
        (lambda: Hosts(timeout=0), "hosts.timeout must be"),
        (lambda: Checkpoints(period=0), "checkpoints.period must be"),
        (lambda: Checkpoints(keep=0), "checkpoints.keep must be"),
        (lambda: Checkpoints(timeout=0), "checkpoints.timeout must be"),
        (lambda: Evaluation(period=0), "evaluation.period must be"),
        (lambda: Evaluation(max_batches=0), "evaluation.max_batches must be"),
        (lambda: Evaluation(num_samples=-1), "evaluation.num_samples must be"),
        (lambda: Evaluation(max_decode_length=0), "evaluation.max_decode_length must be"),
    ],
)
def test_a_value_out_of_range_is_refused(part, message):
    with pytest.raises(InputError, match=f"^{message} at least [01]: got -?[01]$"):
        part()


@pytest.mark.parametrize("minutes", [0.0, -1.0, math.nan, math.inf])
def test_minutes_between_saves_are_more_than_none(minutes):
    with pytest.raises(
        InputError, match=rf"^checkpoints\.minutes must be (above 0|finite): got {minutes}"
    ):
        Checkpoints(minutes=minutes)
    assert Checkpoints(minutes=0.5).minutes == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coordinator": "a:1"}, "hosts.process_id must be set together, got 'a:1', None and None"),
        ({"num_processes": 2, "process_id": 0}, "must be set together, got '', 2 and 0"),
        (
            {"coordinator": "a", "num_processes": 2, "process_id": 0},
            "hosts.coordinator must be HOST:PORT, got 'a'",
        ),
        (
            {"coordinator": "a:1", "num_processes": 2, "process_id": 2},
            "hosts.process_id is 2, but must be from 0 to hosts.num_processes - 1 = 1",
        ),
    ],
)
def test_hosts_that_cannot_meet_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        Hosts(**given)


def test_hosts_are_options_of_every_config():
    options = "--hosts.coordinator 10.0.0.1:8476 --hosts.num-processes 4 --hosts.process-id 3"
    loaded = load("tiny.py", options.split())
    assert loaded.hosts == Hosts(coordinator="10.0.0.1:8476", num_processes=4, process_id=3)


def _parts(**changes):
    parts = {
        field.name: getattr(EXPERIMENT, field.name) for field in dataclasses.fields(EXPERIMENT)
    }
    return parts | changes


def test_a_part_of_a_wrong_type_is_refused_with_the_line():
    Path("tiny.py").write_text(CONFIG.replace("objective=Seq2Seq()", "objective=3"))
    assert error().startswith("tiny.py:9: ")
    Path("tiny.py").write_text("experiment = 3")
    assert error() == "tiny.py: the experiment must be an Experiment, got int"


def test_a_bag_of_words_is_not_of_packed_rows():
    data = dataclasses.replace(EXPERIMENT.data, layout=layouts.Encoder(), pack=True)
    parts = _parts(objective=RetroMAE(bag_of_words=0.1), data=data)
    with pytest.raises(
        InputError,
        match=r"but data\.pack is True; set --data\.pack False for one document per example$",
    ):
        Experiment(**parts)
    Experiment(**{**parts, "data": dataclasses.replace(data, pack=False)})


def test_what_was_saved_loads_equal_and_takes_overrides():
    experiment = dataclasses.replace(
        EXPERIMENT, optimizer=AdamW(schedule=Constant()), mesh=MeshConfig(tensor=2)
    )
    save(experiment, "work/a/config.json")
    assert load("work/a/config.json") == experiment
    assert load("work/a/config.json", ["--steps", "7"]).steps == 7
    assert [file.name for file in Path("work/a").iterdir()] == ["config.json"]
    save(EXPERIMENT, "work/a/config.json")
    assert load("work/a/config.json") == EXPERIMENT


def test_shapes_of_batches_are_saved_and_may_be_given_as_an_option(tmp_path):
    data = dataclasses.replace(
        EXPERIMENT.data,
        layout=layouts.Encoder(),
        batches=Bucketed({8: 4, 16: 2}),
        batch_size=2,
        inputs_length=16,
        pack=False,
    )
    path = tmp_path / "config.json"
    objective = MaskedLM()
    model = BertConfig(vocab_size=384, d_model=8, d_ff=8, num_heads=1, num_layers=1)
    experiment = dataclasses.replace(EXPERIMENT, model=model, objective=objective, data=data)
    save(experiment, path)
    assert load(path) == experiment
    shapes = ["--data.batches.shapes", "8", "6", "12", "4", "16", "2"]
    assert load(path, shapes).data.batches == Bucketed({8: 6, 12: 4, 16: 2})
    message = r"data\.inputs_length is 16 and data\.batch_size is 2, but the longest shape"
    with pytest.raises(InputError, match=message):
        load(path, shapes[:-2])


def test_a_config_of_before_there_were_shapes_of_batches(tmp_path):
    path = tmp_path / "config.json"
    save(EXPERIMENT, path)
    saved = json.loads(path.read_text())
    assert saved["data"].pop("batches") == {"type": "t5x_lite.data.config:Fixed"}
    path.write_text(json.dumps(saved))
    assert load(path) == EXPERIMENT


def test_saved_json_of_something_else_is_refused():
    save_text = '{"type": "t5x_lite.config:Checkpoints"}'
    Path("config.json").write_text(save_text)
    with pytest.raises(InputError, match="must be an Experiment, got Checkpoints"):
        load("config.json")


def test_a_workdir_resumes_with_other_steps_mesh_and_periods():
    changed = dataclasses.replace(
        EXPERIMENT,
        steps=99,
        workdir="w",
        mesh=MeshConfig(fsdp=2),
        microbatches=4,
        hosts=Hosts(coordinator="a:1", num_processes=2, process_id=1),
        checkpoints=Checkpoints(period=5),
        evaluation=Evaluation(period=5),
        log_period=1,
    )
    check_same_experiment(EXPERIMENT, changed, "w")


def test_a_workdir_of_another_experiment_is_refused_naming_every_difference():
    assert (
        *("model", "objective", "heads", "adapters", "train"),
        *("data", "optimizer", "seed", "compute_dtype"),
    ) == MATCHING_FIELDS
    other = dataclasses.replace(
        EXPERIMENT,
        model=EXPERIMENT.model.replace(d_model=64),
        optimizer=AdamW(schedule=Constant()),
        seed=2,
        steps=99,
    )
    with pytest.raises(InputError) as raised:
        check_same_experiment(other, EXPERIMENT, "work/a")
    assert str(raised.value) == (
        "work directory work/a belongs to another experiment: "
        "model.d_model is 64 in the saved config and 16 now, "
        "optimizer is AdamW in the saved config and Adafactor now, seed is 2 in the saved config "
        "and 0 now; "
        "use another --workdir or the same settings"
    )


def test_what_differs_in_a_list_is_said_by_its_place():
    there = dataclasses.replace(EXPERIMENT, adapters=Adapters(add=("rte = lora(r=2)",)))
    here = dataclasses.replace(EXPERIMENT, adapters=Adapters(add=("rte=lora(rank=4)",)))
    assert differences(there, here, fields=("adapters",)) == [
        "adapters.add.0 is 'rte = lora(rank=2)' in the saved config and 'rte = lora(rank=4)' now"
    ]
    assert differences(there, EXPERIMENT, fields=("adapters",)) == [
        "adapters.add is ['rte = lora(rank=2)'] in the saved config and [] now"
    ]


def test_modules_are_set_by_options_and_compared_by_their_meaning():
    lines = ["rte=lora(r=8)", "b = seq_bn(reduction=4)"]
    file = "tiny.py"
    made = load(file, ["--adapters.add", *lines, "--adapters.train", "rte", "b"])
    assert [module.name for module in made.adapters.modules] == ["rte", "b"]
    assert made.trained == ("adapters/rte", "adapters/b")
    plainer = dataclasses.replace(
        made,
        adapters=Adapters(add=("rte = lora()", "b = seq_bn(reduction=4.0)"), train=("rte", "b")),
    )
    assert differences(made, plainer, fields=("adapters",)) == []
    with pytest.raises(InputError, match=r"adapters.add: column 7 of .* lorra; did you mean lora"):
        load(file, ["--adapters.add", "rte = lorra()"])
    with pytest.raises(InputError, match=r"both select the parameters to train"):
        load(file, ["--adapters.add", lines[0], "--adapters.train", "rte", "--train", "model"])


def test_configs_of_different_types_are_named_by_their_classes():
    there, here = (
        dataclasses.replace(EXPERIMENT, optimizer=Adafactor(schedule=schedule))
        for schedule in (Constant(value=0.002), InverseSquareRoot())
    )
    with pytest.raises(InputError) as raised:
        check_same_experiment(there, here, "w")
    assert str(raised.value) == (
        "work directory w belongs to another experiment: optimizer.schedule is Constant in the "
        "saved config and InverseSquareRoot now; use another --workdir or the same settings"
    )


def test_saving_through_a_link_keeps_the_link():
    Path("elsewhere").mkdir()
    Path("config.json").symlink_to("elsewhere/tiny.json")
    save(EXPERIMENT, "config.json")
    assert Path("config.json").is_symlink()
    assert load("elsewhere/tiny.json") == EXPERIMENT


def fresh_python(program: str) -> subprocess.CompletedProcess:
    """Runs a program without the type checks of the tests, as a user does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_misspelt_field_of_the_file_is_refused_with_the_line():
    Path("tiny.py").write_text(CONFIG.replace("d_model=16", "d_modle=16"))
    done = fresh_python(
        "from t5x_lite.cli import main; raise SystemExit(main(['train', 'tiny.py']))"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: tiny.py:10: T5Config has no field d_modle; did you mean d_model?\n"
    )


@pytest.mark.slow
def test_load_needs_neither_tensorflow_nor_tyro_without_overrides():
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['tensorflow', 'seqio', 'tyro']))\n"
        "from t5x_lite.config import load, save\n"
        "experiment = load('tiny.py')\n"
        "save(experiment, 'config.json')\n"
        "assert load('config.json') == experiment\n"
    )
    done = fresh_python(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_of_the_compiler_come_one_behind_the_other():
    changed = load("tiny.py", ["--xla", "xla_a=1", "xla_b=true", "--matmul-precision", "high"])
    assert changed.xla == ("xla_a=1", "xla_b=true")
    assert changed.matmul_precision == "high"
    assert error("--xla", "xla_a").startswith("--xla takes KEY=VALUE pairs")
    assert "lower" in error("--matmul-precision", "lower")


@pytest.mark.parametrize(
    ("precision", "dtype", "fine"),
    [
        *[("default", "bfloat16", True), ("default", "float32", True)],
        *[("highest", "float32", True), ("highest", "bfloat16", False)],
        *[("high", "float32", False), ("high", "bfloat16", False)],
    ],
)
def test_the_kernel_has_two_precisions(precision, dtype, fine):
    args = ("--matmul-precision", precision, "--compute-dtype", dtype)
    assert load("tiny.py", args).matmul_precision == precision
    if fine:
        assert load("tiny.py", [*args, "--model.attention", "pallas"]).compute_dtype == dtype
    else:
        assert error(*args, "--model.attention", "pallas") == (
            f"model.attention pallas cannot multiply {dtype} numbers at --matmul-precision "
            f"{precision}; set --matmul-precision default or --model.attention blocked"
        )


def test_models_of_an_objective_have_these_precisions_too():
    electra = electra_tiny.experiment
    assert isinstance(electra.objective, Electra)
    generator = electra.objective.generator.replace(attention="pallas")
    objective = dataclasses.replace(electra.objective, generator=generator)
    assert dataclasses.replace(electra, objective=objective).objective == objective
    with pytest.raises(InputError, match="pallas cannot multiply float32 numbers at --mat"):
        dataclasses.replace(electra, objective=objective, matmul_precision="high")


def test_a_search_needs_its_checkpoint():
    data = dataclasses.replace(
        EXPERIMENT.data,
        cache="c",
        layout=layouts.Groups(),
        pack=False,
        refresh=Refresh(period=30, directory="d"),
    )
    model = BertConfig(vocab_size=384, d_model=8, d_ff=8, num_heads=1, num_layers=1)
    parts = {"model": model, "objective": Contrastive(), "data": data}
    _ = dataclasses.replace(EXPERIMENT, checkpoints=Checkpoints(period=10), **parts)
    with pytest.raises(InputError, match=r"refresh\.period is 30 steps, but must be a multiple of"):
        dataclasses.replace(EXPERIMENT, checkpoints=Checkpoints(period=20), **parts)


@pytest.fixture
def of_init(tmp_path):
    """A config.json of a tiny BERT, and step directories of another BERT and of a T5."""
    encoder = dataclasses.replace(electra_tiny.experiment, objective=MaskedLM(mask_id=4))
    save(encoder, tmp_path / "config.json")
    models = {
        "bert": BertConfig(
            vocab_size=30, d_model=12, d_ff=24, num_heads=3, num_layers=2, dropout_rate=0.3
        ),
        "deberta": DebertaConfig(vocab_size=30, d_model=12, d_ff=24, num_heads=3, num_layers=2),
    }
    for name, model in models.items():
        (tmp_path / name / "params").mkdir(parents=True)
        changed = dataclasses.replace(encoder, model=model)
        save(changed, tmp_path / name / "files" / "config.json")
    return tmp_path, encoder.model, models


@pytest.mark.parametrize("name", ["bert", "deberta"])
@pytest.mark.parametrize("equals", [False, True])
def test_the_model_of_init(of_init, name, equals):
    place, own, models = of_init
    options = ["--model=init", f"--init={place / name}"]
    options = options if equals else [word for each in options for word in each.split("=")]
    found = load(place / "config.json", [*options, "--model.norm-epsilon", "0.5", "--steps", "7"])
    assert found.model == models[name].replace(dropout_rate=own.dropout_rate, norm_epsilon=0.5)
    assert (found.steps, found.init.checkpoint) == (7, str(place / name))
    plain = load(place / "config.json", [f"--init={place / name}"])
    assert plain.model == own


def test_a_model_that_cannot_be_of_init(of_init):
    place, _, _ = of_init
    config = place / "config.json"
    for options, message in (
        (["--model", "init"], "pass --init CHECKPOINT"),
        (["--model", "bert", "--init", "x"], "--model must be init.*got 'bert'"),
        (["--model"], "--model must be init"),
        (["--model", "init", "--init", str(place / "none")], "no such directory"),
        (["--model", "init", "--init", str(place / "bert"), "--init.step", "x"], "whole number"),
    ):
        with pytest.raises(InputError, match=message):
            load(config, options)
    (place / "bert" / "files" / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"bert/files/config\.json"):
        load(config, ["--model", "init", "--init", str(place / "bert")])


def test_the_model_of_init_is_that_of_the_run_if_it_is_gone(of_init, monkeypatch):
    place, own, models = of_init
    config, saved = place / "config.json", load(place / "config.json")
    begun = dataclasses.replace(saved, model=models["bert"], init=Init(checkpoint="gone"))
    save(begun, place / "run" / "config.json")
    monkeypatch.chdir(place)
    options = ["--model", "init", "--workdir", "run", "--init"]
    for name in ("gone", "gone/", str(place / "gone")):
        found = load(config, [*options, name])
        assert found.model == models["bert"].replace(dropout_rate=own.dropout_rate)
    with pytest.raises(InputError, match="no such directory"):
        load(config, [*options, "other"])
    (place / "run" / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"run/config\.json"):
        load(config, [*options, "gone"])


LINEAR = Linear(peak=0.5, total_steps=1000, warmup_steps=100)
IN_EPOCHS = dataclasses.replace(
    EXPERIMENT,
    steps=1000,
    epochs=3.0,
    optimizer=AdamW(schedule=LINEAR),
    checkpoints=Checkpoints(period=250),
    evaluation=Evaluation(period=500),
)


def test_schedules_and_periods_follow_the_length_of_a_run():
    short = with_length(IN_EPOCHS, 200)
    assert short.optimizer.schedule == Linear(peak=0.5, total_steps=200, warmup_steps=20)
    assert (short.steps, short.checkpoints.period, short.evaluation.period) == (200, 50, 100)
    long = with_length(IN_EPOCHS, 4000)
    assert long.optimizer.schedule == Linear(peak=0.5, total_steps=4000, warmup_steps=400)
    assert (long.checkpoints.period, long.evaluation.period) == (250, 500)
    tiny = with_length(dataclasses.replace(IN_EPOCHS, checkpoints=Checkpoints(period=1)), 3)
    assert tiny.optimizer.schedule == Linear(peak=0.5, total_steps=3, warmup_steps=0)
    assert tiny.checkpoints.period == 1
    assert with_length(IN_EPOCHS, 1000) is IN_EPOCHS


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(value=0.5), Constant(value=0.5)),
        (InverseSquareRoot(), InverseSquareRoot()),
        (
            LinearDecayTail(body=InverseSquareRoot(), total_steps=1000),
            LinearDecayTail(body=InverseSquareRoot(), total_steps=300),
        ),
        (
            Warmup(steps=10, then=Linear(total_steps=2000, warmup_steps=500)),
            Warmup(steps=3, then=Linear(total_steps=600, warmup_steps=150)),
        ),
    ],
)
def test_the_lengths_of_each_schedule(schedule, expected):
    experiment = dataclasses.replace(IN_EPOCHS, optimizer=AdamW(schedule=schedule))
    assert with_length(experiment, 300).optimizer.schedule == expected


def test_the_lengths_of_a_second_optimizer_and_of_an_offset():
    second = AdamW(schedule=LINEAR)
    objective = dataclasses.replace(
        electra_tiny.experiment.objective, sharing="nes", discriminator_optimizer=second
    )
    experiment = dataclasses.replace(
        electra_tiny.experiment,
        objective=objective,
        steps=1000,
        optimizer=AdamW(schedule=Linear(total_steps=6000, warmup_steps=100), schedule_offset=5000),
    )
    short: Any = with_length(experiment, 100)
    assert short.objective.discriminator_optimizer.schedule.total_steps == 100
    assert short.optimizer.schedule.total_steps == 5100


def test_steps_of_a_config_of_epochs_take_the_schedule_along():
    found: Any = with_options(IN_EPOCHS, ["--steps", "2000"])
    assert (found.steps, found.epochs, found.optimizer.schedule.total_steps) == (2000, None, 2000)
    options = [
        "--steps=200",
        "--optimizer.schedule.warmup-steps",
        "7",
        "--evaluation.period",
        "150",
    ]
    found = with_options(IN_EPOCHS, options)
    assert found.optimizer.schedule == Linear(peak=0.5, total_steps=200, warmup_steps=7)
    assert (found.checkpoints.period, found.evaluation.period) == (50, 150)
    assert with_options(IN_EPOCHS, ["--epochs", "0.5"]).epochs == 0.5
    same = with_options(IN_EPOCHS, ["--epochs", "None", "--steps", "900"])
    assert (same.epochs, same.steps, same.optimizer.schedule) == (None, 900, LINEAR)
    without = dataclasses.replace(IN_EPOCHS, epochs=None)
    assert with_options(without, ["--steps", "900"]).optimizer.schedule == LINEAR


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "9", "--epochs", "2"], "--steps 9 and --epochs 2 both set the length"),
        (["--epochs=2", "--steps=9"], "--steps 9 and --epochs 2 both set the length"),
        (["--epochs", "0"], "epochs must be above 0: got 0"),
        (["--epochs", "inf"], "epochs must be finite: got inf"),
        (["--steps", "0"], "steps must be at least 1: got 0"),
        (["--steps", "many"], "many"),
    ],
)
def test_wrong_lengths(options, message):
    with pytest.raises(InputError, match=message) as raised:
        with_options(IN_EPOCHS, options)
    assert "\n" not in str(raised.value)
