"""The figures of the paper's fine-tuning, frozen (Raffel et al. 2020, section 3.1.2)."""

import dataclasses

import pytest

from t5x_lite import config
from t5x_lite.evaluate.task_suite import TaskSettings
from t5x_lite.optim.config import Constant


@pytest.mark.parametrize(
    ("name", "task", "targets_length", "best"),
    [
        ("paper", "tasks.squad:squad", 97, "validation/exact_match"),
        ("glue", "tasks.mixtures:glue", 84, "validation/*/score"),
        ("super_glue", "tasks.mixtures:super_glue", 62, "validation/*/score"),
        ("large_supervised", "tasks.mixtures:large_supervised", 512, "validation/*/score"),
    ],
)
def test_the_paper_s_figures(name, task, targets_length, best):
    experiment = config.load(f"configs/finetune/{name}.py")
    assert experiment.steps == 262_144
    assert experiment.optimizer.schedule == Constant(value=1e-3)
    assert experiment.checkpoints.period == experiment.evaluation.period == 5_000
    assert experiment.checkpoints.best == best
    assert experiment.checkpoints.best_mode is None  # of all of these the highest
    data, model = experiment.data, experiment.model
    assert (data.task, data.batch_size, data.pack) == (task, 128, True)
    assert (data.inputs_length, data.targets_length) == (512, targets_length)
    assert experiment.evaluation.split == "validation"
    assert experiment.evaluation.num_beams == 1
    assert (model.num_encoder_layers, model.num_decoder_layers) == (12, 12)
    assert (model.d_model, model.d_ff, model.num_heads, model.d_kv) == (768, 3072, 12, 64)
    assert (model.feed_forward, model.tie_embeddings, model.dropout_rate) == ("relu", True, 0.1)


def test_the_paper_decodes_wmt_and_cnn_daily_mail_by_beam_search():
    experiment = config.load("configs/finetune/large_supervised.py")
    beam = {"summarize_cnn_dailymail": 4, "wmt_ende": 4, "wmt_enfr": 4}
    for task in ("large_supervised", "all_proportional"):
        data = dataclasses.replace(experiment.data, task=f"tasks.mixtures:{task}")
        settings = TaskSettings(experiment.evaluation, data)
        for name, beams in beam.items():
            found = settings.evaluation(name)
            assert (found.num_beams, found.length_penalty, found.max_decode_length) == (
                beams, 0.6, 512,
            )  # fmt: skip
    rest = dataclasses.replace(experiment.evaluation, per_task=())
    assert settings.evaluation("squad_squad") == settings.evaluation("glue_rte") == rest
