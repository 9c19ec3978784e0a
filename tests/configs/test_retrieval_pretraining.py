"""The configs of encoders' pretraining at base size: their figures, and a step of each, tiny."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite import config
from t5x_lite.checkpoints.init import Init
from t5x_lite.checkpoints.items import lazy_params
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.optim.config import Linear
from tests import tokenizer_files

NAMES = ("retromae", "condenser", "cocondenser", "electra", "deberta_v3")
PARAMS = "checkpoints/1/params"
TINY = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_layers": 2}


SIZES = {
    # d_model, layers, layers and d_model of the generator; rows, tokens of a row, peak rate, steps
    "electra_small": ((256, 12, 12, 64), (128, 128, 5e-4, 1_000_000)),
    "electra_base": ((768, 12, 12, 256), (256, 512, 2e-4, 766_000)),
    "electra_large": ((1024, 24, 24, 256), (2048, 512, 2e-4, 400_000)),
    "deberta_v3_xsmall": ((384, 12, 6, 384), (64, 512, 3e-4, 1_000_000)),
    "deberta_v3_small": ((768, 6, 3, 768), (256, 512, 1e-4, 1_000_000)),
    "deberta_v3_base": ((768, 12, 6, 768), (8192, 512, 6e-4, 500_000)),
    "deberta_v3_large": ((1024, 24, 12, 1024), (256, 512, 1e-4, 1_000_000)),
}
"""Table 6 of ELECTRA's paper; rtd.sh and rtd_*.json of DeBERTa's code, and for base its paper."""


def loaded(name):
    """The config of a size, or of base."""
    return config.load(f"configs/pretrain/{name if name in SIZES else f'{name}_base'}.py")


@pytest.mark.parametrize("name", SIZES)
def test_the_figures_of_each_size(name):
    (d_model, layers, *generator), (rows, length, peak, steps) = SIZES[name]
    experiment = loaded(name)
    model, objective = experiment.model, experiment.objective
    assert (model.d_model, model.num_layers, model.d_ff) == (d_model, layers, 4 * d_model)
    assert model.num_heads == d_model // 64
    assert [objective.generator.num_layers, objective.generator.d_model] == generator
    data, schedule = experiment.data, experiment.optimizer.schedule
    assert (data.batch_size, data.inputs_length, experiment.steps) == (rows, length, steps)
    inner = getattr(schedule, "then", schedule)
    assert (inner.peak, inner.total_steps) == (peak, steps)
    assert getattr(schedule, "steps", inner.warmup_steps) == 10_000
    assert objective.ratio == (0.25 if name == "electra_large" else 0.15)
    script = name.startswith("deberta") and name != "deberta_v3_base"
    assert objective.discriminator_weight == (10.0 if script else 50.0)
    assert experiment.optimizer.b2 == (0.98 if name == "deberta_v3_base" else 0.999)


@pytest.mark.parametrize("name", NAMES)
def test_all_are_of_base_size(name):
    model = loaded(name).model
    sizes = (model.d_model, model.d_ff, model.num_heads, model.num_layers)
    assert sizes == (768, 3072, 12, 12)


@pytest.mark.parametrize(
    ("name", "batch_size", "length", "pack", "peak", "warmup"),
    [
        ("retromae", 256, 512, False, 1e-4, 0.1),
        ("condenser", 1024, 128, False, 1e-4, 0.1),
        ("cocondenser", 2048, 128, False, 1e-4, 0.1),
        ("deberta_v3", 8192, 512, True, 6e-4, 0.02),
    ],
)
def test_the_papers_figures(name, batch_size, length, pack, peak, warmup):
    experiment = loaded(name)
    data, optimizer = experiment.data, experiment.optimizer
    assert (data.batch_size, data.inputs_length, data.pack) == (batch_size, length, pack)
    schedule = Linear(
        peak=peak, total_steps=experiment.steps, warmup_steps=int(warmup * experiment.steps)
    )
    assert optimizer.schedule == schedule
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.01, 1.0)


def test_the_objectives_figures():
    retromae, condenser = loaded("retromae").objective, loaded("condenser").objective
    assert (retromae.ratio, retromae.ratio_of_decoder, retromae.decoder) == (0.3, 0.5, "enhanced")
    assert (condenser.head_layers, condenser.skip_from, condenser.late_mlm) == (2, 6, True)
    assert (condenser.ratio, condenser.whole_word) == (0.15, True)
    same = {name: getattr(condenser, name) for name in ("head_layers", "skip_from", "late_mlm")}
    cocondenser = loaded("cocondenser").objective
    assert {name: getattr(cocondenser, name) for name in same} == same
    deberta, electra = loaded("deberta_v3"), loaded("electra")
    assert (deberta.objective.sharing, deberta.objective.two_updates) == ("gdes", True)
    assert (deberta.objective.mask_fraction, deberta.objective.discriminator_weight) == (1.0, 50.0)
    generator = deberta.objective.generator
    assert (generator.num_layers, generator.d_model) == (6, 768)
    assert generator.enhanced_mask_decoder
    assert not deberta.model.enhanced_mask_decoder
    assert (deberta.optimizer.b2, deberta.optimizer.eps, deberta.steps) == (0.98, 1e-6, 500_000)
    assert (electra.objective.generator.d_model, electra.objective.mask_fraction) == (256, 0.85)
    assert (electra.optimizer.eps, electra.optimizer.bias_correction) == (1e-6, False)
    assert float(electra.optimizer.schedule.build()(5_000)) == pytest.approx(
        2e-4 * 0.5 * (1 - 5_000 / 766_000)
    )


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Documents of a few sentences, each twice as long as a row."""
    root = tmp_path_factory.mktemp("documents")
    document = "\n".join(["The dog runs. The dogs run. A dog runs, and running dogs run. " * 3] * 4)
    for name in ("a", "validation"):
        (root / f"{name}.txt").write_text("\n\n".join([document] * 12))
    return root


