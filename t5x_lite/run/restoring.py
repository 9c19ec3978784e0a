"""Where a run begins: from its newest whole checkpoint, from other weights, or from its seed.

The position in the data belongs to the checkpoint. In a cache it is the same in all processes: it
is saved once, as data/position, and any number of processes goes on from there. What is read on the
fly has a position in each process, data/process_0 and so on, which only the same number of
processes can use.
"""

import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from t5x_lite import config, trees, views
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import InitRules
from t5x_lite.checkpoints.saving import Checkpoints
from t5x_lite.config import Experiment
from t5x_lite.config.json import from_json, to_json
from t5x_lite.errors import InputError
from t5x_lite.learner import Learner, views_of
from t5x_lite.remote import AnyPath
from t5x_lite.run.best_step import find_step
from t5x_lite.run.loading import learner_of, read_experiment
from t5x_lite.run.workdir import WorkDirectory, holds_another
from t5x_lite.train.state import TrainState
from t5x_lite.types import Params
from t5x_lite.vocabulary.loading import Vocabulary
from t5x_lite.vocabulary.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)

_SAME_RUN = ("model", "objective", "optimizer", "seed")
"""The fields of an Experiment that all steps of a run share, whatever became of its files."""
_GLOBAL_POSITION = "data/position"


def check_init(experiment: Experiment, vocabulary: Vocabulary) -> AnyPath:
    """The step directory of `init` and `init_step`, whose vocabulary must be that of the data.

    Raises:
      InputError: there is none, it is damaged, or its vocabulary is another one.
    """
    step = find_step(experiment.init, step=experiment.init_step)
    files = checkpointing.step_files(step)
    saved = step / "files" / checkpointing.VOCABULARY_DIRECTORY
    if holds_another(saved, vocabulary):
        raise InputError(
            f"the vocabulary {experiment.data.vocabulary} is not that of the checkpoint {step}; "
            f"use --data.vocabulary {saved}"
        )
    extra_ids = read_experiment(step, files).data.extra_ids
    # A tokenizer has no sentinels, whatever a config says of them.
    if not isinstance(vocabulary, Tokenizer) and extra_ids != vocabulary.extra_ids:
        raise InputError(
            f"data.extra_ids {vocabulary.extra_ids} is not that of the checkpoint {step}: "
            f"use --data.extra-ids {extra_ids}"
        )
    return step


def with_initial(
    state: TrainState,
    experiment: Experiment,
    learner: Learner,
    vocabulary: Vocabulary,
    abstract: Any,
    *,
    step: AnyPath | None = None,
) -> TrainState:
    """The state with the weights that `init` names, by the rules init_rename and init_fresh.

    Args:
      state: with fresh parameters.
      experiment: with `init`.
      learner: of the experiment.
      vocabulary: that of the data.
      abstract: shapes, dtypes and shardings of all parameters.
      step: what `check_init` gave; None asks it.

    Raises:
      InputError: see `check_init` and `checkpoints.restore_params`.
    """
    rules = InitRules.of(rename=experiment.init_rename, fresh=experiment.init_fresh)
    step = check_init(experiment, vocabulary) if step is None else step
    saved = read_experiment(step, checkpointing.step_files(step))
    if learner.views or views_of(saved.model, saved.objective):
        params = _through_views(state.params, step, learner_of(saved), learner, abstract, rules)
    else:
        initial = checkpointing.restore_params(step, abstract, rules=rules)
        params = trees.overlaid(state.params, initial)
    return dataclasses.replace(state, params=params)


def _through_views(
    params: Params, step: AnyPath, saved: Learner, ours: Learner, abstract: Params, rules: InitRules
) -> Params:
    """Our parameters with those of a checkpoint, where either stores other arrays than it reads.

    The rules are about what is read. If both mean the same, arrays are taken as they are stored.

    Raises:
      InputError: as `checkpoints.restore_params`.
    """
    stored = checkpointing.restore_params(step, saved.shapes)
    theirs = trees.flatten(saved.read(stored))
    wanted, own = trees.flatten(ours.seen), trees.flatten(abstract)
    sources = checkpointing.sources_of(
        step, theirs, wanted, rules, optional=wanted.keys() - own.keys()
    )
    meant = views.mentioned(ours.views, own)
    if saved.views == ours.views and all(sources.get(path) == path for path in meant):
        as_stored = trees.flatten(stored)
        new = {path: as_stored[source] for path, source in sources.items() if path in own}
    else:
        given = {path: _placed(theirs[source], own.get(path)) for path, source in sources.items()}
        seen = {**trees.flatten(ours.read(params)), **given}
        new = trees.flatten(ours.write(trees.unflatten(seen)))
    placed = {path: _placed(leaf, own[path]) for path, leaf in new.items()}
    return trees.overlaid(params, trees.unflatten(placed))


