"""Batches of a mixture of tasks on the fly: the twin of pipeline.py for a data.task with members.

    batches = train_batches(data, vocabulary, seed=0)       # as pipeline.train_batches
    for task in members(data, vocabulary).present: ...      # each to be measured by itself

Every task gives its own examples, tokenised, trimmed and shuffled; for each place a task is drawn
at random by its rate, and what is drawn is packed together. It is what seqio.Mixture does
(tf.data.Dataset.sample_from_datasets), so that equal seeds draw the same.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t5x_lite.data.config import Data, lengths_of
from t5x_lite.data.encoder_tokens import tokens_of
from t5x_lite.data.mixtures import Member, Mixture, find_mixture, member_data
from t5x_lite.data.task_names import find_task
from t5x_lite.data.vocabulary import Vocabulary
from t5x_lite.errors import InputError

_EVAL_SEED = 42
"""seqio's, where nothing is shuffled."""
_PROCESS_SEED = 1 << 32


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
    from t5x_lite.data import pipeline

    mixture = find_mixture(data)
    if mixture is None:
        raise InputError(f"data.task {data.task!r} is one task and no mixture")
    present, absent = [], {}
    for member in mixture.members:
        alone = member_data(data, member)
        find_task(member.task)  # that there is no such task is not the data's fault
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


def _trained(
    data: Data, vocabulary: Vocabulary, *, seed: int, all_of_them: bool
) -> tuple[list[Present], list[float]]:
    """The tasks that are trained on, and their rates.

    Args:
      data: the data config.
      vocabulary: of inputs and targets.
      seed: of the randomness that belongs to single examples.
      all_of_them: whether one that is not there is refused, or left out.

    Raises:
      InputError: one of them is not there.
    """
    found = members(data, vocabulary, seed=seed)
    for member in found.mixture.members:
        if all_of_them and member.is_trained and member.name in found.absent:
            raise InputError(
                f"{found.absent[member.name]}; --data.mixing.leave-out {member.name} trains "
                "without it"
            )
    trained = [one for one in found.present if one.member.is_trained]
    alone = {one.member.name: one for one in trained}
    rates = found.mixture.rates(
        data.mixing,
        count=lambda m: _num_examples(alone[m.name]) if m.name in alone else 0,
    )
    by_name = dict(zip((m.name for m in found.mixture.members), rates, strict=True))
    return trained, [by_name[one.member.name] for one in trained]


def _num_examples(one: Present) -> int:
    """The examples of a task's training split as its source gives them; at least one."""
    from t5x_lite.data import pipeline

    pipeline.check_split(one.data, one.task, split="train")
    source = one.task.source.get_dataset(split="train", shuffle=False)
    known = int(source.cardinality())
    number = known if known >= 0 else sum(1 for _ in pipeline.as_numpy(source))
    if not number:
        where = f" in {one.data.directory}" if one.data.directory else ""
        raise InputError(f"data.task {one.data.task!r} found no example for split 'train'{where}")
    return number