def one_step(name, directory, vocabulary, workdir, *, init=None):
    """Trains a config for one step, its sizes and its mesh made tiny; its last metrics."""
    from t5x_lite.train import training

    experiment = loaded(name)
    known = load_vocabulary(str(vocabulary))
    tiny = {**TINY, "vocab_size": known.size, "max_positions": 40}
    if name.startswith("deberta_v3"):
        tiny["position_buckets"] = 8
    changes = {"mask_id": encoder_tokens(known).mask_id}
    if name in ("condenser", "cocondenser"):
        changes["skip_from"] = 1
    if "generator" in experiment.objective.models():
        narrow = {**tiny, "embedding_size": getattr(experiment.model, "embedding_size", None)}
        changes["generator"] = experiment.objective.generator.replace(**narrow)
    data = {"batch_size": 8, "inputs_length": 32, "shuffle_buffer": 8}
    data |= {"directory": str(directory), "vocabulary": str(vocabulary)}
    training.train(
        dataclasses.replace(
            experiment,
            model=experiment.model.replace(**tiny),
            objective=dataclasses.replace(experiment.objective, **changes),
            data=dataclasses.replace(experiment.data, **data),
            init=Init() if init is None else Init(checkpoint=str(init)),
            steps=1,
            workdir=str(workdir),
            log_period=1,
            microbatches=min(experiment.microbatches, 2),
            checkpoints=Checkpoints(period=1),
            evaluation=Evaluation(period=1, max_batches=1, task_metrics=False),
            mesh=MeshConfig(),
        )
    )
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    found = {name: value for line in lines for name, value in json.loads(line).items()}
    assert 1 < found["loss"] < 60
    assert 1 < found["validation/loss"] < 60
    return found


@pytest.mark.parametrize(
    "name",
    [
        *("retromae", "electra", "deberta_v3", "electra_small", "deberta_v3_xsmall"),
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("electra_large", "deberta_v3_small", "deberta_v3_large")
        ),
    ],
)
@pytest.mark.gate("retromae")
@pytest.mark.slow
def test_a_step_of_each(name, directory, vocabulary, tmp_path, compile_once):
    one_step(name, directory, vocabulary, tmp_path / "run")


@pytest.mark.exhaustive
def test_a_step_of_condenser_and_of_cocondenser_from_it(
    directory, vocabulary, tmp_path, compile_once, caplog
):
    """The second goes on with all that the first trained: model, masked-LM head, head layers."""
    caplog.set_level("INFO")
    first = one_step("condenser", directory, vocabulary, tmp_path / "first")
    assert 1 < first["late_cross_entropy"] < 10
    second = one_step(
        "cocondenser", directory, vocabulary, tmp_path / "second", init=tmp_path / "first"
    )
    assert 1 < second["late_cross_entropy"] < 10
    assert 0 < second["contrastive_cross_entropy"] < 40
    assert "anew" not in caplog.text
    assert "behind" not in caplog.text
    before, after = (
        {path: array.read() for path, array in lazy_params(tmp_path / run / PARAMS).items()}
        for run in ("first", "second")
    )
    assert before.keys() == after.keys()
    kernel = "objective/condenser/mlp/wi/kernel"
    np.testing.assert_allclose(after[kernel], before[kernel], atol=1e-3)  # a step from there