def _placed(leaf: Any, like: Any) -> Any:
    """The array where ours is, if it is of its shape."""
    if like is None or tuple(leaf.shape) != tuple(like.shape):
        return leaf
    return jax.device_put(leaf, like.sharding)


def resume(
    checkpoints: Checkpoints, experiment: Experiment, start: TrainState, batches: Any
) -> TrainState | None:
    """The state of the newest checkpoint that is whole; the batches go to its position.

    Newer ones that are not whole are moved aside, and a warning says so.

    Args:
      checkpoints: of the work directory.
      experiment: says whether the data are in a cache.
      start: shapes, dtypes and shardings of the state.
      batches: of training; its `restore` takes the position.

    Returns:
      The state; None where no checkpoint was ever finished, so that the run begins anew.

    Raises:
      InputError: all checkpoints are damaged, or this one fits neither the model nor the processes.
    """
    step, rejected = checkpoints.resume_point(
        foreign=functools.partial(_another_run, experiment=experiment)
    )
    state = None
    if step is not None:
        position = _position(checkpoints, step, experiment)
        params, optimizer = checkpoints.restore(
            step, params=start.params, optimizer={"step": start.step, "state": start.optimizer}
        )
        batches.restore(position)
        state = TrainState(optimizer["step"], params, optimizer["state"])
    told = checkpoints.set_aside(rejected)
    if told and jax.process_index() == 0:
        then = "begins anew" if step is None else f"goes on from step {step}"
        _logger.warning("%s; training %s", "; ".join(told), then)
    return state


def _another_run(files: Mapping[str, bytes], *, experiment: Experiment) -> str:
    """Why a step that was put into this work directory is another run's; "" where it is ours.

    The data may have moved since the step was saved, but the task is the same.
    """
    try:
        saved: Experiment = from_json(
            files[checkpointing.CONFIG_FILE].decode(), source=checkpointing.CONFIG_FILE
        )
    except (KeyError, ValueError):  # not for us to say: the work directory's own config was read
        return ""
    found = config.differences(saved, experiment, fields=_SAME_RUN)
    if saved.data.task != experiment.data.task:
        found.append(f"data.task is {saved.data.task!r} there and {experiment.data.task!r} here")
    return f"it is of another experiment: {', '.join(found)}" if found else ""


def _position(checkpoints: Checkpoints, step: int, experiment: Experiment) -> bytes:
    """The position in the data that this process goes on from."""
    files = checkpoints.files(step)
    name = _position_file(experiment)
    saved = [path for path in files if re.fullmatch(r"data/process_\d+", path)]
    processes = jax.process_count()
    if name == _GLOBAL_POSITION or not saved or len(saved) == processes:
        if name not in files:
            raise checkpoints.damaged(step, f"files/{name} is missing")
        return files[name]
    raise InputError(
        f"step {step} holds the data positions of {len(saved)} processes, and there are "
        f"{processes}: a task that is read on the fly goes on with as many processes as before; "
        f"start {len(saved)}, or train from a cache (t5x-lite cache)"
    )


def _position_file(experiment: Experiment) -> str:
    """Where this process's position is among the files of a step."""
    return _GLOBAL_POSITION if experiment.data.cache else f"data/process_{jax.process_index()}"


def saver(
    checkpoints: Checkpoints,
    experiment: Experiment,
    vocabulary: Vocabulary,
    workdir: WorkDirectory,
) -> Callable[..., None]:
    """What `fit` saves by.

    Args:
      checkpoints: of the work directory.
      experiment: its config goes into every step.
      vocabulary: as does this.
      workdir: copied to its bucket, if it is in one, at every save.
    """
    constant = {
        checkpointing.CONFIG_FILE: to_json(experiment).encode(),
        **{
            f"{checkpointing.VOCABULARY_DIRECTORY}/{name}": content
            for name, content in vocabulary.files().items()
        },
    }
    name = _position_file(experiment)

    def save(state: TrainState, position: bytes, metrics: Mapping[str, float] | None) -> None:
        # Before the step, so that the record holds every evaluation that the step has behind it.
        workdir.copy()
        is_global = name == _GLOBAL_POSITION
        checkpoints.save(
            int(state.step),
            params=state.params,
            optimizer={"step": state.step, "state": state.optimizer},
            files={**constant, name: position} if is_global else constant,
            own_files={} if is_global else {name: position},
            metrics=metrics,
        )

    return save
