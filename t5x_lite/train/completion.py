"""Config values that depend on data and checkpoint: epochs, classes, schedule offset.

    with_epochs(experiment)         # epochs=3 of 67,349 rows in batches of 32: steps 6,314
    with_classes(experiment)        # Classify(num_classes=0, head="auto") of MNLI: 3, "bert"

| data | an epoch |
|---|---|
| caches | each example of all caches; if packed, the number of rows that the examples fill |
| a task, or a mixture of tasks, with a countable number of examples | each example |
| a stream, and rows that a task packs on the fly | unknown |

With a schedule offset, the learning rate continues after the steps for which the weights of
`--init` were trained:

    --init work/t5 --optimizer.schedule-offset auto       # 1000000 of t5x's checkpoint_1000000

All values are determined when a run starts, and stored in its config. So a resumed run needs
neither the checkpoint nor the option.
"""

import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from t5x_lite.checkpoints import manifest, reading
from t5x_lite.config import Experiment
from t5x_lite.config.experiment import with_length
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import given_options
from t5x_lite.core.remote import AnyPath
from t5x_lite.data import batches as data_batches
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import UnknownSize
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.loading import find_step, learner_of, read_experiment
from t5x_lite.interop import encoder_checkpoints
from t5x_lite.models import encoder as encoders
from t5x_lite.models.heads import Head, by_name
from t5x_lite.optim.config import AUTO

_logger = logging.getLogger(__name__)

_MOST_STEPS = 1 << 40


def with_epochs(
    experiment: Experiment, *, options: Sequence[str] = (), may_lack_data: bool = False
) -> Experiment:
    """Return the experiment with the number of steps, and schedules, for its number of epochs.

    If the size of the data is unknown, the config's steps are used, and a message is logged.
    """
    epochs = experiment.epochs
    if epochs is None:
        return experiment
    fixed = given_options(options)
    try:
        vocabulary = load_vocabulary(
            experiment.data.vocabulary, extra_ids=experiment.data.extra_ids
        )
        data = experiment.data
        epoch = data_batches.epoch_of(data, vocabulary, seed=experiment.seed)
    except InputError as error:
        is_unknown = may_lack_data or isinstance(error, UnknownSize)
        if "--epochs" in fixed or not is_unknown:
            raise
        _logger.info("%s; training for the config's %s steps", error, f"{experiment.steps:,}")
        return dataclasses.replace(experiment, epochs=None)
    steps = max(1, math.ceil(epochs * epoch.batches - 1e-9))
    if steps >= _MOST_STEPS:
        raise InputError(
            f"epochs {epochs:g} would take {steps:,} steps; reduce the number of epochs"
        )
    if steps != experiment.steps:
        _logger.info(
            "%s: training for %s steps, about %.4g epochs of %s examples",
            experiment.data.task or experiment.data.cache,
            f"{steps:,}",
            epochs,
            f"{epoch.examples:,}",
        )
    return with_length(experiment, steps, fixed=fixed)


def with_classes(
    experiment: Experiment, *, earlier: Experiment | None = None, reads_task: bool = True
) -> Experiment:
    """Return the experiment with the kind and the classes of its classification head set."""
    objective = experiment.objective
    undecided = objective.undecided()
    if not undecided:
        return experiment
    if earlier is not None and type(earlier.objective) is type(objective):
        known: Any = earlier.objective
        kind = getattr(known, "head", "")
        resolved = objective.with_classes(kind=kind, num_classes=known.num_classes)
        resolved = resolved.with_weights(getattr(known, "class_weights", ()))
        return dataclasses.replace(experiment, objective=resolved)
    # A plan knows the classes by their weights, or takes two.
    given = vars(objective).get("class_weights")
    kind, classes = "bert", len(given) if isinstance(given, tuple) and given else 2
    if "head" in undecided:
        model = experiment.model
        if not encoders.is_encoder(model):
            raise InputError(
                f"objective Classify needs an encoder, but the model is a {type(model).__name__}; "
                "use `t5x-lite glue`, or a config of objective Seq2Seq"
            )
        kind = encoder_checkpoints.classifier_kind(model, _heads_of_init(experiment))
    if "classes" in undecided and reads_task:
        classes = num_classes(experiment.data)
    resolved = objective.with_classes(kind=kind, num_classes=classes)
    if "weights" in undecided:
        number = vars(resolved)["num_classes"]
        weights = balanced_weights(experiment.data, number) if reads_task else ()
        resolved = resolved.with_weights(weights)
    return dataclasses.replace(experiment, objective=resolved)


