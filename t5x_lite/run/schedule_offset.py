"""Where the learning rate goes on: the steps that the weights of `--init` were trained for.

    --init work/t5 --optimizer.schedule-offset auto       # 1000000 of t5x's checkpoint_1000000

The number is found once, when a run begins, and stands in the run's config from then on, so that a
run that goes on needs neither the checkpoint nor the option again.
"""

import dataclasses
import logging

import jax

from t5x_lite.checkpoints import manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.errors import InputError
from t5x_lite.inference.best_step import find_step
from t5x_lite.inference.loading import read_experiment
from t5x_lite.optim.config import AUTO
from t5x_lite.remote import AnyPath

_logger = logging.getLogger(__name__)


def with_schedule_offset(experiment: Experiment, *, earlier: Experiment | None) -> Experiment:
    """The experiment with a number for optimizer.schedule_offset, where it is "auto".

    Args:
      experiment: of the config.
      earlier: the experiment of the run that goes on; its number is taken.

    Raises:
      InputError: there is no checkpoint to ask, or it does not say its steps.
    """
    if experiment.optimizer.schedule_offset != AUTO:
        return experiment
    if earlier is not None:
        offset = earlier.optimizer.first_step
    elif not experiment.init.checkpoint:
        raise InputError(
            "optimizer.schedule_offset auto is of the checkpoint that --init names, which is not "
            "set: give --init DIR, or a number of steps"
        )
    else:
        offset = trained_steps(find_step(experiment.init.checkpoint, step=experiment.init.step))
    if earlier is None and jax.process_index() == 0:
        _logger.info("the learning rate continues from step %d of its schedule", offset)
    optimizer = dataclasses.replace(experiment.optimizer, schedule_offset=offset)
    return dataclasses.replace(experiment, optimizer=optimizer)


def trained_steps(step: AnyPath) -> int:
    """The steps that the weights of a checkpoint were trained for, those before its run included.

    Args:
      step: its step directory, or what an import wrote.

    Raises:
      InputError: it does not say so, as weights from Hugging Face.
    """
    saved = manifest.saved_step(step)
    if saved is None and step.name.isdecimal():  # of a run of earlier versions
        saved = int(step.name)
    before = read_experiment(step, checkpointing.step_files(step)).optimizer.first_step
    if saved is None and not before:
        raise InputError(
            f"checkpoint {step} does not say for how many steps it was trained: give "
            "--optimizer.schedule-offset a number in place of auto"
        )
    return before + (saved or 0)
