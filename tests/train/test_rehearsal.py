"""`train --dry-run`: what a run would do, and no file of it."""

import dataclasses

import numpy as np
import pytest

from t5x_lite.adapters.config import Adapters
from t5x_lite.core.errors import InputError
from t5x_lite.train import planning
from t5x_lite.train.planning import rehearse


@pytest.mark.slow
def test_it_says_what_a_run_would_do(tiny_experiment, tmp_path):
    workdir = tmp_path / "run"
    said = rehearse(dataclasses.replace(tiny_experiment, workdir=str(workdir)))
    assert "start: fresh weights, seed 0; work directory" in said
    assert "parameters: " in said
    assert "memory of the state, each device: parameters " in said
    assert f"steps: {tiny_experiment.steps:,}, some " in said
    assert "row 1, encoder_input_tokens: " in said
    assert "<extra_id_0>" in said
    assert not workdir.exists()


def test_what_training_would_refuse_is_refused(tiny_experiment, tmp_path):
    (tmp_path / "other").write_text("not ours")
    with pytest.raises(InputError, match="has other files"):
        rehearse(dataclasses.replace(tiny_experiment, workdir=str(tmp_path)))
    model = tiny_experiment.model.replace(vocab_size=8)
    with pytest.raises(InputError, match=r"model\.vocab_size 8 is smaller than the vocabulary"):
        rehearse(dataclasses.replace(tiny_experiment, model=model))
    adapters = Adapters(add=("a = movement(warmup=100)",))
    with pytest.raises(
        InputError, match=r"'a': warmup 100 plus cooldown 0 exceed the number of steps, \d+"
    ):
        rehearse(dataclasses.replace(tiny_experiment, adapters=adapters))


def test_a_random_frozen_base_is_a_warning(tiny_experiment):
    adapters = Adapters(add=("a = lora(r=2)",))
    said = rehearse(dataclasses.replace(tiny_experiment, adapters=adapters))
    assert "warning: the frozen weights are random; pass --init CHECKPOINT" in said


@pytest.mark.slow
def test_of_a_run_that_is_there(tiny_run, tiny_experiment):
    before = sorted(path.name for path in tiny_run.rglob("*"))
    said = rehearse(dataclasses.replace(tiny_experiment, workdir=str(tiny_run), steps=20))
    assert f"start: resumes from step 10 of {tiny_run}" in said
    assert sorted(path.name for path in tiny_run.rglob("*")) == before


def test_a_row_of_a_query_and_passages_is_one_example():
    groups = {
        "query_segment_ids": np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]]),
        "passage_segment_ids": np.array([[[1, 1], [1, 0]], [[1, 1], [0, 0]], [[0, 0], [0, 0]]]),
    }
    assert planning._examples(groups) == 2  # the last row is padding
    packed = {"encoder_segment_ids": np.array([[1, 1, 2, 3], [1, 2, 2, 0]])}
    assert planning._examples(packed) == 5
    assert planning._examples({"labels": np.zeros((4, 2))}) == 4
