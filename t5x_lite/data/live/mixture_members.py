"""The tasks of a mixture whose data are there, and the message about those whose data are not.

    found = members(data, vocabulary)       # found.present: tasks; found.absent: reasons, by name
    trained_members(data, vocabulary)       # those that are trained on; an error names all missing

TensorFlow is imported where tasks are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from t5x_lite.data.config import Data
from t5x_lite.data.mixtures import Member, Mixture, find_mixture, member_data
from t5x_lite.data.tasks.names import find_task
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.loading import Vocabulary


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
    from t5x_lite.data.live import pipeline

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
            task = pipeline.load_task(alone, vocabulary, seed=seed)
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
    while error is not None and not isinstance(error, FileNotFoundError):
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
    """The tasks of a mixture that are trained on, after a look at the first examples of each.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      seed: of the randomness that belongs to single examples.
      shard_info: the part of every task's examples that is read.
      tells: whether it is told of tasks that the vocabulary cannot spell.

    Raises:
      InputError: files of some are not there, and the message names all of these tasks and the
        option that leaves them out; or one has no examples.
    """
    from t5x_lite.data.live import pipeline

    found = members(data, vocabulary, seed=seed)
    trained = [one for one in found.present if one.member.is_trained]
    missing = dict(found.absent)
    for one in trained:
        try:
            pipeline.look_at(
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
