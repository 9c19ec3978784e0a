"""The tasks that a config reads: one, or those of a mixture whose data are there, and their rates.

found = members(data, vocabulary)       # found.present: tasks; found.absent: reasons, by name
trained_members(data, vocabulary)       # those that are trained on; an error names all missing
rates_of(data, trained, anew=True)      # [1.0] of one task
"""

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from t5x_lite.data import elements
from t5x_lite.data.config import Data
from t5x_lite.data.live.tasks import check_split, load_task, look_at
from t5x_lite.data.live.truncation import truncated
from t5x_lite.data.mixtures import Member, Mixture, find_mixture, member_data
from t5x_lite.data.quiet_tensorflow import tf
from t5x_lite.data.tasks.names import find_task
from t5x_lite.data.tasks.seqio_registry import OtherVocabulary
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.loading import Vocabulary

_logger = logging.getLogger(__name__)

_counted: dict[str, int] = {}
"""What training has counted, for the held-out losses of the same run."""


@dataclass(frozen=True, kw_only=True)
class Present:
    """A task of a mixture whose data are there.

    Attributes:
      member: its place in the mixture.
      data: the config by which it is read alone.
      task: the seqio.Task.
    """

    member: Member
    data: Data
    task: Any


@dataclass(frozen=True, kw_only=True)
class Members:
    """The tasks of a mixture.

    Attributes:
      mixture: all of them.
      present: those whose data are there, in the mixture's order.
      absent: why the others are not there, by name.
    """

    mixture: Mixture
    present: tuple[Present, ...]
    absent: dict[str, str]


def members(data: Data, vocabulary: Vocabulary, *, seed: int = 0) -> Members:
    """Makes the tasks of the mixture that data.task names.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      seed: of the randomness that belongs to single examples.

    Raises:
      InputError: data.task is no mixture, or none of its tasks' data are there.
    """
    mixture = find_mixture(data)
    if mixture is None:
        raise InputError(f"data.task {data.task!r} is one task and no mixture")
    present, absent = [], {}
    for member in mixture.members:
        alone = member_data(data, member)
        find_task(member.task)  # that there is no such task is not the data's fault
        if reason := mixture.unanswered(member):
            absent[member.name] = reason
            continue
        try:
            task = load_task(alone, vocabulary, seed=seed)
        except OtherVocabulary:
            raise
        except InputError as error:  # its files are looked for when it is made, and read later
            absent[member.name] = str(error)
            continue
        present.append(Present(member=member, data=alone, task=task))
    if not present:
        name, reason = next(iter(absent.items()))
        raise InputError(f"no task of the mixture {data.task} can be made; {name}: {reason}")
    return Members(mixture=mixture, present=tuple(present), absent=absent)


def is_absent(error: BaseException | None) -> bool:
    """Whether an error comes of a file that is not there."""
    missing = (FileNotFoundError, tf.errors.NotFoundError)
    while error is not None and not isinstance(error, missing):
        error = error.__cause__
    return error is not None


def trained_members(
    data: Data,
    vocabulary: Vocabulary,
    *,
    seed: int = 0,
    shard_info: Any = None,
    tells: bool = False,
) -> list[Present]:
    """The tasks that are trained on, after a look at the first examples of each.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      seed: of the randomness that belongs to single examples.
      shard_info: the part of every task's examples that is read.
      tells: whether it is told of tasks that the vocabulary cannot spell.

    Raises:
      InputError: one has no examples; or of a mixture, files of some are not there, and the message
        names all of these tasks and the option that leaves them out.
    """
    if find_mixture(data) is None:
        task = truncated(data, load_task(data, vocabulary, seed=seed), seed=seed)
        told = vocabulary if tells else None
        look_at(data, task, told, name=task.name, shard_info=shard_info)
        return [Present(member=Member(task=data.task), data=data, task=task)]
    found = members(data, vocabulary, seed=seed)
    trained = [one for one in found.present if one.member.is_trained]
    missing = dict(found.absent)
    for one in trained:
        try:
            look_at(
                one.data,
                one.task,
                vocabulary if tells else None,
                name=one.member.name,
                shard_info=shard_info,
            )
        except InputError as error:
            if not is_absent(error):
                raise
            missing[one.member.name] = str(error)
    names = [m.name for m in found.mixture.members if m.is_trained and m.name in missing]
    if names:
        raise InputError(_without_data(data, names, reason=missing[names[0]]))
    return trained


