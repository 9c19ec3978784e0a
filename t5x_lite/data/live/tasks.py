"""The tasks that a config reads, looked at and read as datasets of examples.

One task: made from its name, looked at, and read as a dataset of examples.

    task = load_task(data, vocabulary, seed=0)          # a seqio.Task
    examples = training_examples(data, task, training_passes(data, task, seed=0), seed=0)

The way of an example is seqio's: source, preprocessors, trim, shuffle.

The tasks that a config reads: one, or those of a mixture whose data are there, and their rates.

found = members(data, vocabulary)       # found.present: tasks; found.absent: reasons, by name
trained_members(data, vocabulary)       # those that are trained on; an error names all missing
rates_of(data, trained, anew=True)      # [1.0] of one task
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from t5x_lite.core.errors import InputError
from t5x_lite.data import elements
from t5x_lite.data.config import Data, TaskArguments, trimmed_lengths, wording_of
from t5x_lite.data.elements import as_numpy, deterministic, seqio, tf
from t5x_lite.data.live.augmented import augmented
from t5x_lite.data.live.rows import truncated
from t5x_lite.data.mixtures import Member, Mixture, find_mixture, member_data
from t5x_lite.data.tasks import stages
from t5x_lite.data.tasks.names import find_task, is_marked, other_tasks
from t5x_lite.data.tasks.seqio_registry import OtherVocabulary
from t5x_lite.data.tasks.shuffling import Passes, in_passes
from t5x_lite.data.vocabularies import unknown_tokens
from t5x_lite.data.vocabularies.loading import Vocabulary

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def load_task(data: Data, vocabulary: Vocabulary, *, seed: int = 0) -> seqio.Task:
    """Builds the task that data.task names, "module:function"."""
    function = find_task(data.task)
    ending = _ending(data, vocabulary)
    arguments = TaskArguments(
        vocabulary=vocabulary,
        directory=data.directory,
        # A task leaves room for EOS.
        inputs_length=data.inputs_length - len(ending[1:]),
        targets_length=data.targets_length,
        seed=seed,
        columns=data.columns,
        layout=data.layout,
        final_sentinel=data.final_sentinel,
        template=data.template,
        prefix=data.prefix,
        languages=data.languages,
    )
    try:
        task = function(arguments)
    except (AttributeError, TypeError) as error:  # as of a function that is none of a task
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"data.task {data.task!r} failed ({what}); a task function takes TaskArguments and "
            f"returns a seqio.Task{other_tasks(data.task)}"
        ) from error
    if not isinstance(task, seqio.Task):
        raise InputError(
            f"data.task {data.task!r} must return a seqio.Task, got {type(task).__name__}"
            f"{other_tasks(data.task)}"
        )
    if data.languages and not getattr(task.source, "language", ""):
        raise InputError(
            f"data.languages is of unlabelled text, and data.task {data.task!r} has none: unset it"
        )
    words = wording_of(data)
    if words and not is_marked(task):
        raise InputError(
            f"data.{' and data.'.join(words)} cannot be set: data.task {data.task!r} makes its "
            f"rows of data.layout {data.layout.name} of no template"
        )
    if data.augment.run:
        task = augmented(
            task,
            data.augment,
            vocabulary=vocabulary,
            length=data.inputs_length - len(ending[1:]),
            is_encoder="labels" in data.layout.features,
        )
    both = {"inputs", "targets"} <= {*task.output_features}
    return stages.ended_by(task, ending) if ending and both else task


def _ending(data: Data, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The words of the layout that stand in the place of EOS behind inputs, in tokens, or none."""
    ending = data.layout.ending(vocabulary, length=data.inputs_length)
    return () if ending == (vocabulary.eos_id,) else ending


def task_metrics(task: seqio.Task) -> tuple[Callable[..., Any], list[Callable[..., Any]]]:
    """What turns predicted text into a metric."""
    return task.postprocess_fn, list(task.predict_metric_fns)


