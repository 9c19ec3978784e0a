"""The figures of the paper's baseline (Raffel et al. 2020, section 3.1), frozen."""

import re

import pytest

from configs.pretrain import t5_base_paper
from t5x_lite.models.published import t5_base


def test_the_figures_are_the_papers():
    experiment = t5_base_paper.experiment
    model, data = experiment.model, experiment.data
    assert model == t5_base(dropout_rate=0.1)
    assert (model.num_encoder_layers, model.num_decoder_layers) == (12, 12)
    assert (model.d_model, model.d_ff, model.num_heads, model.d_kv) == (768, 3072, 12, 64)
    assert (model.feed_forward, model.tie_embeddings, model.dropout_rate) == ("relu", True, 0.1)
    assert (data.task, data.pack) == ("tasks.c4:iid_15_u_u", True)
    assert (data.batch_size, data.inputs_length, data.targets_length) == (128, 512, 192)
    assert experiment.steps == 524_288
    assert experiment.steps * data.batch_size * data.inputs_length == 2**35
    rate = experiment.optimizer.schedule.build()
    assert [float(rate(step)) for step in (0, 10_000, 40_000)] == pytest.approx([0.01, 0.01, 0.005])


def test_every_objective_of_the_table_takes_its_lengths(tiny_vocabulary, tiny_text):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.tasks.names import find_task
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    rows = re.findall(
        r"^    [0-9UL]+ +(\w+)(?: \([\w ]+\))? +(\d+)$", t5_base_paper.__doc__ or "", re.MULTILINE
    )
    assert len(rows) == 13
    vocabulary = load_vocabulary(tiny_vocabulary)
    for name, targets_length in [*rows, ("iid_15_u_u", "192")]:
        arguments = TaskArguments(
            vocabulary=vocabulary,
            directory=str(tiny_text),
            inputs_length=512,
            targets_length=int(targets_length),
        )
        assert set(find_task(f"tasks.c4:{name}")(arguments).splits) == {"train", "validation"}
