"""The recipes of retrievers: the published figures, and a step of each at a tiny size."""

import dataclasses

import jax
import pytest

from t5x_lite import config
from t5x_lite.layouts import Groups, Ranked
from tests.configs.tiny_step import moved_by_two_steps

# start, group, batch, lengths of query and passage, rate, steps
RECIPES = {
    "dpr": (2, 128, (32, 256), 2e-5, 18_400),
    "retromae_msmarco": (16, 128, (32, 140), 2e-5, 15_717),
    "retromae_ance": (16, 128, (32, 140), 2e-5, 15_717),
    "retromae_beir": (2, 1024, (32, 144), 1e-5, 4_912),
    "cocondenser_msmarco": (8, 64, (32, 128), 5e-6, 23_576),
    "cross_encoder_msmarco": (65, 16, (64, 200), 1e-5, 125_735),
    "retromae_distill": (16, 128, (32, 140), 2e-5, 15_717),
    "sts": (1, 16, (128, 128), 2e-5, 1_440),
}

SMALL = ("cross_encoder_tiny", "distill_tiny")
"""Those of the guide, on a small encoder."""


@pytest.mark.parametrize("name", RECIPES)
def test_the_published_figures(name):
    experiment = config.load(f"configs/finetune/{name}.py")
    group, batch, lengths, rate, steps = RECIPES[name]
    data, layout = experiment.data, experiment.data.layout
    assert isinstance(layout, Groups)
    assert (1 + layout.negatives, data.batch_size) == (group, batch)
    assert (data.inputs_length, data.targets_length) == lengths
    schedule = experiment.optimizer.schedule
    assert (schedule.peak, experiment.steps, schedule.total_steps) == (rate, steps, steps)
    assert isinstance(layout, Ranked) == (name == "cross_encoder_msmarco")


def test_negatives_are_refreshed_at_saved_steps():
    for name, period in (("retromae_ance", 2_000), ("m3_refresh", 1_000)):
        experiment = config.load(f"configs/finetune/{name}.py")
        refresh = experiment.data.refresh
        assert (refresh.period, refresh.lag, refresh.top) == (period, 1, 200)
        assert experiment.checkpoints.period == period
        assert experiment.data.layout.known_positives == 0
        assert refresh.searched_by(2 * period) == period


def tiny(experiment):
    """Four rows of short texts, groups of three at most, and an encoder of one layer."""
    layout = experiment.data.layout
    layout = dataclasses.replace(layout, negatives=min(2, layout.negatives))
    sizes = {"vocab_size": 50, "d_model": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1}
    data = dataclasses.replace(
        experiment.data, layout=layout, batch_size=4, inputs_length=5, targets_length=9
    )
    return dataclasses.replace(
        experiment, model=experiment.model.replace(**sizes), data=data, compute_dtype="float32"
    )


@pytest.mark.gate("retromae_distill")
@pytest.mark.parametrize("name", [*RECIPES, *SMALL])
@pytest.mark.slow
def test_a_step_at_a_tiny_size(name):
    moved = moved_by_two_steps(tiny(config.load(f"configs/finetune/{name}.py")))
    assert sum(jax.tree.leaves(moved)) > 0.8 * len(jax.tree.leaves(moved))