def task_labels(task: seqio.Task) -> tuple[str, ...] | None:
    """The texts of which a task's answer is always one, to choose among by rank classification.

    A task says them by the attribute `labels` of its postprocess_fn: `postprocess.ClassIndex` has
    it, and so may any callable of a user's own.
    """
    labels = getattr(task.postprocessor, "labels", None)
    return None if labels is None else tuple(labels)


def look_at(
    data: Data,
    task: seqio.Task,
    vocabulary: Vocabulary | None,
    *,
    name: str,
    split: str = "train",
    shard_info: Any = None,
) -> None:
    """Looks at the first examples of a task: a split without any would be repeated for ever."""
    examples = examples_of(data, task, split=split, shard_info=shard_info)
    if vocabulary is not None:
        unknown_tokens.tell(name, examples, vocabulary)


def training_passes(data: Data, task: seqio.Task, *, seed: int) -> Passes | None:
    """In which order a task's training examples come at each pass; None is that of its source."""
    source = task.source
    if not data.shuffle or not isinstance(source, stages.Source):
        return None
    return source.passes("train", seed=seed)


def training_examples(
    data: Data,
    task: seqio.Task,
    passes: Passes | None,
    *,
    seed: int,
    shard_info: Any = None,
) -> tf.data.Dataset:
    """The task's examples for training, trimmed, for ever."""
    shuffle = data.shuffle
    if passes is not None:
        task = in_passes(task, passes, shard_info=shard_info)
        shuffle, shard_info = passes.needs_buffer, None
    return _dataset(
        data,
        task,
        split="train",
        shuffle=shuffle,
        shuffle_buffer_size=data.shuffle_buffer,
        seed=seed,
        shard_info=shard_info,
        num_epochs=None,
    )


def held_out_examples(data: Data, task: seqio.Task, *, split: str) -> tf.data.Dataset:
    """The task's examples of a split, trimmed, once and in order."""
    return _dataset(data, task, split=split, shuffle=False)


def check_split(data: Data, task: seqio.Task, *, split: str) -> None:
    """Refuses a split that a task lacks."""
    if split not in task.splits:
        there = ", ".join(task.splits)
        raise InputError(f"data.task {data.task!r} has no split {split!r}: there are {there}")


def not_empty(examples: Iterator[_T], data: Data, *, split: str) -> Iterator[_T]:
    """The same iterator, after its first element has been seen to exist."""
    for first in examples:
        return itertools.chain([first], examples)
    where = f" in {data.directory}" if data.directory else ""
    hint = (
        ""
        if split == "train"
        else (
            "; --evaluation.split chooses another, and --evaluation.loss False trains without one"
        )
    )
    raise InputError(f"data.task {data.task!r} found no example for split {split!r}{where}{hint}")


def examples_of(
    data: Data, task: seqio.Task, *, split: str, shard_info: Any = None
) -> Iterator[dict[str, Any]]:
    """The task's own examples in order, once, as NumPy values; at least one."""
    check_split(data, task, split=split)
    dataset = _dataset(data, task, split=split, shuffle=False, shard_info=shard_info)
    return not_empty(as_numpy(deterministic(dataset)), data, split=split)


def _dataset(data: Data, task: seqio.Task, *, split: str, **options) -> tf.data.Dataset:
    """The task's examples, trimmed."""
    return task.get_dataset(
        sequence_length=trimmed_lengths(data), split=split, try_in_mem_cache=False, **options
    )


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
    """Makes the tasks of the mixture that data.task names."""
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
    """The tasks that are trained on, after a look at the first examples of each."""
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
    """The message about tasks that cannot be trained on, and the way to train without them."""
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
    """The trained tasks that have a split, and their rates."""
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
    """The rates of tasks that are there; examples are counted where nothing says how many."""
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
    """The examples of a task's training split as its source gives them; at least one."""
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
