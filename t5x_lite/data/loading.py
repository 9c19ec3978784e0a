"""Loading of the seqio tasks that a data config names, and datasets of their examples.

    task = load_task(data, vocabulary, seed=0)          # a seqio.Task
    examples_of(data, task, split="validation")         # its examples as NumPy values, in order

Training can repeat the first documents or tokens of a task (Raffel et al. 2020, table 9):

    data = Data(task="tasks.c4:iid_15_u_u", first_tokens=2**23, ...)
    task = truncated(data, load_task(data, vocabulary, seed=0), seed=0)

Documents are the raw examples of the source. Tokens are counted before corruption, at the task's
CacheDatasetPlaceholder: the first examples are used, as long as their total does not exceed the
limit. A cache of the task begins with the same examples. Splits other than "train" are not
truncated.

If data.task is a mixture, the tasks with available data are read, at the mixture's rates:

    found = members(data, vocabulary)       # found.present: tasks; found.absent: reasons, by name
    trained_members(data, vocabulary)       # tasks to train on; an error names all missing ones
    rates_of(data, trained, anew=True)      # [1.0] of one task
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.data import elements
from t5x_lite.data.config import Data, TaskArguments, trimmed_lengths, wording_of
from t5x_lite.data.elements import as_numpy, deterministic, seqio, tf
from t5x_lite.data.mixtures import Member, Mixture, find_mixture, member_data
from t5x_lite.data.tasks import stages
from t5x_lite.data.tasks.names import OtherVocabulary, find_task, is_marked, other_tasks
from t5x_lite.data.tasks.stages import augmented
from t5x_lite.data.vocabularies import encoder_tokens
from t5x_lite.data.vocabularies.loading import Vocabulary

_logger = logging.getLogger(__name__)


def load_task(data: Data, vocabulary: Vocabulary, *, seed: int = 0) -> seqio.Task:
    """Build the seqio task that data.task names as "module:function"."""
    function = find_task(data.task)
    ending = _ending(data, vocabulary)
    arguments = TaskArguments(
        vocabulary=vocabulary,
        directory=data.directory,
        # A task reserves one token for EOS.
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
    except (AttributeError, TypeError) as error:  # for example from a function that is not a task
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"data.task {data.task!r} failed ({what}); a task function takes TaskArguments and "
            f"returns a seqio.Task{other_tasks(data.task)}"
        ) from error
    if not isinstance(task, seqio.Task):
        raise InputError(
            f"data.task {data.task!r} must return a seqio.Task, but returned "
            f"{type(task).__name__}{other_tasks(data.task)}"
        )
    if data.languages and not getattr(task.source, "language", ""):
        raise InputError(
            f"data.languages is for unlabelled text, but data.task {data.task!r} has no "
            "languages; unset data.languages"
        )
    words = wording_of(data)
    if words and not is_marked(task):
        raise InputError(
            f"data.{' and data.'.join(words)} cannot be set, because data.task {data.task!r} does "
            f"not use a template with data.layout {data.layout.name}"
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
    ending = data.layout.ending(vocabulary, length=data.inputs_length)
    return () if ending == (vocabulary.eos_id,) else ending


def task_metrics(task: seqio.Task) -> tuple[Callable[..., Any], list[Callable[..., Any]]]:
    """Return the task's postprocessing function and its list of metric functions."""
    return task.postprocess_fn, list(task.predict_metric_fns)


