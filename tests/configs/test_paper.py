"""The configs of the paper's tables: their figures, and one step of each at a tiny size."""

import dataclasses
import json
import re
import shlex
from fractions import Fraction
from pathlib import Path

import pytest

from t5x_lite import config
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.data.mixing import Mixing
from t5x_lite.models import published
from t5x_lite.optim.config import InverseSquareRoot
from tests.config_files import saved
from tests.tasks import benchmark_directory

ROOT = Path(__file__).resolve().parents[2]
TINY = {"vocab_size": 512, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_heads": 4}
TINY |= {"num_encoder_layers": 2, "num_decoder_layers": 2}
SIZES = ("small", "base", "large", "3b", "11b")
OTHERS = ("tasks.glue", "tasks.super_glue", "tasks.wmt", "tasks.summarize")


@pytest.fixture(scope="module")
def directory(tmp_path_factory, english_lines):
    """All tasks of the mixtures, and some text in the place of C4."""
    root = tmp_path_factory.mktemp("paper")
    benchmark_directory.write(root, english_lines[:12])
    (root / "c4").mkdir()
    (root / "c4" / "train.txt").write_text("\n".join(english_lines[:200]))
    (root / "c4" / "validation.txt").write_text("\n".join(english_lines[200:210]))
    return root


@pytest.mark.parametrize(
    ("size", "model"),
    [
        ("small", published.t5_small),
        ("base", published.t5_base),
        ("large", published.t5_large),
        ("3b", published.t5_3b),
        ("11b", published.t5_11b),
    ],
)
def test_the_released_sizes(size, model):
    experiment = config.load(f"configs/paper/t5_{size}.py")
    assert experiment.model == model(dropout_rate=0.1, remat=experiment.model.remat)
    assert (experiment.model.feed_forward, experiment.model.tie_embeddings) == ("relu", True)
    assert experiment.data.task == f"tasks.mixtures:multi_task_{size}"
    assert (experiment.data.batch_size, experiment.data.inputs_length) == (2048, 512)
    assert experiment.steps == 1_000_000
    assert experiment.optimizer.schedule == InverseSquareRoot(warmup_steps=10_000)


def test_the_larger_models():
    sizes = [config.load(f"configs/paper/size_{size}.py").model for size in ("2x", "4x")]
    assert [(m.num_encoder_layers, m.num_decoder_layers) for m in sizes] == [(16, 16), (32, 32)]
    assert {(m.d_model, m.d_ff, m.num_heads, m.d_kv) for m in sizes} == {(1024, 4096, 16, 64)}


def test_the_triangular_schedule():
    experiment = config.load("configs/paper/triangular.py")
    rate = experiment.optimizer.schedule.build()
    assert float(rate(52_428)) == pytest.approx(0.01)  # a tenth of 2^19
    assert float(rate(0)) == float(rate(2**19)) == pytest.approx(0.01 / 32)
    changed = config.load(
        "configs/paper/triangular.py",
        ["--steps", "100", "--optimizer.schedule.total-steps", "100"],
    )
    assert float(changed.optimizer.schedule.build()(10)) == pytest.approx(0.01)


COMMANDS = sorted(
    {*re.findall(r"`(configs/[^`]+\.py[^`]*)`", (ROOT / "configs/paper/README.md").read_text())}
)


def test_the_tables_have_commands():
    assert len(COMMANDS) > 50


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_tables_is_a_config(command):
    path, *options = shlex.split(command)
    experiment = config.load(path, options)
    assert experiment.data.vocabulary == "spiece.model"
    assert experiment.steps in (2**18, 2**19, 2**20, 2**21, 2**19 + 2**18, 10**6)


def one_step(path, directory, vocabulary, workdir, **data):
    """Trains a config for one step, its sizes and its mesh made tiny; its last metrics."""
    from t5x_lite.train import training

    experiment = config.load(path)
    lengths = {"inputs_length": 32, "targets_length": 32, "batch_size": 4, "shuffle_buffer": 8}
    fields = {"vocabulary": str(vocabulary), "directory": str(directory), **lengths, **data}
    training.train(
        dataclasses.replace(
            experiment,
            model=experiment.model.replace(**TINY),
            data=dataclasses.replace(experiment.data, **fields),
            steps=1,
            workdir=str(workdir),
            log_period=1,
            microbatches=min(experiment.microbatches, 2),
            checkpoints=Checkpoints(period=1),
            evaluation=Evaluation(period=1, max_batches=1, task_metrics=False),
            mesh=MeshConfig(),
        )
    )
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {name: value for line in lines for name, value in line.items()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["size_2x", "size_4x", "triangular"])
@pytest.mark.slow
def test_a_step_of_pretraining(name, directory, tiny_vocabulary, tmp_path, compile_once):
    path = f"configs/paper/{name}.py"
    found = one_step(path, directory / "c4", tiny_vocabulary, tmp_path / "run")
    assert 4 < found["loss"] < 10
    assert 4 < found["validation/loss"] < 10


@pytest.mark.parametrize(
    "name",
    ["t5_small", *(pytest.param(f"t5_{n}", marks=pytest.mark.exhaustive) for n in SIZES[1:])],
)
@pytest.mark.slow
def test_a_step_of_the_released_recipe(name, directory, tiny_vocabulary, tmp_path, compile_once):
    """Of C4 and SQuAD; that all tasks can be mixed is tested with one of them."""
    path = f"configs/paper/{name}.py"
    mixing = dataclasses.replace(config.load(path).data.mixing, leave_out=OTHERS)
    found = one_step(path, directory, tiny_vocabulary, tmp_path / "run", mixing=mixing)
    assert 4 < found["loss"] < 10


@pytest.mark.exhaustive
@pytest.mark.slow  # 25 tasks
@pytest.mark.parametrize("name", ["t5_small", "multi_task"])
def test_a_step_of_all_tasks(name, directory, tiny_vocabulary, tmp_path, compile_once):
    found = one_step(f"configs/paper/{name}.py", directory, tiny_vocabulary, tmp_path / "run")
    assert 4 < found["loss"] < 10
    assert 4 < found["validation/loss"] < 10


@pytest.mark.slow
def test_a_step_of_the_released_recipe_from_caches(
    directory, tiny_vocabulary, tmp_path, compile_once
):
    from t5x_lite.commands.texts import cache
    from t5x_lite.data.scheduled import mixed_sources

    path = "configs/paper/t5_small.py"
    experiment = config.load(path)
    lengths = {"inputs_length": 32, "targets_length": 32, "vocabulary": str(tiny_vocabulary)}
    mixing = dataclasses.replace(experiment.data.mixing, leave_out=OTHERS)
    data = dataclasses.replace(experiment.data, directory=str(directory), mixing=mixing, **lengths)
    whole = dataclasses.replace(experiment, data=data)
    cache(saved(whole, tmp_path), output=str(tmp_path / "caches"))
    caches = tuple(sorted(map(str, (tmp_path / "caches").iterdir())))
    assert [Path(each).name for each in caches] == ["c4_span_3_15_u_u", "squad_squad"]
    text, squad = (
        rate for _, rate in mixed_sources(dataclasses.replace(data, cache=caches, mixing=Mixing()))
    )
    assert (text, squad) == (Fraction(9_999, 10_000), Fraction(1, 10_000))  # 710,000 and 12
    found = one_step(path, directory, tiny_vocabulary, tmp_path / "run", cache=caches)
    assert 4 < found["loss"] < 10