def _heads_of_init(experiment: Experiment) -> tuple[Head, ...]:
    """Return the config's heads, followed by the initial checkpoint's other heads."""
    if not experiment.init.checkpoint:
        return experiment.heads
    step = find_step(experiment.init.checkpoint, step=experiment.init.step)
    saved = read_experiment(step, reading.step_files(step))
    named = by_name(experiment.heads)
    own = learner_of(saved).heads
    return (*experiment.heads, *(head for name, head in own.items() if name not in named))


def num_classes(data: Data) -> int:
    """Return the number of classes of a task; 1 for a regression task."""
    if not data.task:
        raise InputError(
            "objective.num_classes 0 needs data.task to count classes, but it is not set; set "
            "--data.task, or --objective.num-classes N"
        )
    from t5x_lite.data.loading import load_task, task_labels

    vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    labels = task_labels(load_task(data, vocabulary))
    return 1 if labels is None else len(labels)


_AT_A_TIME = 4096


def balanced_weights(data: Data, num: int) -> tuple[float, ...]:
    """Return the balanced weight of each class c: n / (k n_c), or 1 if n_c is 0.

    n is the number of examples, n_c of class c, and k the number of classes with examples.
    """
    words = "token_labels" in data.layout.features
    vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    counts = np.zeros(num + 1, np.int64)
    for source in data_batches.training_sources(data, vocabulary, seed=0):
        if source.size is None:
            raise InputError(
                "objective.class_weights balanced needs countable data, but the task is streamed; "
                "write a cache with `t5x-lite cache` and give --data.cache, or give the weights"
            )
        for first in range(0, source.size, _AT_A_TIME):
            numbers = np.arange(first, min(first + _AT_A_TIME, source.size))
            for example in source.split.read(numbers):
                given = example["token_labels"] if words else example["labels"][:1]
                counts += np.bincount(given, minlength=num + 1)[: num + 1]
    counts = counts[1:]
    if not counts.any():
        raise InputError(
            "objective.class_weights balanced needs labels, but no training example has a label"
        )
    weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    weights = tuple(np.where(counts > 0, weights, 1.0).tolist())
    if jax.process_index() == 0:
        listed = ", ".join(f"{weight:.4g}" for weight in weights)
        _logger.info("using the balanced class weights %s", listed)
    return weights


def with_schedule_offset(experiment: Experiment, *, earlier: Experiment | None) -> Experiment:
    """Return the experiment with "auto" in optimizer.schedule_offset replaced by a step number."""
    if experiment.optimizer.schedule_offset != AUTO:
        return experiment
    if earlier is not None:
        offset = earlier.optimizer.first_step
    elif not experiment.init.checkpoint:
        raise InputError(
            "optimizer.schedule_offset auto needs a checkpoint, but init.checkpoint is not set; "
            "pass --init DIR, or a number of steps"
        )
    else:
        offset = trained_steps(find_step(experiment.init.checkpoint, step=experiment.init.step))
    if earlier is None and jax.process_index() == 0:
        _logger.info("continuing the learning rate schedule from step %d", offset)
    optimizer = dataclasses.replace(experiment.optimizer, schedule_offset=offset)
    return dataclasses.replace(experiment, optimizer=optimizer)


def trained_steps(step: AnyPath) -> int:
    """Return the number of steps that a checkpoint was trained for, including earlier runs."""
    saved = manifest.saved_step(step)
    if saved is None and step.name.isdecimal():  # saved by an earlier version
        saved = int(step.name)
    before = read_experiment(step, reading.step_files(step)).optimizer.first_step
    if saved is None and not before:
        raise InputError(
            f"checkpoint {step} does not record its number of training steps; set "
            "--optimizer.schedule-offset to a number instead of auto"
        )
    return before + (saved or 0)
