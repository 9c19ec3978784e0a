"""Every config under configs/ loads, saves, and its shapes trace; nothing is allocated."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from t5x_lite import config
from t5x_lite.config import Experiment
from t5x_lite.config.batches import row_shapes
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.data.config import Fixed
from t5x_lite.data.tasks.names import find_task
from t5x_lite.inference.loading import learner_of
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import abstract_state, state_shardings

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "configs").rglob("*.py"))
    if path.name != "__init__.py"
]


def test_there_are_configs():
    assert "configs/tiny_pretrain.py" in CONFIGS


@pytest.mark.parametrize("path", CONFIGS)
def test_a_config_loads_and_is_saved_as_it_is(path, tmp_path):
    experiment = config.load(path)
    assert isinstance(experiment, Experiment)
    assert experiment.workdir == experiment.init.checkpoint == ""
    config.save(experiment, tmp_path / "config.json")
    assert config.load(tmp_path / "config.json") == experiment
    rows = 3 if isinstance(experiment.data.batches, Fixed) else experiment.data.batch_size
    options = ["--steps", "7", "--data.batch-size", str(rows)]
    if experiment.optimizer.unfreezing.total_steps:
        with pytest.raises(
            InputError, match=r"the run has 7 steps; set --optimizer\.unfreezing\.total-steps 7"
        ):
            config.load(path, options)
        options += ["--optimizer.unfreezing.total-steps", "7"]
    changed = config.load(path, options)
    assert (changed.steps, changed.data.batch_size) == (7, rows)


@pytest.mark.parametrize("path", CONFIGS)
@pytest.mark.slow
def test_the_shapes_of_a_config_trace(path):
    experiment = config.load(path)
    learner = learner_of(experiment)
    size = experiment.data.batch_size
    shapes = row_shapes(experiment.data, num_tasks=experiment.objective.num_tasks)
    batch = {name: jax.ShapeDtypeStruct((size, *shape), "int32") for name, shape in shapes.items()}
    loss = jax.eval_shape(learner.whole_loss, learner.shapes, batch)
    metrics = {name.rpartition("/")[2] for name in loss.metrics}
    assert metrics & {"token_accuracy", "accuracy", "squared_error"}
    optimizer = joint_optimizer(learner.updates())
    layout = state_shardings(make_mesh(MeshConfig()), learner.axes, learner.optimizer_axes())
    state = abstract_state(learner.shapes, optimizer, layout)
    assert trees.count_parameters(state.params) == trees.count_parameters(learner.shapes) > 100_000
    assert float(experiment.optimizer.schedule.build()(0)) >= 0


@pytest.mark.parametrize("path", CONFIGS)
def test_the_task_of_a_config_exists(path):
    assert callable(find_task(config.load(path).data.task))


def slice_of(path):
    """The slice for which a config's docstring compiles it."""
    text = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
    return re.findall(rf"t5x-lite plan {re.escape(path)} --topology (\S+)", text)


PRETRAINING = [path for path in CONFIGS if path.startswith("configs/pretrain/")]


@pytest.mark.parametrize("path", PRETRAINING)
def test_a_pretraining_config_names_its_slice(path):
    assert len(slice_of(path)) == 1


@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
@pytest.mark.parametrize("path", PRETRAINING)
def test_a_pretraining_config_fits_its_slice(path):
    (topology,) = slice_of(path)
    command = (sys.executable, "-m", "t5x_lite", "plan", path, "--topology", topology)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
