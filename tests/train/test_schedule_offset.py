import dataclasses
import json
import logging
import shutil

import numpy as np
import pytest

from t5x_lite import config
from t5x_lite.checkpoints import items
from t5x_lite.checkpoints.init import Init
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.inference.loading import Loaded
from t5x_lite.optim.config import Adafactor, InverseSquareRoot, Linear
from t5x_lite.train.training import train, trained_steps, with_schedule_offset


@pytest.fixture
def going_on(tiny_experiment, tiny_run):
    """Four steps from the weights of ten, at a rate that goes on."""
    schedule = InverseSquareRoot(warmup_steps=1)
    return dataclasses.replace(
        tiny_experiment,
        optimizer=Adafactor(schedule=schedule, schedule_offset="auto"),
        init=Init(checkpoint=str(tiny_run)),
        steps=4,
    )


def lines(workdir):
    found = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in found if "loss" in line]


def params_of(workdir):
    return trees.flatten(Loaded.from_checkpoint(str(workdir), step=None).params)


@pytest.mark.exhaustive
def test_the_rate_goes_on_and_a_run_that_is_resumed_too(going_on, tmp_path, compile_once, caplog):
    with caplog.at_level(logging.INFO):
        train(dataclasses.replace(going_on, workdir=str(tmp_path / "whole")))
    assert "continuing the learning rate schedule from step 10" in caplog.text
    rates = [line["learning_rate"] for line in lines(tmp_path / "whole")]
    np.testing.assert_allclose(rates, [step**-0.5 for step in (10, 11, 12, 13)], rtol=1e-6)
    assert config.load(tmp_path / "whole" / "config.json").optimizer.schedule_offset == 10
    parts = dataclasses.replace(going_on, workdir=str(tmp_path / "parts"))
    train(dataclasses.replace(parts, steps=2))
    train(dataclasses.replace(parts, init=Init(checkpoint="gone")))
    assert [line["loss"] for line in lines(tmp_path / "parts")] == [
        line["loss"] for line in lines(tmp_path / "whole")
    ]
    found, expected = params_of(tmp_path / "parts"), params_of(tmp_path / "whole")
    assert all(np.array_equal(found[path], expected[path]) for path in expected)
    # The steps of the first run, and those of this one.
    assert trained_steps(tmp_path / "whole" / "checkpoints" / "4") == 14
    optimizer = dataclasses.replace(going_on.optimizer, schedule_offset=3)
    with pytest.raises(
        InputError, match=r"optimizer\.schedule_offset is 10 in the saved config and 3 now"
    ):
        train(dataclasses.replace(parts, optimizer=optimizer))


def test_the_run_that_goes_on_says_its_number(going_on, tiny_experiment):
    assert with_schedule_offset(tiny_experiment, earlier=going_on) is tiny_experiment
    earlier = dataclasses.replace(
        going_on, optimizer=dataclasses.replace(going_on.optimizer, schedule_offset=7)
    )
    found = with_schedule_offset(going_on, earlier=earlier)
    assert found.optimizer.schedule_offset == 7


def test_a_checkpoint_is_needed_that_says_its_steps(going_on, tiny_run, tmp_path):
    with pytest.raises(InputError, match=r"needs a checkpoint, but init.checkpoint is not set"):
        with_schedule_offset(dataclasses.replace(going_on, init=Init()), earlier=None)
    # As an import writes it: without a step.
    step = shutil.copytree(tiny_run / "checkpoints" / "10", tmp_path / "imported")
    (step / items.MANIFEST_FILE).unlink()
    items.write(step)
    wanted = dataclasses.replace(going_on, init=Init(checkpoint=str(step)))
    with pytest.raises(InputError) as error:
        with_schedule_offset(wanted, earlier=None)
    assert str(error.value).endswith(
        "imported does not record its number of training steps; set "
        "--optimizer.schedule-offset to a number instead of auto"
    )


def test_steps_and_offset_are_within_the_schedule(tiny_experiment):
    optimizer = Adafactor(schedule=Linear(total_steps=100), schedule_offset=91)
    with pytest.raises(
        InputError, match=r"^the run has 10 steps after optimizer\.schedule_offset 91, but"
    ):
        dataclasses.replace(tiny_experiment, optimizer=optimizer)
    dataclasses.replace(
        tiny_experiment, optimizer=dataclasses.replace(optimizer, schedule_offset=90)
    )
