"""The rows of the paper's table 2 and the fine-tuning of its language models: figures, and a step.

Raffel et al. 2020, section 3.2.
"""

import dataclasses
import json

import pytest

from t5x_lite import config, layouts
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core import trees
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.inference.loading import learner_of
from t5x_lite.layouts import Seq2Seq

TINY = {"vocab_size": 512, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_heads": 4}
BOTH = {"num_encoder_layers": 1, "num_decoder_layers": 1}
WORDS = {"separator": " target:"}
ROWS = [
    ("encoder_decoder_denoising", "iid_15_u_u", Seq2Seq(), 220),
    ("shared_denoising", "iid_15_u_u", Seq2Seq(), 137),
    ("6_layers_denoising", "iid_15_u_u", Seq2Seq(), 124),
    ("lm_denoising", "iid_15_u_u", layouts.ConcatLM(), 110),
    ("prefix_lm_denoising", "iid_15_u_u", layouts.PrefixLM(), 110),
    ("encoder_decoder_lm", "prefix_lm", Seq2Seq(), 220),
    ("shared_lm", "prefix_lm", Seq2Seq(), 137),
    ("6_layers_lm", "prefix_lm", Seq2Seq(), 124),
    ("lm_lm", "lm", layouts.LM(), 110),
    ("prefix_lm_lm", "prefix_lm", layouts.PrefixLM(), 110),
]


@pytest.mark.parametrize(("name", "task", "layout", "millions"), ROWS)
def test_the_paper_s_rows(name, task, layout, millions):
    experiment = config.load(f"configs/paper/table2_{name}.py")
    data = experiment.data
    assert (data.task, data.layout) == (f"tasks.c4:{task}", layout)
    assert (experiment.steps, data.batch_size, data.inputs_length) == (2**19, 128, 512)
    assert data.targets_length == (192 if "denoising" in name else 512)
    assert getattr(experiment.model, "prefix", None) == (
        name.startswith("prefix_lm") if layout != Seq2Seq() else None
    )
    parameters = trees.count_parameters(learner_of(experiment).shapes)
    assert round(parameters / 1e6) == pytest.approx(millions, abs=3)


def test_fine_tuning_has_the_paper_s_words():
    paper, causal, prefix = (
        config.load(f"configs/finetune/{name}.py")
        for name in ("paper", "paper_lm", "paper_prefix_lm")
    )
    assert causal.data.layout == layouts.ConcatLM(**WORDS)
    assert prefix.data.layout == layouts.PrefixLM(**WORDS)
    assert (causal.model.prefix, prefix.model.prefix) == (False, True)
    for tuned in (causal, prefix):
        assert dataclasses.replace(tuned.data, layout=paper.data.layout) == paper.data
        assert (tuned.steps, tuned.optimizer) == (paper.steps, paper.optimizer)
        path = f"configs/paper/table2_{'prefix_' if tuned.model.prefix else ''}lm_lm.py"
        assert config.load(path).model == tuned.model
    options = ["--data.layout.loss-on-inputs", "False", "--data.layout.separator", ""]
    changed = config.load("configs/finetune/paper_lm.py", options)
    assert changed.data.layout == layouts.ConcatLM(loss_on_inputs=False)


def one_step(path, directory, vocabulary, workdir, **data):
    """Trains a config for one step, its sizes and its mesh made tiny; its last metrics."""
    from t5x_lite.train import training

    experiment = config.load(path)
    sizes = {"inputs_length": 32, "targets_length": 32, "batch_size": 4, "shuffle_buffer": 8}
    fields = {"vocabulary": str(vocabulary), "directory": str(directory), **sizes, **data}
    layers = {"num_layers": 1} if hasattr(experiment.model, "num_layers") else BOTH
    training.train(
        dataclasses.replace(
            experiment,
            model=experiment.model.replace(**TINY, **layers),
            data=dataclasses.replace(experiment.data, **fields),
            steps=1,
            workdir=str(workdir),
            log_period=1,
            checkpoints=Checkpoints(period=1),
            evaluation=Evaluation(period=1, max_batches=1, max_decode_length=2, max_examples=4),
            mesh=MeshConfig(),
        )
    )
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {name: value for line in lines for name, value in line.items()}


QUICK = ("lm_denoising", "prefix_lm_lm")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [pytest.param(row[0], marks=[] if row[0] in QUICK else pytest.mark.slow) for row in ROWS],
)
def test_a_step_of_pretraining(name, tiny_text, tiny_vocabulary, tmp_path, compile_once):
    found = one_step(
        f"configs/paper/table2_{name}.py", tiny_text, tiny_vocabulary, tmp_path / "run"
    )
    assert 4 < found["loss"] < 10
    assert 4 < found["validation/loss"] < 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["paper_lm", "paper_prefix_lm"])
def test_a_step_of_fine_tuning(name, tiny_glue, tiny_vocabulary, tmp_path, compile_once):
    found = one_step(
        f"configs/finetune/{name}.py",
        tiny_glue,
        tiny_vocabulary,
        tmp_path / "run",
        task="tasks.glue:sst2",
    )
    assert 4 < found["loss"] < 10
    assert 0 <= found["validation/accuracy"] <= 1