def task_labels(task: seqio.Task) -> tuple[str, ...] | None:
    """Return all possible answers of a task for rank classification, or None for free text.

    The possible answers are the attribute `labels` of the task's postprocess_fn.
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
) -> None:
    """Raise InputError if a split is empty, and warn of unknown tokens in its first examples."""
    examples = examples_of(data, task, split=split)
    if vocabulary is not None:
        encoder_tokens.tell(name, examples, vocabulary)


def check_split(data: Data, task: seqio.Task, *, split: str) -> None:
    """Raise InputError if a task lacks a split."""
    if split not in task.splits:
        there = ", ".join(task.splits)
        raise InputError(f"data.task {data.task!r} has no split {split!r}; its splits are {there}")


def no_example(data: Data, *, split: str) -> InputError:
    """Return the error to raise for a split without examples."""
    where = f" in {data.directory}" if data.directory else ""
    hint = (
        ""
        if split == "train"
        else (
            "; --evaluation.split chooses another, and --evaluation.loss False trains without one"
        )
    )
    return InputError(f"data.task {data.task!r} found no example for split {split!r}{where}{hint}")


def examples_of(data: Data, task: seqio.Task, *, split: str) -> Iterator[dict[str, Any]]:
    """Return the examples of a split in order, as NumPy values; raise InputError if none exist."""
    check_split(data, task, split=split)
    dataset = deterministic(dataset_of(data, task, split=split, shuffle=False))
    examples = as_numpy(dataset)
    for first in examples:
        return itertools.chain([first], examples)
    raise no_example(data, split=split)


def dataset_of(data: Data, task: seqio.Task, *, split: str, **options) -> tf.data.Dataset:
    """Return the dataset of a task's preprocessed examples, trimmed to the config's lengths."""
    return task.get_dataset(
        sequence_length=trimmed_lengths(data), split=split, try_in_mem_cache=False, **options
    )


def truncated(data: Data, task: seqio.Task, *, seed: int) -> seqio.Task:
    """Limit a task to its first examples if data.first_documents or data.first_tokens is set."""
    if "train" not in task.splits:
        return task
    if data.first_documents is not None:
        return _first_documents(task, data.first_documents)
    if data.first_tokens is not None:
        return _first_tokens(data, task, data.first_tokens, seed=seed)
    return task


def _first_documents(task: seqio.Task, number: int) -> seqio.Task:
    source = task.source

    def examples(split: str) -> tf.data.Dataset:
        whole = source.get_dataset(split, shuffle=False)
        return whole.take(number) if split == "train" else whole

    one_to_one = isinstance(source, stages.Source) and source.one_to_one
    return task.replace(source=stages.source(task.splits, examples, one_to_one=one_to_one))


def _first_tokens(data: Data, task: seqio.Task, number: int, *, seed: int) -> seqio.Task:
    steps = list(task.preprocessors)
    places = [i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]
    spec: Any = stages.stored(task, "train", seed=seed).element_spec
    known = ("tokens", *task.output_features)
    names = [
        name
        for name, one in (spec.items() if places and isinstance(spec, Mapping) else ())
        if name in known and one.dtype.is_integer and one.shape.rank == 1
    ]
    if not names:
        raise InputError(
            "data.first_tokens requires a seqio CacheDatasetPlaceholder after the tokenization, "
            f"but data.task {data.task!r} has none; add it to the task, or set "
            "--data.first-documents"
        )

    def examples(split: str) -> tf.data.Dataset:
        found = stages.stored(task, split, seed=seed)
        found = found.map(lambda example: {k: example[k] for k in example if k != "index"})
        return _no_more_tokens(found, names, number) if split == "train" else found

    for _ in as_numpy(examples("train").take(1)):
        break
    else:
        raise InputError(
            f"data.first_tokens {number} is less than the number of tokens of the first training "
            "example"
        )
    numbered = [stages.number] if "index" in spec else []
    return task.replace(
        source=stages.source(task.splits, examples, one_to_one=True),
        preprocessors=[*numbered, *steps[places[0] :]],
    )


def _no_more_tokens(dataset: tf.data.Dataset, names: Sequence[str], number: int) -> tf.data.Dataset:
    """Return the first examples of a dataset, up to a total number of tokens."""

    @tf.autograph.experimental.do_not_convert
    def step(before: Any, example: Any) -> Any:
        tokens = tf.add_n([tf.size(example[name], tf.int64) for name in names])
        return before + tokens, (before + tokens, example)

    counted: Any = dataset.scan(tf.constant(0, tf.int64), step)
    return counted.take_while(lambda total, _: total <= number).map(lambda _, example: example)


_counted: dict[str, int] = {}
"""Number of training examples by task, cached because held-out losses need it again."""


@dataclass(frozen=True, kw_only=True)
class Present:
    """Task of a mixture, loaded because its data are available.

    Attributes:
      member: entry of the task in the mixture, with its rate.
      data: config that reads only this task.
      task: the seqio.Task.
    """

    member: Member
    data: Data
    task: Any


@dataclass(frozen=True, kw_only=True)
class Members:
    """Tasks of a mixture, divided into tasks with data and tasks without data.

    Attributes:
      mixture: the mixture with all tasks.
      present: tasks with available data, in the mixture's order.
      absent: reason why data are missing, by name of each task without data.
    """

    mixture: Mixture
    present: tuple[Present, ...]
    absent: dict[str, str]


def members(data: Data, vocabulary: Vocabulary, *, seed: int = 0) -> Members:
    """Load the tasks of the mixture in data.task, and note the tasks without data."""
    mixture = find_mixture(data)
    if mixture is None:
        raise InputError(f"data.task {data.task!r} is a single task, but must be a mixture")
    present, absent = [], {}
    for member in mixture.members:
        alone = member_data(data, member)
        find_task(member.task)  # an unknown task is an error, not missing data
        if reason := mixture.unanswered(member):
            absent[member.name] = reason
            continue
        try:
            task = load_task(alone, vocabulary, seed=seed)
        except OtherVocabulary:
            raise
        except InputError as error:  # files are searched when a task is built, and read later
            absent[member.name] = str(error)
            continue
        present.append(Present(member=member, data=alone, task=task))
    if not present:
        name, reason = next(iter(absent.items()))
        raise InputError(
            f"no task of the mixture {data.task} has data; for example, task {name}: {reason}"
        )
    return Members(mixture=mixture, present=tuple(present), absent=absent)


def is_absent(error: BaseException | None) -> bool:
    """Return True if the cause of an error is a missing file."""
    missing = (FileNotFoundError, tf.errors.NotFoundError)
    while error is not None and not isinstance(error, missing):
        error = error.__cause__
    return error is not None


def trained_members(
    data: Data,
    vocabulary: Vocabulary,
    *,
    seed: int = 0,
    tells: bool = False,
) -> list[Present]:
    """Load the tasks to train on; raise InputError if data of a task are missing."""
    if find_mixture(data) is None:
        task = truncated(data, load_task(data, vocabulary, seed=seed), seed=seed)
        told = vocabulary if tells else None
        look_at(data, task, told, name=task.name)
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
    option = f"--data.mixing.leave-out {' '.join([*data.mixing.leave_out, *names])}"
    if len(names) == 1:
        return f"{reason}; {option} trains without it"
    return (
        f"{len(names)} tasks of {data.task} have no data: {', '.join(names)}; the first: "
        f"{reason}; {option} trains without them"
    )


def held_out_members(
    data: Data, vocabulary: Vocabulary, *, split: str
) -> tuple[list[Present], list[float]]:
    """Load the mixture's tasks that have data for a split; return them with their mixture rates."""
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
        raise InputError(f"no task that the mixture {data.task!r} trains on has a split {split!r}")
    return [one for one, _ in pairs], [rate for _, rate in pairs]


def _is_there(one: Present, split: str) -> bool:
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
    """Return the sampling rate of each task that a mixture trains on."""
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
    for member in mixture.constants(data.mixing):
        _logger.info(
            "data.mixing.maximum and data.mixing.temperature do not change the constant rate of "
            "task %s, which is %s",
            member.name,
            f"{member.rate:,.10g}",
        )


def _num_examples(one: Present, *, at_most: int | None) -> int:
    """Count the examples of a task's training split; raise InputError if it is empty."""
    check_split(one.data, one.task, split="train")
    source = one.task.source.get_dataset(split="train", shuffle=False)
    number = int(source.cardinality())
    if number < 0:
        _logger.info(
            "counting the examples of task %s, because the mixture does not define their number",
            one.member.name,
        )
        number = sum(1 for _ in itertools.islice(elements.as_numpy(source), at_most))
    if not number:
        where = f" in {one.data.directory}" if one.data.directory else ""
        raise InputError(f"data.task {one.data.task!r} found no example for split 'train'{where}")
    return number