def _without_data(data: Data, names: Sequence[str], *, reason: str) -> str:
    """The message about tasks that cannot be trained on, and the way to train without them.

    Args:
      data: the data config.
      names: theirs; at least one.
      reason: why the first is not there.
    """
    option = f"--data.mixing.leave-out {' '.join([*data.mixing.leave_out, *names])}"
    if len(names) == 1:
        return f"{reason}; {option} trains without it"
    return (
        f"{len(names)} tasks of {data.task} cannot be trained on: {', '.join(names)}; the first: "
        f"{reason}; {option} trains without them"
    )


def held_out_members(
    data: Data, vocabulary: Vocabulary, *, split: str
) -> tuple[list[Present], list[float]]:
    """The trained tasks that have a split, and their rates.

    Raises:
      InputError: there is none.
    """
    if find_mixture(data) is None:
        task = load_task(data, vocabulary)
        check_split(data, task, split=split)
        return [Present(member=Member(task=data.task), data=data, task=task)], [1.0]
    trained = [one for one in members(data, vocabulary).present if one.member.is_trained]
    rates = rates_of(data, trained, anew=False)
    pairs = [
        (one, rate)
        for one, rate in zip(trained, rates, strict=True)
        if split in one.task.splits and _is_there(one, split)
    ]
    if not pairs:
        raise InputError(f"no trained task of the mixture {data.task!r} has a split {split!r}")
    return [one for one, _ in pairs], [rate for _, rate in pairs]


def _is_there(one: Present, split: str) -> bool:
    """Whether the files of a split are there."""
    try:
        one.task.source.get_dataset(split=split, shuffle=False)
    except InputError as error:
        if is_absent(error):
            return False
        raise
    return True


def rates_of(
    data: Data, trained: Sequence[Present], *, anew: bool, tells: bool = False
) -> list[float]:
    """The rates of tasks that are there; examples are counted where nothing says how many.

    Args:
      data: the data config.
      trained: its tasks that are trained on.
      anew: whether earlier counts of this process will not do.
      tells: whether it is told which rates are constants that nothing changes.
    """
    mixture = find_mixture(data)
    if mixture is None:
        return [1.0]
    if tells:
        _tell_constants(data, mixture)
    there = {one.member.name: one for one in trained}

    def count(member: Member) -> int:
        one = there.get(member.name)
        if one is None:
            return 0
        limits = [n for n in (data.mixing.maximum, member.maximum) if n is not None]
        at_most = min(limits, default=None)
        key = repr((one.data, at_most))
        if anew or key not in _counted:
            _counted[key] = _num_examples(one, at_most=at_most)
        return _counted[key]

    names = [member.name for member in mixture.members]
    by_name = dict(zip(names, mixture.rates(data.mixing, count=count), strict=True))
    return [by_name[one.member.name] for one in trained]


def _tell_constants(data: Data, mixture: Mixture) -> None:
    """One line about constant rates that a limit or a temperature leaves as they are."""
    for member in mixture.constants(data.mixing):
        _logger.info(
            "data.mixing.maximum and data.mixing.temperature leave %s at its constant rate of %s",
            member.name,
            f"{member.rate:,.10g}",
        )


def _num_examples(one: Present, *, at_most: int | None) -> int:
    """The examples of a task's training split as its source gives them; at least one.

    Args:
      one: the task, of which nothing says how many it has.
      at_most: counting ends here, since a rate knows no more.
    """
    check_split(one.data, one.task, split="train")
    source = one.task.source.get_dataset(split="train", shuffle=False)
    number = int(source.cardinality())
    if number < 0:
        _logger.info(
            "counting the examples of %s: its Member in the mixture does not say how many it has",
            one.member.name,
        )
        number = sum(1 for _ in itertools.islice(elements.as_numpy(source), at_most))
    if not number:
        where = f" in {one.data.directory}" if one.data.directory else ""
        raise InputError(f"data.task {one.data.task!r} found no example for split 'train'{where}")
    return number