def train_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Any:
    """Training batches of a mixture, repeated for ever, as `pipeline.train_batches` of a task.

    Args:
      data: the data config; its task is a mixture.
      vocabulary: of inputs and targets.
      seed: of shuffling, of what is drawn and of the corruption.
      process_index: this process, which reads its own part of every task's examples.
      process_count: processes in all; each gets batch_size / process_count rows.

    Returns:
      `batches.Batches` of int32 arrays [rows, length] under seqio's names.

    Raises:
      InputError: as `pipeline.train_batches`, of any of the tasks.
    """
    from t5x_lite.data.batches import Batches
    from t5x_lite.data.quiet_tensorflow import seqio

    if data.batch_size % process_count:
        raise InputError(
            f"data.batch_size {data.batch_size} cannot be divided among {process_count} processes"
        )
    trained, rates = _trained(
        data, vocabulary, seed=seed + process_index * _PROCESS_SEED, all_of_them=True
    )
    for one in trained:
        _num_examples(one)  # seqio would repeat a split without examples for ever
    rows = _rows(
        data,
        vocabulary,
        trained,
        rates,
        split="train",
        draw_seed=seed,
        shuffle=data.shuffle,
        shuffle_buffer_size=data.shuffle_buffer,
        seed=seed,
        shard_info=seqio.ShardInfo(process_index, process_count) if process_count > 1 else None,
        num_epochs=None,
    )
    dataset = rows.batch(data.batch_size // process_count, drop_remainder=True)
    identity = {
        "task": data.task,
        "members": [[one.member.task, rate] for one, rate in zip(trained, rates, strict=True)],
        "vocabulary": vocabulary.digest,
        "layout": data.layout,
        "batch_size": data.batch_size,
        "inputs_length": data.inputs_length,
        "targets_length": data.targets_length,
        "pack": data.pack,
        "shuffle": data.shuffle,
        "shuffle_buffer": data.shuffle_buffer,
        "seed": seed,
        "process_index": process_index,
        "process_count": process_count,
    }
    return Batches(dataset.prefetch(1), identity=identity)


def eval_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    split: str = "validation",
    max_batches: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Batches for a held-out loss, the same in every run: drawn at the rates of training.

    Tasks that are not there, or lack the split, are passed over; the batches end where a task would
    begin anew. The last one is filled up with rows of padding, whose loss weights are 0.

    Args:
      data: the data config; its task is a mixture.
      vocabulary: of inputs and targets.
      split: the tasks' split.
      max_batches: stop after so many; None reads all.

    Raises:
      InputError: as `train_batches`, or no task that is trained on has the split.
    """
    from t5x_lite.data import pipeline

    trained, rates = _trained(data, vocabulary, seed=0, all_of_them=False)
    pairs = [
        (one, rate)
        for one, rate in zip(trained, rates, strict=True)
        if split in one.task.splits and _is_there(one, split)
    ]
    if not pairs:
        raise InputError(f"no trained task of the mixture {data.task!r} has a split {split!r}")
    chosen, chosen_rates = [one for one, _ in pairs], [rate for _, rate in pairs]
    rows = _rows(
        data,
        vocabulary,
        chosen,
        chosen_rates,
        split=split,
        draw_seed=_EVAL_SEED,
        shuffle=False,
        num_epochs=1,
    )
    found = pipeline.padded(pipeline.as_numpy(rows.batch(data.batch_size)), data, vocabulary)
    batches = itertools.islice(found, max_batches)
    first = next(batches, None)
    if first is None:
        raise InputError(f"the mixture {data.task!r} found no example for split {split!r}")
    return itertools.chain([first], batches)


def _is_there(one: Present, split: str) -> bool:
    """Whether the files of a split are there."""
    try:
        one.task.source.get_dataset(split=split, shuffle=False)
    except InputError as error:
        if is_absent(error):
            return False
        raise
    return True


def _rows(
    data: Data,
    vocabulary: Vocabulary,
    tasks: Sequence[Present],
    rates: Sequence[float],
    *,
    split: str,
    draw_seed: int,
    **options: Any,
) -> Any:
    """The examples of all tasks, drawn and laid out as rows of model features."""
    from t5x_lite.data import pipeline
    from t5x_lite.data.layouts import feature_converter
    from t5x_lite.data.quiet_tensorflow import tf

    lengths = lengths_of(data)
    features = {tuple(one.task.output_features) for one in tasks}
    if len(features) > 1:
        raise InputError(
            f"the tasks of the mixture {data.task!r} have different features: "
            f"{' and '.join(sorted(map(str, features)))}"
        )
    (names,) = features

    def of(task: Any) -> Any:
        dataset = task.get_dataset(
            sequence_length=lengths, split=split, try_in_mem_cache=False, **options
        )
        return dataset.map(lambda example: {name: example[name] for name in names})

    # In seqio's order, so that a seed draws what it draws there.
    pairs = sorted(zip(tasks, rates, strict=True), key=lambda pair: pair[0].task.name)
    drawn = tf.data.Dataset.sample_from_datasets(
        [of(one.task) for one, _ in pairs],
        weights=[rate for _, rate in pairs],
        seed=draw_seed,
        stop_on_empty_dataset=True,
    )
    tokens = tokens_of(data.layout, vocabulary)
    convert = feature_converter(data.layout, pack=data.pack, tokens=tokens)
    return pipeline.deterministic(convert(drawn, lengths))
